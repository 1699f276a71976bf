"""The decision on a pod holds for pods with an equal fingerprint, and for no others."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from policies.finding import TOO_LARGE, Finding
from policies.placement.nodes import NodeFacts
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod
from policies.policy import BoundRule, EffectivePolicy, Exemption, PolicySet
from policies.rule import Context, Mode, Phase, Rule, RuleOptions
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_container, pod, view
from tests.cases import cases
from tests.strategies import PODS
from webhook.configuration.loader import Configuration
from webhook.evaluation.decision import Decision
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.facts import Facts

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICIES = PolicySet(())
CONFIGURATION = Configuration(
    policies=POLICIES, classes=CLASSES, resource_mapping=RESOURCE_MAPPING, version="1"
)
PHASES = [Phase.MUTATE, Phase.VALIDATE]
BUILT_IN = POLICIES.for_namespace("ml")


def decide(
    cache: DecisionCache,
    phase: Phase,
    document: JSON,
    policy: EffectivePolicy = BUILT_IN,
    nodes: NodeFacts | None = None,
    *,
    by_daemonset: bool = False,
    **tweaks: Any,
) -> Decision:
    seen = view(document)
    by = Evaluator(cache=cache, now=NOW, facts=Facts(nodes=lambda: nodes))
    creation = Creation(phase, policy, by_daemonset)
    return by.evaluate(creation, seen, **{"fingerprint": cache.fingerprints.of(seen), **tweaks})


@pytest.mark.parametrize("phase", PHASES)
@given(document=PODS)
@settings(max_examples=settings().max_examples * 3 // 10)
def test_an_equal_pod_gets_the_decision_that_it_would_get_alone(phase: Phase, document: JSON) -> None:
    cache = DecisionCache(CONFIGURATION)
    if (metadata := document.get("metadata")) is not None:
        decide(cache, phase, {**document, "metadata": {**metadata, "name": "first", "uid": "1"}})
    again = decide(cache, phase, document)
    assert replace(again, pod=None) == replace(decide(cache, phase, document, fingerprint=None), pod=None)


class Counted:
    """A rule that counts how often it runs, and says so where it `quotes` the pod."""

    def __init__(self, quote: str = "") -> None:
        self.runs = 0
        self.quote = quote
        rule = Rule(id="counted", summary="", options=RuleOptions, check=self.check, checks_updates=True)
        self.bound_rules = (BoundRule(rule, RuleOptions(mode=Mode.WARN), "test"),)

    def check(self, _pod: Pod, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
        self.runs += 1
        if self.quote:
            yield Finding(rule="counted", reason=TOO_LARGE, message=self.quote)

    def policy(self, **tweaks: Any) -> EffectivePolicy:
        fields = {"name": "t", "version": "1", "why": "", "namespace": "ml", "bound_rules": self.bound_rules}
        return EffectivePolicy(**{**fields, **tweaks})


TRAIN = pod(gpu_container())

UNTIL = datetime(2027, 1, 1, tzinfo=UTC)
EXEMPT = Exemption(namespaces=("ml",), rules=("other",), reason="x")


@cases(
    ("policy", "tweaks", "runs"),
    an_equal_pod=({}, {}, 1),
    of_a_daemonset=({}, {"by_daemonset": True}, 2),
    of_an_update=({}, {"is_update": True}, 2),
    with_other_nodes=({}, {"nodes": NodeFacts(keys=frozenset())}, 2),
    not_compared=({}, {"fingerprint": None}, 2),
    time_decides_while_a_policy_is_paused=({"paused_until": UNTIL}, {}, 2),
    time_decides_with_exemptions=({"exemptions": (EXEMPT,)}, {}, 2),
)
def test_what_a_decision_depends_on(policy: Any, tweaks: Any, runs: int) -> None:
    cache, counted = DecisionCache(CONFIGURATION), Counted()
    held = counted.policy(**policy)
    decide(cache, Phase.VALIDATE, TRAIN, held)
    decide(cache, Phase.VALIDATE, TRAIN, **{"policy": held, **tweaks})
    assert counted.runs == runs


def test_another_policy_of_the_namespace_finds_for_itself() -> None:
    cache, counted = DecisionCache(CONFIGURATION), Counted()
    for _ in range(2):
        decide(cache, Phase.VALIDATE, TRAIN, counted.policy())
    assert counted.runs == 2


@cases("quote", the_name_of_a_token="volume kube-api-access-abcde", much="x" * 16_384)
def test_what_quotes_a_token_or_much_is_not_remembered(quote: str) -> None:
    counted = Counted(quote)
    cache, policy = DecisionCache(CONFIGURATION), counted.policy()
    for _ in range(2):
        assert [
            each.finding.message for each in decide(cache, Phase.VALIDATE, TRAIN, policy=policy).violations
        ] == [quote]
    assert counted.runs == 2


@cases(
    ("one", "other", "is_shared"),
    other_arguments=(TRAIN, pod(gpu_container(args=["--seed=2"])), True),
    an_unread_annotation=(
        pod(gpu_container(), annotations={"team": "a"}),
        pod(gpu_container(), annotations={"team": "b"}),
        True,
    ),
    more_gpus=(TRAIN, pod(gpu_container("2")), False),
    another_class=(TRAIN, pod(gpu_container(), nodeSelector={"accelerator": "nvidia-t4"}), False),
    another_name_which_a_denial_quotes=(TRAIN, pod(gpu_container(name="other")), False),
    on_one_node_whose_labels_may_change=(
        pod(gpu_container(), nodeName="a"),
        pod(gpu_container(), nodeName="a"),
        False,
    ),
)
def test_who_shares_demands(one: JSON, other: JSON, is_shared: bool) -> None:
    cache = DecisionCache(CONFIGURATION)
    first, second = (cache.demands(seen, cache.fingerprints.of(seen)) for seen in map(view, (one, other)))
    assert (first is second) is is_shared


def test_what_is_remembered_is_bounded() -> None:
    cache, sizes = DecisionCache(CONFIGURATION), []
    for number in range(257):
        decide(cache, Phase.MUTATE, pod(gpu_container(), nodeSelector={"number": f"{number}"}))
        sizes.append(len(cache.decisions))
    assert sizes == [*range(1, 257), 1]


@cases(("others", "is_kept"), as_many_as_are_kept=(1_023, True), one_more=(1_024, False))
def test_demands_that_are_remembered_are_bounded(others: int, is_kept: bool) -> None:
    cache = DecisionCache(CONFIGURATION)
    first = cache.demands(view(TRAIN), None)
    for number in range(others):
        cache.demands(view(pod(gpu_container(str(number + 2)))), None)
    assert (cache.demands(view(TRAIN), None) is first) is is_kept


def test_patches_of_equal_pods_are_the_same() -> None:
    def tolerate(draft: PodPatch, _options: RuleOptions, _context: Context) -> Iterator[Finding]:
        draft.set_node_selector("zone", "a")
        yield from ()

    rule = Rule(id="zone", summary="", options=RuleOptions, mutate=tolerate)
    policy = Counted().policy(bound_rules=(BoundRule(rule, RuleOptions(), "test"),))
    cache = DecisionCache(CONFIGURATION)
    one, other = (decide(cache, Phase.MUTATE, TRAIN, policy=policy) for _ in range(2))
    assert one.operations == other.operations != []
    assert (one.note, one.changes) == (other.note, other.changes)
