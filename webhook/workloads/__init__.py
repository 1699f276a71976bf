"""Workloads: the kinds that create pods, and the pods in their objects."""
