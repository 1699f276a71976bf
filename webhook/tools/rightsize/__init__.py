"""Workloads that would fit fewer GPUs, a MIG slice or a smaller class, by the peaks that Prometheus has of them."""
