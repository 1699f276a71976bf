"""What decides on the classes of a pod: its annotation, else the default of the policy if the pod chooses nothing itself."""

from typing import Any

from msgspec.structs import replace

from policies.finding import ContactChange, ContactEdit, Edit
from policies.gpus.classes import GPUClasses
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource
from policies.models.memory import model_need
from policies.placement.class_advice import ANNOTATION_PATH, alternatives_in_words
from policies.placement.class_choice import choose_class
from policies.placement.class_selection import REQUIRED_AFFINITY, Choice, ClassSelection, label_values
from policies.placement.hardware import LabelKeys
from policies.placement.nodes import NodeFacts
from policies.pods.annotations import GPU_CLASS, MODEL_PARAMS
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, container, gpu_class, gpu_container, pod, view
from tests.cases import cases
from tests.policies.rules.class_pods import affinity

CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
CLAIMING = container("init", resources={"claims": [{"name": "gpu"}]})
PATH = f"metadata.annotations[{GPU_CLASS}]"
SET = f"set {GPU_CLASS}: nvidia-a100-40gb or nvidia-a100-80gb or nvidia-t4"
PRODUCT = {"nodeSelector": {"example.com/product": "T4"}}


def annotated(name: str) -> JSON:
    return {"annotations": {GPU_CLASS: name}}


@cases(
    ("names", "family", "key", "want"),
    {
        "class": (["nvidia-t4"], None, "accelerator", ("nvidia-t4",)),
        "classes": (
            ["nvidia-t4", "nvidia-a100-40gb"],
            None,
            "accelerator",
            ("nvidia-t4", "nvidia-a100-40gb"),
        ),
        "family": (["nvidia-a100-40gb", "nvidia-a100-80gb"], "nvidia-a100", "accelerator", ("nvidia-a100",)),
        "another-label": (["nvidia-t4"], None, "zone", ()),
        "family-without-the-label": (["nvidia-a100-40gb", "nvidia-a100-80gb"], "nvidia-a100", "zone", ()),
    },
)
def test_values_that_pin_a_pod(names: list[str], family: str | None, key: str, want: tuple[str, ...]) -> None:
    classes = [each for name in names if (each := CLASSES.get(name)) is not None]

    assert label_values(classes, family, key) == want


def modelled(params: str) -> JSON:
    return {"annotations": {MODEL_PARAMS: params}}


@cases(
    ("tweaks", "default", "is_pinned", "want"),
    {
        "class": (annotated("nvidia-t4"), None, False, "nvidia-t4"),
        "family": (annotated("nvidia-a100"), None, False, "nvidia-a100: nvidia-a100-40gb, nvidia-a100-80gb"),
        "annotation-of-a-pinned-pod": (annotated("nvidia-t4"), "nvidia-a100", True, "nvidia-t4"),
        "misspelt-class": (
            annotated("nvidia-t5"),
            None,
            False,
            f'{PATH} = "nvidia-t5": did you mean nvidia-t4? The value must be a GPU class or a family of classes',
        ),
        "class-without-the-resource": (
            annotated("amd-mi300x"),
            None,
            False,
            f'{PATH} = "amd-mi300x": {SET}; must be a class with nvidia.com/gpu',
        ),
        "class-of-other-namespaces": (
            annotated("nvidia-h100"),
            None,
            False,
            f'{PATH} = "nvidia-h100": {SET}; must be a class that namespace team may use',
        ),
        "default": ({}, "nvidia-t4", False, "nvidia-t4"),
        "no-default": ({}, None, False, None),
        "default-of-another-vendor": ({}, "amd-mi300x", False, None),
        "pinned": ({}, "nvidia-t4", True, None),
        "smallest-that-holds-the-model": (modelled("7b"), "nvidia-t4", False, "nvidia-a100-40gb"),
        "model-that-no-class-holds": (
            modelled("100b"),
            "nvidia-t4",
            False,
            f'metadata.annotations[{MODEL_PARAMS}] = "100b": request 8 GPUs of 40 GiB or 4 GPUs of 80 GiB; must fit on a class '
            "that the pod may use: the weights of 100b bf16 serving take 186.3 GiB",
        ),
        "with-claims": (CLAIMS, "nvidia-t4", False, None),
        "with-claims-that-a-workflow-adds": ({"initContainers": [CLAIMING]}, "nvidia-t4", False, None),
        "with-a-choice-of-hardware": (PRODUCT, "nvidia-t4", False, None),
    },
)
def test_the_choice_of_a_pod(tweaks: JSON, default: str | None, is_pinned: bool, want: str | None) -> None:
    gpu = RESOURCE_MAPPING.resource("nvidia.com/gpu")
    selection = ClassSelection(
        pod=view(pod(gpu_container(), **tweaks)),
        gpu_classes=GPUClasses((*CLASSES, gpu_class("nvidia-h100", "nvidia-h100", 80))),
        namespace="team",
        allowed=("nvidia-t4", "nvidia-a100", "amd-*"),
        default=default,
        label_key="accelerator",
        resources=(gpu,) if gpu else (),
        hardware=LabelKeys(frozenset({"example.com/product"})),
    )

    need = model_need(selection.pod, RESOURCE_MAPPING)
    assert not isinstance(need, tuple)

    chosen = choose_class(selection, need, is_pinned=is_pinned)

    if isinstance(chosen, Choice):
        family = f"{chosen.family}: " if chosen.family else ""
        assert family + ", ".join(sorted(chosen.names)) == want
    else:
        assert (chosen and chosen.sentence()) == want


