"""The canary: a pod that is sent as a dry run, and the trace that shows which webhooks were called."""
