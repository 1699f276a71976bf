"""What to write instead: each value that a finding names is tried, and kept if its finding is gone and there is no new one."""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from policies.gpus.classes import ClassCatalogue
from policies.pods.field_paths import Parts, path_parts, value_at, with_value
from policies.pods.quantity import readable
from webhook.serving.engine import Outcome, Violation
from webhook.serving.evaluation import Evaluation

MOST_CORRECTIONS = 8
MOST_TRIES = 60
"""Evaluations for one correction; each takes about a millisecond."""

_WORD = re.compile(r"[a-z0-9][a-z0-9.-]*[a-z0-9]")
_NUMBER = re.compile(r"(?<![\w.-])\d{1,6}(?![\w.-]*\w)")

Judge = Callable[[Any], Evaluation]
"""Takes an object as plain data."""


def corrected(data: Any, evaluate: Judge, classes: ClassCatalogue) -> tuple[Any, Evaluation]:
    """Return the object with all corrections that were found, and its evaluation."""
    evaluation = evaluate(data)
    for _ in range(MOST_CORRECTIONS):
        before = set(map(_identity, _serious(evaluation)))
        for about, trial in islice(_tries(data, evaluation, classes), MOST_TRIES):
            found = evaluate(trial)
            if not found.unreadable and {*map(_identity, _serious(found))} <= before - {_identity(about)}:
                data, evaluation = trial, found
                break
        else:
            break
    return data, evaluation


def _identity(violation: Violation) -> tuple[str, str, str | None]:
    return violation.finding.rule, violation.finding.path, violation.finding.container


def _serious(evaluation: Evaluation) -> list[Violation]:
    return [each for each in evaluation.findings() if each.outcome is not Outcome.AUDITED]


def _tries(data: Any, evaluation: Evaluation, classes: ClassCatalogue) -> Iterator[tuple[Violation, Any]]:
    """Yield each finding with the object as its remedy may mean it; denials first."""
    for found in sorted(_serious(evaluation), key=lambda each: each.outcome is not Outcome.DENIED):
        for fields in _fields(data, evaluation, path_parts(found.finding.path)):
            now = value_at(data, fields[0])
            for value in _values(now, found.finding.remedy, classes):
                changed = data
                for field in fields:
                    changed = with_value(changed, field, value)
                if changed != data:
                    yield found, changed


def _fields(data: Any, evaluation: Evaluation, path: Parts) -> Iterator[list[Parts]]:
    """Yield the field of a finding, or limit and request of each container's GPUs if it is about a whole pod."""
    if isinstance(value_at(data, path), str | int):
        yield [path]
        return
    for pod in evaluation.pods:
        for index, container in enumerate(pod.submitted.spec.containers or ()):
            limits = (container.resources and container.resources.limits) or {}
            for name in limits:
                resources = ("spec", "containers", index, "resources")
                fields = [pod.place.parts((*resources, kind, name)) for kind in ("limits", "requests")]
                there = [field for field in fields if value_at(data, field) is not None]
                if there and "/" in name:
                    yield there


def _values(now: Any, remedy: str, classes: ClassCatalogue) -> Iterator[str | int]:
    """Yield values in the remedy that can replace `now`: numbers for an amount, else names of classes."""
    if isinstance(now, int):
        yield from map(int, _NUMBER.findall(remedy))
    elif isinstance(now, str) and readable(now) is not None:
        yield from _NUMBER.findall(remedy)
    elif isinstance(now, str):
        yield from (word for word in _WORD.findall(remedy) if classes.resolve(word))
