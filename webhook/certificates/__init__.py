"""Certificates that live in a Secret of the cluster: what `certs` decides, done through the API server."""
