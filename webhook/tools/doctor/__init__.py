"""Is this cluster's installation what it should be, and if not, what is to be done: the checks of `gpu-admission doctor`."""
