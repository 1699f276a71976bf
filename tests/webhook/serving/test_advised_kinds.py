"""Kinds that are always admitted: warnings of claims that could never be created, and of quota keys that limit nothing."""

from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.quota.test_admission import Serve, Served, claim
from tests.webhook.serving.served import admission, request

TEMPLATE = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}
WARNING = (
    "spec.spec.devices.requests: request fewer devices; no claim of this template can ever fit the quota, "
    "requested: gpus=3, limited: gpus=2 [gpu-quota]"
)


def template(count: int, device_class: str = "gpu.nvidia.com") -> JSON:
    return {"metadata": {"name": "cards"}, "spec": {"spec": claim("", device_class, count)["spec"]}}


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return partial(Served, tmp_path)


QUOTA_KIND = {"group": "", "version": "v1", "kind": "ResourceQuota"}
SILENT = {"spec": {"hard": {"nvidia.com/gpu": "4"}}}
NO_EFFECT = (
    "spec.hard[nvidia.com/gpu]: set requests.nvidia.com/gpu; has no effect: a ResourceQuota counts only requests "
    "of extended resources [resource-quota]"
)


@cases(
    ("document", "tweaks", "want"),
    {
        "created": (SILENT, {}, (NO_EFFECT,)),
        "applied-again": (SILENT, {"operation": "UPDATE"}, (NO_EFFECT,)),
        "its-status-is-the-controllers": (SILENT, {"subResource": "status"}, None),
        "enforced": ({"spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}, {}, None),
        "empty": ({"spec": None}, {}, None),
        "no-keys": ({"spec": {"hard": None}}, {}, None),
        "unreadable-is-the-api-servers-to-refuse": ({"spec": {"hard": 3}}, {}, None),
    },
)
def test_resource_quotas(document: JSON, tweaks: dict[str, Any], want: tuple[str, ...] | None) -> None:
    response = admission().validate(request(document, kind=QUOTA_KIND, **tweaks), monotonic() + 20)

    assert (response.allowed, response.warnings) == (True, want)


@cases(
    ("document", "rule", "tweaks", "want"),
    {
        "never-fits": (template(3), "{}", {}, (WARNING,)),
        "may-fit": (template(2), "{}", {}, None),
        "no-gpus": (template(3, "dra.net"), "{}", {}, None),
        "advice-in-every-mode": (template(3), "{mode: audit}", {}, (WARNING,)),
        "no-quota-holds": (template(3), "{mode: disabled}", {}, None),
        "no-quota": (template(3), "{}", {"namespace": "elsewhere"}, None),
        "deleted": (template(3), "{}", {"operation": "DELETE"}, None),
        "unreadable-is-the-api-servers-to-refuse": ({"spec": {"spec": 3}}, "{}", {}, None),
    },
)
def test_claim_templates(
    serve: Serve, document: JSON, rule: str, tweaks: Any, want: tuple[str, ...] | None
) -> None:
    served = serve(rule)
    response = served.validate(document, kind=TEMPLATE, **tweaks)

    assert (response.allowed, response.warnings) == (True, want)
    assert served.held() == []


def test_a_quota_that_cannot_be_asked_is_no_obstacle(serve: Serve) -> None:
    response = serve(broken=True).validate(template(3), kind=TEMPLATE)

    assert (response.allowed, response.warnings) == (True, None)
