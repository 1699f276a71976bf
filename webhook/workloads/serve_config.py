"""`serveConfigV2` of a RayService: YAML in a field of text."""

from typing import Any

from policies.pods.field_paths import value_at
from webhook.workloads.places import LONGEST_PATCHES, plain_data

_FIELD = {("ray.io", "RayService"): ("spec", "serveConfigV2")}


def serve_config(group: str, kind: str, data: Any) -> Any:
    """Return what the field says, as plain data; None for other kinds, and for text that cannot be read or is too long."""
    text = value_at(data, _FIELD.get((group, kind), ("",)))
    return plain_data(text) if isinstance(text, str) and len(text) <= LONGEST_PATCHES else None
