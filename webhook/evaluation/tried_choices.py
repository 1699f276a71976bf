"""Keeps those choices of findings that help: each is tried on the pod before it is offered.

A choice helps if its finding goes, and no new denial comes. If some bring no new warning either, only these are kept.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, auto
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import ContactChange, Edits, Finding, as_plain_data, edits_of
from policies.placement.availability import NO_NODE
from policies.pods.field_paths import path_parts, with_edits
from policies.pods.injected import INJECTION_REASONS
from policies.pods.pod import Pod, decode_pod
from policies.registry import PLACEMENT_RULES
from webhook.evaluation.decision import DeadlineExceeded, Decision, Outcome, Violation, without_repeated

MAX_TRIED = 48
"""Edited pods of one decision that are tried. Each takes some 0.5 ms, of 30 resources 5 ms. No other choice is offered."""
MAX_BYTES = 32 * 1024
"""Of all edited pods of one decision, in JSON."""
MAX_AMOUNTS = 128
"""Extended resources of all edited pods of one decision."""
MIN_TRIED = 8
"""If the pod is so long that fewer choices than this can be tried, and not all of them, all are offered untried."""

MAX_FOLLOWING_EDITS = 3
"""Rounds in which the edits that other rules then demand are added to a request to the contact."""

PhasesOf = Callable[[Pod], Iterable[Iterable[Violation]]]
"""Returns what each phase finds of a pod that is created now."""

FindingKey = tuple[str, str, str, str | None]
FindingCounts = Counter[tuple[FindingKey, Outcome]]


def with_tried_choices(
    decision: Decision, pod: Pod, phases_of: PhasesOf, others: Callable[[], Iterable[Edits]]
) -> Decision:
    """Return the decision with those choices that help. `pod`: as its author submitted it.

    others: what is tried for a finding about the place of the pod without a choice that helps.
    """
    tried = [violation for violation in decision.violations if _is_tried(violation)]
    needed = min(MIN_TRIED, len({edits for violation in tried for edits in violation.finding.choices}))
    trials = _trials(decision, pod, phases_of, max(needed, 1)) if tried else None
    if trials is None:
        return decision
    helpful = {violation: trials.helpful(violation.finding) for violation in tried}
    for tried_violation, choices in helpful.items():
        if choices == () and tried_violation.finding.rule in PLACEMENT_RULES:
            worst = Effect.WARNS if tried_violation.outcome is Outcome.DENIED else Effect.HELPS
            helpful[tried_violation] = trials.first_helpful(tried_violation.finding, others(), worst=worst)
    offering = (_with_helpful_choices(violation, helpful) for violation in decision.violations)
    return replace(
        decision,
        violations=tuple(_with_helpful_requests(each, trials.before, pod, phases_of) for each in offering),
    )


def _trials(decision: Decision, pod: Pod, phases_of: PhasesOf, needed: int = 1) -> "_Trials | None":
    """Return the trials on a pod; None where it is so long that fewer edited pods than needed can be tried."""
    try:
        text = msgspec.json.encode(pod)
        max_edited = max_trials(pod, len(text))
        return _Trials(decision, pod, text, max_edited, phases_of) if max_edited >= needed else None
    except msgspec.MsgspecError:
        return None  # a hostile pod, such as one with a number of many digits: it cannot be written as it was read


def choice_test(decision: Decision, pod: Pod, phases_of: PhasesOf) -> Callable[[Finding, Edits], bool]:
    """Return whether edits of the pod remove a finding of the decision, and bring no new denial; true of one too long to try."""
    trials = _trials(decision, pod, phases_of)
    return lambda finding, edits: trials is None or trials.effect(finding, edits) is not Effect.NO_HELP


def _with_helpful_choices(violation: Violation, helpful: Mapping[Violation, tuple[Edits, ...]]) -> Violation:
    """Return the finding with its choices that help. Its words go with one that does not."""
    finding, choices = violation.finding, helpful.get(violation)
    if choices is None or choices == finding.choices:
        return violation
    return replace(violation, finding=replace(finding, choices=choices, remedy=""))


def _with_helpful_requests(
    violation: Violation, before: FindingCounts, pod: Pod, phases_of: PhasesOf
) -> Violation:
    """Return the finding with all edits of the pod in its requests to the contact, and without requests that do not help."""
    finding = violation.finding
    changes = tuple(
        _with_demanded_edits(change, finding.rule, before, pod, phases_of)
        for change in finding.contact_choices
    )
    asked = {"contact_choices": changes} if all(changes) else {"contact_choices": (), "ask_contact": ""}
    return replace(violation, finding=replace(finding, **asked))


def _with_demanded_edits(
    change: ContactChange, rule: str, before: FindingCounts, pod: Pod, phases_of: PhasesOf
) -> ContactChange:
    """Return the change with the edits that other rules then demand; () if that takes more than MAX_DEMANDS rounds."""
    for _ in range(MAX_FOLLOWING_EDITS):
        denials = denials_with(edits, pod, phases_of) if (edits := edits_of(change)) else ()
        new = [
            each for each in denials if each.rule != rule and not before[_finding_key(each), Outcome.DENIED]
        ]
        if not new:
            return change
        change = (*change, *chain(*new[0].choices[:1]))
    return ()


def max_trials(pod: Pod, length: int) -> int:
    """Return how many edited pods of one decision may be tried. `length`: of the pod in JSON."""
    return min(MAX_TRIED, MAX_BYTES // length, MAX_AMOUNTS // (_extended_resources(pod) or 1))


def denials_with(edits: Edits, pod: Pod, phases_of: PhasesOf) -> list[Finding]:
    """Return what denies the pod with the edits. Empty where no time is left to try, or the pod is too long."""
    try:
        text = msgspec.json.encode(pod)
        edited = edited_pod(msgspec.json.decode(text), edits) if len(text) <= MAX_BYTES else None
        phases = phases_of(edited) if edited is not None else ()
        return [each.finding for phase in phases for each in phase if each.outcome is Outcome.DENIED]
    except (msgspec.MsgspecError, DeadlineExceeded):
        return []


def edited_pod(pod: Any, edits: Edits) -> Pod | None:
    """Return a pod, given as plain data, with the edits; None if they do not make a pod."""
    try:
        parted = [(path_parts(edit.path), as_plain_data(edit.value)) for edit in edits]
        return decode_pod(msgspec.json.encode(with_edits(pod, parted)))
    except msgspec.DecodeError:
        return None


class Effect(IntEnum):
    """What a choice does beside removing its finding; the best one is the smallest."""

    HELPS = auto()
    WARNS = auto()
    """It brings a new warning."""
    STRANDS = auto()
    """It brings the warning that no node takes the pod."""
    NO_HELP = auto()
    """It brings a denial, does not remove the finding, or does not make a pod."""


class _Trials:
    """Trials on one pod. An edited pod is evaluated once, whatever number of findings have the edits as a choice."""

    def __init__(
        self, decision: Decision, pod: Pod, text: bytes, max_edited: int, phases_of: PhasesOf
    ) -> None:
        self._data, self._trials_left, self._phases_of = msgspec.json.decode(text), max_edited, phases_of
        self.before = _count_findings([decision.violations]) | _count_findings(phases_of(pod))
        self._after: dict[Edits, FindingCounts | None] = {}

    def helpful(self, finding: Finding) -> tuple[Edits, ...]:
        """Return those choices of the finding that help most, among those that can be tried."""
        can_be_tried = (edits for edits in finding.choices if edits in self._after or self._trials_left > 0)
        effects = [(edits, self.effect(finding, edits)) for edits in can_be_tried]
        best = min((effect for _, effect in effects), default=Effect.NO_HELP)
        return tuple(edits for edits, effect in effects if effect is best is not Effect.NO_HELP)

    def first_helpful(self, finding: Finding, others: Iterable[Edits], *, worst: Effect) -> tuple[Edits, ...]:
        """Return the first of other choices that only helps, or else the first with an effect that is not worse than `worst`."""
        acceptable: tuple[Edits, ...] = ()
        for edits in others:
            if edits not in self._after and self._trials_left <= 0:
                break
            effect = self.effect(finding, edits)
            if effect is Effect.HELPS:
                return (edits,)
            acceptable = acceptable or ((edits,) if effect <= worst else ())
        return acceptable

    def effect(self, finding: Finding, edits: Edits) -> Effect:
        now, same_finding = self._counts_after(edits), _finding_key(finding)
        if now is None or _times_visible(now, same_finding) >= _times_visible(self.before, same_finding):
            return Effect.NO_HELP
        new = {key for key, number in now.items() if number > self.before[key]}
        outcomes = {outcome for _, outcome in new}
        if Outcome.DENIED in outcomes and not finding.reason.hides_others:
            return Effect.NO_HELP
        if any(finding_key[1] == NO_NODE.name for finding_key, _ in new):
            return Effect.STRANDS
        return Effect.WARNS if outcomes else Effect.HELPS

    def _counts_after(self, edits: Edits) -> FindingCounts | None:
        """Return what is found of the edited pod; None if the edits do not make a pod."""
        if edits not in self._after:
            self._trials_left -= 1
            pod = edited_pod(self._data, edits)
            self._after[edits] = None if pod is None else _count_findings(self._phases_of(pod))
        return self._after[edits]


def _extended_resources(pod: Pod) -> int:
    amounts = ({**place.container.limits, **place.container.requests} for place in pod.places)
    return sum("/" in name for amount in amounts for name in amount)


def _is_tried(violation: Violation) -> bool:
    finding = violation.finding
    is_placed = (
        finding.rule in PLACEMENT_RULES and not finding.awaits and finding.reason not in INJECTION_REASONS
    )
    is_open = bool(finding.choices) or is_placed
    return is_open and violation.outcome is not Outcome.AUDITED


def _count_findings(phases: Iterable[Iterable[Violation]]) -> FindingCounts:
    """Return how often each kind of finding is shown, in the phase in which it comes most often."""
    counts, shown = FindingCounts(), list[Violation]()
    for violations in phases:
        new = without_repeated(violations, shown)
        shown += new
        visible = (violation for violation in new if violation.outcome is not Outcome.AUDITED)
        counts |= Counter(
            (_finding_key(violation.finding), violation.outcome)
            for violation in visible
            if violation.finding.reason not in INJECTION_REASONS
        )
    return counts


def _times_visible(counts: FindingCounts, finding_key: FindingKey) -> int:
    """Return how often a kind of finding is shown, as a denial or a warning."""
    return counts[finding_key, Outcome.DENIED] + counts[finding_key, Outcome.WARNED]


def _finding_key(finding: Finding) -> FindingKey:
    """Return what a finding is about. Without indices: the items behind a removed one move up."""
    return finding.rule, finding.reason.name, re.sub(r"\[\d+\]", "[]", finding.path), finding.container
