"""Deployments, Jobs and other owners of pods that wait."""

from typing import Any

from tests.cluster.waiting.machines import TOLERATIONS


def template(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"containers": [container], "tolerations": TOLERATIONS, **spec}
    return {"metadata": {"labels": {"app": name}}, "spec": pod}


def server(kind: str, name: str, replicas: int, **spec: Any) -> dict[str, Any]:
    """Return a Deployment or StatefulSet."""
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": replicas, "selector": selector, "template": template(name), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(name: str, **spec: Any) -> dict[str, Any]:
    spec = {"template": template(name, restartPolicy="Never"), **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
