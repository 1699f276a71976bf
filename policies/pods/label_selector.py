"""Label selectors as Kubernetes has them: all of `matchLabels` and all of `matchExpressions` must hold."""

from collections.abc import Iterator, Mapping
from enum import Enum

import msgspec

from policies.gpus.classes import is_label_value, is_qualified


class Operator(Enum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator is Operator.IN:
            return value in self.values
        if self.operator is Operator.NOT_IN:
            return value not in self.values  # also where there is no such label
        return (value is not None) is (self.operator is Operator.EXISTS)

    def problems(self) -> Iterator[tuple[str, str]]:
        if not is_qualified(self.key):
            yield "key", f'"{self.key}" is not a label key'
        has_values = self.operator in {Operator.IN, Operator.NOT_IN}
        if has_values and not self.values:
            yield "values", f"must name at least one with operator {self.operator.value}"
        if not has_values and self.values:
            yield "values", f"must be left out with operator {self.operator.value}"
        for index, value in enumerate(self.values):
            if value and not is_label_value(value):
                yield f"values[{index}]", f'"{value}" is not a label value'


class LabelSelector(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """An empty one matches everything, as everywhere in Kubernetes."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the selector, sentence) for everything that the API server would refuse in one."""
        for key, value in self.match_labels.items():
            if not is_qualified(key):
                yield f"matchLabels[{key}]", "is not a label key"
            if value and not is_label_value(value):
                yield f"matchLabels[{key}]", f'"{value}" is not a label value'
        for index, requirement in enumerate(self.match_expressions):
            for field, sentence in requirement.problems():
                yield f"matchExpressions[{index}].{field}", sentence

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in self.match_labels.items()]
        for requirement in self.match_expressions:
            values = f" ({', '.join(requirement.values)})" if requirement.values else ""
            parts.append(f"{requirement.key} {requirement.operator.value}{values}")
        return ", ".join(parts) or "everything"
