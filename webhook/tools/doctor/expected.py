"""What this version wants installed: both webhook configurations and the CRDs, as deploy/ has them.

`make manifests` writes `expected.json` from deploy/static; tests/webhook/tools/doctor/test_expected.py fails where the two
differ. Names may differ between installations, so the namespace is put in when it is read.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

NAMESPACE = "gpu-admission"
"""The one in deploy/."""

GPU_STACK = "gpu-operator"
"""Excluded by default, under a name that differs between clusters."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Reservations by kind of configuration and name; the digest of each CRD's schemas by its name."""

    configurations: dict[str, dict[str, Any]]
    custom_resources: dict[str, str]


@cache
def wanted(namespace: str = NAMESPACE) -> Wanted:
    """Return what is wanted of an installation in that namespace."""
    text = (resources.files("webhook.tools.doctor") / "expected.json").read_bytes()
    found = msgspec.json.decode(text, type=Wanted)
    for entries in found.configurations.values():
        for entry in entries.values():
            for expression in entry.get("namespaceSelector", {}).get("matchExpressions", ()):
                expression["values"] = [namespace if v == NAMESPACE else v for v in expression["values"]]
    return found


def wanted_of(documents: Iterable[Mapping[str, Any]]) -> Wanted:
    """Return what the manifests of deploy/ want."""
    configurations: dict[str, dict[str, Any]] = {}
    custom_resources = {}
    for document in documents:
        if document["kind"].endswith("WebhookConfiguration"):
            configurations[f"{document['kind'].lower()}s"] = {
                webhook["name"]: {
                    **{key: value for key, value in webhook.items() if key != "clientConfig"},
                    "path": webhook["clientConfig"]["service"]["path"],
                }
                for webhook in document["webhooks"]
            }
        elif document["kind"] == "CustomResourceDefinition":
            custom_resources[document["metadata"]["name"]] = schema_digest(document)
    return Wanted(configurations=configurations, custom_resources=custom_resources)


def schema_digest(definition: Mapping[str, Any]) -> str:
    """Return a digest of a CRD's versions and their schemas, the same before and after the API server stored it."""
    versions = {version["name"]: version["schema"] for version in definition["spec"]["versions"]}
    return hashlib.sha256(msgspec.json.encode(versions, order="deterministic")).hexdigest()[:16]
