"""Conditions in the status of objects."""

from collections.abc import Mapping
from typing import Any

_ENDED = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions of Jobs, JobSets and training jobs that have ended."""


def true_condition(status: Mapping[str, Any], *types: str) -> dict[str, Any] | None:
    """Return the first condition of a status that is true and of one of these types."""
    true = (condition for condition in status.get("conditions") or () if condition.get("status") == "True")
    return next((condition for condition in true if condition.get("type") in types), None)


def has_ended(status: Mapping[str, Any]) -> bool:
    return true_condition(status, *_ENDED) is not None
