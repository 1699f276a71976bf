"""Removes choices of warnings that the quota has no room for now. Until then they were tried as if the quota was unused."""

from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from policies.finding import Edits, Finding, choices_text, one_choice
from policies.pods.pod import Pod
from policies.quota.shortage import WAIT_UNTIL_FREE
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.evaluation.tried_choices import PhasesOf, denials_with, max_trials

MAX_TRIED = 16
"""Choices of one decision that are tried; each takes some 0.5 ms. The others are not offered."""


def may_exceed(decision: Decision) -> bool:
    """Whether a choice that is offered for an admitted pod may exceed its quota."""
    return decision.allowed and any(map(_is_tried, decision.violations))


def with_choices_that_fit(decision: Decision, pod: Pod, phases_of: PhasesOf) -> Decision:
    """Return the decision with the choices that fit, or, where none does, with one and the wait for it.

    phases_of: finds also what the quota denies now. If it denies the pod without edits, its denial says what to do instead.
    """
    try:
        limit = min(MAX_TRIED, max_trials(pod, len(msgspec.json.encode(pod))))
    except msgspec.MsgspecError:
        return decision  # a hostile pod
    if limit == 0 or denials_with((), pod, phases_of):
        return decision
    tried = dict.fromkeys(
        edits for each in decision.violations if _is_tried(each) for edits in each.finding.choices
    )
    denials = {edits: denials_with(edits, pod, phases_of) for edits in islice(tried, limit)}
    return replace(decision, violations=tuple(_fitted(each, denials) for each in decision.violations))


def _fitted(violation: Violation, denials: Mapping[Edits, Sequence[Finding]]) -> Violation:
    finding = violation.finding
    fitting = tuple(edits for edits in finding.choices if denials.get(edits) == [])
    if not _is_tried(violation) or fitting == finding.choices:
        return violation
    if fitting:
        return replace(violation, finding=replace(finding, choices=fitting, remedy=""))
    waits = ((edits, denial.awaits) for edits in finding.choices for denial in denials.get(edits, ()))
    choice, awaits = next(((edits, wait) for edits, wait in waits if wait), ((), None))
    remedy = f"{choices_text([choice])}, {WAIT_UNTIL_FREE}" if awaits else ""
    with_choice = awaits and replace(awaits, beside_choice=True)
    waiting = replace(finding, choices=one_choice(*choice), awaits=with_choice, remedy=remedy)
    return replace(violation, finding=waiting)


def _is_tried(violation: Violation) -> bool:
    finding = violation.finding
    return violation.outcome is Outcome.WARNED and bool(finding.choices) and finding.awaits is None
