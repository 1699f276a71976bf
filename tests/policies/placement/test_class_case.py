"""gpu-class where the nodes are known: a pod that no node could take gets a warning, and only such a pod."""

from policies.gpus.classes import GPUClasses, NodeLabel
from policies.placement.class_case import ClassCase, Placer, is_wider_than
from policies.placement.class_options import ANY as EVERY_CLASS
from policies.placement.class_options import matches_new_node
from policies.placement.class_selection import Choice, ClassSelection
from policies.placement.hardware import LabelKeys
from policies.placement.nodes import Labels, NodeFacts
from policies.placement.pinning import Pinning
from policies.pods.annotations import INJECTED
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, check, mutate
from tests.builders import (
    CLASSES,
    JSON,
    RESOURCE_MAPPING,
    apply,
    context,
    gpu_class,
    gpu_container,
    pod,
    view,
)
from tests.cases import cases
from tests.policies.rules.class_pods import affinity

CLASS = "gpu-admission.dev/gpu-class"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
DEFAULT = GPUClassOptions(default="nvidia-a100-80gb")
PRODUCT = "nvidia.com/gpu.product"
T4 = (("accelerator", "nvidia-t4"),)
A100 = (("accelerator", "nvidia-a100-80gb"),)
A100_BY_FAMILY = (("accelerator", "nvidia-a100"),)
L4_BY_PRODUCT = (("kubernetes.io/arch", "amd64"), (PRODUCT, "NVIDIA-L4"))
L4 = gpu_class(
    "nvidia-l4",
    "nvidia-l4",
    24,
    node_labels=(
        NodeLabel(key="accelerator", values=("nvidia-l4",)),
        NodeLabel(key=PRODUCT, values=("NVIDIA-L4",)),
    ),
)
CATALOGUE = GPUClasses([*CLASSES, L4])
GATED = [{"name": "kueue.x-k8s.io/admission"}]


def asking(name: str, **spec: object) -> JSON:
    return pod(gpu_container(), annotations={CLASS: name}, **spec)


def reported(
    document: JSON, *label_sets: Labels, options: GPUClassOptions | None = None, **tweaks: object
) -> list[str]:
    """Return what the rule says of a template, whose pods it would still pin."""
    facts = NodeFacts(keys=CATALOGUE.label_keys, label_sets=frozenset(label_sets))
    given = context(tweaks.pop("phase", Phase.TEMPLATE), classes=CATALOGUE, nodes=facts, **tweaks)  # type: ignore[arg-type] # as given
    return [each.sentence() for each in check(view(document), options or GPUClassOptions(), given)]


ANY = GPUClassOptions()
FAMILY_ONLY = GPUClassOptions(allowed=("nvidia-a100", "nvidia-l4"))
SET = "set gpu-admission.dev/gpu-class:"
ANNOTATION = "metadata.annotations[gpu-admission.dev/gpu-class]"


def selecting(name: str) -> JSON:
    return pod(gpu_container(), nodeSelector={"accelerator": name})


def pending(remedy: str, name: str = "nvidia-l4", selector: str = "") -> list[str]:
    """Return the warning of a class without nodes, where there are nodes of others."""
    return [
        f"{remedy}, of which there are nodes; class {name}: no node matches {selector}accelerator={name}, so the pod stays "
        "pending"
    ]


ON_L4, A100_80 = asking("nvidia-l4"), "nvidia-a100-80gb"


