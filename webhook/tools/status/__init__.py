"""The GPUs, quotas and installation of a cluster, as they are now, for `status`, `classes`, `why` and `console`."""
