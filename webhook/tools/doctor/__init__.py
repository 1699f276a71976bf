"""The checks of `gpu-admission doctor`: whether the installation in a cluster is as it should be, and how to correct it."""
