"""Placement: which classes a pod's own constraints leave, and what can still be demanded of a label."""

from typing import Any

from policies.gpus.classes import GPUClasses, NodeLabel
from policies.placement.pinning import Pinning, allows_label, classes_of_label, is_narrowed_to, pinning
from policies.pods.annotations import INJECTED
from tests.builders import CLASSES, JSON, REQUIRED, gpu_class, gpu_container, node_affinity, pod, view
from tests.cases import cases
from tests.policies.placement.affinities import PREFERRED, affine

ACCELERATOR = "accelerator"
PRODUCT = "nvidia.com/gpu.product"
A100 = ("nvidia-a100-40gb", "nvidia-a100-80gb")
LABELLED = GPUClasses(
    (
        *CLASSES,
        gpu_class(
            "nvidia-h100",
            "nvidia-h100",
            80,
            node_labels=(NodeLabel(key=PRODUCT, values=("NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3")),),
        ),
    )
)


def requiring(*terms: Any, **spec: Any) -> JSON:
    return pod(affinity=node_affinity(*terms), **spec)


def selecting(**labels: str) -> JSON:
    return pod(gpu_container(), nodeSelector=labels)


IN_T4 = (ACCELERATOR, "In", "nvidia-t4")
IN_A100 = (ACCELERATOR, "In", "nvidia-a100")
IN_ZONE = ("topology.kubernetes.io/zone", "In", "a")

T4_AFFINITY = "node affinity accelerator in (nvidia-t4)"
A100_AFFINITY = "node affinity accelerator in (nvidia-a100)"
T4_SELECTOR = "nodeSelector accelerator=nvidia-t4"
H100_PRODUCT = {PRODUCT: "NVIDIA-H100-PCIe"}
BY_H100_PRODUCT = f"nodeSelector {PRODUCT}=NVIDIA-H100-PCIe"
IN_80_OR_T4 = (ACCELERATOR, "In", "nvidia-a100-80gb", "nvidia-t4")


@cases(
    ("document", "want"),
    {
        "no-constraints": (pod(gpu_container()), None),
        "label-that-no-class-has": (selecting(disk="ssd"), None),
        "value-that-no-class-has": (selecting(accelerator="nvidia-t5"), None),
        "class": (selecting(accelerator="nvidia-t4"), (["nvidia-t4"], T4_SELECTOR)),
        "family": (selecting(accelerator="nvidia-a100"), (A100, "nodeSelector accelerator=nvidia-a100")),
        "label-of-a-vendor": (selecting(**H100_PRODUCT), (["nvidia-h100"], BY_H100_PRODUCT)),
        "family-under-a-label-of-a-vendor": (selecting(**{PRODUCT: "nvidia-a100"}), None),
        "opposed": (selecting(accelerator="nvidia-t4", **H100_PRODUCT), ([], T4_SELECTOR, BY_H100_PRODUCT)),
        "expressions-of-one-term-all-hold": (
            requiring([IN_A100, IN_80_OR_T4]),
            (
                ["nvidia-a100-80gb"],
                A100_AFFINITY,
                "node affinity accelerator in (nvidia-a100-80gb, nvidia-t4)",
            ),
        ),
        "alternatives": (requiring([IN_T4], [IN_A100]), ([*A100, "nvidia-t4"], T4_AFFINITY, A100_AFFINITY)),
        "one-alternative-leaves-all-open": (requiring([IN_T4], [IN_ZONE]), None),
        "empty-terms": (requiring({}, [IN_T4], {"matchExpressions": None}), (["nvidia-t4"], T4_AFFINITY)),
        "nothing-but-an-empty-term": (
            requiring({}),
            ([], "required node affinity, of which no term matches a node"),
        ),
        "unknown-value-among-them": (requiring([(ACCELERATOR, "In", "nvidia-t4", "unknown")]), None),
        "in-of-nothing": (requiring([(ACCELERATOR, "In")]), None),
        "not-in": (requiring([(ACCELERATOR, "NotIn", "nvidia-t4")]), None),
        "exists": (requiring([(ACCELERATOR, "Exists")]), None),
        "selector-and-affinity": (
            requiring([IN_A100], nodeSelector={"accelerator": "nvidia-a100-40gb"}),
            (["nvidia-a100-40gb"], "nodeSelector accelerator=nvidia-a100-40gb", A100_AFFINITY),
        ),
        "preferred": (pod(**affine(PREFERRED, ACCELERATOR, "In", "nvidia-t4")), None),
        "affinity-null": (pod(affinity={"nodeAffinity": {REQUIRED: None}}), None),
    },
)
def test_pinning(document: JSON, want: tuple[Any, ...] | None) -> None:
    assert pinning(view(document), LABELLED) == (want and Pinning(tuple(want[0]), want[1:]))


