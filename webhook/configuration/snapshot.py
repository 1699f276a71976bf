"""One consistent version of everything that is configured."""

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.policy import PolicySet
from policies.quota.spec import QuotaSpec


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Policies, classes and resource mapping that belong together; `version` is a digest of the documents they came from.

    `quotas` are by namespace, and hold where no API server has them.
    """

    policies: PolicySet
    classes: ClassCatalogue
    resource_mapping: ResourceMapping
    version: str
    quotas: Mapping[str, QuotaSpec] = {}


def digest(*texts: str) -> str:
    """Return the first 12 hex digits of the SHA-256 of the texts: enough to tell versions apart in a log."""
    return sha256("\x00".join(texts).encode()).hexdigest()[:12]
