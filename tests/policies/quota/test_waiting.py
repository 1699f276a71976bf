"""Our scheduling gate: who has it, what a pod is without it, and who never gets it."""

from typing import Any

from policies.quota.waiting import GATE, has_quota_gate, names_kueue, why_never_waits, without_gate
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases

OURS, OTHER, KUEUE = {"name": GATE}, {"name": "example.com/other"}, {"name": "kueue.x-k8s.io/admission"}
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
CLAIM = {"name": "gpus", "resourceClaimTemplateName": "gpus"}


def gated(*gates: JSON, **spec: Any) -> JSON:
    return pod(gpu_container(), schedulingGates=list(gates), **spec)


@cases(
    ("document", "want"),
    no_gates=(pod(gpu_container()), False),
    an_empty_list=(gated(), False),
    ours=(gated(OURS), True),
    another=(gated(OTHER), False),
    ours_beside_another=(gated(OTHER, OURS), True),
)
def test_a_pod_waits_under_our_gate(document: JSON, want: bool) -> None:
    assert has_quota_gate(view(document)) is want


@cases(
    ("before", "after"),
    ours=(gated(OURS), pod(gpu_container())),
    ours_beside_another=(gated(OTHER, OURS), gated(OTHER)),
    another=(gated(OTHER), gated(OTHER)),
    none=(pod(gpu_container()), pod(gpu_container())),
)
def test_without_our_gate_a_pod_keeps_all_else(before: JSON, after: JSON) -> None:
    assert without_gate(view(before)) == view(after)


@cases(
    ("document", "by_daemonset", "why"),
    any_other=(gated(), False, ""),
    another_gate=(gated(OTHER), False, ""),
    of_a_daemonset=(gated(), True, "a pod of a DaemonSet"),
    it_names_its_node=(gated(nodeName="n"), False, "a pod with nodeName"),
    claims_are_made_under_a_gate=(gated(resourceClaims=[CLAIM]), False, "a pod with ResourceClaims"),
    under_the_gate_of_kueue=(gated(KUEUE), False, ""),
)
def test_who_never_waits(document: JSON, by_daemonset: bool, why: str) -> None:
    assert why_never_waits(view(document), by_daemonset=by_daemonset) == why


@cases(
    ("document", "want"),
    not_at_all=(gated(OTHER), False),
    by_a_label=({**gated(), "metadata": {"labels": QUEUE}}, True),
    by_an_annotation=({**gated(), "metadata": {"annotations": QUEUE}}, True),
    by_a_gate=(gated(KUEUE), True),
)
def test_a_pod_names_kueue(document: JSON, want: bool) -> None:
    assert names_kueue(view(document)) is want
