"""Prometheus: a client of its HTTP API, and what exporters of GPUs write there."""
