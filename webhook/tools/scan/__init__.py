"""The pods and workloads that run in a cluster, evaluated as if they were created now; and a configuration to begin with."""
