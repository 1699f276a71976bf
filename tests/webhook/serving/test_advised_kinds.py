"""Kinds that are always admitted: warnings of claims that could never be created, and of quota keys that limit nothing."""

from time import monotonic
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.quota.test_admission import Served, claim
from tests.webhook.serving.served import admission, request

TEMPLATE = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}
WARNING = (
    "ResourceClaimTemplate team/cards: spec.spec.devices.requests: request fewer devices; no claim of this template "
    "can ever fit the quota, "
    "requested: gpus=3, limited: gpus=2 [gpu-quota]"
)


def template(count: int, device_class: str = "gpu.nvidia.com") -> JSON:
    return {"metadata": {"name": "cards"}, "spec": {"spec": claim("", device_class, count)["spec"]}}


QUOTA_KIND = {"group": "", "version": "v1", "kind": "ResourceQuota"}
SILENT = {"spec": {"hard": {"nvidia.com/gpu": "4"}}}
NO_EFFECT = (
    "ResourceQuota ml-training/: spec.hard[nvidia.com/gpu]: set requests.nvidia.com/gpu; has no effect: a "
    "ResourceQuota counts only requests "
    "of extended resources [resource-quota]"
)


@cases(
    ("document", "tweaks", "want"),
    created=(SILENT, {}, (NO_EFFECT,)),
    applied_again=(SILENT, {"operation": "UPDATE"}, (NO_EFFECT,)),
    its_status_is_the_controllers=(SILENT, {"subResource": "status"}, None),
    enforced=({"spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}, {}, None),
    empty=({"spec": None}, {}, None),
    no_keys=({"spec": {"hard": None}}, {}, None),
    unreadable_is_the_api_servers_to_refuse=({"spec": {"hard": 3}}, {}, None),
)
def test_resource_quotas(document: JSON, tweaks: dict[str, Any], want: tuple[str, ...] | None) -> None:
    response = admission().validate(request(document, kind=QUOTA_KIND, **tweaks), monotonic() + 20)

    assert (response.allowed, response.warnings) == (True, want)


@cases(
    ("document", "mode", "tweaks", "want"),
    never_fits=(template(3), "enforce", {}, (WARNING,)),
    may_fit=(template(2), "enforce", {}, None),
    no_gpus=(template(3, "dra.net"), "enforce", {}, None),
    advice_in_every_mode=(template(3), "audit", {}, (WARNING,)),
    no_quota_holds=(template(3), "disabled", {}, None),
    no_quota=(template(3), "enforce", {"namespace": "elsewhere"}, None),
    deleted=(template(3), "enforce", {"operation": "DELETE"}, None),
    unreadable_is_the_api_servers_to_refuse=({"spec": {"spec": 3}}, "enforce", {}, None),
)
def test_claim_templates(document: JSON, mode: str, tweaks: Any, want: tuple[str, ...] | None) -> None:
    served = Served(mode)
    response = served.validate(document, kind=TEMPLATE, **tweaks)

    assert (response.allowed, response.warnings) == (True, want)
    assert served.held() == []
