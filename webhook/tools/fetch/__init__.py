"""What `gpu-admission fetch-model` does: bring one model into a directory, once, for all pods that share it."""
