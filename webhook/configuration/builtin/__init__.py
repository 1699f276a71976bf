"""Documents that ship with the webhook: the GPU classes and the resource mapping. Nothing in them is special; they are only first."""
