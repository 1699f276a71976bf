"""cuda-version: a pod runs where the driver is new enough for its image, as far as the nodes say."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.placement.label_keys import known_keys
from policies.placement.named_nodes import Labels
from policies.placement.nodes import NodeFacts, NodeOffer
from policies.pods.patch import PodPatch
from policies.rule import Phase, RuleOptions
from policies.rules.cuda_version import FULL, MAJOR, check, mutate
from tests.builders import CLASSES, JSON, apply, container, context, gpu_container, pod, view
from tests.cases import cases

CUDA = "gpu-admission.dev/cuda"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANY = RuleOptions()
CPU: Labels = ()
POOL = NodeOffer({"accelerator": frozenset({"nvidia-t4"})}, pool="spot")
NEWER_THAN_11 = {"key": MAJOR, "operator": "Gt", "values": ["11"]}
NOT_BEFORE_12_4 = {"key": FULL, "operator": "NotIn", "values": ["12.0", "12.1", "12.2", "12.3"]}


def node(version: str = "", accelerator: str = "nvidia-t4") -> Labels:
    """Return the labels of a node of a class; GPU Feature Discovery runs there if there is a version."""
    labels = {"accelerator": accelerator}
    if version:
        labels |= {FULL: version, MAJOR: version.partition(".")[0]}
    return tuple(sorted(labels.items()))


def asking(version: str = "12.4", **tweaks: Any) -> JSON:
    return pod(gpu_container(), annotations={CUDA: version}, **tweaks)


def requiring(expression: str, *more: JSON) -> JSON:
    return pod(gpu_container(env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": expression}, *more]))


def terms(*expressions: list[JSON]) -> JSON:
    return {
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": e} for e in expressions]}}
        }
    }


def facts(*label_sets: Labels, pools: tuple[NodeOffer, ...] = ()) -> NodeFacts:
    return NodeFacts(keys=known_keys(CLASSES.label_keys, ()), label_sets=frozenset(label_sets), pools=pools)


def added(document: JSON, *label_sets: Labels, **tweaks: Any) -> Any:
    """Return the required terms as /mutate leaves them, None where there are none; a second pass changes nothing."""
    known = context(Phase.MUTATE, nodes=facts(*label_sets, pools=tweaks.pop("pools", ())), **tweaks)
    patch = PodPatch(view(document))
    assert list(mutate(patch, ANY, known)) == []
    again = PodPatch(patch.pod)
    list(mutate(again, ANY, known))
    assert again.changes == []
    assert list(check(patch.pod, ANY, known)) == [] or not patch.changes
    affinity = apply(document, patch)["spec"].get("affinity", {}).get("nodeAffinity", {})
    return [term["matchExpressions"] for term in affinity.get(REQUIRED, {}).get("nodeSelectorTerms", [])]


@cases(
    ("document", "nodes", "want"),
    {
        "annotation": (asking(), [node("12.4"), node("12.2")], [[NEWER_THAN_11, NOT_BEFORE_12_4]]),
        "major-version-alone": (asking("12"), [node("12.2")], [[NEWER_THAN_11]]),
        "later-major-version": (asking("12.0"), [node("13.0")], [[NEWER_THAN_11]]),
        "beside-cpu-nodes": (asking(), [node("12.8"), CPU], [[NEWER_THAN_11, NOT_BEFORE_12_4]]),
        "variable": (requiring("cuda>=12.4"), [node("12.4")], [[NEWER_THAN_11, NOT_BEFORE_12_4]]),
        "least-of-the-alternatives": (
            requiring("cuda>=12.4,driver>=550 cuda>=13.0"),
            [node("12.4")],
            [[NEWER_THAN_11, NOT_BEFORE_12_4]],
        ),
        "every-alternative-of-the-pod": (
            asking(
                "12",
                **terms([{"key": "zone", "operator": "Exists"}], [{"key": "disk", "operator": "Exists"}]),
            ),
            [node("12.4")],
            [
                [{"key": "zone", "operator": "Exists"}, NEWER_THAN_11],
                [{"key": "disk", "operator": "Exists"}, NEWER_THAN_11],
            ],
        ),
        "nodes-of-its-class": (
            asking("12", nodeSelector={"accelerator": "nvidia-t4"}),
            [node("12.4"), node("11.8", "nvidia-a100-80gb")],
            [[NEWER_THAN_11]],
        ),
    },
)
def test_affinity(document: JSON, nodes: list[Labels], want: list[Any]) -> None:
    assert added(document, *nodes) == want


@cases(
    "document",
    {
        "nothing-requested": pod(gpu_container()),
        "no-gpu": pod(container(), annotations={CUDA: "12.4"}),
        "node-name": asking(nodeName="node-1"),
        "version-that-the-pod-selects-itself": asking(nodeSelector={"nvidia.com/cuda.runtime.major": "12"}),
        "another-vendor": pod(gpu_container(resource="amd.com/gpu"), annotations={CUDA: "12.4"}),
        "alternative-without-a-cuda-version": requiring("cuda>=12.4 brand=tesla,driver>=535,driver<536"),
        "requirement-switched-off": requiring("cuda>=12.4", {"name": "NVIDIA_DISABLE_REQUIRE", "value": "1"}),
        "variable-of-a-container-without-gpu": pod(
            gpu_container(), container("log", env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}])
        ),
        "variable-that-names-none": requiring("cuda>=new"),
    },
)
def test_nothing_added(document: JSON) -> None:
    assert added(document, (*node("12.4"), ("nvidia.com/cuda.runtime.major", "12"))) == []


@cases(
    ("of_node", "tweaks"),
    {
        "no-node-says": (node(), {}),
        "every-node-is-too-old": (node("12.2"), {}),
        "pool-whose-nodes-would-not-be-made-for-it": (node("12.4"), {"pools": (POOL,)}),
        "daemonset": (node("12.4"), {"made_by_daemonset": True}),
    },
)
def test_nothing_added_where_no_node_could_take_the_pod_for_it(of_node: Labels, tweaks: Any) -> None:
    assert added(asking(), of_node, **tweaks) == []


MISSING = f"has no effect: label {FULL} is missing on"
ASK = "; ask the platform team for the label, which GPU Feature Discovery sets [cuda-version]"
OLDER = (
    "use an image with an older CUDA; should be at most 12.2, the newest CUDA of the nodes that can take the pod; "
    "or ask the platform team for newer drivers [cuda-version]"
)


@cases(
    ("document", "given", "want"),
    {
        "no-node-is-new-enough": (
            asking(),
            facts(node("12.2"), node("11.8")),
            f'metadata.annotations[{CUDA}] = "12.4": {OLDER}',
        ),
        "no-node-of-its-class-is-new-enough": (
            asking(nodeSelector={"accelerator": "nvidia-t4"}),
            facts(node("12.2"), node("12.4", "nvidia-a100-80gb")),
            f'metadata.annotations[{CUDA}] = "12.4": {OLDER}',
        ),
        "variable": (
            requiring("cuda>=12.4"),
            facts(node("12.2")),
            f'spec.containers[0].env[0] (container "main") = "cuda>=12.4": {OLDER}',
        ),
        "no-node-says": (
            asking(),
            facts(node()),
            f'metadata.annotations[{CUDA}] = "12.4": {MISSING} the nodes that can take the pod{ASK}',
        ),
        "pool-that-does-not-say": (
            asking(),
            facts(node("12.4"), pools=(POOL,)),
            f'metadata.annotations[{CUDA}] = "12.4": {MISSING} node pool spot{ASK}',
        ),
    },
)
def test_warning(document: JSON, given: NodeFacts, want: str) -> None:
    found = list(check(view(document), ANY, context(nodes=given)))

    assert [(each.severity, each.sentence()) for each in found] == [(Severity.WARNING, want)]


@cases(
    ("document", "given"),
    {
        "nodes-are-not-known": (asking(), None),
        "variable-where-no-node-says": (requiring("cuda>=12.4"), facts(node())),
        "pod-that-no-node-can-take": (asking(nodeSelector={"accelerator": "nvidia-l4"}), facts(node("12.2"))),
        "placed-already": (asking(nodeName="node-1"), facts(node("12.2"))),
    },
)
def test_nothing_to_say(document: JSON, given: NodeFacts | None) -> None:
    assert list(check(view(document), ANY, context(nodes=given))) == []


@pytest.mark.parametrize("text", ["new", "12.4.1", "0.9", "-12", "", "1e1"])
def test_an_annotation_that_is_not_a_version_is_denied(text: str) -> None:
    (found,) = check(view(asking(text)), ANY, context())

    assert found.severity is Severity.DENIAL
    assert found.sentence() == (
        f'metadata.annotations[{CUDA}] = "{text}": set for example {CUDA}: "12.4"; must be a CUDA version '
        "[cuda-version]"
    )


@cases(
    "document",
    {
        "longer-than-any-constraint": requiring("cuda>=12.4 " * 400),
        "more-containers-than-are-read": (
            pod(
                *[
                    gpu_container("1", f"c{n}", env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": ""}])
                    for n in range(8)
                ],
                gpu_container("1", "last", env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}]),
            )
        ),
    },
)
def test_a_constraint_that_is_too_long_is_not_read(document: JSON) -> None:
    assert not added(document, node("12.8"))
