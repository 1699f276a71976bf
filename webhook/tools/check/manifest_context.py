"""What the objects of one run of `check` say about their cluster: labels of namespaces, and devices of DRA."""

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from policies.gpus.claims import RECORD_OF, ClaimName, DeviceClassNames
from policies.gpus.device_classes import DeviceClass, decode_device_class
from policies.policy import Labels
from webhook.configuration.dynamic_resources import DRA_GROUP
from webhook.tools.check.manifests import Manifest

NAME_LABEL = "kubernetes.io/metadata.name"
"""The API server gives it to every namespace."""

DEVICE_CLASS = (DRA_GROUP, "DeviceClass")


def manifest_context(
    manifests: Iterable[Manifest],
) -> tuple[dict[str, Labels], dict[ClaimName, DeviceClassNames | None]]:
    """Return the labels of namespaces, and the DeviceClasses of claims and their templates; what cannot be read is left out."""
    labels: dict[str, Labels] = {}
    claims: dict[ClaimName, DeviceClassNames | None] = {}
    for manifest in manifests:
        if manifest.group_kind == ("", "Namespace"):
            labels[manifest.name] = _labels(manifest)
        elif manifest.group == DRA_GROUP and manifest.kind in RECORD_OF:
            with suppress(msgspec.ValidationError):
                record = RECORD_OF[manifest.kind](msgspec.json.encode(manifest.data))
                claims[ClaimName(manifest.kind, manifest.namespace, manifest.name)] = record.device_classes
    return labels, claims


def default_labels(namespace: str) -> Labels:
    """Return the labels of a namespace of which nothing else is known."""
    return ((NAME_LABEL, namespace),)


def device_classes(manifests: Iterable[Manifest]) -> tuple[DeviceClass, ...]:
    """Return the DeviceClasses among the manifests, by which the configuration knows what are GPUs."""
    found = []
    for manifest in manifests:
        if manifest.group_kind == DEVICE_CLASS:
            with suppress(msgspec.ValidationError):
                found.append(decode_device_class(msgspec.json.encode(manifest.data)))
    return tuple(found)


def _labels(manifest: Manifest) -> Labels:
    labels = (manifest.data.get("metadata") or {}).get("labels")
    written = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    return tuple(sorted({**written, NAME_LABEL: manifest.name}.items()))
