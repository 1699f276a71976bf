"""The correction of a stored object: its plain data with the fixes of what would be denied or warned of."""

from collections.abc import Callable, Sequence
from typing import Any

from policies.finding import Finding
from policies.pods.field_paths import path_parts, with_edit
from webhook.serving.engine import Outcome, Violation
from webhook.serving.evaluation import Evaluation
from webhook.tools.corrections import correct, is_better, last_items_last

MAX_FIXES = 32
"""Fixes that are tried in a round; each try takes about a millisecond."""


def corrected(data: Any, evaluate: Callable[[Any], Evaluation]) -> tuple[Any, Evaluation]:
    """Return the object, as plain data, with the fixes of its denials and warnings, and its evaluation."""
    now, evaluation = data, evaluate(data)
    rejected: set[Finding] = set()

    def wanted() -> list[Violation]:
        found = (each for each in evaluation.findings() if each.outcome is not Outcome.AUDITED)
        return [each for each in found if each.finding.fix and each.finding not in rejected][:MAX_FIXES]

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
