"""What `gpu-admission usage` makes of audit logs."""
