"""What people create and change while the webhook is away."""

from typing import Any

from tests.builders import JSON
from tests.controlplane.gpuquota import FILES
from tests.yaml_files import load_yaml

GPU = {"limits": {"nvidia.com/gpu": "1"}}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security asks in our own namespace."""


def pod(name: str = "", *, gpu: bool, **metadata: Any) -> JSON:
    container = {"name": "main", "image": "any", "securityContext": RESTRICTED}
    container |= {"resources": GPU} if gpu else {}
    named = {"name": name} if name else {"generateName": "pod-"}
    return {"metadata": {**named, **metadata}, "spec": {"containers": [container]}}


def _template(**spec: str) -> JSON:
    containers = pod(gpu=True)["spec"]["containers"]
    return {"metadata": {"labels": {"app": "training"}}, "spec": {"containers": containers, **spec}}


DEPLOYMENT = {
    "metadata": {"name": "serving"},
    "spec": {"selector": {"matchLabels": {"app": "training"}}, "template": _template()},
}
_ONCE = _template(restartPolicy="Never")
JOB = {"metadata": {"name": "training"}, "spec": {"template": _ONCE}}
CRON_JOB = {
    "metadata": {"name": "nightly"},
    "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": _ONCE}}},
}
RESOURCE_QUOTA = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "8"}}}

OURS: dict[str, JSON] = {
    "clustergpuquotas": {
        "metadata": {"name": "team"},
        "spec": {"namespaces": {"names": ["team-*"]}, "hard": {"gpus": "8"}},
    },
    "gpuquotas": {"metadata": {"name": "default"}, "spec": {"hard": {"gpus": "8"}}},
    "gpuquotaledgers": {"metadata": {"name": "of-a-team"}, "ledger": "{}"},
    "gpupolicies": {"metadata": {"name": "default"}, "spec": {"rules": {"gpu-quota": {"mode": "audit"}}}},
    "gpuclasses": {"metadata": {"name": "acme-x1"}, "spec": {"family": "acme-x1", "memoryGiB": 80}},
    "gpuresourcemappings": {"metadata": {"name": "acme"}, "spec": {}},
}
"""One of each of our kinds, by the plural under which the API server serves it."""

DEFINITIONS: dict[str, JSON] = {path.stem: load_yaml(path) for path in sorted(FILES.glob("*.yaml"))}
"""The CustomResourceDefinitions of the chart, by their plurals."""
