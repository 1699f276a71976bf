"""Keeps those choices of findings that help: each is tried on the pod before it is offered.

A choice helps if its finding goes, and no new denial comes. If some bring no new warning either, only these are kept.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from policies.finding import Edits, Finding, plain
from policies.pods.field_paths import path_parts, with_edits
from policies.pods.injected import INJECTION_REASONS
from policies.pods.pod import Pod, decode_pod
from policies.registry import PLACING
from webhook.evaluation.decision import Decision, Outcome, Violation

MAX_TRIED, MOST_BYTES = 48, 20 * 1024
"""Choices of one decision that are tried, and bytes of all pods with one. Each takes some 0.5 ms. The others are kept."""

FindingsOf = Callable[[Pod], Iterable[Iterable[Violation]]]
"""Returns what each phase finds of a pod that is created now."""

Kind = tuple[str, str, str, str | None]


def with_tried_choices(
    decision: Decision, pod: Pod, findings_of: FindingsOf, others: Callable[[], Iterable[Edits]]
) -> Decision:
    """Return the decision with those choices that help. `pod`: as its author submitted it.

    others: what is tried for a finding about the place of the pod without a choice that helps.
    """
    if not any(map(_is_tried, decision.violations)):
        return decision
    try:
        trials = _Trials(decision, pod, findings_of, others)
    except msgspec.MsgspecError:
        return (
            decision  # of a hostile pod, such as a number of many digits: it cannot be written as it was read
        )
    if not trials.left:
        return decision
    return replace(decision, violations=tuple(map(trials.checked, decision.violations)))


class _Trials:
    """Trials on one pod."""

    def __init__(
        self, decision: Decision, pod: Pod, findings_of: FindingsOf, others: Callable[[], Iterable[Edits]]
    ) -> None:
        text = msgspec.json.encode(pod)
        self._data, self._findings_of = msgspec.json.decode(text), findings_of
        self._others = others
        self.left = min(MAX_TRIED, MOST_BYTES // len(text))
        self._before = _kinds([decision.violations, *(findings_of(pod) if self.left else ())])

    def checked(self, violation: Violation) -> Violation:
        """Return the finding with its choices that help. Its words go with one that does not."""
        finding = violation.finding
        if not _is_tried(violation) or len(finding.choices) > self.left:
            return violation
        self.left -= len(finding.choices)
        tried = [(edits, self._brings(finding, edits)) for edits in finding.choices]
        best = min((brought for _, brought in tried if brought is not None), default=None)
        kept = tuple(edits for edits, brought in tried if brought is not None and brought == best)
        if kept == finding.choices and kept:
            return violation
        if not kept and finding.rule in PLACING:
            kept = self._another(finding)
        return (
            replace(violation, finding=replace(finding, choices=kept, remedy=""))
            if kept or tried
            else violation
        )

    def _another(self, finding: Finding) -> tuple[Edits, ...]:
        """Return the first other choice that helps, and brings nothing."""
        for edits in self._others():
            if self.left <= 0:
                break
            self.left -= 1
            if self._brings(finding, edits) is False:
                return (edits,)
        return ()

    def _brings(self, finding: Finding, edits: Edits) -> bool | None:
        """Return whether the edits bring a new warning. None: they bring a denial, or do not remove the finding."""
        parted = [(path_parts(edit.path), plain(edit.value)) for edit in edits]
        try:
            pod = decode_pod(msgspec.json.encode(with_edits(self._data, parted)))
        except msgspec.ValidationError:
            return None
        now = _kinds(self._findings_of(pod))
        same, denied, warned = _kind(finding), Outcome.DENIED, Outcome.WARNED
        if any(now[same, outcome] >= self._before[same, outcome] > 0 for outcome in (denied, warned)):
            return None
        new = {outcome for (kind, outcome), number in now.items() if number > self._before[kind, outcome]}
        return None if denied in new and not finding.reason.uncovers else bool(new)


def _is_tried(violation: Violation) -> bool:
    finding = violation.finding
    is_placed = finding.rule in PLACING and not finding.awaits and finding.reason not in INJECTION_REASONS
    is_open = bool(finding.choices) or is_placed
    return is_open and violation.outcome is not Outcome.AUDITED


def _kinds(phases: Iterable[Iterable[Violation]]) -> Counter[tuple[Kind, Outcome]]:
    """Return how often each kind of finding comes, in the phase in which it comes most often."""
    counts = Counter[tuple[Kind, Outcome]]()
    for violations in phases:
        said = (each for each in violations if each.outcome is not Outcome.AUDITED)
        counts |= Counter((_kind(each.finding), each.outcome) for each in said if _is_of_author(each.finding))
    return counts


def _is_of_author(finding: Finding) -> bool:
    return finding.reason not in INJECTION_REASONS


def _kind(finding: Finding) -> Kind:
    """Return what a finding is about. Without indices: the items behind a removed one move up."""
    return finding.rule, finding.reason.name, re.sub(r"\[\d+\]", "[]", finding.path), finding.container
