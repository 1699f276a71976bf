"""The backstop: policies of the API server itself (CEL) made from the same documents, for while the webhook is away."""
