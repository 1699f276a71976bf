"""Label selectors. The requirements of node affinities have the same meaning."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from policies.pods.names import is_label_value, is_qualified_name
from policies.pods.pod import StrictView

ABSENT: frozenset[str] = frozenset()
"""The values of a label that an object does not have."""
_LONGEST_NUMBER = len("-9223372036854775808")
"""Characters of a value of Gt and Lt: the scheduler reads it as an int64."""


def meets(offered: frozenset[str] | None, operator: str, values: frozenset[str]) -> bool:
    """Whether a label can meet a requirement (`Requirement.Matches`, k8s.io/apimachinery `pkg/labels`).

    offered: the values that the label has on the object, or may have on one of several nodes. ABSENT if it has none, None if it
      may have any value.
    operator: of a label selector or a node affinity (`Gt`, `Lt`).
    """
    if offered is None:
        return True
    if operator == "In":
        return not offered.isdisjoint(values)
    if operator == "NotIn":
        return not offered or not offered <= values  # an object without the label meets it
    if operator in {"Gt", "Lt"}:
        # The API server rejects several values.
        return len(values) == 1 and any(_compares(value, operator, *values) for value in offered)
    return bool(offered) if operator == "Exists" else not offered


def _compares(label: str, operator: str, value: str) -> bool:
    if len(value) > _LONGEST_NUMBER:
        return False
    try:
        difference = int(label) - int(value)
    except ValueError:
        return False
    return difference > 0 if operator == "Gt" else difference < 0


def label_problems(labels: Mapping[str, str], path: str) -> Iterator[tuple[str, str]]:
    for key, value in labels.items():
        if not is_qualified_name(key):
            yield f"{path}[{key}]", "must be a label key"
        if not is_label_value(value):
            yield f"{path}[{key}]", f'must be a label value, not "{value}"'


class Requirement(StrictView, frozen=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        offered = frozenset((labels[self.key],)) if self.key in labels else ABSENT
        return meets(offered, self.operator, frozenset(self.values))

    def problems(self) -> Iterator[tuple[str, str]]:
        if not is_qualified_name(self.key):
            yield "key", f'must be a label key, not "{self.key}"'
        needs_values = self.operator in {"In", "NotIn"}
        if needs_values != bool(self.values):
            must = "must" if needs_values else "must not"
            yield "values", f"{must} be specified when operator is {self.operator}"
        for index, value in enumerate(self.values):
            if not is_label_value(value):
                yield f"values[{index}]", f'must be a label value, not "{value}"'


class LabelSelector(StrictView, frozen=True):
    """A label selector of Kubernetes. An empty selector matches everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the selector, sentence) for everything that the API server would refuse."""
        yield from label_problems(self.match_labels, "matchLabels")
        for index, requirement in enumerate(self.match_expressions):
            for field, sentence in requirement.problems():
                yield f"matchExpressions[{index}].{field}", sentence

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in self.match_labels.items()]
        for requirement in self.match_expressions:
            values = f" ({', '.join(requirement.values)})" if requirement.values else ""
            parts.append(f"{requirement.key} {requirement.operator}{values}")
        return ", ".join(parts) or "everything"
