"""gpu-class: what is said of the nodes of a class."""

from msgspec.structs import replace

from policies.finding import Severity
from policies.placement.nodes import Labels, NodeFacts, NodeState
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, check
from tests.builders import CLASSES, JSON, container, context, pod, view
from tests.cases import cases
from tests.policies.rules.class_pods import (
    ANY,
    CLASS,
    GATED,
    UNKNOWN,
    annotated,
    asking,
    placed,
    reported,
    selecting,
)

ZONE = "topology.kubernetes.io/zone"
FREE = NodeState(resources=frozenset({"nvidia.com/gpu"}))
A100, PENDS = "nvidia-a100-80gb", "so the pod stays pending"


def node_facts(*t4: NodeState) -> NodeFacts:
    """Return a node with a free A100 and nodes with a T4, all in zone a; those with a T4 may be cordoned."""
    found = {"nvidia-a100-40gb": {FREE}, "nvidia-t4": t4}
    states: dict[Labels, frozenset[NodeState]] = {
        (("accelerator", name), (ZONE, "a")): frozenset(each for each in of if each.is_schedulable)
        for name, of in found.items()
    }
    cordoned = {
        labels: frozenset(each for each in t4 if not each.is_schedulable)
        for labels in states
        if ("accelerator", "nvidia-t4") in labels
    }
    return NodeFacts(
        keys=CLASSES.label_keys | {ZONE}, label_sets=frozenset(states), states=states, cordoned=cordoned
    )


@cases(
    ("document", "options", "t4", "want"),
    its_nodes_have_it=(asking("nvidia-t4"), ANY, [FREE], []),
    no_node=(
        asking(A100),
        ANY,
        [FREE],
        [f"class {A100}: no node matches nodeSelector accelerator={A100}, {PENDS}"],
    ),
    no_node_for_a_template_that_pins_itself=(
        asking(**selecting(A100)),
        ANY,
        [FREE],
        [f"class {A100}: no node matches nodeSelector accelerator={A100}, {PENDS}"],
    ),
    nodes_made_on_demand=(asking(A100), GPUClassOptions(autoscaled_classes=("nvidia-a100",)), [FREE], []),
    gated=(asking(schedulingGates=GATED, **selecting(A100)), ANY, [FREE], []),
    bound_by_hand=(asking(nodeName="n", **selecting(A100)), ANY, [FREE], []),
    a_default_beside_a_selector=(
        asking(nodeSelector={ZONE: "b"}),
        GPUClassOptions(default="nvidia-t4"),
        [FREE],
        [
            "class nvidia-t4 (the default of the policy) is not added: no node matches both accelerator=nvidia-t4 and the "
            "pod's own nodeSelector and affinity"
        ],
    ),
    cordoned_without_what_it_requests=(
        asking("nvidia-t4"),
        ANY,
        [NodeState(is_schedulable=False, resources=frozenset({"nvidia.com/gpu.shared"}))],
        [f"class nvidia-t4: all its nodes are cordoned now, {PENDS}"],
    ),
    cordoned=(
        asking("nvidia-t4"),
        ANY,
        [replace(FREE, is_schedulable=False)],
        [
            f"class nvidia-t4: all its nodes are cordoned now, {PENDS} (to uncordon one of them with nvidia.com/gpu)"
        ],
    ),
    none_of_its_nodes_has_it=(
        asking("nvidia-t4"),
        ANY,
        [NodeState()],
        [f"class nvidia-t4: no schedulable node of it has nvidia.com/gpu now, {PENDS}"],
    ),
    one_of_its_nodes_has_it=(asking("nvidia-t4"), ANY, [NodeState(), FREE], []),
    what_no_node_at_all_has=(asking("nvidia-t4", resource="nvidia.com/gpu.shared"), ANY, [FREE], []),
)
def test_nodes_of_the_class(
    document: JSON, options: GPUClassOptions, t4: list[NodeState], want: list[str]
) -> None:
    nodes = node_facts(*t4)
    final = view(placed(document, options, nodes=nodes))

    found = list(check(final, options, context(nodes=nodes)))

    assert [each.message + (f" ({each.ask_contact})" if each.ask_contact else "") for each in found] == want
    assert all(each.severity is Severity.WARNING for each in found)


def test_of_a_template_the_class_that_its_pods_will_get() -> None:
    nodes = context(Phase.TEMPLATE, nodes=node_facts(FREE))

    assert [each.message for each in check(view(asking(A100)), ANY, nodes)] == [
        f"class {A100}: no node matches accelerator={A100}, {PENDS}"
    ]
    assert list(check(view(asking()), ANY, nodes)) == []


BY_FAMILY = NodeFacts(
    keys=CLASSES.label_keys,
    label_sets=frozenset({(("accelerator", "nvidia-a100"),)}),
    states={(("accelerator", "nvidia-a100"),): frozenset({FREE})},
)


@cases(
    ("document", "nodes", "want"),
    no_node_of_the_class_that_is_near=(
        asking(A100.upper()),
        node_facts(FREE),
        annotated(
            A100.upper(),
            f"set {CLASS}: nvidia-a100-40gb or nvidia-t4; {UNKNOWN}; no node of {A100} takes the pod now",
        ),
    ),
    nodes_of_its_family=(
        asking(A100.upper()),
        BY_FAMILY,
        annotated(A100.upper(), f"did you mean nvidia-a100? The value {UNKNOWN}"),
    ),
    a_selector_like_no_class=(
        asking(**selecting("quantum")),
        node_facts(FREE),
        'spec.nodeSelector[accelerator] = "quantum": set accelerator: nvidia-a100-40gb or nvidia-t4, or remove it; should be a '
        "GPU class: the pod stays pending unless a node has this label",
    ),
    a_contradiction_comes_before_missing_nodes=(
        asking("nvidia-t4", **selecting(A100)),
        node_facts(FREE),
        annotated(
            "nvidia-t4",
            f"remove the pod's own constraint; must be {A100}, to which the pod pins itself (nodeSelector accelerator={A100})",
        ),
    ),
)
def test_of_the_nodes_only_what_helps_is_said(document: JSON, nodes: NodeFacts, want: str) -> None:
    assert [sentence for _, sentence in reported(document, nodes=nodes)] == [want]


def test_what_no_node_has_together_is_left_to_gpu_toleration() -> None:
    slices = NodeState(resources=frozenset({"nvidia.com/gpu.shared"}))
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 1}
    document = pod(container(resources={"limits": limits}), annotations={CLASS: "nvidia-t4"})

    assert reported(document, nodes=node_facts(FREE, slices)) == []


def test_what_only_nodes_of_other_classes_have_together() -> None:
    both = NodeState(resources=frozenset({"nvidia.com/gpu", "nvidia.com/gpu.shared"}))
    states: dict[Labels, frozenset[NodeState]] = {
        (("accelerator", "nvidia-l4"),): frozenset({both}),
        (("accelerator", "nvidia-t4"),): frozenset({FREE}),
    }
    nodes = NodeFacts(keys=CLASSES.label_keys, label_sets=frozenset(states), states=states)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 1}
    document = pod(container(resources={"limits": limits}), annotations={CLASS: "nvidia-t4"})

    assert [sentence for _, sentence in reported(document, nodes=nodes)] == [
        "class nvidia-t4: no schedulable node of it has nvidia.com/gpu and nvidia.com/gpu.shared together now, so the pod "
        "stays pending"
    ]