@cases(
    ("document", "nodes", "options", "want"),
    its_class_is_there=(asking("nvidia-t4"), [T4], ANY, []),
    others_are_there=(ON_L4, [T4, A100], ANY, pending(f"{SET} nvidia-a100-80gb or nvidia-t4")),
    of_the_others_it_may_use_one=(
        ON_L4,
        [T4, A100],
        GPUClassOptions(allowed=("nvidia-l4", "nvidia-t4")),
        pending(f"{SET} nvidia-t4"),
    ),
    the_pod_demands_it_twice=(
        pod(
            gpu_container(),
            nodeSelector={"accelerator": "nvidia-l4"},
            **affinity("accelerator", "In", "nvidia-l4", "nvidia-t4"),
        ),
        [T4],
        ANY,
        [
            "remove nodeSelector accelerator=nvidia-l4 and node affinity accelerator in (nvidia-l4, nvidia-t4), and set "
            "gpu-admission.dev/gpu-class: nvidia-t4, of which there are nodes; class nvidia-l4: no node matches "
            "nodeSelector accelerator=nvidia-l4 and node affinity accelerator in (nvidia-l4, nvidia-t4), so the pod "
            "stays pending"
        ],
    ),
    an_autoscaler_makes_another=(
        ON_L4,
        [],
        GPUClassOptions(autoscaled_classes=("nvidia-t4",)),
        [
            f"{SET} nvidia-t4, of which an autoscaler makes nodes; class nvidia-l4: no node matches accelerator=nvidia-l4, "
            "so the pod stays pending"
        ],
    ),
    nothing_is_there=(
        ON_L4,
        [],
        ANY,
        [
            "class nvidia-l4: no node matches accelerator=nvidia-l4, so the pod stays pending; ask the "
            "platform team for nodes of nvidia-l4, or to name nvidia-l4 in gpu-class.autoscaledClasses if an autoscaler adds "
            "them"
        ],
    ),
    its_nodes_lack_the_label=(
        ON_L4,
        [L4_BY_PRODUCT],
        ANY,
        [
            "class nvidia-l4: no node matches accelerator=nvidia-l4, so the pod stays pending; ask the "
            "platform team to set label accelerator=nvidia-l4 on nodes with nvidia.com/gpu.product=NVIDIA-L4"
        ],
    ),
    the_label_they_have=(ON_L4, [L4_BY_PRODUCT], GPUClassOptions(label_key=PRODUCT), []),
    family=(asking("nvidia-a100"), [A100], ANY, pending(f"{SET} nvidia-a100-80gb", "nvidia-a100")),
    no_node_with_the_label_of_the_family=(
        selecting("nvidia-a100"),
        [],
        ANY,
        [
            "class nvidia-a100-40gb or nvidia-a100-80gb: no node matches nodeSelector accelerator=nvidia-a100, so the pod "
            "stays pending; ask the platform team for nodes of nvidia-a100-40gb or nvidia-a100-80gb with "
            "accelerator=nvidia-a100"
        ],
    ),
    nodes_labelled_by_the_family_are_reached_by_its_name=(
        asking(A100_80),
        [A100_BY_FAMILY, T4],
        ANY,
        pending(f"{SET} nvidia-a100 or nvidia-t4", A100_80),
    ),
    and_by_its_label=(
        selecting(A100_80),
        [A100_BY_FAMILY],
        ANY,
        pending("set nodeSelector accelerator: nvidia-a100", A100_80, "nodeSelector "),
    ),
    what_was_meant_is_a_family_with_nodes=(
        asking("nvidia-a1O0"),
        [A100_BY_FAMILY],
        FAMILY_ONLY,
        [
            f'{ANNOTATION} = "nvidia-a1O0": did you mean nvidia-a100? The value must be a GPU class or a family of '
            f"classes"
        ],
    ),
    what_is_allowed_is_a_family_with_nodes=(
        asking("nvidia-t4"),
        [A100_BY_FAMILY],
        FAMILY_ONLY,
        [
            f'{ANNOTATION} = "nvidia-t4": {SET} nvidia-a100; must be a class that namespace ml-training may use'
        ],
    ),
    the_default_of_the_policy=(
        pod(gpu_container()),
        [T4],
        GPUClassOptions(default="nvidia-l4"),
        pending(f"{SET} nvidia-t4"),
    ),
    a_selector_of_its_own=(
        selecting("nvidia-l4"),
        [T4],
        ANY,
        pending("set nodeSelector accelerator: nvidia-t4", selector="nodeSelector "),
    ),
    made_on_demand=(ON_L4, [T4], GPUClassOptions(autoscaled_classes=("nvidia-l4",)), []),
    bound_by_hand=(asking("nvidia-l4", nodeName="n"), [T4], ANY, "has no effect"),
    gated=(asking("nvidia-l4", schedulingGates=GATED), [T4], ANY, []),
    a_pod_of_no_class=(pod(gpu_container()), [], ANY, []),
    a_label_that_a_node_has=(selecting("our-own"), [(("accelerator", "our-own"),)], ANY, []),
)
def test_what_is_said(
    document: JSON, nodes: list[Labels], options: GPUClassOptions, want: list[str] | str
) -> None:
    said = reported(document, *nodes, options=options)
    if isinstance(want, str):
        assert [want in each and "no node" not in each for each in said] == [True]
    else:
        assert said == want


@cases(
    ("name", "why"),
    not_allowed=("nvidia-a100-80gb", "must be a class that namespace ml-training may use"),
    unknown=("rtx-5090", "must be a GPU class or a family of classes"),
)
def test_the_only_usable_class_is_named_also_where_pods_must_be_pinned(name: str, why: str) -> None:
    """A pod that /mutate could not pin, because its annotation is wrong, is pinned once that is right."""
    only_t4 = GPUClassOptions(allowed=("nvidia-t4", "nvidia-l4"))
    said = reported(asking(name), T4, A100, options=only_t4, phase=Phase.VALIDATE)
    assert said == [f'{ANNOTATION} = "{name}": {SET} nvidia-t4; {why}']


