"""Why a pod, or the pods of a workload, are denied or do not run: `gpu-admission why`."""
