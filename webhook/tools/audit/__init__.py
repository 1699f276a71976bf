"""What `gpu-admission usage` and `replay` make of audit logs."""
