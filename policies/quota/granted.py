"""The sum of what several quotas grant, in GPUs, to compare with the GPUs of the nodes."""

from collections.abc import Collection
from fractions import Fraction

from policies.gpus.classes import GPUClasses
from policies.quota.amounts import CLASSES, GPUS, NOTHING, RESOURCES, Vector


def granted_together(limits_of_quotas: Collection[Vector], classes: GPUClasses) -> Vector:
    """Return the sum of the limits of these quotas, for all GPUs and for each class and family that one of them limits.

    If a quota has no limit for `gpus` or a family, its limits of the classes in it are added up instead.
    """
    limited = {key for hard in limits_of_quotas for key in hard if not key.startswith(RESOURCES)}
    return {key: sum((_granted(key, hard, classes) for hard in limits_of_quotas), NOTHING) for key in limited}


def _granted(key: str, hard: Vector, classes: GPUClasses) -> Fraction:
    if key in hard:
        return hard[key]
    families = {each: _family(each, classes) for each in hard if each.startswith(CLASSES)}
    parts = set(families.values())
    if key != GPUS:
        parts = {each for each, family in families.items() if family == key}
    return sum((_granted(part, hard, classes) for part in parts), NOTHING)


def _family(key: str, classes: GPUClasses) -> str:
    """Return the dimension of the family of a class. A family, or an unknown class, is its own family."""
    gpu_class = classes.get(key.removeprefix(CLASSES))
    return f"{CLASSES}{gpu_class.family}" if gpu_class else key
