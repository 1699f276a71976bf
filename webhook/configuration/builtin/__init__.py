"""Documents that ship with the webhook: the GPU classes and the vocabulary. Nothing in them is special; they are only first."""
