"""Documents that ship with the webhook: the GPU classes and the resource mapping. They come first, and are like any other."""
