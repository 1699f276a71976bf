"""Tolerations and taints: matching, covering and validation.

A taint is a `Toleration` without an operator: key, value and effect.
"""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from policies.finding import as_plain_data, inline_yaml
from policies.pods.names import is_label_value, is_qualified_name
from policies.pods.pod import Toleration

EQUAL = ("", "Equal")
"""The operators that compare a taint's value as text. The default is Equal."""
DECIMAL_INTEGER = "^(0|-?[1-9][0-9]*)$"
"""Values that Gt and Lt compare (`IsDecimalInteger`, k8s.io/apimachinery). They never match another value."""

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_DECIMAL_INTEGER = re.compile(DECIMAL_INTEGER, re.ASCII)
_LONGEST_VALUE = 63
"""Characters of a label's value."""
_MAX_INTEGER = 1 << 63


def tolerates(toleration: Toleration, taint: Toleration) -> bool:
    """Whether the toleration matches the taint (`ToleratesTaint`, k8s.io/api core/v1).

    Gt and Lt need the feature gate TaintTolerationComparisonOperators (alpha since 1.35). Without it, the API server
    refuses pods with them.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    return _tolerates_key_and_value(toleration, taint)


def tolerated(taint: Toleration, tolerations: Iterable[Toleration] | None) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations or ())


def covers(existing: Toleration, wanted: Toleration) -> bool:
    """Whether `existing` tolerates every taint that `wanted` tolerates, and for as long."""
    if existing.toleration_seconds is not None and existing.toleration_seconds != wanted.toleration_seconds:
        return False
    return tolerates(existing, wanted) and (wanted.operator != "Exists" or existing.operator == "Exists")


def overlaps(one: Toleration, other: Toleration) -> bool:
    """Whether `one` tolerates a taint that `other` names. A missing effect is any effect."""
    if one.effect and other.effect and one.effect != other.effect:
        return False
    has_any_value = other.operator == "Exists" and bool(one.key) and one.key == other.key
    return has_any_value or _tolerates_key_and_value(one, other)


def _tolerates_key_and_value(toleration: Toleration, taint: Toleration) -> bool:
    if toleration.key and toleration.key != taint.key:
        return False
    operator, value, of_taint = toleration.operator or "", toleration.value or "", taint.value or ""
    if operator == "Exists":
        return True
    if not toleration.key:
        return False
    if operator in EQUAL:
        return value == of_taint
    bound, number = _integer(value), _integer(of_taint)
    if bound is None or number is None:
        return False
    return number > bound if operator == "Gt" else operator == "Lt" and number < bound


def _integer(value: str) -> int | None:
    """Return the number that Gt and Lt compare. None if the value is not a 64-bit integer."""
    number = int(value) if len(value) <= _LONGEST_VALUE and _DECIMAL_INTEGER.fullmatch(value) else None
    return number if number is not None and -_MAX_INTEGER <= number < _MAX_INTEGER else None


def toleration_problems(
    toleration: Toleration, path: str, *, key_is_required: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (path, message) for everything that an API server may reject in a toleration.

    key_is_required: also report a toleration of every taint, which the API server accepts.
    """
    operator = toleration.operator or "Equal"
    if operator in {"Gt", "Lt"}:
        why = "many API servers reject a pod with it (feature gate TaintTolerationComparisonOperators)"
        yield f"{path}.operator", f'must be Exists or Equal, not "{operator}": {why}'
    elif operator not in {"Exists", "Equal"}:
        yield f"{path}.operator", f'must be Exists or Equal, not "{operator}"'
    if not toleration.key and key_is_required:
        yield f"{path}.key", "is required: a toleration without a key tolerates every taint"
    elif not toleration.key and operator != "Exists":
        yield f"{path}.key", "is required unless operator is Exists"
    elif toleration.key and not is_qualified_name(toleration.key):
        yield f"{path}.key", f'must be a taint key, not "{toleration.key}"'
    if operator == "Exists" and toleration.value:
        yield f"{path}.value", "must be empty when operator is Exists"
    if toleration.value and not is_label_value(toleration.value):
        yield f"{path}.value", f'must be a taint value, not "{toleration.value}"'
    if toleration.effect and toleration.effect not in _EFFECTS:
        yield f"{path}.effect", f'must be one of {", ".join(_EFFECTS)}, not "{toleration.effect}"'
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield f"{path}.tolerationSeconds", "is allowed only with effect NoExecute"


def toleration_text(toleration: Toleration) -> str:
    """Return a toleration or a taint as kubectl prints it: `dedicated=ml-workloads:NoSchedule`, `nvidia.com/gpu:NoSchedule`."""
    text = toleration.key or "*"
    sign = {"Gt": ">", "Lt": "<"}.get(toleration.operator or "", "=")
    if toleration.value:
        text += f"{sign}{toleration.value}"
    return f"{text}:{toleration.effect}" if toleration.effect else text


def toleration_yaml(taint: Toleration) -> str:
    """Return the toleration of a taint as people write it in YAML."""
    return inline_yaml(as_plain_data(toleration_for(taint)))


def toleration_for(taint: Toleration) -> Toleration:
    """Return the toleration of a taint. Exists would tolerate every value of the key: the pools of others."""
    return replace(taint, operator="Equal" if taint.value else "Exists", value=taint.value or None)
