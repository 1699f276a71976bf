"""Corrections: fixes of findings, made only if they help. All are tried together; if that is worse, each half is tried alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from policies.finding import Finding
from policies.pods.field_paths import Parts, path_parts, with_edit
from webhook.serving.engine import Outcome, Violation
from webhook.serving.evaluation import Evaluation

MOST_ROUNDS = 4
"""A fix may uncover another finding, which the next round fixes."""
MOST_FIXES = 32
"""Fixes of one stored object that are tried in a round; each try takes about a millisecond."""

T = TypeVar("T")


def correct(wanted: Callable[[], Sequence[T]], attempt: Callable[[Sequence[T]], bool]) -> None:
    """Attempt what is wanted now, until nothing is. `attempt` returns whether it made all of them, or else has made none."""
    for _ in range(MOST_ROUNDS):
        if not (found := wanted()):
            break
        _by_halves(found, attempt)


def _by_halves(wanted: Sequence[T], attempt: Callable[[Sequence[T]], bool]) -> None:
    """Attempt all of them, or each half: few attempts are better, since each evaluates everything again."""
    if not attempt(wanted) and len(wanted) > 1:
        middle = len(wanted) // 2
        _by_halves(wanted[:middle], attempt)
        _by_halves(wanted[middle:], attempt)


def is_better(before: Iterable[Violation], after: Iterable[Violation], fixed: Iterable[Violation]) -> bool:
    """Whether the fixed findings of an object are gone, and no denial is new."""
    after = list(after)
    removed, old, new = (Counter(map(_kind, each)) for each in (fixed, before, after))
    denied = {_kind(each) for each in after if each.outcome is Outcome.DENIED}
    return all(new[kind] <= old[kind] - removed[kind] for kind in (*removed, *denied))


def _kind(violation: Violation) -> tuple[str, str]:
    return violation.finding.rule, violation.finding.reason


def last_items_last(parts: Parts, value: object) -> tuple[bool, bool, Parts]:
    """Sort edits (in reverse): what is set before what is removed, so that no map is left empty meanwhile.

    Items come last, and of a list the last one first: those behind a removed item move up.
    """
    is_item = value is None and isinstance(parts[-1], int)
    return (value is not None, not is_item, parts if is_item else ())


def corrected(data: Any, evaluate: Callable[[Any], Evaluation]) -> tuple[Any, Evaluation]:
    """Return the object, as plain data, with the fixes of its denials and warnings, and its evaluation."""
    now, evaluation = data, evaluate(data)
    rejected: set[Finding] = set()

    def wanted() -> list[Violation]:
        found = (each for each in evaluation.findings() if each.outcome is not Outcome.AUDITED)
        return [each for each in found if each.finding.fix and each.finding not in rejected][:MOST_FIXES]

    def attempt(violations: Sequence[Violation]) -> bool:
        nonlocal now, evaluation
        edits = {(path_parts(edit.path), edit.value) for each in violations for edit in each.finding.fix}
        trial = now
        for parts, value in sorted(edits, key=lambda edit: last_items_last(*edit), reverse=True):
            trial = with_edit(trial, parts, value)
        tried = evaluate(trial)
        if tried.unreadable or not is_better(evaluation.findings(), tried.findings(), violations):
            rejected.update(each.finding for each in violations if len(violations) == 1)
            return False
        now, evaluation = trial, tried
        return True

    correct(wanted, attempt)
    return now, evaluation
