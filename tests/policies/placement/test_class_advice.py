"""For which nodes a pod without one asks."""

from policies.finding import ContactEdit
from policies.placement.class_advice import ask_for_nodes
from tests.builders import CLASSES, JSON, gpu_container, pod, view
from tests.cases import cases

IN_T4 = {"key": "accelerator", "operator": "In", "values": ["nvidia-t4"]}
WITHOUT = {"key": "accelerator", "operator": "DoesNotExist"}
THERE = {"key": "metadata.name", "operator": "In", "values": ["a"]}
T4 = ["nvidia-t4"]
IN_BOTH = {**IN_T4, "values": ["nvidia-a100-80gb", "nvidia-t4"]}
NOT_80 = {**IN_T4, "operator": "NotIn", "values": ["nvidia-a100-80gb"]}
OF_T4 = "for nodes, or to name nvidia-t4 in gpu-class.autoscaledClasses if an autoscaler adds them"
OF_FAMILY = ["nvidia-a100-40gb", "nvidia-a100-80gb"]


def required(*terms: JSON) -> JSON:
    demanded = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": demanded}}


@cases(
    ("spec", "classes", "want", "nodes"),
    of_any_class=({}, [], "for nodes", [None]),
    of_a_pod_that_excludes_every_class=(required({"matchExpressions": [WITHOUT]}), [], "", []),
    of_its_class=({"nodeSelector": {"accelerator": "nvidia-t4"}}, T4, OF_T4, T4),
    of_two_classes=(
        {},
        ["nvidia-a100-80gb", "nvidia-t4"],
        "for nodes, or to name nvidia-a100-80gb or nvidia-t4 in gpu-class.autoscaledClasses if an autoscaler adds them",
        ["nvidia-a100-80gb", "nvidia-t4"],
    ),
    by_the_label_of_its_family=(
        {"nodeSelector": {"accelerator": "nvidia-a100"}},
        OF_FAMILY,
        "for nodes with accelerator=nvidia-a100",
        ["nvidia-a100"],
    ),
    of_one_of_two_terms=(
        required({"matchExpressions": [WITHOUT]}, {"matchExpressions": [IN_T4]}),
        T4,
        OF_T4,
        T4,
    ),
    a_contradiction=(required({"matchExpressions": [IN_T4, WITHOUT]}), T4, "", []),
    of_one_of_its_classes=(
        required({"matchExpressions": [IN_BOTH, NOT_80]}),
        ["nvidia-a100-80gb", "nvidia-t4"],
        OF_T4,
        T4,
    ),
    a_node_by_its_name=(required({"matchExpressions": [IN_T4], "matchFields": [THERE]}), T4, "", []),
)
def test_only_nodes_that_would_match(
    spec: JSON, classes: list[str], want: str, nodes: list[str | None]
) -> None:
    advice = ask_for_nodes(view(pod(gpu_container("1"), **spec)), classes, "accelerator", CLASSES)

    assert (advice.ask_contact, advice.contact_choices) == (
        want,
        tuple((ContactEdit("Node", value=each),) for each in nodes),
    )
