"""The rules as admission policies of the API server itself (CEL), from the same documents, for while the webhook is away."""
