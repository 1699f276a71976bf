"""The canary: the pod that is sent as a dry run, and the trace by which the webhook says that it was called."""
