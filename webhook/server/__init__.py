"""The HTTP server, with TLS: runs an application so that no stalled, idle or hostile connection takes a thread away."""
