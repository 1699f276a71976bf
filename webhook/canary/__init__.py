"""A GPU pod that is never stored, sent through the real API server to prove that the webhook is called and obeyed."""
