"""Placement: which classes a pod's own constraints leave, and what can still be demanded of a label."""

from typing import Any

import pytest

from policies.gpus.classes import ClassCatalogue, NodeLabel
from policies.placement.pinning import Pinning, admits, classes_of_label, is_narrowed_to, pinning
from tests.builders import CLASSES, JSON, gpu_class, gpu_container, pod, view

ACCELERATOR = "accelerator"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PRODUCT = "nvidia.com/gpu.product"
A100 = ("nvidia-a100-40gb", "nvidia-a100-80gb")
LABELLED = ClassCatalogue(
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


def expression(key: str, operator: str, *values: str) -> JSON:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def term(*expressions: JSON) -> JSON:
    return {"matchExpressions": list(expressions)}


def requiring(*terms: JSON, **spec: Any) -> JSON:
    return pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}, **spec)


def selecting(**labels: str) -> JSON:
    return pod(gpu_container(), nodeSelector=labels)


IN_T4 = expression(ACCELERATOR, "In", "nvidia-t4")
IN_A100 = expression(ACCELERATOR, "In", "nvidia-a100")
IN_ZONE = expression("topology.kubernetes.io/zone", "In", "a")


T4_AFFINITY = "node affinity accelerator in (nvidia-t4)"
A100_AFFINITY = "node affinity accelerator in (nvidia-a100)"
T4_SELECTOR = "nodeSelector accelerator=nvidia-t4"
H100_PRODUCT = {PRODUCT: "NVIDIA-H100-PCIe"}
BY_H100_PRODUCT = f"nodeSelector {PRODUCT}=NVIDIA-H100-PCIe"
IN_80_OR_T4 = expression(ACCELERATOR, "In", "nvidia-a100-80gb", "nvidia-t4")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(gpu_container()), None, id="no-constraints"),
        pytest.param(selecting(disk="ssd"), None, id="label-that-no-class-has"),
        pytest.param(selecting(accelerator="nvidia-t5"), None, id="value-that-no-class-has"),
        pytest.param(selecting(accelerator="nvidia-t4"), (["nvidia-t4"], T4_SELECTOR), id="class"),
        pytest.param(
            selecting(accelerator="nvidia-a100"), (A100, "nodeSelector accelerator=nvidia-a100"), id="family"
        ),
        pytest.param(selecting(**H100_PRODUCT), (["nvidia-h100"], BY_H100_PRODUCT), id="label-of-a-vendor"),
        pytest.param(selecting(**{PRODUCT: "nvidia-a100"}), None, id="family-under-a-label-of-a-vendor"),
        pytest.param(
            selecting(accelerator="nvidia-t4", **H100_PRODUCT),
            ([], T4_SELECTOR, BY_H100_PRODUCT),
            id="contradiction",
        ),
        pytest.param(
            requiring(term(IN_A100, IN_80_OR_T4)),
            (
                ["nvidia-a100-80gb"],
                A100_AFFINITY,
                "node affinity accelerator in (nvidia-a100-80gb, nvidia-t4)",
            ),
            id="expressions-of-one-term-all-hold",
        ),
        pytest.param(
            requiring(term(IN_T4), term(IN_A100)),
            ([*A100, "nvidia-t4"], T4_AFFINITY, A100_AFFINITY),
            id="terms-are-alternatives",
        ),
        pytest.param(requiring(term(IN_T4), term(IN_ZONE)), None, id="one-alternative-leaves-all-open"),
        pytest.param(
            requiring({}, term(IN_T4), {"matchExpressions": None}),
            (["nvidia-t4"], T4_AFFINITY),
            id="empty-term-matches-no-node",
        ),
        pytest.param(requiring({}), ([],), id="nothing-but-an-empty-term"),
        pytest.param(
            requiring(term(expression(ACCELERATOR, "In", "nvidia-t4", "unknown"))),
            None,
            id="unknown-value-among-them",
        ),
        pytest.param(requiring(term(expression(ACCELERATOR, "In"))), None, id="in-of-nothing"),
        pytest.param(requiring(term(expression(ACCELERATOR, "NotIn", "nvidia-t4"))), None, id="not-in"),
        pytest.param(requiring(term(expression(ACCELERATOR, "Exists"))), None, id="exists"),
        pytest.param(
            requiring(term(IN_A100), nodeSelector={"accelerator": "nvidia-a100-40gb"}),
            (["nvidia-a100-40gb"], "nodeSelector accelerator=nvidia-a100-40gb", A100_AFFINITY),
            id="selector-and-affinity",
        ),
        pytest.param(pod(affinity={"nodeAffinity": {REQUIRED: None}}), None, id="affinity-null"),
    ],
)
def test_pinning(document: JSON, want: tuple[Any, ...] | None) -> None:
    found = pinning(view(document), LABELLED)
    assert found == (want and Pinning(tuple(want[0]), want[1:]))


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        pytest.param(ACCELERATOR, "nvidia-t4", {"nvidia-t4"}, id="class"),
        pytest.param(ACCELERATOR, "nvidia-a100", set(A100), id="family"),
        pytest.param(ACCELERATOR, "nvidia-h100", set(), id="class-that-does-not-go-by-its-name"),
        pytest.param(PRODUCT, "NVIDIA-H100-80GB-HBM3", {"nvidia-h100"}, id="second-value"),
        pytest.param("disk", "nvidia-a100", set(), id="family-under-another-key"),
    ],
)
def test_classes_of_label(key: str, value: str, want: set[str]) -> None:
    assert classes_of_label(key, value, LABELLED) == want


