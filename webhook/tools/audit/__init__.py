"""Reads audit logs, and adds up GPU-hours for `gpu-admission usage`."""
