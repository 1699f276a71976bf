"""The quota is asked last, and only for what no rule denies; the mode of gpu-quota says what its answer does."""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf
from time import monotonic

import pytest
from msgspec.structs import replace

from policies.finding import TOO_LARGE, Finding
from policies.pods.pod import Pod
from policies.policy import BoundRule, EffectivePolicy
from policies.quota.demand import Demand
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError, QuotaRequest, ReservationOutcome
from policies.quota.waiting import GATE
from policies.registry import QUOTA_RULE, RULES_BY_ID
from policies.rule import Mode, Phase
from policies.rules.gpu_quota import GPUQuotaOptions, OnLedgerError
from tests.builders import JSON, context, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.evaluation import evaluator
from webhook.evaluation.decision import DeadlineExceeded, Decision, Outcome, Violation
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.queue_gate import queue_pod, without_unwanted_gate
from webhook.evaluation.tried_choices import PhasesOf

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CACHE = DecisionCache(load_objects([]))
DENIES = Finding(rule="gpu-class", reason=TOO_LARGE, message="is refused")
DEMAND = Demand({}, denials=(Finding(rule=QUOTA_RULE.id, reason=TOO_LARGE, message="needs a class"),))
REQUEST = QuotaRequest("request", "uid", context(), lambda _catalogues, _unclassified_pods: DEMAND)
WANTS_QUOTA = "namespace team must have a GPUQuota for pods and claims that request GPUs"
DENIED = (WANTS_QUOTA, Outcome.DENIED)
UNREACHABLE = "the quota could not be checked: connection refused"
UNCHECKED = "admitted without a quota check, which failed: connection refused"


class Quota:
    """There is none, or it cannot be reached; counts how often it is asked."""

    def __init__(self, *, reachable: bool = True) -> None:
        self.requests, self.reachable = 0, reachable
        self.is_enforced = False

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        self.requests += 1
        self.is_enforced = quota_request.is_enforced
        if not self.reachable:
            raise LedgerError("connection refused", transient=True)
        return ReservationOutcome()

    has_controller = True

    def ledger(self) -> QuotaLedger | None:
        return None


def policy(mode: Mode = Mode.ENFORCE, *, denies_on_error: bool = True) -> EffectivePolicy:
    on_error = OnLedgerError.DENY if denies_on_error else OnLedgerError.ALLOW
    options = GPUQuotaOptions(mode=mode, required=True, on_ledger_error=on_error)
    bound_rules = (BoundRule(RULES_BY_ID[QUOTA_RULE.id], options, "test"),)
    return EffectivePolicy(name="test", version="1", why="", namespace="team", bound_rules=bound_rules)


def evaluated(
    quota: Quota, held: EffectivePolicy, *before: tuple[Finding, Mode], deadline: float = inf
) -> list[tuple[str, Outcome]]:
    decision = Decision(policy=held)
    for finding, mode in before:
        decision = decision.with_findings([finding], mode)
    by = Evaluator(cache=CACHE, now=NOW, deadline=deadline, quota_of=lambda _namespace: quota)
    decision = by.reserve(decision, REQUEST)
    return [(each.finding.message, each.outcome) for each in decision.violations]


@cases(
    ("mode", "outcome"),
    enforce_denies=(Mode.ENFORCE, Outcome.DENIED),
    warn_warns=(Mode.WARN, Outcome.WARNED),
    audit_logs=(Mode.AUDIT, Outcome.AUDITED),
    disabled_asks_nothing=(Mode.DISABLED, None),
)
def test_modes(mode: Mode, outcome: Outcome | None) -> None:
    quota = Quota()

    assert evaluated(quota, policy(mode)) == ([(WANTS_QUOTA, outcome)] if outcome else [])
    assert quota.requests == (1 if outcome else 0)
    assert quota.is_enforced is (mode is Mode.ENFORCE)


@cases(
    ("denies_on_error", "want"),
    denied=(True, (UNREACHABLE, Outcome.DENIED)),
    allowed_with_a_warning=(False, (UNCHECKED, Outcome.WARNED)),
)
def test_a_quota_that_cannot_be_reached(denies_on_error: bool, want: tuple[str, Outcome]) -> None:
    held = policy(denies_on_error=denies_on_error)

    assert evaluated(Quota(reachable=False), held) == [want]


@cases(
    ("before", "want"),
    denied_before=((DENIES, Mode.ENFORCE), [("is refused", Outcome.DENIED)]),
    warned_before_what_denies_comes_first=((DENIES, Mode.WARN), [DENIED, ("is refused", Outcome.WARNED)]),
)
def test_only_what_nothing_else_denies_is_asked_for(
    before: tuple[Finding, Mode], want: list[tuple[str, Outcome]]
) -> None:
    quota = Quota()

    assert evaluated(quota, policy(), before) == want
    assert quota.requests == (0 if want[0][0] == "is refused" else 1)


@cases(("others", "is_found"), one_less=(99, True), as_many_as_are_kept=(100, False))
def test_findings_of_one_outcome_are_bounded(others: int, is_found: bool) -> None:
    many = [
        (Finding(rule="gpu-class", reason=TOO_LARGE, message=str(number)), Mode.WARN)
        for number in range(others)
    ]

    found = evaluated(Quota(), policy(Mode.WARN), *many)
    assert ((WANTS_QUOTA, Outcome.WARNED) in found) is is_found