IN_BOTH = expression(ACCELERATOR, "In", *A100)
NOT_IN_80 = expression(ACCELERATOR, "NotIn", "nvidia-a100-80gb")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(), True, id="no-constraints"),
        pytest.param(selecting(accelerator="nvidia-a100-80gb"), True, id="same-value"),
        pytest.param(selecting(accelerator="nvidia-a100"), False, id="one-label-has-one-value"),
        pytest.param(requiring(term(IN_ZONE)), True, id="other-label"),
        pytest.param(requiring(term(IN_T4)), False, id="in-others"),
        pytest.param(requiring(term(IN_T4), term(IN_ZONE)), True, id="one-alternative-will-do"),
        pytest.param(requiring(term(NOT_IN_80)), True, id="not-in-leaves-one"),
        pytest.param(
            requiring(term(expression(ACCELERATOR, "NotIn", *A100))), False, id="not-in-leaves-none"
        ),
        pytest.param(requiring(term(expression(ACCELERATOR, "Exists"))), True, id="exists"),
        pytest.param(requiring(term(expression(ACCELERATOR, "DoesNotExist"))), False, id="does-not-exist"),
        pytest.param(requiring(term(expression(ACCELERATOR, "Gt", "5"))), False, id="greater-than"),
        pytest.param(requiring({}), False, id="empty-term-matches-no-node"),
        pytest.param(
            requiring(term(NOT_IN_80), nodeSelector={ACCELERATOR: A100[1]}), False, id="no-value-meets-both"
        ),
    ],
)
def test_admits(document: JSON, want: bool) -> None:
    assert admits(view(document), ACCELERATOR, A100) is want


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(), False, id="no-constraints"),
        pytest.param(selecting(accelerator="nvidia-a100-80gb"), True, id="selector"),
        pytest.param(selecting(accelerator="nvidia-t4"), False, id="selector-of-another"),
        pytest.param(requiring(term(IN_BOTH)), True, id="affinity"),
        pytest.param(requiring(term(IN_80_OR_T4)), False, id="wider-affinity"),
        pytest.param(requiring(term(IN_BOTH), term(IN_ZONE)), False, id="alternative-without-it"),
        pytest.param(requiring(term(IN_BOTH), {}), True, id="empty-term-matches-no-node"),
        pytest.param(requiring({}), False, id="nothing-but-an-empty-term"),
        pytest.param(requiring(term(expression(ACCELERATOR, "NotIn", *A100))), False, id="not-in"),
        pytest.param(requiring(term(expression("zone", "In", *A100))), False, id="another-label"),
    ],
)
def test_is_narrowed_to(document: JSON, want: bool) -> None:
    assert is_narrowed_to(view(document), ACCELERATOR, A100) is want
