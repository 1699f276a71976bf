"""The TLS edge: runs any WSGI callable so that no stalled, idle or hostile connection takes a thread away."""
