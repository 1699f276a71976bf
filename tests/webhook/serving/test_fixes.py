"""A choice removes its finding and brings no denial, for random pods on random clusters under random policies and quotas."""

import re
import sys
from collections import Counter
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from policies import registry
from policies.finding import Edits, as_plain_data
from policies.placement.nodes import NodeGroup, NodeState, node_facts
from policies.pods.field_paths import path_parts, with_edits
from policies.pods.pod import Toleration
from policies.quota.amounts import CLASSES, GPUS
from policies.quota.demand import UnclassifiedPods
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.registry import QUOTA_RULE
from policies.rule import Rule
from tests.builders import quota_ledger
from tests.seed import SAID, SEED
from webhook.cluster.nodes import OPEN_LABELS
from webhook.configuration.documents import Document
from webhook.configuration.loader import Configuration, keys_to_know, load_objects
from webhook.evaluation.decision import Outcome, Violation
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.stored_objects import Evaluation, evaluate

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
JSON = dict[str, Any]
CLASS = "gpu-admission.dev/gpu-class"
GPU, SHARED, AMD = "nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"
SLICES = tuple(f"nvidia.com/mig-{profile}" for profile in ("1g.5gb", "1g.10gb", "3g.20gb", "9g.99gb"))
NODES: tuple[dict[str, str], ...] = (
    {"accelerator": "nvidia-l4", "nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.count": "2"},
    {"accelerator": "nvidia-a100-80gb", "nvidia.com/gpu.count": "8"},
    {"accelerator": "nvidia-a100-80gb", "nvidia.com/mig-1g.10gb.count": "7"},
    {"accelerator": "nvidia-t4", "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"},
    {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    {"accelerator": "amd-mi300x"},
    {},
)
POOLS = (
    NodeGroup({"accelerator": frozenset({"nvidia-h100-80gb"})}, OPEN_LABELS, "h100"),
    NodeGroup({}, OPEN_LABELS, "any"),
)
REQUESTS: tuple[JSON, ...] = (
    {"maxPerContainer": 1},
    {"maxPerPod": 2},
    {"maxPerContainer": 4, "maxPerPod": 4},
    {"completeLimits": True},
    {"knownProfilesOnly": True},
    {"gpusPerNode": 8},
)
PINS: tuple[JSON, ...] = (
    {"allowed": ["nvidia-l4", "nvidia-t4"]},
    {"allowed": ["nvidia-a100"]},
    {"default": "nvidia-l4"},
    {"default": "nvidia-a100"},
    {"autoscaledClasses": ["nvidia-h100"]},
)
SPOT_POOL: JSON = {"mode": "enforce", "nodeSelector": {"pool": "spot"}}
RULES = (
    ("gpu-class", PINS),
    ("gpu-requests", REQUESTS),
    ("gpu-isolation", ({"mode": "enforce"},)),
    ("spot", (SPOT_POOL,)),
)
SHARES = {
    "memoryGiB": 24,
    "nodeLabels": [{"key": "accelerator", "values": ["nvidia-l4"]}],
    "perGPU": {"cpu": 8, "memory": "60Gi"},
}
RUNTIMES = ({"mode": "enforce", "max": "8h"}, {"mode": "enforce", "default": "1h"})
AMOUNTS = (1, 2, "3", 4, 8, 16, 17, 100, "500m", "0.3", 1.5, "2500m", 0, -1, "1e30", "one", None)
MISSPELT = ("nvidia.com/gpus", "nvidia/gpu", "gpu", "nvidia.com/mig1g.10gb")
NAMES = (GPU, GPU, GPU, GPU, *SLICES, SHARED, AMD, *MISSPELT)
NVIDIA = ("nvidia-l4", "nvidia-a100", "nvidia-a100-80gb", "nvidia-a10O", "nvidia-h100")
CLASSES_NAMED = (*NVIDIA, "amd-mi300x", "amd", "gpu", "")
ANNOTATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (CLASS, CLASSES_NAMED),
    ("gpu-admission.dev/gpu-clas", CLASSES_NAMED),
    ("gpu-admission.dev/model-params", ("7b", "70b", "400b", "seven")),
    ("gpu-fraction", ("0.5", "0.001", "2")),
    ("gpu-admission.dev/cuda", ("12.4", "13.0", "v12.4")),
    ("gpu-admission.dev/spot", ("yes",)),
    ("gpu-admission.dev/model-load-seconds", ("5m",)),
)
SELECTORS = (
    ("accelerator", ("nvidia-l4", "nvidia-a100-80gb", "nvidia-l5", "nvidia-t4")),
    ("nvidia.com/gpu.product", ("NVIDIA-L4", "NVIDIA-L5")),
    ("topology.kubernetes.io/zone", ("a",)),
)
ENVIRONMENT = (
    ("NVIDIA_VISIBLE_DEVICES", ("all", "0", "void", "none")),
    ("CUDA_VISIBLE_DEVICES", ("0", "")),
    ("OTHER", ("1",)),
)