ONLY_T4 = NodeFacts(keys=CLASSES.label_keys, label_sets=frozenset({(("accelerator", "nvidia-t4"),)}))
WHOLE = "request nvidia.com/gpu: 1"
NO_CLASS = "no class that namespace team may use has amd.com/gpu"
NO_NODE = "no class with nodes that namespace team may use has amd.com/gpu"


def selection(resource: str | None = "nvidia.com/gpu", **of: Any) -> ClassSelection:
    return ClassSelection(
        pod=view(pod(gpu_container())),
        gpu_classes=CLASSES,
        namespace="team",
        label_key="accelerator",
        resources=(GPUResource(resource, Measure.DEVICES),) if resource else (),
        hardware=LabelKeys(frozenset()),
        **of,
    )


@cases(
    ("resource", "allowed", "nodes", "want"),
    no_class_has_it=(
        "google.com/tpu",
        "*",
        None,
        (
            "no class that namespace team may use has google.com/tpu",
            "request amd.com/gpu or nvidia.com/gpu: 1",
            "for a GPUClass with google.com/tpu",
        ),
    ),
    no_node_has_it=("amd.com/gpu", "*", ONLY_T4, (NO_NODE, WHOLE, "for nodes of amd-mi300x")),
    its_nodes_take_no_pod_now=(
        "nvidia.com/gpu",
        "nvidia-t4",
        ONLY_T4,
        (
            "no class that namespace team may use has a node that takes the pod now",
            "",
            "for nodes of nvidia-t4",
        ),
    ),
    nothing_else_is_there=("amd.com/gpu", "amd-*", ONLY_T4, (NO_NODE, "", "for nodes of amd-mi300x")),
    devices_only_by_claims=(
        None,
        "amd-*",
        ONLY_T4,
        ("no class that namespace team may use has nodes", "", "for nodes of amd-mi300x"),
    ),
    not_allowed=(
        "amd.com/gpu",
        "nvidia-t4",
        None,
        (NO_CLASS, WHOLE, "to allow amd-mi300x in namespace team"),
    ),
)
def test_without_a_usable_class(
    resource: str | None, allowed: str, nodes: NodeFacts | None, want: tuple[str, str, str]
) -> None:
    found = selection(resource, allowed=(allowed,), nodes=nodes)

    advice = found.advice_if_none_usable()

    assert (found.none_usable_message, advice.remedy, advice.ask_contact) == want


AMD = "amd-mi300x"
NODES = ContactEdit("Node", value=AMD)
NAMED = Edit(ANNOTATION_PATH, AMD)
T4 = {"accelerator": "nvidia-t4"}
WITHOUT_T4 = Edit("spec.nodeSelector[accelerator]")
NOT_AMD = affinity("accelerator", "NotIn", AMD)
ALLOWED = "to allow amd-mi300x in namespace team, and for nodes of it"
MAY_USE = ContactEdit("GPUPolicy", "spec.rules.gpu-class.allowed[-]", AMD)
SELECTED = Edit("spec.nodeSelector[accelerator]", AMD)
WITHOUT_AFFINITY = Edit(REQUIRED_AFFINITY)


