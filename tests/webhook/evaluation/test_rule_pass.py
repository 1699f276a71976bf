"""The engine: modes, order, exemptions, break glass, and what did not survive. The rules here are made for the purpose."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from math import inf
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import replace

from policies.finding import TOO_LARGE, Finding, Reason, Severity
from policies.placement.availability import NO_NODE
from policies.pods.annotations import INJECTED
from policies.pods.patch import PodPatch
from policies.pods.pod import Metadata, Pod, Toleration
from policies.pods.workload import PodCount, Workload, WorkloadPods
from policies.policy import BoundRule, EffectivePolicy, Exemption, PolicySet
from policies.rule import Context, Mode, Phase, Rule, RuleOptions
from tests.builders import CLASSES, RESOURCE_MAPPING, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.loader import Configuration
from webhook.evaluation.decision import DeadlineExceeded, Decision, Outcome
from webhook.evaluation.decision_cache import DecisionCache, cache_source
from webhook.evaluation.evaluator import Creation, Evaluator

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TAINT = Toleration(key="team", operator="Exists")


def tolerate(draft: PodPatch, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    if TAINT not in (draft.pod.spec.tolerations or ()):
        draft.add_toleration(TAINT)
    yield from ()


def label_after(draft: PodPatch, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    if TAINT in (draft.pod.spec.tolerations or ()) and not draft.pod.spec.node_selector:
        draft.set_node_selector("seen", "toleration")
    yield from ()


def refuse(_pod: Pod, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    yield Finding(rule="refuse", reason=TOO_LARGE, path="spec", message="is refused")
    yield Finding(rule="refuse", reason=TOO_LARGE, path="spec", message="is odd", severity=Severity.WARNING)


TOLERATE = Rule(id="tolerate", summary="adds a toleration", options=RuleOptions, mutate=tolerate)
LABEL = Rule(
    id="label", summary="adds a label once the toleration is there", options=RuleOptions, mutate=label_after
)
DENY = Rule(id="refuse", summary="refuses", options=RuleOptions, check=refuse, check_before_mutation=True)

CONFIGURATION = Configuration(
    policies=PolicySet(()), classes=CLASSES, resource_mapping=RESOURCE_MAPPING, version="1"
)
CACHE = DecisionCache(CONFIGURATION)


def policy(*rules: tuple[Rule, Mode], **tweaks: Any) -> EffectivePolicy:
    return EffectivePolicy(
        name="test",
        version="1",
        why="",
        namespace="ml-training",
        bound_rules=tuple(BoundRule(rule, RuleOptions(mode=mode), "test") for rule, mode in rules),
        **tweaks,
    )


TRAIN = view(pod(gpu_container()))


def decide(
    phase: Phase,
    held: EffectivePolicy,
    of: Pod = TRAIN,
    *,
    now: datetime = NOW,
    deadline: float = inf,
    is_update: bool = False,
) -> Decision:
    by = Evaluator(cache=CACHE, now=now, deadline=deadline)
    return by.evaluate(Creation(phase, held), of, is_update=is_update)


def reported(decision: Decision, outcome: Outcome) -> list[str]:
    return [finding.message for finding in decision.findings(outcome)]


@cases(
    ("mode", "patched", "warned", "audited"),
    enforce_patches=(Mode.ENFORCE, True, [], []),
    warn_tells_what_it_would_do=(Mode.WARN, False, ["would add toleration team"], []),
    audit_only_logs=(Mode.AUDIT, False, [], ["would add toleration team"]),
    disabled_does_nothing=(Mode.DISABLED, False, [], []),
)
def test_modes_of_a_rule_that_mutates(
    mode: Mode, patched: bool, warned: list[str], audited: list[str]
) -> None:
    decision = decide(Phase.MUTATE, policy((TOLERATE, mode)))

    assert bool(decision.operations) is patched
    assert (reported(decision, Outcome.WARNED), reported(decision, Outcome.AUDITED)) == (warned, audited)
    assert decision.allowed


@pytest.mark.parametrize("phase", Phase)
@cases(
    ("mode", "denied", "warned", "audited"),
    enforce_refuses=(Mode.ENFORCE, ["is refused"], ["is odd"], []),
    warn_warns=(Mode.WARN, [], ["is refused", "is odd"], []),
    audit_logs=(Mode.AUDIT, [], [], ["is refused", "is odd"]),
    disabled_does_nothing=(Mode.DISABLED, [], [], []),
)
def test_modes_of_a_rule_that_denies(
    phase: Phase, mode: Mode, denied: list[str], warned: list[str], audited: list[str]
) -> None:
    decision = decide(phase, policy((DENY, mode)))

    assert reported(decision, Outcome.DENIED) == denied
    assert reported(decision, Outcome.WARNED) == warned
    assert reported(decision, Outcome.AUDITED) == audited
    assert decision.allowed is not bool(denied)


def test_the_next_rule_sees_the_pod_as_its_predecessors_left_it_and_an_annotation_lists_all_changes() -> None:
    decision = decide(Phase.MUTATE, policy((TOLERATE, Mode.ENFORCE), (LABEL, Mode.ENFORCE)))

    changes = [(change.rule, change.what) for change in decision.changes]
    assert changes == [("tolerate", "toleration team"), ("label", "nodeSelector seen=toleration")]
    assert decision.operations[-1].value == {
        INJECTED: "tolerate: toleration team\nlabel: nodeSelector seen=toleration"
    }


def test_what_a_warning_rule_would_do_is_not_seen_by_the_next_rule() -> None:
    decision = decide(Phase.MUTATE, policy((TOLERATE, Mode.WARN), (LABEL, Mode.ENFORCE)))

    assert decision.operations == []


MISSING = (
    "toleration team is missing from the final pod: it was not injected, or a mutating webhook after gpu-admission took it "
    "out"
)


@pytest.mark.parametrize(("mode", "want"), [(Mode.ENFORCE, [MISSING]), (Mode.WARN, []), (Mode.AUDIT, [])])
def test_an_injection_that_did_not_survive_is_reported_at_the_end(mode: Mode, want: list[str]) -> None:
    decision = decide(Phase.VALIDATE, policy((TOLERATE, mode)))

    assert decision.allowed
    assert reported(decision, Outcome.WARNED) == want
    assert reported(decision, Outcome.AUDITED) == []
    assert decision.operations == []


@cases(
    ("first", "denied"),
    denied_already_hears_all=(Mode.ENFORCE, ["is refused", "is late"]),
    the_rest_is_for_validate=(Mode.WARN, []),
)
def test_a_pod_that_mutate_denies_hears_what_validate_would_say(first: Mode, denied: list[str]) -> None:
    def check(_pod: Pod, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
        yield Finding(rule="late", reason=TOO_LARGE, message="is late")

    late = Rule(id="late", summary="denies at /validate", options=RuleOptions, check=check)

    assert (
        reported(decide(Phase.MUTATE, policy((DENY, first), (late, Mode.ENFORCE))), Outcome.DENIED) == denied
    )


AMOUNT = "spec.containers[0].resources.limits[nvidia.com/gpu]"


@cases(
    ("path", "reason", "is_said"),
    of_the_amount=(AMOUNT, NO_NODE, False),
    of_another_field=("spec.tolerations", NO_NODE, True),
    of_the_pod=("spec", NO_NODE, True),
    another_fact=(AMOUNT, TOO_LARGE, True),
)
def test_a_missing_node_is_not_said_of_an_amount_that_is_denied(
    path: str, reason: Reason, is_said: bool
) -> None:
    def check(_pod: Pod, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
        yield Finding(reason=TOO_LARGE, path=AMOUNT, message="is refused")
        yield Finding(reason=TOO_LARGE, path="spec", message="is refused")
        yield Finding(reason=reason, path=path, message="no node", severity=Severity.WARNING)

    rule = Rule(id="both", summary="both", options=RuleOptions, check=check, check_before_mutation=True)
    decision = decide(Phase.MUTATE, policy((rule, Mode.ENFORCE)))

    assert [each.finding.message for each in decision.violations] == (
        ["is refused", "is refused", "no node"] if is_said else ["is refused", "is refused"]
    )


def test_rules_that_do_not_look_at_updates_are_silent_there() -> None:
    assert decide(Phase.VALIDATE, policy((DENY, Mode.ENFORCE)), is_update=True).allowed


def test_break_glass_turns_everything_into_audit_until_its_time_is_up() -> None:
    paused = policy(
        (DENY, Mode.ENFORCE), (TOLERATE, Mode.ENFORCE), paused_until=datetime(2026, 11, 21, 13, tzinfo=UTC)
    )

    during = decide(Phase.MUTATE, paused)
    after = decide(Phase.MUTATE, paused, now=datetime(2026, 11, 21, 13, tzinfo=UTC))

    assert during.allowed
    assert during.operations == []
    assert reported(during, Outcome.AUDITED) == ["is refused", "is odd", "would add toleration team"]
    assert during.paused_until == datetime(2026, 11, 21, 13, tzinfo=UTC)
    assert not after.allowed
    assert after.paused_until is None


@cases(
    ("exemption", "allowed"),
    every_rule=(Exemption(namespaces=("*",), reason="test"), True),
    this_rule=(Exemption(namespaces=("*",), rules=("refuse",), reason="test"), True),
    another_rule=(Exemption(namespaces=("*",), rules=("tolerate",), reason="test"), False),
    until_the_end_of_today=(Exemption(namespaces=("*",), reason="test", until=date(2026, 11, 21)), True),
    ended_yesterday=(Exemption(namespaces=("*",), reason="test", until=date(2026, 11, 20)), False),
)
def test_exemptions(exemption: Exemption, allowed: bool) -> None:
    decision = decide(Phase.MUTATE, policy((DENY, Mode.ENFORCE), exemptions=(exemption,)))

    assert decision.allowed is allowed
    assert (decision.exemption is not None) is allowed


def test_an_engine_is_built_once_a_snapshot() -> None:
    snapshots = [CONFIGURATION]
    in_force = cache_source(lambda: snapshots[-1])
    first = in_force()

    assert in_force() is first
    snapshots.append(replace(CONFIGURATION, version="2"))
    assert in_force().configuration is snapshots[-1]
    assert in_force() is in_force()


def test_the_deadline_is_looked_at_before_each_rule() -> None:
    requested: list[str] = []

    def taking_all_the_time(name: str) -> Rule:
        def check(_pod: Pod, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
            requested.append(name)
            while monotonic() < deadline:
                pass
            yield from ()

        return Rule(id=name, summary="takes long", options=RuleOptions, check=check)

    held = policy((taking_all_the_time("first"), Mode.ENFORCE), (taking_all_the_time("second"), Mode.ENFORCE))
    deadline = monotonic() + 0.3
    with pytest.raises(DeadlineExceeded):
        decide(Phase.VALIDATE, held, deadline=deadline)

    assert requested == ["first"]


@pytest.mark.parametrize("phase", Phase)
def test_no_rule_runs_after_the_deadline(phase: Phase) -> None:
    with pytest.raises(DeadlineExceeded):
        decide(phase, policy((TOLERATE, Mode.ENFORCE)), deadline=monotonic())


def advise_on_size(workload: Workload, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    for each in workload.pods:
        labelled = dict(each.admitted.spec.node_selector or {})
        yield Finding(
            rule="size",
            reason=TOO_LARGE,
            path=each.path,
            message=f"{workload.kind} {workload.name}: {labelled}",
        )


SIZE = Rule(id="size", summary="advises on workloads", options=RuleOptions, check_workload=advise_on_size)


@cases(
    ("mode", "warned"),
    enforce_warns=(Mode.ENFORCE, ["Deployment chat: {'seen': 'toleration'}"]),
    warn_warns=(Mode.WARN, ["Deployment chat: {'seen': 'toleration'}"]),
    audit_warns=(Mode.AUDIT, ["Deployment chat: {'seen': 'toleration'}"]),
    disabled_is_silent=(Mode.DISABLED, []),
)
def test_advice_on_a_workload_is_a_warning_and_sees_the_pods_as_admitted(
    mode: Mode, warned: list[str]
) -> None:
    held = policy((TOLERATE, Mode.ENFORCE), (LABEL, Mode.ENFORCE), (SIZE, mode))
    admitted = decide(Phase.TEMPLATE, held).pod
    assert admitted is not None
    pods = (WorkloadPods("spec.template", TRAIN, PodCount(), admitted),)
    document = {"metadata": {"name": "chat"}, "spec": {}}

    workload = Workload("apps", "Deployment", "ml-training", document, pods)
    decision = Evaluator(cache=CACHE, now=NOW).check_workload(held, workload, is_update=False)

    assert reported(decision, Outcome.WARNED) == warned
    assert decision.allowed


def test_advice_on_a_workload_ends_with_an_exemption() -> None:
    exempt = Exemption(namespaces=("ml-*",), reason="migration", rules=("size",))
    held = policy((SIZE, Mode.ENFORCE), exemptions=(exempt,))
    pods = (WorkloadPods("spec.template", Pod(), PodCount(), Pod()),)

    workload = Workload("apps", "Deployment", "ml-training", {}, pods)

    assert Evaluator(cache=CACHE, now=NOW).check_workload(held, workload, is_update=False).violations == ()


@cases(
    "document",
    a_list=[1],
    metadata_is_text={"metadata": "text"},
    a_label_is_a_number={"metadata": {"labels": {"a": 1}}},
)
def test_an_object_that_no_api_server_stores_is_an_empty_workload(document: Any) -> None:
    workload = Workload("apps", "Deployment", "ml-training", document, ())

    assert (workload.name, workload.metadata, workload.pods) == ("", Metadata(), ())
