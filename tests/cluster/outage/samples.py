"""What people create and change while the webhook is away."""

from typing import Any

import yaml

from tests.builders import JSON
from tests.controlplane.webhook import ROOT

GPU = {"limits": {"nvidia.com/gpu": "1"}}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security asks in our own namespace."""


def pod(name: str = "", *, gpu: bool, **metadata: Any) -> JSON:
    container = {
        "name": "main",
        "image": "any",
        "securityContext": RESTRICTED,
        **({"resources": GPU} if gpu else {}),
    }
    named = {"name": name} if name else {"generateName": "pod-"}
    return {"metadata": {**named, **metadata}, "spec": {"containers": [container]}}


def _template() -> JSON:
    return {
        "metadata": {"labels": {"app": "training"}},
        "spec": {"containers": pod(gpu=True)["spec"]["containers"], "restartPolicy": "Never"},
    }


def _long_running() -> JSON:
    template = _template()
    template["spec"].pop("restartPolicy")
    return template


DEPLOYMENT = {
    "metadata": {"name": "serving"},
    "spec": {"selector": {"matchLabels": {"app": "training"}}, "template": _long_running()},
}
JOB = {"metadata": {"name": "training"}, "spec": {"template": _template()}}
CRON_JOB = {
    "metadata": {"name": "nightly"},
    "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": _template()}}},
}
RESOURCE_QUOTA = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "8"}}}

OURS: dict[str, JSON] = {
    "gpuquotas": {"metadata": {"name": "default"}, "spec": {"hard": {"gpus": "8"}}},
    "gpuquotaledgers": {"metadata": {"name": "of-a-team"}, "ledger": "{}"},
    "gpupolicies": {"metadata": {"name": "default"}, "spec": {"rules": {"gpu-quota": {"mode": "audit"}}}},
    "gpuclasses": {"metadata": {"name": "acme-x1"}, "spec": {"family": "acme-x1", "memoryGiB": 80}},
    "gpuresourcemappings": {"metadata": {"name": "acme"}, "spec": {}},
}
"""One of each of our kinds, by the plural under which the API server serves it."""


def definitions() -> dict[str, JSON]:
    """Return the CustomResourceDefinitions that deploy/ holds, by their plurals; those in a rendered file are the same."""
    found: dict[str, JSON] = {}
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        text = path.read_text()
        if "kind: CustomResourceDefinition" in text and "{{" not in text:
            for document in yaml.safe_load_all(text):
                if document["kind"] == "CustomResourceDefinition":
                    found.setdefault(document["spec"]["names"]["plural"], document)
    return found