A100_IN_B = (("accelerator", "nvidia-a100-80gb"), (ZONE, "b"))
T4_IN_A = (("accelerator", "nvidia-t4"), (ZONE, "a"))
NOT_ADDED = (
    "name a class with the annotation gpu-admission.dev/gpu-class; class nvidia-a100-80gb (the default of the "
    "policy) is not added: no node matches both accelerator=nvidia-a100-80gb and the pod's own nodeSelector and "
    "affinity"
)
NODES = [A100_IN_B, T4_IN_A]
CANNOT_MEET_BOTH = (
    "remove what else the pod's nodeSelector or affinity demands; class nvidia-a100-80gb: no node matches nodeSelector "
    "accelerator=nvidia-a100-80gb"
)


def in_zone(zone: str) -> JSON:
    return pod(gpu_container(), nodeSelector={ZONE: zone})


@cases(
    ("document", "options", "label_sets", "want", "said"),
    a_default_whose_nodes_are_elsewhere=(in_zone("a"), DEFAULT, NODES, None, [NOT_ADDED]),
    affinity=(pod(gpu_container(), **affinity(ZONE, "NotIn", "b")), DEFAULT, NODES, None, [NOT_ADDED]),
    a_node_meets_both=(in_zone("b"), DEFAULT, NODES, A100_80, []),
    a_label=(pod(gpu_container(), nodeSelector={"team": "vision"}), DEFAULT, [A100_IN_B], A100_80, []),
    a_class_without_any_node_is_no_fault_of_the_pod=(
        in_zone("a"),
        DEFAULT,
        [T4_IN_A],
        A100_80,
        [
            "set gpu-admission.dev/gpu-class: nvidia-t4, of which there are nodes; class nvidia-a100-80gb: no node matches "
            "nodeSelector accelerator=nvidia-a100-80gb, by the policy's default, so the pod stays pending"
        ],
    ),
    nodes_that_are_made_on_demand=(
        in_zone("a"),
        GPUClassOptions(default=A100_80, autoscaled_classes=("nvidia-a100",)),
        NODES,
        A100_80,
        [],
    ),
    where_classes_are_restricted_pods_stay_pinned=(
        in_zone("a"),
        GPUClassOptions(default=A100_80, allowed=("nvidia-a100",)),
        NODES,
        A100_80,
        [f"{CANNOT_MEET_BOTH}, by the policy's default, so the pod stays pending"],
    ),
    an_estimate_likewise=(
        pod(
            gpu_container(),
            annotations={"gpu-admission.dev/model-params": "13b"},
            nodeSelector={ZONE: "b"},
        ),
        ANY,
        [(("accelerator", "nvidia-a100-40gb"), (ZONE, "a")), A100_IN_B],
        None,
        [
            "name a class with the annotation gpu-admission.dev/gpu-class; class nvidia-a100-40gb (13b bf16 "
            "serving needs 36.4 GiB by rule of thumb) is not added: no node matches both "
            "accelerator=nvidia-a100-40gb and the pod's own nodeSelector and affinity"
        ],
    ),
    an_estimate_that_leaves_several_classes=(
        pod(
            gpu_container(),
            annotations={
                "gpu-admission.dev/model-params": "7b",
                "gpu-admission.dev/model-sequence": "131072",
            },
            nodeSelector={ZONE: "b"},
        ),
        ANY,
        [(("accelerator", name), (ZONE, "a")) for name in ("nvidia-a100-40gb", "nvidia-a100-80gb")],
        None,
        [
            'metadata.annotations[gpu-admission.dev/model-params] = "7b": should fit on nvidia-a100-80gb (80.0 GiB usable): '
            "7b bf16 serving needs 1017.1 GiB by rule of thumb; gpu-admission.dev/model-family or "
            "gpu-admission.dev/model-layers states it exactly; ask the platform team for larger cards",
            "class that holds the weights (7b bf16 serving needs 1017.1 GiB by rule of thumb) is not added: no node matches both "
            "accelerator=nvidia-a100-40gb or nvidia-a100-80gb or nvidia-l4 or nvidia-t4 and the pod's own nodeSelector "
            "and affinity",
        ],
    ),
    an_estimate_of_which_there_is_no_node=(
        pod(gpu_container(), annotations={"gpu-admission.dev/model-params": "13b"}),
        ANY,
        [T4_IN_A],
        "nvidia-a100-40gb",
        [
            'metadata.annotations[gpu-admission.dev/model-params] = "13b": set nvidia.com/gpu: 4; should fit on nvidia-t4 '
            "(16.0 GiB usable), the largest card of the nodes, or the pod stays pending: 13b bf16 serving needs 36.4 GiB by "
            "rule of thumb"
        ],
    ),
    what_the_annotation_names_is_added=(
        asking("nvidia-a100-80gb", nodeSelector={ZONE: "a"}),
        ANY,
        NODES,
        A100_80,
        [f"{CANNOT_MEET_BOTH}, so the pod stays pending"],
    ),
)
def test_a_guess_that_no_node_can_meet_together_with_the_pod(
    document: JSON, options: GPUClassOptions, label_sets: list[Labels], want: str | None, said: list[str]
) -> None:
    facts = NodeFacts(keys=CATALOGUE.label_keys | {ZONE}, label_sets=frozenset(label_sets))
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, context(Phase.MUTATE, classes=CATALOGUE, nodes=facts))) == []
    if patch.changes:
        patch.set_annotation(INJECTED, f"gpu-class: {patch.changes[-1].what}")  # as the engine does
    final = view(apply(document, patch))

    assert (final.spec.node_selector or {}).get("accelerator") == want
    given = context(Phase.VALIDATE, classes=CATALOGUE, nodes=facts)
    assert [each.sentence() for each in check(final, options, given)] == said


