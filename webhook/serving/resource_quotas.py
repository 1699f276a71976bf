"""The API server's own ResourceQuota, as far as we have something to say about it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.finding import Finding
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.spec import resource_quota_findings


class _Spec(msgspec.Struct):
    hard: Mapping[str, Any] | None = None


class _ResourceQuota(msgspec.Struct):
    spec: _Spec | None = None


def is_resource_quota(group: str, kind: str) -> bool:
    return (group, kind) == ("", "ResourceQuota")


def findings(document: bytes | msgspec.Raw, resource_mapping: ResourceMapping) -> tuple[Finding, ...]:
    """Return what is worth knowing about a ResourceQuota in JSON. One that cannot be read is the API server's to refuse."""
    try:
        spec = msgspec.json.decode(document, type=_ResourceQuota).spec
    except msgspec.ValidationError:
        return ()
    return tuple(resource_quota_findings((spec and spec.hard) or (), resource_mapping))
