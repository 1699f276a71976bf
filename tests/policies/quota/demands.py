"""Pods that ask for GPUs of a class."""

from typing import Any

from tests.builders import JSON, container, node_affinity, pod

A100, T4, H100 = "nvidia-a100-80gb", "nvidia-t4", "nvidia-h100"


def on(gpu_class: str, *containers: JSON, **more: Any) -> JSON:
    return pod(*containers, nodeSelector={"accelerator": gpu_class}, **more)


def asking(name: str = "main", **amounts: str) -> JSON:
    """Return a container with several resources of NVIDIA's prefix: `gpu="1", gpumem="8000"`."""
    limits = {f"nvidia.com/{key.replace('_', '-')}": amount for key, amount in amounts.items()}
    return container(name, resources={"limits": limits})


def affinity(*values: str) -> JSON:
    return node_affinity([("accelerator", "In", *values)])


GPU = "resources/nvidia.com/gpu"