def test_nothing_is_said_while_the_nodes_are_not_known() -> None:
    given = context(Phase.TEMPLATE, classes=CATALOGUE)

    assert list(check(view(asking("nvidia-l4")), GPUClassOptions(), given)) == []


def test_a_pod_of_a_daemonset_is_not_evaluated() -> None:
    assert all("no node" not in each for each in reported(ON_L4, T4, made_by_daemonset=True))


@cases(
    ("pinned", "want"),
    to_the_choice_itself=(("nvidia-l4",), False),
    to_more=(("nvidia-l4", "nvidia-t4"), True),
    to_something_else=(("nvidia-t4",), False),
    to_nothing=((), False),
)
def test_a_pod_pins_itself_to_more_than_the_choice(pinned: tuple[str, ...], want: bool) -> None:
    choice = Choice((L4,), "nvidia-l4", "", by_annotation=True, family=None)
    assert is_wider_than(Pinning(pinned, ()), choice) is want


def pinning_to_small(**labels: str) -> JSON:
    return {"nodeSelector": {"accelerator": "small", **labels}}


def case(
    document: JSON,
    resource: str = "nvidia.com/gpu",
    placed_by: Placer | None = None,
    label_key: str = "accelerator",
) -> ClassCase:
    gpu = RESOURCE_MAPPING.resource(resource)
    selection = ClassSelection(
        pod=view(document),
        gpu_classes=GPUClasses([L4, gpu_class("small", "small", 16, gpus_per_node=4)]),
        namespace="team",
        allowed=(EVERY_CLASS,),
        default=None,
        label_key=label_key,
        resources=(gpu,) if gpu else (),
        hardware=LabelKeys(frozenset()),
    )
    return ClassCase(selection, RESOURCE_MAPPING, placed_by)


@cases(
    ("spec", "placed_by", "want"),
    by_the_annotation=({}, None, f"{SET} nvidia-l4"),
    by_its_placer=({}, Placer("gated", "have it set"), "have it set nodeSelector accelerator: nvidia-l4"),
    by_its_selector=(pinning_to_small(), None, "set nodeSelector accelerator: nvidia-l4"),
    by_the_annotation_alone=(
        pinning_to_small(**{ZONE: "a"}),
        None,
        f"remove nodeSelector accelerator=small, and {SET} nvidia-l4",
    ),
)
def test_what_puts_a_pod_on_a_class(spec: JSON, placed_by: Placer | None, want: str) -> None:
    found = case(pod(gpu_container(), **spec), placed_by=placed_by)

    assert found.advice_to_run_on([L4]).remedy == want


@cases(
    ("resource", "want"),
    usable_classes=("nvidia.com/gpu", (f"{SET} nvidia-l4 or small", "")),
    none_usable=("amd.com/gpu", ("request nvidia.com/gpu: 1", "for a GPUClass with amd.com/gpu")),
)
def test_what_puts_a_pod_on_a_usable_class(resource: str, want: tuple[str, str]) -> None:
    found = case(pod(gpu_container()), resource).advice_for_usable_class()

    assert (found.remedy, found.ask_contact) == want


def test_no_class_has_the_label_that_pins_pods() -> None:
    advice = case(pod(gpu_container()), label_key=ZONE).selection.advice_if_none_usable()

    assert advice.ask_contact == f"for a GPUClass with nvidia.com/gpu and node label {ZONE}"


def test_labels_of_a_class_are_compared_one_by_one() -> None:
    """All combinations of these values are 10 billion."""
    labels = tuple(NodeLabel(key=f"l{key}", values=tuple(map(str, range(9)))) for key in range(10))
    large = gpu_class("large", "large", 24, node_labels=labels)

    assert matches_new_node(view(pod(gpu_container(), nodeSelector={"l0": "1", "l9": "8"})), large)
    assert not matches_new_node(view(pod(gpu_container(), nodeSelector={"l0": "1", "l9": "9"})), large)
