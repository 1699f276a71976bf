"""Every rule with each of its options, for the laws that hold for all."""

from collections.abc import Iterator

from hypothesis import note

from policies.finding import Finding
from policies.placement.nodes import NodeFacts
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.registry import RULES, RULES_BY_ID
from policies.rule import Mode, Phase, Rule, RuleOptions
from policies.rules import (
    gpu_class,
    gpu_requests,
    host_resources,
    max_runtime,
    readiness_delay,
    shared_memory,
    spot,
)
from policies.rules.cuda_version import FULL, MAJOR
from tests.builders import JSON, context, view

MORE_OPTIONS: dict[str, list[RuleOptions]] = {
    gpu_requests.RULE.id: [
        gpu_requests.GPURequestsOptions(
            complete_limits=True, max_per_container=1, max_per_pod=1, gpus_per_node=1
        )
    ],
    gpu_class.RULE.id: [gpu_class.GPUClassOptions(default="nvidia-a100", allowed=("nvidia-*",))],
    host_resources.RULE.id: [host_resources.HostResourcesOptions(mode=Mode.ENFORCE)],
    readiness_delay.RULE.id: [
        readiness_delay.ReadinessDelayOptions(model_load_seconds=600, strategy=strategy)
        for strategy in readiness_delay.Strategy
    ],
    max_runtime.RULE.id: [
        max_runtime.MaxRuntimeOptions(default="8h", max="72h"),
        max_runtime.MaxRuntimeOptions(max="1h", by_class={"nvidia-t4": max_runtime.Runtimes(max="4h")}),
    ],
    shared_memory.RULE.id: [shared_memory.SharedMemoryOptions(size_limit="8Gi")],
    spot.RULE.id: [
        spot.SpotOptions(
            pods=spot.SpotPods.ALL,
            node_selector={"zone": "spot"},
            tolerations=(Toleration(key="spot", operator="Exists"),),
            min_termination_seconds=120,
            serving=True,
        )
    ],
}
"""What a rule does not do by default but could, so that the laws see it as well."""

NODES = NodeFacts(keys=frozenset({FULL, MAJOR}), label_sets=frozenset({((FULL, "12.4"), (MAJOR, "12")), ()}))


def every_rule() -> Iterator[tuple[Rule, RuleOptions]]:
    """Yield each rule with each of its options, for one pod: to generate a pod takes longer than to run all rules on it."""
    for rule in RULES:
        for options in [rule.options(), *MORE_OPTIONS.get(rule.id, [])]:
            note(f"rule {rule.id} with {options}")  # the last one that is shown is the one that fails
            yield rule, options


def options_of(rule_id: str) -> RuleOptions | None:
    return RULES_BY_ID[rule_id].options()


def run(
    document: JSON, rule: Rule, options: RuleOptions, phase: Phase = Phase.MUTATE
) -> tuple[PodPatch, list[Finding]]:
    """Run `mutate`, where the rule has one, on a fresh draft of the document."""
    patch = PodPatch(view(document))
    manifest_context = context(phase, options_of=options_of, nodes=NODES)
    found = list(rule.mutate(patch, options, manifest_context)) if rule.mutate else []
    return patch, found
