"""What findings offer in place of a mistake: once for one mistake, and only what nodes have or an autoscaler creates."""

from datetime import UTC, datetime

import msgspec

from policies.placement.named_nodes import Labels, NodeState
from policies.placement.nodes import node_facts
from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.serving.engine import Engine, Outcome
from webhook.serving.evaluation import evaluate
from webhook.serving.evaluator import Evaluator
from webhook.serving.node_watch import keys_to_know

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLASS = "gpu-admission.dev/gpu-class"
ANNOTATED = f"metadata.annotations[{CLASS}] = "
AMD = pod(gpu_container(resource="amd.com/gpu"), annotations={CLASS: "nvidia-a100-80gb"})
AMD_ON_A100 = pod(gpu_container(resource="amd.com/gpu"), nodeSelector={"accelerator": "nvidia-a100-80gb"})
SLICE = pod(gpu_container(resource="nvidia.com/mig-1g.24gb"), annotations={CLASS: "nvidia-a100-80gb"})
T4, A100, MI300X = "nvidia-t4", "nvidia-a100-80gb", "amd-mi300x"
LIMIT = 'spec.containers[0].resources.limits[amd.com/gpu] (container "main") = "1": '
PINNED = f"the pod is pinned to {A100} (nodeSelector accelerator={A100}) [gpu-requests]"


def said(outcome: Outcome, document: JSON, *classes: str, autoscaled: tuple[str, ...] = ()) -> list[str]:
    """Return the findings where nodes of these classes exist; without classes the nodes are not known."""
    rules = {"gpu-class": {"autoscaledClasses": list(autoscaled)}}
    configuration = load_objects([Document("GPUPolicy", "cluster-default", {"rules": rules})])
    labels: list[tuple[Labels, NodeState | None]] = [((("accelerator", each),), None) for each in classes]
    facts = node_facts(keys_to_know(configuration), labels) if classes else None
    by = Evaluator(engine=Engine(configuration), now=NOW, nodes=lambda: facts)
    found = evaluate("", "Pod", "team", msgspec.json.encode(document), by).findings()
    return [each.finding.sentence() for each in found if each.outcome is outcome]


@cases(
    ("document", "classes", "autoscaled", "want"),
    any_class_if_the_nodes_are_not_known=(
        AMD, (), (), [f'{ANNOTATED}"{A100}": set {CLASS}: amd-mi300x or amd-mi325x or amd-mi350x or 1 more; must be a class with '
        "amd.com/gpu [gpu-class]"],
    ),
    the_class_with_nodes=(
        AMD, (T4, MI300X), (),
        [f'{ANNOTATED}"{A100}": set {CLASS}: amd-mi300x; must be a class with amd.com/gpu [gpu-class]'],
    ),
    the_class_that_is_created_on_demand=(
        AMD, (T4,), ("amd-mi355x",),
        [f'{ANNOTATED}"{A100}": set {CLASS}: amd-mi355x; must be a class with amd.com/gpu [gpu-class]'],
    ),
    the_resource_that_nodes_have=(
        AMD, (T4,), (),
        [f'{ANNOTATED}"{A100}": request nvidia.com/gpu: 1; no class with nodes that namespace team may use has amd.com/gpu; or '
        "ask the platform team for nodes of amd-mi300x or amd-mi325x or amd-mi350x or 1 more [gpu-class]"],
    ),
    one_finding_of_a_slice=(
        SLICE, (T4, "nvidia-h100-94gb"), (),
        [f'{ANNOTATED}"{A100}": set {CLASS}: nvidia-h100-94gb; must be a class with nvidia.com/mig-1g.24gb [gpu-class]'],
    ),
    no_other_class_for_a_selector=(
        AMD_ON_A100, (A100,), (), [f"{LIMIT}request nvidia.com/gpu; must be nvidia.com/gpu: {PINNED}"],
    ),
    another_class_for_a_selector=(
        AMD_ON_A100, (A100, MI300X), (),
        [f"{LIMIT}request nvidia.com/gpu, or pin the pod to amd-mi300x, which has amd.com/gpu; must be nvidia.com/gpu: {PINNED}"],
    ),
)  # fmt: skip
def test_what_is_offered(
    document: JSON, classes: tuple[str, ...], autoscaled: tuple[str, ...], want: list[str]
) -> None:
    assert said(Outcome.DENIED, document, *classes, autoscaled=autoscaled) == want


def test_a_model_on_too_few_cards_is_told_how_many_of_those_there_are_hold_it() -> None:
    """The catalogue has a class that holds it on one card, but no node is of that class."""
    model = {"gpu-admission.dev/model-params": "70b"}

    assert said(Outcome.WARNED, pod(gpu_container(), annotations=model), T4, A100) == [
        "request 4 GPUs of 80 GB; class nvidia-b300: no node matches nodeSelector accelerator=nvidia-b300, by the declared "
        "model, so the pod stays pending; or ask the platform team for nodes of nvidia-b300 [gpu-class]"
    ]
    assert said(Outcome.WARNED, pod(gpu_container("4"), annotations=model), T4, A100) == []