class Case(NamedTuple):
    document: JSON
    evaluator: Evaluator

    def evaluated(self, document: JSON) -> Evaluation:
        group = document["apiVersion"].rpartition("/")[0] if "/" in document["apiVersion"] else ""
        return evaluate(group, document["kind"], "team", msgspec.json.encode(document), self.evaluator)


@cache
def configuration(rules: bytes) -> Configuration:
    policy = Document("GPUPolicy", "cluster-default", {"rules": msgspec.json.decode(rules)})
    shares = [Document("GPUClass", "nvidia-l4", SHARES)] if b"host-resources" in rules else []
    return load_objects([policy, *shares])


def case(seed: int) -> Case:
    random = Random(seed)  # noqa: S311 - no secrets
    rules = {name: random.choice(options) for name, options in RULES if random.random() < 0.5}
    runs = Random(~seed)  # noqa: S311 - no secrets
    if runs.random() < 0.5:
        rules["max-runtime"] = runs.choice(RUNTIMES)
    if runs.random() < 0.25:
        rules |= {"host-resources": {"mode": "enforce"}, "gpu-class": {"default": "nvidia-l4"}}
    in_force = configuration(msgspec.json.encode(rules))
    nodes = None
    if random.random() < 0.7:
        keys = keys_to_know(in_force)
        there = [tuple(sorted(each.items())) for each in NODES if random.random() < 0.5]
        is_known = random.random() < 0.7
        states = [state(random) if is_known else None for _ in there]
        pools = tuple(each for each in POOLS if random.random() < 0.15)
        labels = [tuple(label for label in each if label[0] in keys) for each in there]
        nodes = node_facts(keys, zip(labels, states, strict=True), pools)
    ledger = None
    if random.random() < 0.6:
        hard = {GPUS: Fraction(random.choice((1, 2, 8)))}
        for name in ("nvidia-a100", "nvidia-a100-80gb", "nvidia-l4"):
            if random.random() < 0.3:
                hard[CLASSES + name] = Fraction(random.choice((0, 2, 4)))
        used = {GPUS: Fraction(random.choice((0, 0, 1)))} if random.random() < 0.5 else None
        counts_as = random.choice(tuple(UnclassifiedPods))
        ledger = quota_ledger(hard=hard, unclassified_pods=counts_as, used=used)
    evaluator = Evaluator(
        cache=DecisionCache(in_force),
        now=NOW,
        facts=Facts(nodes=lambda: nodes),
        quota_of=lambda _: ReadOnlyQuota(ledger, in_force, is_unused=True),
    )
    return Case(bounded(document(random), runs), evaluator)


def state(random: Random) -> NodeState:
    taints = (Toleration(key=random.choice((GPU, "reserved")), effect="NoSchedule"),)
    resources = frozenset(each for each in (GPU, SHARED, AMD, *SLICES) if random.random() < 0.3)
    return NodeState(random.random() < 0.8, taints if random.random() < 0.3 else (), resources)


def document(random: Random) -> JSON:
    containers = [container(random, f"c{at}") for at in range(random.choice((1, 1, 1, 2, 3)))]
    spec: JSON = {"containers": containers}
    if random.random() < 0.15:
        spec["initContainers"] = [container(random, "init")]
    selector = {key: random.choice(values) for key, values in SELECTORS if random.random() < 0.15}
    if selector:
        spec["nodeSelector"] = selector
    if random.random() < 0.15:
        spec["tolerations"] = [{"key": random.choice((GPU, "spot", AMD)), "operator": "Exists"}]
    notes = {key: random.choice(values) for key, values in ANNOTATIONS if random.random() < 0.2}
    metadata: JSON = {"name": "p", **({"annotations": notes} if notes else {})}
    if random.random() < 0.05:
        metadata["labels"] = {CLASS: random.choice(CLASSES_NAMED)}
    if random.random() < 0.75:
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    template = {"metadata": metadata, "spec": {**spec, "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": template},
    }


def bounded(made: JSON, random: Random) -> JSON:
    """Let some of the pods run to completion, with a deadline or the annotation of one, and some request CPUs."""
    pod = made if made["kind"] == "Pod" else made["spec"]["template"]
    if random.random() < 0.15:
        pod["spec"] |= {"restartPolicy": "Never", "activeDeadlineSeconds": random.choice((60, 40_000))}
    if random.random() < 0.15:
        wish = {"gpu-admission.dev/max-runtime": random.choice(("2h", "100h", "long"))}
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **wish}
    if random.random() < 0.3:
        resources = pod["spec"]["containers"][0].setdefault("resources", {})
        resources.setdefault("requests", {})["cpu"] = random.choice((4, "100"))
    return made


