"""What a decision depends on besides the pod where rule host-resources is on: the LimitRanges of its namespace."""

from datetime import UTC, datetime

import msgspec
import pytest

from policies.pods.limit_ranges import NamespaceLimits, ResourceBounds, decode_limit_range, namespace_limits
from policies.pods.quantity import parse_quantity
from policies.rule import Need, Phase
from tests.builders import gpu_container, pod, view
from webhook.configuration.documents import Document
from webhook.configuration.loader import Configuration, load_objects
from webhook.evaluation.creation import evaluate_template
from webhook.evaluation.decision import Outcome
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.evaluation.facts import Facts

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SHARED = Document(
    "GPUClass",
    "shared",
    {
        "memoryGiB": 80,
        "nodeLabels": [{"key": "accelerator", "values": ["shared"]}],
        "perGPU": {"cpu": 12, "memory": "1Gi"},
    },
)
POD = view(pod(gpu_container(resources={"limits": {"nvidia.com/gpu": "1"}, "requests": {"memory": "1Gi"}})))
NONE = NamespaceLimits()
AT_MOST_4 = NamespaceLimits(cpu=ResourceBounds(pod_max=parse_quantity(4)))


def configuration(mode: str) -> Configuration:
    rules = {"gpu-class": {"default": "shared"}, "host-resources": {"mode": mode}}
    return load_objects([SHARED, Document("GPUPolicy", "default", {"rules": rules})])


def test_equal_pods_of_a_namespace_are_decided_again_when_its_limit_ranges_change() -> None:
    cache, found = DecisionCache(configuration("enforce")), []
    for limits in (NONE, AT_MOST_4, AT_MOST_4, NONE, None):
        by = Evaluator(cache=cache, now=NOW, facts=Facts(limits_of=lambda _namespace, limits=limits: limits))  # type: ignore[misc]
        fingerprint = cache.fingerprints.of(POD)
        decision = by.evaluate(Creation(Phase.MUTATE, by.policy("team")), POD, fingerprint=fingerprint)
        found.append((decision.changes[-1].what, decision.pod is None))

    twelve, four = "main: requests cpu=12", "main: requests cpu=4"
    # The second review of an equal pod under the same LimitRanges is answered without the rules.
    assert found == [(twelve, False), (four, False), (four, True), (twelve, True), (twelve, False)]


@pytest.mark.parametrize(
    ("mode", "count"), [("enforce", 1), ("warn", 1), ("audit", 1), ("disabled", 0)], ids=str
)
def test_only_a_policy_with_the_rule_on_reads_them(mode: str, count: int) -> None:
    asked: list[str] = []

    def limits_of(namespace: str) -> NamespaceLimits:
        asked.append(namespace)
        return NONE

    by = Evaluator(cache=DecisionCache(configuration(mode)), now=NOW, facts=Facts(limits_of=limits_of))
    by.evaluate(Creation(Phase.MUTATE, by.policy("team")), POD)

    assert asked == ["team"] * count
    assert (Need.LIMIT_RANGES in by.cache.configuration.policies.needs) is bool(count)


def test_the_built_in_policy_reads_none() -> None:
    assert Need.LIMIT_RANGES not in load_objects([]).policies.needs


def test_limit_ranges_refuse_pods_of_a_template_with_what_rules_add_to_them() -> None:
    """LimitRanger checks the final pod. It would refuse one without the limit that rule gpu-requests completes."""
    complete = Document("GPUPolicy", "default", {"rules": {"gpu-requests": {"completeLimits": True}}})
    at_most_8 = {"type": "Pod", "max": {"nvidia.com/gpu": "8"}}
    stored = {"metadata": {"name": "limits"}, "spec": {"limits": [at_most_8]}}
    limits = namespace_limits([decode_limit_range(msgspec.json.encode(stored))])
    by = Evaluator(
        cache=DecisionCache(load_objects([complete])),
        now=NOW,
        facts=Facts(limits_of=lambda _namespace: limits),
    )

    def denied(count: str) -> list[str]:
        requesting = view(pod(gpu_container(resources={"requests": {"nvidia.com/gpu": count}})))
        decision = evaluate_template(by, by.policy("team"), "Deployment", requesting)
        return [each.message for each in decision.findings(Outcome.DENIED)]

    assert denied("4") == []
    assert denied("16") == [
        "must satisfy LimitRange limits: maximum nvidia.com/gpu usage per Pod is 8, but limit is 16"
    ]
