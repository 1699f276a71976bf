"""A ResourceClaimTemplate at /validate: always let in, with a warning where its claims would never be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import JSON
from tests.webhook.quota.test_admission import POLICY, QUOTA, Served, claim

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
def test_warnings(
    serve: Callable[..., Served], document: JSON, rule: str, tweaks: Any, want: tuple[str, ...] | None
) -> None:
    served = serve(rule)
    response = served.validate(document, kind=TEMPLATE, **tweaks)

    assert (response.allowed, response.warnings) == (True, want)
    assert served.held() == []


def test_a_quota_that_cannot_be_asked_is_no_obstacle(serve: Callable[..., Served]) -> None:
    response = serve(broken=True).validate(template(3), kind=TEMPLATE)

    assert (response.allowed, response.warnings) == (True, None)
