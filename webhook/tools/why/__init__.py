"""Why a pod, or the pods of a workload, are refused or do not run: `gpu-admission why`."""
