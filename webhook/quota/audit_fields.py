"""The demand of an object in a line of the audit log, or of the log of usage."""

from typing import Any

from policies.gpus.classes import GPUClasses
from policies.quota.amounts import CLASSES, Vector, texts


def demand_fields(vector: Vector, gpu_classes: GPUClasses) -> dict[str, Any]:
    """Return the fields `demand` and `class` (class or family) of a line. No `class` if several classes are possible."""
    names = [key.removeprefix(CLASSES) for key in vector if key.startswith(CLASSES)]
    classes = [name for name in names if gpu_classes.get(name) is not None] or names
    fields: dict[str, Any] = {"demand": texts(vector)} if vector else {}
    if len(classes) == 1:
        fields["class"] = classes[0]
    return fields
