"""Kinds that are always admitted: warnings of claims that could never be created, and of quota keys that limit nothing."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.builders import JSON
from tests.webhook.quota.test_admission import POLICY, QUOTA, Served, claim
from tests.webhook.serving.served import admission, request

TEMPLATE = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}
WARNING = (
    "spec.spec.devices.requests: request fewer devices; no claim of this template can ever fit the quota, "
    "requested: gpus=3, limited: gpus=2 [gpu-quota]"
)


def template(count: int, device_class: str = "gpu.nvidia.com") -> JSON:
    return {"metadata": {"name": "cards"}, "spec": {"spec": claim("", device_class, count)["spec"]}}


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Served]:
    def make(rule: str = "{}", *, broken: bool = False) -> Served:
        (tmp_path / "policy.yaml").write_text(POLICY.replace("RULE", rule) + "---" + QUOTA)
        return Served(tmp_path, broken=broken)

    return make


QUOTA_KIND = {"group": "", "version": "v1", "kind": "ResourceQuota"}
SILENT = {"spec": {"hard": {"nvidia.com/gpu": "4"}}}
NO_EFFECT = (
    "spec.hard[nvidia.com/gpu]: set requests.nvidia.com/gpu; has no effect: a ResourceQuota counts only requests "
    "of extended resources [resource-quota]"
)


@pytest.mark.parametrize(
    ("document", "tweaks", "want"),
    [
        pytest.param(SILENT, {}, (NO_EFFECT,), id="created"),
        pytest.param(SILENT, {"operation": "UPDATE"}, (NO_EFFECT,), id="applied-again"),
        pytest.param(SILENT, {"subResource": "status"}, None, id="its-status-is-the-controllers"),
        pytest.param({"spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}, {}, None, id="enforced"),
        pytest.param({"spec": None}, {}, None, id="empty"),
        pytest.param({"spec": {"hard": None}}, {}, None, id="no-keys"),
        pytest.param({"spec": {"hard": 3}}, {}, None, id="unreadable-is-the-api-servers-to-refuse"),
    ],
)
def test_resource_quotas(document: JSON, tweaks: dict[str, Any], want: tuple[str, ...] | None) -> None:
    response = admission().validate(request(document, kind=QUOTA_KIND, **tweaks), monotonic() + 20)

    assert (response.allowed, response.warnings) == (True, want)


@pytest.mark.parametrize(
    ("document", "rule", "tweaks", "want"),
    [
        pytest.param(template(3), "{}", {}, (WARNING,), id="never-fits"),
        pytest.param(template(2), "{}", {}, None, id="may-fit"),
        pytest.param(template(3, "dra.net"), "{}", {}, None, id="no-gpus"),
        pytest.param(template(3), "{mode: audit}", {}, (WARNING,), id="advice-in-every-mode"),
        pytest.param(template(3), "{mode: disabled}", {}, None, id="no-quota-holds"),
        pytest.param(template(3), "{}", {"namespace": "elsewhere"}, None, id="no-quota"),
        pytest.param(template(3), "{}", {"operation": "DELETE"}, None, id="deleted"),
        pytest.param({"spec": {"spec": 3}}, "{}", {}, None, id="unreadable-is-the-api-servers-to-refuse"),
    ],
)
def test_claim_templates(
    serve: Callable[..., Served], document: JSON, rule: str, tweaks: Any, want: tuple[str, ...] | None
) -> None:
    served = serve(rule)
    response = served.validate(document, kind=TEMPLATE, **tweaks)

    assert (response.allowed, response.warnings) == (True, want)
    assert served.held() == []


def test_a_quota_that_cannot_be_asked_is_no_obstacle(serve: Callable[..., Served]) -> None:
    response = serve(broken=True).validate(template(3), kind=TEMPLATE)

    assert (response.allowed, response.warnings) == (True, None)
