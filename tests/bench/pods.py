"""The two pods that every comparison creates: a model server on a GPU, and its twin without."""

from typing import Any

JSON = dict[str, Any]

GPU = "nvidia.com/gpu"
CLASS_LABEL, CLASS = "accelerator", "nvidia-a100-80gb"


def model_server(name: str, *, gpus: int) -> JSON:
    """Return a pod as its author writes it; what nobody writes is left to the API server's defaults."""
    limits = {"cpu": "4", "memory": "16Gi", **({GPU: str(gpus)} if gpus else {})}
    container = {
        "name": "server",
        "image": "registry.example/model-server:1.4.2",
        "args": ["--model=/models/llama", "--port=8080"],
        "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "WORKERS", "value": "4"}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "resources": {"requests": {"cpu": "2", "memory": "16Gi"}, "limits": limits},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "model-server", "team": "search"}},
        "spec": {"containers": [container], "volumes": [{"name": "models", "emptyDir": {}}]},
    }


def is_placed(pod: JSON) -> bool:
    """Whether the pod got what both contenders inject: the toleration and the node selector."""
    spec = pod["spec"]
    tolerated = {toleration.get("key") for toleration in spec.get("tolerations", ())}
    return GPU in tolerated and CLASS_LABEL in spec.get("nodeSelector", {})
