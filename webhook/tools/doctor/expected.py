"""The objects that this version installs: both webhook configurations and the CRDs, as in deploy/.

`make manifests` writes `expected.json` from deploy/static; tests/webhook/tools/doctor/test_expected.py fails where the two
differ. Reading it fills in the namespace of the installation.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from webhook.cluster.objects import NAMESPACE


class ExpectedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The webhooks of each configuration by kind and name; the digest of each CRD's schemas by its name."""

    configurations: dict[str, dict[str, Any]]
    custom_resources: dict[str, str]


@cache
def expected_objects(namespace: str = NAMESPACE) -> ExpectedObjects:
    text = (resources.files("webhook.tools.doctor") / "expected.json").read_bytes()
    found = msgspec.json.decode(text, type=ExpectedObjects)
    for webhooks in found.configurations.values():
        for webhook in webhooks.values():
            for expression in webhook.get("namespaceSelector", {}).get("matchExpressions", ()):
                expression["values"] = [namespace if v == NAMESPACE else v for v in expression["values"]]
    return found


def schema_digest(definition: Mapping[str, Any]) -> str:
    """Return a digest of a CRD's versions and their schemas, the same before and after the API server stored it."""
    versions = {version["name"]: version["schema"] for version in definition["spec"]["versions"]}
    return hashlib.sha256(msgspec.json.encode(versions, order="deterministic")).hexdigest()[:16]
