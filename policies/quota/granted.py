"""What several quotas grant together, in GPUs, to compare with what the nodes have."""

from collections.abc import Collection
from fractions import Fraction

from policies.gpus.classes import ClassCatalogue
from policies.quota.amounts import CLASSES, GPUS, NOTHING, RESOURCES, Vector


def granted_together(quotas: Collection[Vector], classes: ClassCatalogue) -> Vector:
    """Return the sum of what quotas grant of all GPUs, and of each class and family, as far as one of them limits that.

    `quotas` are their limits. A quota without a limit of all GPUs, or of a family, grants at least what it grants of their
    classes; with one, its classes are a part of that.
    """
    limited = {key for hard in quotas for key in hard if not key.startswith(RESOURCES)}
    return {key: sum((_granted(key, hard, classes) for hard in quotas), NOTHING) for key in limited}


def _granted(key: str, hard: Vector, classes: ClassCatalogue) -> Fraction:
    if key in hard:
        return hard[key]
    families = {each: _family(each, classes) for each in hard if each.startswith(CLASSES)}
    parts = set(families.values())
    if key != GPUS:
        parts = {each for each, family in families.items() if family == key}
    return sum((_granted(part, hard, classes) for part in parts), NOTHING)


def _family(key: str, classes: ClassCatalogue) -> str:
    """Return the dimension of the family of a class; of a family, and of an unknown class, itself."""
    found = classes.get(key.removeprefix(CLASSES))
    return f"{CLASSES}{found.family}" if found else key
