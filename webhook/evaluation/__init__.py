"""Decisions: the rules of a policy run over a pod, a claim or a workload, and what its quota says of it."""
