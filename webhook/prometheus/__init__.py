"""Prometheus: a client of its HTTP API, and the series that the recording rules of the chart write."""
