"""Corrections: fixes of findings, made only if they help. All are tried together; if that is worse, each half is tried alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from webhook.evaluation.decision import Outcome, Violation

MAX_ROUNDS = 4
"""A fix may uncover another finding, which the next round fixes."""

T = TypeVar("T")


def correct(wanted: Callable[[], Sequence[T]], attempt: Callable[[Sequence[T]], bool]) -> None:
    """Attempt what is wanted now, until nothing is. `attempt` makes all fixes and returns True, or makes none."""
    for _ in range(MAX_ROUNDS):
        if not (untried := wanted()):
            break
        _attempt_halves(untried, attempt)


def _attempt_halves(wanted: Sequence[T], attempt: Callable[[Sequence[T]], bool]) -> None:
    """Attempt all fixes; if that fails, each half. Each attempt evaluates everything again."""
    if not attempt(wanted) and len(wanted) > 1:
        middle = len(wanted) // 2
        _attempt_halves(wanted[:middle], attempt)
        _attempt_halves(wanted[middle:], attempt)


def is_better(before: Iterable[Violation], after: Iterable[Violation], fixed: Iterable[Violation]) -> bool:
    """Whether the fixed findings of an object are gone, and no denial is new."""
    after = list(after)
    removed, old, new = (Counter(map(_rule_and_reason, each)) for each in (fixed, before, after))
    denied = {_rule_and_reason(violation) for violation in after if violation.outcome is Outcome.DENIED}
    return all(new[kind] <= old[kind] - removed[kind] for kind in (*removed, *denied))


def _rule_and_reason(violation: Violation) -> tuple[str, str]:
    return violation.finding.rule, violation.finding.reason.name