HALF = view(pod(gpu_container("500m")))
"""A pod with a finding whose choices are tried."""
GOVERNING = CACHE.configuration.policies.for_namespace("team")


def test_trials_that_take_too_long_leave_the_decision_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> Decision:
        raise DeadlineExceeded

    by = Evaluator(cache=CACHE, now=NOW, tries_choices=False)
    want = by.evaluate(Creation(Phase.MUTATE, GOVERNING), HALF)
    monkeypatch.setattr(evaluator, "with_tried_choices", slow)

    assert want.violations
    assert replace(by, tries_choices=True).evaluate(Creation(Phase.MUTATE, GOVERNING), HALF) == want


@cases(("seconds", "is_tried"), less_than_half=(40, True), more_than_half=(60, False))
def test_trials_have_half_of_the_time_that_is_left(
    seconds: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Iterable[Violation]] = []
    start = monotonic()

    def later(decision: Decision, author: Pod, findings_of: PhasesOf, *_: object) -> Decision:
        monkeypatch.setattr("webhook.evaluation.decision.monotonic", lambda: start + seconds)
        found.extend(findings_of(author))
        return decision

    monkeypatch.setattr(evaluator, "with_tried_choices", later)
    Evaluator(cache=CACHE, now=NOW, deadline=start + 100).evaluate(Creation(Phase.MUTATE, GOVERNING), HALF)

    assert bool(found) is is_tried


@cases(("is_update", "want"), of_a_new_pod_once_and_not_in_a_trial=(False, 1), never_of_an_update=(True, 0))
def test_how_often_choices_are_tried(is_update: bool, want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(decision: Decision, author: Pod, findings_of: PhasesOf, *_: object) -> Decision:
        calls.append(decision)
        assert list(findings_of(author)), "what phases find"
        return decision

    monkeypatch.setattr(evaluator, "with_tried_choices", counted)
    by = Evaluator(cache=CACHE, now=NOW)
    by.evaluate(Creation(Phase.MUTATE, GOVERNING), HALF, is_update=is_update)

    assert len(calls) == want


def test_no_ledger_is_read_for_choices_of_a_pod_that_rules_deny() -> None:
    asked: list[str] = []

    def quota_of(namespace: str) -> None:
        asked.append(namespace)

    denied = Evaluator(cache=CACHE, now=NOW, quota_of=quota_of).evaluate(
        Creation(Phase.MUTATE, GOVERNING), HALF
    )

    assert [each.finding.choices for each in denied.violations if each.outcome is Outcome.DENIED] != [()]
    assert asked == []


def test_no_quota_is_asked_after_the_deadline() -> None:
    quota = Quota()
    with pytest.raises(DeadlineExceeded):
        evaluated(quota, policy(), deadline=monotonic())
    assert quota.requests == 0


@cases(
    ("phase", "want", "changes"),
    at_mutate=(
        Phase.MUTATE,
        ("is removed: pods of this namespace do not wait in line for quota", Outcome.WARNED),
        ["no schedulingGate gpu-admission.dev/quota"],
    ),
    at_validate=(
        Phase.VALIDATE,
        ("must be omitted: pods of this namespace do not wait in line for quota", Outcome.DENIED),
        [],
    ),
)
def test_our_gate_on_a_pod_that_does_not_wait(
    phase: Phase, want: tuple[str, Outcome], changes: list[str]
) -> None:
    gated = view(pod(gpu_container("1"), schedulingGates=[{"name": GATE}]))

    decision = without_unwanted_gate(Decision(policy=policy()), gated, phase)

    assert [(each.finding.message, each.outcome) for each in decision.violations] == [want]
    assert [change.what for change in decision.changes] == changes


QUEUES = [
    Document("GPUPolicy", "default", {"rules": {"gpu-quota": {"mode": "enforce", "onExceeded": "Queue"}}})
]
PYTORCHJOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "controller": True}


@cases(
    ("metadata", "by_daemonset", "want"),
    alone=({}, False, [False]),
    in_a_gang=({"ownerReferences": [PYTORCHJOB]}, False, [True]),
    in_a_pod_group=({"annotations": {"scheduling.k8s.io/group-name": "train"}}, False, [True]),
    of_kueue=({"labels": {"kueue.x-k8s.io/podset": "main"}}, False, [False]),
    of_a_daemonset=({}, True, []),
)
def test_which_pods_may_wait_depends_on_metadata_that_no_rule_reads(
    metadata: JSON, by_daemonset: bool, want: list[bool]
) -> None:
    asked: list[bool] = []
    cache = DecisionCache(load_objects(QUEUES))
    by = Evaluator(cache=cache, now=NOW, queue_outcome=lambda request: asked.append(request.in_gang))
    for seen in ({}, metadata):
        document = pod(gpu_container("1"))
        document["metadata"] |= seen
        submitted = view(document)
        fingerprint = cache.fingerprints.of(submitted)
        decision = by.evaluate(Creation(Phase.MUTATE, by.policy("team")), submitted, fingerprint=fingerprint)
        asked.clear()
        queue_pod(by, decision, submitted, "uid", by_daemonset=by_daemonset)
    assert asked == want
