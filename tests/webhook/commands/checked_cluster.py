"""What an API server answers to `gpu-admission check`."""

from typing import Any

from tests.builders import JSON
from tests.webhook.cluster.apiserver import status

GROUP = "/apis/gpu-admission.dev/v1alpha1"
POD_KINDS = {
    "items": [
        {
            "metadata": {},
            "versions": [
                {
                    "version": "v1",
                    "resources": [{"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced"}],
                }
            ],
        }
    ]
}  # fmt: skip


def policy(match: JSON, **rules: Any) -> JSON:
    return {"metadata": {"name": "p", "uid": "1"}, "spec": {"match": match, "rules": rules}}


def cluster(**objects: Any) -> dict[str, Any]:
    """Return what the API server has: no documents, no nodes, namespaces without labels of their own."""
    return {
        **{f"{GROUP}/{plural}": [] for plural in ("gpupolicies", "gpuclasses", "gpuresourcemappings")},
        "/api/v1/nodes": [],
        "/apis/karpenter.sh": {"versions": []},
        "/apis/resource.k8s.io": {"versions": []},
        "/api/v1/namespaces/ml": {"metadata": {"name": "ml", "labels": {"team": "a"}}},
        "/api": POD_KINDS,
        "/apis": {"items": []},
        "/version": {"gitVersion": "v1.37.2"},
        **{path.replace("__", "/"): found for path, found in objects.items()},
    }


FORBIDDEN = status(403, "no", "Forbidden")

POLICIES, QUOTA = f"{GROUP}/gpupolicies", f"{GROUP}/namespaces/ml/gpuquotas/default"
