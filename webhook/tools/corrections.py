"""Corrections of an object: each fix of a finding is tried, and kept if its finding is gone and there is no new one."""

from collections.abc import Callable, Sequence
from typing import Any

from policies.pods.field_paths import path_parts, with_edit
from webhook.serving.engine import Outcome, Violation
from webhook.serving.evaluation import Evaluation

MOST_CORRECTIONS = 32
MOST_TRIES = 64
"""Evaluations for one correction; each takes about a millisecond."""

Evaluate = Callable[[Any], Evaluation]
"""Takes an object as plain data."""


def corrected(data: Any, evaluate: Evaluate) -> tuple[Any, Evaluation]:
    """Return the object with the fixes of its denials and warnings, denials first, and its evaluation."""
    now = data, evaluate(data)
    for _ in range(MOST_CORRECTIONS):
        better = _better(*now, evaluate)
        if better is None:
            break
        now = better
    return now


def _better(data: Any, evaluation: Evaluation, evaluate: Evaluate) -> tuple[Any, Evaluation] | None:
    """Return the object with one more correction, None if no fix helps."""
    serious = _serious(evaluation)
    before = set(map(_identity, serious))
    for found in [each for each in serious if each.finding.fix][:MOST_TRIES]:
        trial = data
        for edit in found.finding.fix:
            trial = with_edit(trial, path_parts(edit.path), edit.value)
        tried = evaluate(trial)
        after = set(map(_identity, _serious(tried)))
        if not tried.unreadable and after <= before - {_identity(found)}:
            return trial, tried
    return None


def _identity(violation: Violation) -> tuple[str, str, str | None]:
    return violation.finding.rule, violation.finding.path, violation.finding.container


def _serious(evaluation: Evaluation) -> Sequence[Violation]:
    """Return what is denied, then what is warned of."""
    found = [each for each in evaluation.findings() if each.outcome is not Outcome.AUDITED]
    return sorted(found, key=lambda each: each.outcome is not Outcome.DENIED)
