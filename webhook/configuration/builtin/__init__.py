"""Documents that ship with the webhook: GPU classes and the resource mapping. They are ordinary documents, read first."""
