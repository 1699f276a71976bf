"""The engine: modes, order, exemptions, break glass, and what did not survive. The rules here are made for the purpose."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from policies.finding import Finding, Severity
from policies.pods.annotations import INJECTED
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod, Toleration
from policies.policy import Binding, EffectivePolicy, Exemption, Labels
from policies.rule import Context, Mode, Rule, RuleOptions
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_container, pod, view
from webhook.configuration.loader import Configuration
from webhook.serving.engine import Decision, Engine, Outcome, Subject

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TAINT = Toleration(key="team", operator="Exists")


def tolerate(draft: PodPatch, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    if TAINT not in (draft.pod.body.tolerations or ()):
        draft.add_toleration(TAINT)
    yield from ()


def label_after(draft: PodPatch, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    if TAINT in (draft.pod.body.tolerations or ()) and not draft.pod.body.node_selector:
        draft.set_node_selector("seen", "toleration")
    yield from ()


def refuse(_pod: Pod, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
    yield Finding(rule="refuse", path="spec", message="is refused")
    yield Finding(rule="refuse", path="spec", message="is odd", severity=Severity.WARNING)


TOLERATE = Rule(id="tolerate", summary="adds a toleration", options=RuleOptions, mutate=tolerate)
LABEL = Rule(
    id="label", summary="adds a label once the toleration is there", options=RuleOptions, mutate=label_after
)
DENY = Rule(id="refuse", summary="refuses", options=RuleOptions, check=refuse, check_before_mutation=True)


class _OnePolicy:
    """Stands in for a policy set that holds the same policy everywhere."""

    def __init__(self, policy: EffectivePolicy) -> None:
        self._policy = policy

    def for_namespace(self, _namespace: str, _labels: Labels) -> EffectivePolicy:
        return self._policy


def engine(*rules: tuple[Rule, Mode], **policy: Any) -> Engine:
    effective = EffectivePolicy(
        name="test",
        version="1",
        why="",
        namespace="ml-training",
        bindings=tuple(Binding(rule, RuleOptions(mode=mode), "test") for rule, mode in rules),
        **policy,
    )
    configuration: Any = Configuration
    return Engine(
        configuration(
            policies=_OnePolicy(effective), classes=CLASSES, resource_mapping=RESOURCE_MAPPING, version="1"
        )
    )


def subject(document: JSON | None = None, **tweaks: Any) -> Subject:
    return Subject(pod=view(document or pod(gpu_container())), namespace="ml-training", **tweaks)


def told(decision: Decision, outcome: Outcome) -> list[str]:
    return [finding.message for finding in decision.findings(outcome)]


@pytest.mark.parametrize(
    ("mode", "patched", "warned", "logged"),
    [
        pytest.param(Mode.ENFORCE, True, [], [], id="enforce-patches"),
        pytest.param(Mode.WARN, False, ["would add toleration team"], [], id="warn-tells-what-it-would-do"),
        pytest.param(Mode.AUDIT, False, [], ["would add toleration team"], id="audit-only-logs"),
        pytest.param(Mode.DISABLED, False, [], [], id="disabled-does-nothing"),
    ],
)
def test_modes_of_a_rule_that_mutates(
    mode: Mode, patched: bool, warned: list[str], logged: list[str]
) -> None:
    decision = engine((TOLERATE, mode)).mutate(subject(), NOW)

    assert bool(decision.operations) is patched
    assert (told(decision, Outcome.WARNED), told(decision, Outcome.AUDITED)) == (warned, logged)
    assert decision.allowed


@pytest.mark.parametrize("phase", ["mutate", "validate", "check_template"])
@pytest.mark.parametrize(
    ("mode", "denied", "warned", "logged"),
    [
        pytest.param(Mode.ENFORCE, ["is refused"], ["is odd"], [], id="enforce-refuses"),
        pytest.param(Mode.WARN, [], ["is refused", "is odd"], [], id="warn-warns"),
        pytest.param(Mode.AUDIT, [], [], ["is refused", "is odd"], id="audit-logs"),
        pytest.param(Mode.DISABLED, [], [], [], id="disabled-does-nothing"),
    ],
)
def test_modes_of_a_rule_that_denies(
    phase: str, mode: Mode, denied: list[str], warned: list[str], logged: list[str]
) -> None:
    decision: Decision = getattr(engine((DENY, mode)), phase)(subject(), NOW)

    assert told(decision, Outcome.DENIED) == denied
    assert told(decision, Outcome.WARNED) == warned
    assert told(decision, Outcome.AUDITED) == logged
    assert decision.allowed is not bool(denied)


def test_the_next_rule_sees_the_pod_as_its_predecessors_left_it() -> None:
    decision = engine((TOLERATE, Mode.ENFORCE), (LABEL, Mode.ENFORCE)).mutate(subject(), NOW)

    assert [change.change.what for change in decision.changes] == [
        "toleration team",
        "nodeSelector seen=toleration",
    ]


def test_what_a_warning_rule_would_do_is_not_seen_by_the_next_rule() -> None:
    decision = engine((TOLERATE, Mode.WARN), (LABEL, Mode.ENFORCE)).mutate(subject(), NOW)

    assert decision.operations == []


def test_what_was_injected_is_written_on_the_pod_for_people() -> None:
    decision = engine((TOLERATE, Mode.ENFORCE), (LABEL, Mode.ENFORCE)).mutate(subject(), NOW)

    assert decision.operations[-1].value == {
        INJECTED: "tolerate: toleration team\nlabel: nodeSelector seen=toleration"
    }


def test_nothing_injected_leaves_no_annotation() -> None:
    tolerated = pod(gpu_container(), tolerations=[{"key": "team", "operator": "Exists"}])

    assert engine((TOLERATE, Mode.ENFORCE)).mutate(subject(tolerated), NOW).operations == []


def test_an_injection_that_did_not_survive_is_reported_at_the_end() -> None:
    decision = engine((TOLERATE, Mode.ENFORCE)).validate(subject(), NOW)

    assert decision.allowed
    assert told(decision, Outcome.WARNED) == [
        "toleration team is missing from the final pod: it was not injected, or a later webhook took it out"
    ]
    assert decision.operations == []


def test_rules_that_do_not_look_at_updates_are_silent_there() -> None:
    assert engine((DENY, Mode.ENFORCE)).validate(subject(is_update=True), NOW).allowed


def test_break_glass_turns_everything_into_audit_until_its_time_is_up() -> None:
    paused = engine(
        (DENY, Mode.ENFORCE), (TOLERATE, Mode.ENFORCE), paused_until=datetime(2026, 11, 21, 13, tzinfo=UTC)
    )

    during = paused.mutate(subject(), NOW)
    after = paused.mutate(subject(), datetime(2026, 11, 21, 13, tzinfo=UTC))

    assert during.allowed
    assert during.operations == []
    assert told(during, Outcome.AUDITED) == ["is refused", "is odd", "would add toleration team"]
    assert during.paused_until == datetime(2026, 11, 21, 13, tzinfo=UTC)
    assert not after.allowed
    assert after.paused_until is None


@pytest.mark.parametrize(
    ("exemption", "allowed"),
    [
        pytest.param(Exemption(namespaces=("ml-*",), reason="test"), True, id="by-glob"),
        pytest.param(Exemption(namespaces=("other",), reason="test"), False, id="another-namespace"),
        pytest.param(Exemption(namespaces=("*",), rules=("refuse",), reason="test"), True, id="this-rule"),
        pytest.param(
            Exemption(namespaces=("*",), rules=("tolerate",), reason="test"), False, id="another-rule"
        ),
        pytest.param(
            Exemption(namespaces=("*",), reason="test", until=date(2026, 11, 21)),
            True,
            id="until-the-end-of-today",
        ),
        pytest.param(
            Exemption(namespaces=("*",), reason="test", until=date(2026, 11, 20)), False, id="ended-yesterday"
        ),
    ],
)
def test_exemptions(exemption: Exemption, allowed: bool) -> None:
    decision = engine((DENY, Mode.ENFORCE), exemptions=(exemption,)).mutate(subject(), NOW)

    assert decision.allowed is allowed
    assert (decision.exemption is not None) is allowed