def container(random: Random, name: str) -> JSON:
    made: JSON = {"name": name, "image": "trainer"}
    resources: JSON = {}
    for resource in dict.fromkeys(random.choice(NAMES) for _ in range(random.choice((0, 1, 1, 1, 1, 2)))):
        amount, shape = random.choice(AMOUNTS), random.random()
        if shape < 0.85:
            resources.setdefault("limits", {})[resource] = amount
        if shape > 0.6:
            equal = shape < 0.75
            resources.setdefault("requests", {})[resource] = amount if equal else random.choice(AMOUNTS)
    if resources:
        made["resources"] = resources
    if random.random() < 0.2:
        flag = random.choice(("--tensor-parallel-size", "--nproc_per_node"))
        made["command"] = ["torchrun", f"{flag}={random.choice((1, 2, 4, 8))}"]
    variables = [
        {"name": key, "value": random.choice(of)} for key, of in ENVIRONMENT if random.random() < 0.1
    ]
    if variables:
        made["env"] = variables
    if random.random() < 0.05:
        made["securityContext"] = {"privileged": True}
    return made


def seen(evaluation: Evaluation) -> list[Violation]:
    return [each for each in evaluation.findings() if each.outcome is not Outcome.AUDITED]


def identity(violation: Violation) -> tuple[str, ...]:
    """Return what it is about. Without indices: the items after a removed one move up."""
    finding = violation.finding
    path = re.sub(r"\[\d+\]", "[]", finding.path)
    reason = "" if finding.rule == QUOTA_RULE.id else finding.reason.name  # what can never fit also exceeds
    return finding.rule, reason, path, finding.container or "", violation.outcome.value


def failure(case: Case, before: Evaluation, violation: Violation, edits: Edits) -> str:
    """Return what is wrong with a choice of a finding, "" if nothing is."""
    fixed = with_edits(case.document, [(path_parts(edit.path), as_plain_data(edit.value)) for edit in edits])
    after = case.evaluated(fixed)
    if after.unreadable:
        return f"unreadable: {after.unreadable}"
    known = Counter(map(identity, seen(before)))
    now = Counter(map(identity, seen(after)))
    # A workload that fits into an empty quota may still wait for others.
    reasons = {each.finding.reason for each in seen(after)} if case.document["kind"] != "Pod" else set()
    waits = QUOTA_EXCEEDED in reasons and violation.finding.reason is QUOTA_CAN_NEVER_FIT
    if now[identity(violation)] >= known[identity(violation)] and not waits:
        return "is found again"
    if violation.finding.reason.hides_others:
        return ""
    # Nothing asks the quota about a pod that is denied anyway, and it answers with one reason at a time.
    denials = [each for each in seen(after) if each.outcome is Outcome.DENIED]
    is_asked = not any(each.outcome is Outcome.DENIED for each in seen(before))
    new = [each for each in denials if now[identity(each)] > known[identity(each)]]
    brought = [each.finding.sentence() for each in new if is_asked or each.finding.rule != QUOTA_RULE.id]
    return "; ".join(brought)


def tried(seeds: range) -> tuple[int, list[str]]:
    """Return how many choices were tried, and those that failed."""
    count, failed = 0, []
    for seed in seeds:
        given = case(seed)
        before = given.evaluated(given.document)
        for violation in seen(before):
            finding = violation.finding
            for edits in finding.choices:
                count += 1
                if why := failure(given, before, violation, edits):
                    said = " and ".join(f"{edit.path}: {edit.value}" for edit in edits)
                    failed.append(
                        f"{finding.reason} of seed {seed}: {finding.sentence()}\n  {said}\n  → {why}"
                    )
    return count, failed


def contract(rule: Rule) -> str:
    function = rule.mutate or rule.check or rule.check_workload
    return (function and sys.modules[function.__module__].__doc__) or ""


DENYING = [rule for rule in registry.RULES if "\nDenies:" in contract(rule)]
"""The rules whose contract names something that they deny."""


def test_each_rule_that_denies_has_a_fix_or_says_why_not() -> None:
    fixable = set()
    for seed in range(200):
        given = case(seed)
        denied = (each for each in seen(given.evaluated(given.document)) if each.outcome is Outcome.DENIED)
        fixable |= {each.finding.rule for each in denied if each.finding.fix}

    assert len(DENYING) > 5
    assert {rule.id for rule in DENYING if not rule.not_fixable} == fixable
    assert {rule.id for rule in registry.RULES if rule.not_fixable} <= {rule.id for rule in DENYING}


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(100), id="some"),
        pytest.param(range(SEED, SEED + 300), id="others", marks=pytest.mark.slow),
        pytest.param(range(100, 5_000), id="many", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(
            range(SEED + 300, SEED + 1_000), id="many-others", marks=[pytest.mark.slow, pytest.mark.long]
        ),
    ],
)
def test_a_choice_removes_its_finding_and_brings_no_denial(seeds: range) -> None:
    count, failed = tried(seeds)

    print(SAID)  # noqa: T201  shown by -rA
    assert count >= len(seeds) * 0.55
    assert not failed, f"{SAID}, {len(failed)} of {count} choices fail:\n" + "\n".join(failed[:20])
