"""The controller: reconciles quotas, certificates and the status of documents, and runs the canary."""