@cases(
    ("injected", "want"),
    this_value=("nodeSelector accelerator=nvidia-a100", True),
    a_longer_value=("nodeSelector accelerator=nvidia-a100-80gb", False),
    another_key=("nodeSelector gpu=nvidia-a100", False),
)
def test_a_selector_is_injected_if_the_annotation_has_just_it(injected: str, want: bool) -> None:
    document = selecting(accelerator="nvidia-a100")
    document["metadata"]["annotations"] = {INJECTED: f"gpu-class: {injected}"}

    found = pinning(view(document), LABELLED)

    assert found is not None
    assert found.is_injected is want


@cases(
    ("annotations", "by"),
    by_a_model=({"gpu-admission.dev/model-params": "13b"}, ", by the declared model"),
    by_a_family_of_models=({"gpu-admission.dev/model-family": "llama-3"}, ", by the declared model"),
    by_default=({}, ", by the policy's default"),
    by_the_annotation_that_names_it=({"gpu-admission.dev/gpu-class": "nvidia-t4"}, ""),
)
def test_why_a_class_was_injected(annotations: dict[str, str], by: str) -> None:
    document = selecting(accelerator="nvidia-t4")
    injected = {"gpu-admission.dev/injected": f"gpu-class: {T4_SELECTOR}"}
    document["metadata"]["annotations"] = {**annotations, **injected}

    found = pinning(view(document), LABELLED)

    assert found == Pinning(("nvidia-t4",), (f"{T4_SELECTOR}{by}",), is_injected=True)


@cases(
    ("key", "value", "want"),
    {
        "class": (ACCELERATOR, "nvidia-t4", {"nvidia-t4"}),
        "family": (ACCELERATOR, "nvidia-a100", set(A100)),
        "class-that-does-not-go-by-its-name": (ACCELERATOR, "nvidia-h100", set()),
        "second-value": (PRODUCT, "NVIDIA-H100-80GB-HBM3", {"nvidia-h100"}),
        "family-under-another-key": ("disk", "nvidia-a100", set()),
    },
)
def test_classes_of_label(key: str, value: str, want: set[str]) -> None:
    assert classes_of_label(key, value, LABELLED) == want


IN_BOTH = (ACCELERATOR, "In", *A100)
NOT_IN_80 = (ACCELERATOR, "NotIn", "nvidia-a100-80gb")


@cases(
    ("document", "want"),
    {
        "no-constraints": (pod(), True),
        "same-value": (selecting(accelerator="nvidia-a100-80gb"), True),
        "one-label-has-one-value": (selecting(accelerator="nvidia-a100"), False),
        "other-label": (requiring([IN_ZONE]), True),
        "in-others": (requiring([IN_T4]), False),
        "one-alternative-will-do": (requiring([IN_T4], [IN_ZONE]), True),
        "not-in-leaves-one": (requiring([NOT_IN_80]), True),
        "not-in-leaves-none": (requiring([(ACCELERATOR, "NotIn", *A100)]), False),
        "exists": (requiring([(ACCELERATOR, "Exists")]), True),
        "does-not-exist": (requiring([(ACCELERATOR, "DoesNotExist")]), False),
        "greater-than": (requiring([(ACCELERATOR, "Gt", "5")]), False),
        "empty-term-matches-no-node": (requiring({}), False),
        "no-value-meets-both": (requiring([NOT_IN_80], nodeSelector={ACCELERATOR: A100[1]}), False),
    },
)
def test_admits(document: JSON, want: bool) -> None:
    assert allows_label(view(document), ACCELERATOR, A100) is want


@cases(
    ("document", "want"),
    {
        "no-constraints": (pod(), False),
        "selector": (selecting(accelerator="nvidia-a100-80gb"), True),
        "selector-of-another": (selecting(accelerator="nvidia-t4"), False),
        "affinity": (requiring([IN_BOTH]), True),
        "wider-affinity": (requiring([IN_80_OR_T4]), False),
        "alternative-without-it": (requiring([IN_BOTH], [IN_ZONE]), False),
        "empty-term-matches-no-node": (requiring([IN_BOTH], {}), True),
        "nothing-but-an-empty-term": (requiring({}), False),
        "not-in": (requiring([(ACCELERATOR, "NotIn", *A100)]), False),
        "another-label": (requiring([("zone", "In", *A100)]), False),
    },
)
def test_is_narrowed_to(document: JSON, want: bool) -> None:
    assert is_narrowed_to(view(document), ACCELERATOR, A100) is want
