"""gpu-class: a GPU pod runs on the class that was asked for, and the finding says so when it cannot."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.gpus.classes import ClassCatalogue, NodeLabel
from policies.placement.class_choice import Choice
from policies.placement.pinning import Pinning
from policies.pods.patch import PodPatch
from policies.rule import Mode, Phase
from policies.rules.gpu_class import RULE, GPUClassOptions, check, is_wider, mutate
from tests.builders import CLASSES, JSON, apply, container, context, gpu_class, gpu_container, pod, view

CLASS = "gpu-admission.dev/gpu-class"
PARAMS = "gpu-admission.dev/model-params"
PRODUCT = "nvidia.com/gpu.product"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANY = GPUClassOptions()
T4_ONLY = GPUClassOptions(allowed=("nvidia-t4",))
BY_PRODUCT = GPUClassOptions(label_key=PRODUCT)
GATED = [{"name": "kueue.x-k8s.io/admission"}]

H100 = gpu_class(
    "nvidia-h100",
    "nvidia-h100",
    80,
    node_labels=(NodeLabel(key=PRODUCT, values=("NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3")),),
)
QUARTERS = gpu_class("nvidia-a100-shared", "nvidia-a100", 39, equivalents={"nvidia.com/gpu": "1/4"})


def asking(
    gpu_class_name: str | None = None, gpus: str = "1", resource: str = "nvidia.com/gpu", **tweaks: Any
) -> JSON:
    """Return a GPU pod; `annotations` among the tweaks are added to that of the class."""
    annotations = {CLASS: gpu_class_name} if gpu_class_name is not None else {}
    annotations |= tweaks.pop("annotations", {})
    return pod(gpu_container(gpus, resource=resource), annotations=annotations, **tweaks)


def modelled(params: str = "7b", **tweaks: Any) -> JSON:
    return asking(annotations={PARAMS: params}, **tweaks)


def selecting(value: str, key: str = "accelerator") -> JSON:
    return {"nodeSelector": {key: value}}


def affinity(key: str, operator: str, *values: str) -> JSON:
    requirement = {"key": key, "operator": operator, "values": list(values)}
    return {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}
    }


def placed(document: JSON, options: GPUClassOptions = ANY, **tweaks: Any) -> JSON:
    """Return the document as /mutate leaves it; a second pass changes nothing."""
    once = _mutated(document, options, **tweaks)
    assert _mutated(once, options, **tweaks) == once
    return once


def _mutated(document: JSON, options: GPUClassOptions, **tweaks: Any) -> JSON:
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, context(Phase.MUTATE, **tweaks))) == []
    return apply(document, patch)


def reported(document: JSON, options: GPUClassOptions = ANY, **tweaks: Any) -> list[tuple[Severity, str]]:
    """Return what /validate says of the document as /mutate left it."""
    is_changed = not tweaks.get("is_update") and tweaks.get("phase", Phase.VALIDATE) is Phase.VALIDATE
    final = placed(document, options, **tweaks) if is_changed else document
    return [
        (finding.severity, finding.sentence()) for finding in check(view(final), options, context(**tweaks))
    ]


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(asking("nvidia-t4"), ANY, selecting("nvidia-t4"), id="class-of-the-annotation"),
        pytest.param(asking("nvidia-a100"), ANY, selecting("nvidia-a100"), id="family-of-the-annotation"),
        pytest.param(
            asking("nvidia-a100", resource="nvidia.com/mig-1g.10gb"),
            ANY,
            selecting("nvidia-a100"),
            id="slice-of-a-family",
        ),
        pytest.param(
            asking("nvidia-t4", resource="nvidia.com/gpu.shared"), ANY, selecting("nvidia-t4"), id="share"
        ),
        pytest.param(
            pod(annotations={CLASS: "nvidia-t4", "gpu-fraction": "0.5"}),
            ANY,
            selecting("nvidia-t4"),
            id="fraction",
        ),
        pytest.param(
            pod(
                annotations={CLASS: "nvidia-t4"},
                resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}],
            ),
            ANY,
            selecting("nvidia-t4")
            | {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
            id="claim",
        ),
        pytest.param(
            asking("nvidia-t4", nodeSelector={"disk": "ssd"}),
            ANY,
            {"nodeSelector": {"disk": "ssd", "accelerator": "nvidia-t4"}},
            id="beside-other-selectors",
        ),
        pytest.param(
            asking(), GPUClassOptions(default="nvidia-t4"), selecting("nvidia-t4"), id="default-class"
        ),
        pytest.param(
            asking(), GPUClassOptions(default="nvidia-a100"), selecting("nvidia-a100"), id="default-family"
        ),
        pytest.param(
            asking("nvidia-t4"),
            GPUClassOptions(default="nvidia-a100"),
            selecting("nvidia-t4"),
            id="annotation-before-default",
        ),
        pytest.param(
            asking(resource="amd.com/gpu"),
            GPUClassOptions(default="nvidia-t4"),
            {},
            id="default-does-not-have-what-is-asked-for",
        ),
        # 7b in bf16: 19.6 GiB
        pytest.param(modelled(), ANY, selecting("nvidia-a100-40gb"), id="smallest-class-that-fits-the-model"),
        pytest.param(modelled(gpus="2"), ANY, selecting("nvidia-t4"), id="model-over-two-gpus"),
        pytest.param(
            modelled(),
            GPUClassOptions(allowed=("*-80gb",)),
            selecting("nvidia-a100-80gb"),
            id="smallest-class-that-is-allowed",
        ),
        pytest.param(
            modelled(resource="amd.com/gpu"),
            ANY,
            selecting("amd-mi300x"),
            id="smallest-class-of-the-resource",
        ),
        pytest.param(
            modelled(resource="nvidia.com/mig-3g.40gb"),
            ANY,
            selecting("nvidia-a100-80gb"),
            id="class-that-has-the-slice",
        ),
        pytest.param(
            modelled(),
            GPUClassOptions(default="nvidia-t4"),
            selecting("nvidia-a100-40gb"),
            id="model-before-default",
        ),
        pytest.param(
            modelled(resource="nvidia.com/gpu.shared"),
            GPUClassOptions(default="nvidia-t4"),
            selecting("nvidia-t4"),
            id="default-where-memory-of-a-share-is-unknown",
        ),
        pytest.param(
            asking("nvidia-a100", annotations={PARAMS: "7b"}),
            ANY,
            selecting("nvidia-a100"),
            id="annotation-before-model",
        ),
        pytest.param(
            asking("nvidia-a100"),
            GPUClassOptions(allowed=("nvidia-a100-40*",)),
            selecting("nvidia-a100-40gb"),
            id="part-of-a-family",
        ),
        pytest.param(asking(), ANY, {}, id="nobody-says-anything"),
        pytest.param(pod(container(), annotations={CLASS: "nvidia-t4"}), ANY, {}, id="no-gpu"),
        pytest.param(asking("nvidia-t4", schedulingGates=GATED), ANY, {"schedulingGates": GATED}, id="gated"),
        pytest.param(asking("nvidia-t4", nodeName="node-1"), ANY, {"nodeName": "node-1"}, id="node-name"),
        pytest.param(asking("nvidia-t5"), ANY, {}, id="unknown-class"),
        pytest.param(modelled("70b"), ANY, {}, id="model-that-fits-nowhere"),
        pytest.param(
            asking("nvidia-a100", **selecting("nvidia-a100-80gb")),
            ANY,
            selecting("nvidia-a100-80gb"),
            id="pinned-more-tightly",
        ),
        pytest.param(
            asking(**selecting("nvidia-a100")),
            GPUClassOptions(default="nvidia-t4"),
            selecting("nvidia-a100"),
            id="pinned-before-default",
        ),
        pytest.param(
            modelled(**selecting("nvidia-t4")), ANY, selecting("nvidia-t4"), id="pinned-before-model"
        ),
        pytest.param(
            asking(**selecting("somebody-elses")),
            GPUClassOptions(default="nvidia-t4"),
            selecting("somebody-elses"),
            id="unknown-value-is-kept",
        ),
        pytest.param(
            asking(**affinity("accelerator", "NotIn", "nvidia-t4")),
            GPUClassOptions(default="nvidia-t4"),
            affinity("accelerator", "NotIn", "nvidia-t4"),
            id="default-that-the-pod-excludes",
        ),
        pytest.param(
            asking(**affinity("accelerator", "NotIn", "nvidia-t4")),
            GPUClassOptions(default="nvidia-a100"),
            affinity("accelerator", "NotIn", "nvidia-t4") | selecting("nvidia-a100"),
            id="default-that-the-pod-leaves-open",
        ),
        pytest.param(
            asking(
                "nvidia-a100-80gb", **affinity("accelerator", "In", "nvidia-a100-40gb", "nvidia-a100-80gb")
            ),
            ANY,
            affinity("accelerator", "In", "nvidia-a100-40gb", "nvidia-a100-80gb")
            | selecting("nvidia-a100-80gb"),
            id="annotation-narrows-what-the-pod-allows",
        ),
        pytest.param(
            asking("nvidia-a100-80gb", **selecting("nvidia-a100")),
            ANY,
            selecting("nvidia-a100"),
            id="label-with-the-family-cannot-also-have-the-class",
        ),
    ],
)
def test_placement(document: JSON, options: GPUClassOptions, want: JSON) -> None:
    spec = {**placed(document, options)["spec"]}
    del spec["containers"]

    assert spec == want


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(
            asking("nvidia-h100"),
            BY_PRODUCT,
            affinity(PRODUCT, "In", "NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3"),
            id="several-values",
        ),
        pytest.param(
            modelled(),
            BY_PRODUCT,
            affinity(PRODUCT, "In", "NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3"),
            id="model",
        ),
        pytest.param(
            asking("nvidia-h100", nodeSelector={PRODUCT: "NVIDIA-H100-PCIe"}),
            BY_PRODUCT,
            selecting("NVIDIA-H100-PCIe", PRODUCT),
            id="one-of-the-values-is-demanded-already",
        ),
        pytest.param(
            modelled(),
            ANY,
            selecting("nvidia-a100-40gb"),
            id="share-of-a-card-has-not-the-memory-of-the-card",
        ),
        pytest.param(
            asking("nvidia-t4"),
            GPUClassOptions(allowed=("nvidia-t4",)),
            selecting("nvidia-t4"),
            id="class-before-family-of-that-name",
        ),
    ],
)
def test_placement_by_the_labels_of_nodes(document: JSON, options: GPUClassOptions, want: JSON) -> None:
    spec = {**placed(document, options, classes=ClassCatalogue((*CLASSES, H100, QUARTERS)))["spec"]}
    del spec["containers"]

    assert spec == want


def test_classes_of_a_family_that_go_by_values_are_alternatives() -> None:
    h100_nvl = gpu_class(
        "nvidia-h100-nvl",
        "nvidia-h100",
        94,
        node_labels=(NodeLabel(key=PRODUCT, values=("NVIDIA-H100-NVL",)),),
    )
    h100_pcie = gpu_class(
        "nvidia-h100-pcie",
        "nvidia-h100",
        80,
        node_labels=(NodeLabel(key=PRODUCT, values=("NVIDIA-H100-PCIe",)),),
    )

    document = placed(asking("nvidia-h100"), BY_PRODUCT, classes=ClassCatalogue((h100_nvl, h100_pcie)))

    assert (
        document["spec"]["affinity"]
        == affinity(PRODUCT, "In", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe")["affinity"]
    )


def test_pods_of_a_daemonset_are_not_pinned() -> None:
    assert placed(asking("nvidia-t4"), made_by_daemonset=True) == asking("nvidia-t4")


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(
            asking("a100"),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "a100": did you mean nvidia-a100? Must be a GPU class or a '
                "family of classes [gpu-class]"
            ),
            id="unknown-class",
        ),
        pytest.param(
            asking("zzz"),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "zzz": set {CLASS}: nvidia-a100-40gb or nvidia-a100-80gb or '
                "nvidia-t4; must be a GPU class or a family of classes [gpu-class]"
            ),
            id="unknown-class-like-no-other",
        ),
        pytest.param(
            asking("nvidia-t4", resource="amd.com/gpu"),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-t4": set {CLASS}: amd-mi300x; must be a class with '
                "amd.com/gpu [gpu-class]"
            ),
            id="class-of-another-vendor",
        ),
        pytest.param(
            asking("nvidia-t4", resource="nvidia.com/mig-1g.10gb"),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-t4": set {CLASS}: nvidia-a100-80gb; must be a class '
                "with nvidia.com/mig-1g.10gb [gpu-class]"
            ),
            id="class-without-mig",
        ),
        pytest.param(
            asking("nvidia-a100", **selecting("nvidia-t4")),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-a100": set {CLASS}: nvidia-t4, or remove the pod\'s own '
                "constraint; must be nvidia-t4, to which the pod pins itself (nodeSelector "
                "accelerator=nvidia-t4) [gpu-class]"
            ),
            id="pinned-to-something-else",
        ),
        pytest.param(
            asking("nvidia-a100", schedulingGates=GATED, **selecting("nvidia-t4")),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-a100": set {CLASS}: nvidia-t4, or remove the pod\'s own '
                "constraint; must be nvidia-t4, to which the pod pins itself (nodeSelector "
                "accelerator=nvidia-t4) [gpu-class]"
            ),
            id="gated-pod-pinned-to-something-else",
        ),
        pytest.param(
            asking("nvidia-t4", **affinity("accelerator", "NotIn", "nvidia-t4")),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-t4": remove the annotation, or those constraints; must '
                "not contradict the pod's own constraints on node label accelerator [gpu-class]"
            ),
            id="pod-excludes-its-own-class",
        ),
        pytest.param(
            asking("nvidia-t4"),
            GPUClassOptions(label_key="example.com/card"),
            f"metadata.annotations[{CLASS}]: nvidia-t4 (annotation {CLASS}) must have node label example.com/card "
            "in the catalogue to pin a pod; ask the platform team to add the label to the GPUClass, or to change "
            "labelKey of gpu-class in the policy [gpu-class]",
            id="class-without-the-label",
        ),
        pytest.param(
            asking("nvidia-a100"),
            T4_ONLY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-a100": set {CLASS}: nvidia-t4; must be a class that '
                "namespace ml-training may use [gpu-class]"
            ),
            id="class-that-the-namespace-may-not-use",
        ),
        pytest.param(
            asking(**selecting("nvidia-a100")),
            GPUClassOptions(allowed=("nvidia-t4", "nvidia-a100-40gb")),
            (
                "spec: set nodeSelector accelerator: nvidia-a100-40gb or nvidia-t4; must not pin the pod to "
                "nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100): not allowed in namespace ml-training "
                "[gpu-class]"
            ),
            id="family-of-which-one-class-is-not-allowed",
        ),
        pytest.param(
            asking(),
            T4_ONLY,
            (
                "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
                "ml-training may not use every class [gpu-class]"
            ),
            id="could-be-any-class",
        ),
        pytest.param(
            asking(**affinity("accelerator", "In", "nvidia-t4", "somebody-elses")),
            T4_ONLY,
            (
                "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
                "ml-training may not use every class [gpu-class]"
            ),
            id="could-be-a-class-that-nobody-knows",
        ),
        pytest.param(
            asking("nvidia-t4", nodeName="node-1"),
            T4_ONLY,
            (
                "spec: set nodeSelector accelerator: nvidia-t4; must pin the pod to a GPU class: namespace "
                "ml-training may not use every class [gpu-class]"
            ),
            id="nobody-gets-around-it-by-naming-a-node",
        ),
    ],
)
def test_denial(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert reported(document, options) == [(Severity.DENIAL, want)]


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(
            asking(**selecting("nvidia-t5")),
            ANY,
            (
                'spec.nodeSelector[accelerator] = "nvidia-t5": did you mean nvidia-t4? Should be a GPU class: the pod '
                "stays pending unless a node has this label [gpu-class]"
            ),
            id="misspelt-label",
        ),
        pytest.param(
            asking(**selecting("nvidia-t4"), **affinity("accelerator", "In", "nvidia-a100")),
            ANY,
            (
                "spec: remove the constraint that contradicts the others; no GPU class meets nodeSelector "
                "accelerator=nvidia-t4; node affinity accelerator in (nvidia-a100): the pod stays pending [gpu-class]"
            ),
            id="constraints-that-contradict-each-other",
        ),
        pytest.param(
            asking("nvidia-a100-80gb", **selecting("nvidia-a100")),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-a100-80gb": remove the pod\'s own constraints, and the '
                "annotation pins it; cannot narrow nvidia-a100-40gb, nvidia-a100-80gb, to which the pod pins "
                "itself (nodeSelector accelerator=nvidia-a100) [gpu-class]"
            ),
            id="family-that-cannot-be-narrowed",
        ),
        pytest.param(
            asking("nvidia-t4", nodeName="node-1"),
            ANY,
            (
                f'metadata.annotations[{CLASS}] = "nvidia-t4": set nodeSelector accelerator: nvidia-t4; has no '
                "effect: spec.nodeName says where the pod runs [gpu-class]"
            ),
            id="annotation-beside-node-name",
        ),
        pytest.param(
            asking(),
            GPUClassOptions(default="nvidia-t4", label_key="example.com/card"),
            "nvidia-t4 (the default of the policy) must have node label example.com/card in the catalogue to pin "
            "a pod; ask the platform team to add the label to the GPUClass, or to change labelKey of gpu-class "
            "in the policy [gpu-class]",
            id="default-without-the-label",
        ),
    ],
)
def test_warning(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert reported(document, options) == [(Severity.WARNING, want)]


@pytest.mark.parametrize(
    ("document", "options"),
    [
        pytest.param(asking(), ANY, id="unclassifiedPods"),
        pytest.param(asking("nvidia-t4"), T4_ONLY, id="pinned-by-annotation-to-what-is-allowed"),
        pytest.param(asking(**selecting("nvidia-t4")), T4_ONLY, id="pinned-by-itself-to-what-is-allowed"),
        pytest.param(
            asking(), GPUClassOptions(allowed=("nvidia-t4",), default="nvidia-t4"), id="pinned-by-default"
        ),
        pytest.param(
            modelled(), GPUClassOptions(allowed=("nvidia-a100",)), id="family-is-allowed-and-so-its-class"
        ),
        pytest.param(asking(schedulingGates=GATED), T4_ONLY, id="gated-pod-is-looked-at-when-it-is-released"),
        pytest.param(asking("nvidia-t4", schedulingGates=GATED), ANY, id="gated-pod-with-a-class"),
        pytest.param(asking(resource="google.com/tpu", annotations={PARAMS: "7b"}), ANY, id="no-gpu"),
        pytest.param(modelled("405b", resource="nvidia.com/gpu.shared"), ANY, id="share-of-unknown-memory"),
        pytest.param(
            modelled("405b"),
            GPUClassOptions(label_key="example.com/card"),
            id="no-class-to-which-a-pod-could-be-pinned",
        ),
        pytest.param(pod(container()), T4_ONLY, id="no-gpu-at-all"),
    ],
)
def test_nothing_to_say(document: JSON, options: GPUClassOptions) -> None:
    assert reported(document, options) == []


def test_everything_is_told_at_once() -> None:
    document = asking(
        "nvidia-t5",
        annotations={PARAMS: "x", "gpu-admission.dev/model-batch": "0"},
        **selecting("nvidia-a100"),
    )

    assert [sentence for _, sentence in reported(document, T4_ONLY)] == [
        (
            f'metadata.annotations[{PARAMS}] = "x": set for example {PARAMS}: "70b"; must be a number of '
            'parameters such as 70b, 350M or 1.3e9, not "x" [gpu-class]'
        ),
        (
            'metadata.annotations[gpu-admission.dev/model-batch] = "0": set for example gpu-admission.dev/model-batch: '
            '"8"; must be a batch size, a whole number from 1 to 1000000000, not "0" [gpu-class]'
        ),
        (
            f'metadata.annotations[{CLASS}] = "nvidia-t5": did you mean nvidia-t4? Must be a GPU class or a '
            "family of classes [gpu-class]"
        ),
        (
            "spec: set nodeSelector accelerator: nvidia-t4; must not pin the pod to nvidia-a100-40gb, "
            "nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100): not allowed in namespace ml-training "
            "[gpu-class]"
        ),
    ]


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(asking("nvidia-t4", **selecting("nvidia-t4")), T4_ONLY, [], id="released-to-its-class"),
        pytest.param(
            asking("nvidia-t4", **selecting("nvidia-a100-40gb")),
            ANY,
            [
                (
                    f'metadata.annotations[{CLASS}] = "nvidia-t4": set {CLASS}: nvidia-a100-40gb, or remove the '
                    "pod's own constraint; must be nvidia-a100-40gb, to which the pod pins itself (nodeSelector "
                    "accelerator=nvidia-a100-40gb) [gpu-class]"
                )
            ],
            id="released-to-another-class",
        ),
        pytest.param(
            asking(**selecting("nvidia-a100-40gb")),
            T4_ONLY,
            [
                (
                    "spec: have the controller that removes its gates set nodeSelector accelerator: nvidia-t4; "
                    "must not pin the pod to nvidia-a100-40gb (nodeSelector accelerator=nvidia-a100-40gb): not "
                    "allowed in namespace ml-training [gpu-class]"
                )
            ],
            id="released-to-what-is-not-allowed",
        ),
        pytest.param(
            asking("nvidia-t4"),
            T4_ONLY,
            [
                (
                    "spec: have the controller that removes its gates set nodeSelector accelerator: nvidia-t4; must "
                    "pin the pod to a GPU class: namespace ml-training may not use every class [gpu-class]"
                )
            ],
            id="released-to-anywhere-where-not-all-is-allowed",
        ),
        pytest.param(
            asking("nvidia-t4"),
            ANY,
            [
                (
                    f'metadata.annotations[{CLASS}] = "nvidia-t4": have the controller that removes its gates set '
                    "nodeSelector accelerator: nvidia-t4; has no effect: gated pods are placed by the controller "
                    "that removes their gates [gpu-class]"
                )
            ],
            id="released-to-anywhere",
        ),
        pytest.param(asking(schedulingGates=GATED), T4_ONLY, [], id="one-gate-is-left"),
        pytest.param(asking("nvidia-t5", nodeName="node-1"), T4_ONLY, [], id="bound-pod-is-history"),
    ],
)
def test_update(document: JSON, options: GPUClassOptions, want: list[str]) -> None:
    assert [sentence for _, sentence in reported(document, options, is_update=True)] == want
    assert RULE.on_update


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(asking(**selecting("nvidia-t4")), T4_ONLY, [], id="template-pins"),
        pytest.param(
            asking(),
            T4_ONLY,
            [
                (
                    "spec: in the template of the DaemonSet set nodeSelector accelerator: nvidia-t4; must pin the "
                    "pod to a GPU class: namespace ml-training may not use every class [gpu-class]"
                )
            ],
            id="template-does-not-pin",
        ),
        pytest.param(
            asking("nvidia-t4"),
            ANY,
            [
                (
                    f'metadata.annotations[{CLASS}] = "nvidia-t4": in the template of the DaemonSet set '
                    "nodeSelector accelerator: nvidia-t4; has no effect: pods of a DaemonSet are placed by its "
                    "controller [gpu-class]"
                )
            ],
            id="annotation-pins-nothing",
        ),
    ],
)
def test_daemonset(document: JSON, options: GPUClassOptions, want: list[str]) -> None:
    assert [sentence for _, sentence in reported(document, options, made_by_daemonset=True)] == want


def test_template_whose_pods_will_be_pinned_is_fine() -> None:
    assert reported(asking("nvidia-t4"), T4_ONLY, phase=Phase.TEMPLATE) == []
    assert reported(asking(), T4_ONLY, phase=Phase.TEMPLATE) == [
        (
            Severity.DENIAL,
            (
                "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
                "ml-training may not use every class [gpu-class]"
            ),
        )
    ]


def test_pin_that_a_later_webhook_took_out_is_missed_where_not_all_is_allowed() -> None:
    stripped = asking("nvidia-t4")

    assert [f.sentence() for f in check(view(stripped), T4_ONLY, context())] == [
        (
            "spec: set gpu-admission.dev/gpu-class: nvidia-t4; must pin the pod to a GPU class: namespace "
            "ml-training may not use every class [gpu-class]"
        )
    ]
    only_warns = GPUClassOptions(
        mode=Mode.WARN, allowed=("nvidia-t4",)
    )  # then /mutate does not pin, and says so itself
    assert list(check(view(stripped), only_warns, context())) == []


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(ANY, [], id="defaults"),
        pytest.param(
            GPUClassOptions(label_key="cloud.google.com/gke-accelerator"), [], id="label-of-a-cloud"
        ),
        pytest.param(
            GPUClassOptions(label_key="my label", default="", allowed=()),
            [
                ("labelKey", 'must be a label key, not "my label"'),
                ("default", "must not be empty: set null for no default"),
                ("allowed", 'must not be empty: set ["*"] to allow every class'),
            ],
            id="all-at-once",
        ),
        pytest.param(
            GPUClassOptions(allowed=("nvidia-t4", "")), [("allowed[1]", "must not be empty")], id="empty-glob"
        ),
    ],
)
def test_problems(options: GPUClassOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(ANY, [], id="defaults"),
        pytest.param(
            GPUClassOptions(default="nvidia-a100", allowed=("nvidia-a100-40*",)),
            [],
            id="family-partly-allowed",
        ),
        pytest.param(
            GPUClassOptions(label_key="accel", default="nvidia-t5", allowed=("h1", "nvidia-a10", "*")),
            [
                ("labelKey", 'must be a node label of some class, not "accel"'),
                ("allowed[0]", '"h1" matches no class'),
                ("allowed[1]", '"nvidia-a10" matches no class: did you mean nvidia-a100?'),
                ("default", 'must be a class or a family, not "nvidia-t5": did you mean nvidia-t4?'),
            ],
            id="all-at-once",
        ),
        pytest.param(
            GPUClassOptions(default="nvidia-t4", allowed=("nvidia-a100",)),
            [("default", 'must match allowed (nvidia-a100), and "nvidia-t4" does not')],
            id="default-that-is-not-allowed",
        ),
    ],
)
def test_class_problems(options: GPUClassOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.class_problems(CLASSES)) == want


@pytest.mark.parametrize(
    ("pinned", "want"),
    [
        pytest.param(("nvidia-h100",), False, id="to-the-choice-itself"),
        pytest.param(("nvidia-h100", "nvidia-t4"), True, id="to-more"),
        pytest.param(("nvidia-t4",), False, id="to-something-else"),
        pytest.param((), False, id="to-nothing"),
    ],
)
def test_a_pod_pins_itself_to_more_than_the_choice(pinned: tuple[str, ...], want: bool) -> None:
    choice = Choice((H100,), "nvidia-h100", "", by_annotation=True, family=None)
    assert is_wider(Pinning(pinned, ()), choice) is want