@cases(
    ("allowed", "bypasses_scheduler", "tweaks", "want"),
    nodes=(AMD, False, {}, ("", (NODES, NAMED))),
    the_right_to_use_it_too=("nvidia-t4", False, {}, (ALLOWED, (MAY_USE, NODES, NAMED))),
    of_a_pod_that_pins_itself=(AMD, False, {"nodeSelector": T4}, ("", (NODES, WITHOUT_T4, NAMED))),
    of_a_pod_that_excludes_it=(AMD, False, NOT_AMD, ("", (NODES, WITHOUT_AFFINITY, NAMED))),
    of_a_pod_that_the_scheduler_does_not_place=(AMD, True, {}, ("", (NODES, SELECTED))),
    of_a_pod_with_gpus_of_another_vendor=(
        AMD,
        False,
        {"initContainers": [gpu_container("1", name="init")]},
        ("", (NODES, Edit("spec.initContainers[0].resources.limits[nvidia.com/gpu]"), NAMED)),
    ),
    of_one_that_names_another=(
        AMD,
        True,
        {"annotations": {GPU_CLASS: "nvidia-t4"}, "nodeSelector": T4},
        ("", (NODES, Edit(ANNOTATION_PATH), SELECTED)),
    ),
)
def test_what_is_asked_for_and_what_the_pod_needs_then(
    allowed: str, bypasses_scheduler: bool, tweaks: JSON, want: tuple[str, ContactChange]
) -> None:
    found = selection("amd.com/gpu", allowed=(allowed,), nodes=ONLY_T4, bypasses_scheduler=bypasses_scheduler)
    requesting = gpu_container(resource="amd.com/gpu")
    amounts = {"amd.com/gpu": 1, "nvidia.com/gpu": 1}
    others = ("nvidia.com/gpu",)
    found = replace(
        found, pod=view(pod(requesting, **tweaks)), amounts=amounts, other_vendors_resources=others
    )

    advice = found.advice_if_none_usable()

    words, change = want
    assert (advice.ask_contact, advice.contact_choices) == (words or f"for nodes of {AMD}", (change,))


def test_nodes_of_a_class_with_fewer_cards_than_the_pod_requests_are_not_asked_for() -> None:
    """Rule gpu-requests says how many a node of the class has."""
    of_8 = gpu_class(AMD, AMD, 192, resource="amd.com/gpu", gpus_per_node=8)
    found = selection("amd.com/gpu", allowed=("amd-*",), nodes=ONLY_T4)
    asked = [
        replace(found, gpu_classes=GPUClasses((of_8,)), amounts={"amd.com/gpu": count})
        .advice_if_none_usable()
        .contact_choices
        for count in (8, 9)
    ]

    assert asked == [((NODES, NAMED),), ()]


@cases(
    ("name", "autoscaled", "nodes", "want"),
    there=("nvidia-t4", (), ONLY_T4, True),
    only_others_are_there=("amd-mi300x", (), ONLY_T4, False),
    made_on_demand=("amd-mi300x", ("amd-*",), ONLY_T4, True),
    made_on_demand_where_nodes_are_not_known=("amd-mi300x", ("amd-*",), None, True),
    not_known=("nvidia-t4", (), None, False),
)
def test_classes_with_nodes(
    name: str, autoscaled: tuple[str, ...], nodes: NodeFacts | None, want: bool
) -> None:
    found, [named] = selection(autoscaled_classes=autoscaled, nodes=nodes), CLASSES.named({name})

    assert (found.has_own_nodes(named), found.label_with_nodes(named, [named]) is not None) == (want, want)


def test_what_may_be_meant() -> None:
    assert [CLASSES.suggestion(word, "; ") for word in ("nvidia-t5", "zzz")] == [
        "; did you mean nvidia-t4?",
        "",
    ]


def test_only_a_few_names_are_listed() -> None:
    assert [alternatives_in_words(names) for names in ("abc", "abcd", "abcde")] == [
        "a or b or c",
        "a or b or c or d",
        "a or b or c or 2 more",
    ]


def test_other_resources_are_removed_with_a_choice_of_a_class() -> None:
    others = ("amd.com/gpu", "habana.ai/gaudi")
    advice = selection(allowed=("*",), default=None, other_vendors_resources=others).advice_to_name(
        ["nvidia-t4"]
    )

    assert advice.remedy == (
        "remove amd.com/gpu and habana.ai/gaudi, and set gpu-admission.dev/gpu-class: nvidia-t4"
    )
