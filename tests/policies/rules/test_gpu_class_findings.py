"""gpu-class: what is denied, what is warned of, and in which words."""

from policies.finding import Severity
from policies.rule import Mode, Phase
from policies.rules.gpu_class import RULE, GPUClassOptions, check
from tests.builders import JSON, container, context, pod, view
from tests.cases import cases
from tests.policies.rules.test_gpu_class import (
    ANY,
    CLASS,
    GATED,
    PARAMS,
    T4_ONLY,
    affinity,
    asking,
    modelled,
    reported,
    selecting,
)


def must_pin(remedy: str) -> str:
    return f"spec: {remedy}; must pin the pod to a GPU class: namespace ml-training may not use every class [gpu-class]"


def annotated(value: str, text: str) -> str:
    return f'metadata.annotations[{CLASS}] = "{value}": {text} [gpu-class]'


SET_T4 = f"set {CLASS}: nvidia-t4"
NOT_T4 = affinity("accelerator", "NotIn", "nvidia-t4")
A_CLASS = "must be a GPU class or a family of classes"
PINS_ITSELF = (
    f"{SET_T4}, or remove the pod's own constraint; must be nvidia-t4, to which the pod pins itself (nodeSelector "
    "accelerator=nvidia-t4)"
)


@cases(
    ("document", "options", "want"),
    {
        "unknown-class": (
            asking("a100"),
            ANY,
            annotated("a100", f"did you mean nvidia-a100? M{A_CLASS[1:]}"),
        ),
        "unknown-class-like-no-other": (
            asking("zzz"),
            ANY,
            annotated("zzz", f"set {CLASS}: nvidia-a100-40gb or nvidia-a100-80gb or nvidia-t4; {A_CLASS}"),
        ),
        "class-of-another-vendor": (
            asking("nvidia-t4", resource="amd.com/gpu"),
            ANY,
            annotated("nvidia-t4", f"set {CLASS}: amd-mi300x; must be a class with amd.com/gpu"),
        ),
        "class-without-mig": (
            asking("nvidia-t4", resource="nvidia.com/mig-1g.10gb"),
            ANY,
            annotated(
                "nvidia-t4", f"set {CLASS}: nvidia-a100-80gb; must be a class with nvidia.com/mig-1g.10gb"
            ),
        ),
        "pinned-to-something-else": (
            asking("nvidia-a100", **selecting("nvidia-t4")),
            ANY,
            annotated("nvidia-a100", PINS_ITSELF),
        ),
        "gated-pod-pinned-to-something-else": (
            asking("nvidia-a100", schedulingGates=GATED, **selecting("nvidia-t4")),
            ANY,
            annotated("nvidia-a100", PINS_ITSELF),
        ),
        "pod-excludes-its-own-class": (
            asking("nvidia-t4", **NOT_T4),
            ANY,
            annotated(
                "nvidia-t4",
                "remove the annotation, or those constraints; must not contradict the pod's own constraints on node label "
                "accelerator",
            ),
        ),
        "class-without-the-label": (
            asking("nvidia-t4"),
            GPUClassOptions(label_key="example.com/card"),
            f"metadata.annotations[{CLASS}]: nvidia-t4 (annotation {CLASS}) must have node label example.com/card "
            "in the catalogue to pin a pod; ask the platform team to add the label to the GPUClass, or to change "
            "labelKey of gpu-class in the policy [gpu-class]",
        ),
        "class-that-the-namespace-may-not-use": (
            asking("nvidia-a100"),
            T4_ONLY,
            annotated("nvidia-a100", f"{SET_T4}; must be a class that namespace ml-training may use"),
        ),
        "family-of-which-one-class-is-not-allowed": (
            asking(**selecting("nvidia-a100")),
            GPUClassOptions(allowed=("nvidia-t4", "nvidia-a100-40gb")),
            "spec: set nodeSelector accelerator: nvidia-a100-40gb or nvidia-t4; must not pin the pod to nvidia-a100-80gb "
            "(nodeSelector accelerator=nvidia-a100): not allowed in namespace ml-training [gpu-class]",
        ),
        "could-be-any-class": (asking(), T4_ONLY, must_pin(SET_T4)),
        "could-be-a-class-that-nobody-knows": (
            asking(**affinity("accelerator", "In", "nvidia-t4", "somebody-elses")),
            T4_ONLY,
            must_pin(SET_T4),
        ),
        "nobody-gets-around-it-by-naming-a-node": (
            asking("nvidia-t4", nodeName="node-1"),
            T4_ONLY,
            must_pin("set nodeSelector accelerator: nvidia-t4"),
        ),
    },
)
def test_denial(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert reported(document, options) == [(Severity.DENIAL, want)]


@cases(
    ("document", "options", "want"),
    {
        "misspelt-label": (
            asking(**selecting("nvidia-t5")),
            ANY,
            'spec.nodeSelector[accelerator] = "nvidia-t5": did you mean nvidia-t4? Should be a GPU class: the pod '
            "stays pending unless a node has this label [gpu-class]",
        ),
        "constraints-that-contradict-each-other": (
            asking(**selecting("nvidia-t4"), **affinity("accelerator", "In", "nvidia-a100")),
            ANY,
            "spec: remove the constraint that contradicts the others; no GPU class meets nodeSelector "
            "accelerator=nvidia-t4; node affinity accelerator in (nvidia-a100): the pod stays pending [gpu-class]",
        ),
        "family-that-cannot-be-narrowed": (
            asking("nvidia-a100-80gb", **selecting("nvidia-a100")),
            ANY,
            f'metadata.annotations[{CLASS}] = "nvidia-a100-80gb": remove the pod\'s own constraints, and the '
            "annotation pins it; cannot narrow nvidia-a100-40gb, nvidia-a100-80gb, to which the pod pins "
            "itself (nodeSelector accelerator=nvidia-a100) [gpu-class]",
        ),
        "annotation-beside-node-name": (
            asking("nvidia-t4", nodeName="node-1"),
            ANY,
            f'metadata.annotations[{CLASS}] = "nvidia-t4": set nodeSelector accelerator: nvidia-t4; has no '
            "effect: spec.nodeName says where the pod runs [gpu-class]",
        ),
        "default-without-the-label": (
            asking(),
            GPUClassOptions(default="nvidia-t4", label_key="example.com/card"),
            "nvidia-t4 (the default of the policy) must have node label example.com/card in the catalogue to pin "
            "a pod; ask the platform team to add the label to the GPUClass, or to change labelKey of gpu-class "
            "in the policy [gpu-class]",
        ),
    },
)
def test_warning(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert reported(document, options) == [(Severity.WARNING, want)]


@cases(
    ("document", "options"),
    {
        "unclassifiedPods": (asking(), ANY),
        "pinned-by-annotation-to-what-is-allowed": (asking("nvidia-t4"), T4_ONLY),
        "pinned-by-itself-to-what-is-allowed": (asking(**selecting("nvidia-t4")), T4_ONLY),
        "pinned-by-default": (asking(), GPUClassOptions(allowed=("nvidia-t4",), default="nvidia-t4")),
        "family-is-allowed-and-so-its-class": (modelled(), GPUClassOptions(allowed=("nvidia-a100",))),
        "gated-pod-is-looked-at-when-it-is-released": (asking(schedulingGates=GATED), T4_ONLY),
        "gated-pod-with-a-class": (asking("nvidia-t4", schedulingGates=GATED), ANY),
        "no-gpu": (asking(resource="google.com/tpu", annotations={PARAMS: "7b"}), ANY),
        "share-of-unknown-memory": (modelled("405b", resource="nvidia.com/gpu.shared"), ANY),
        "no-class-to-which-a-pod-could-be-pinned": (
            modelled("405b"),
            GPUClassOptions(label_key="example.com/card"),
        ),
        "no-gpu-at-all": (pod(container()), T4_ONLY),
    },
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


@cases(
    ("document", "options", "want"),
    {
        "released-to-its-class": (asking("nvidia-t4", **selecting("nvidia-t4")), T4_ONLY, []),
        "released-to-another-class": (
            asking("nvidia-t4", **selecting("nvidia-a100-40gb")),
            ANY,
            [
                f'metadata.annotations[{CLASS}] = "nvidia-t4": set {CLASS}: nvidia-a100-40gb, or remove the '
                "pod's own constraint; must be nvidia-a100-40gb, to which the pod pins itself (nodeSelector "
                "accelerator=nvidia-a100-40gb) [gpu-class]"
            ],
        ),
        "released-to-what-is-not-allowed": (
            asking(**selecting("nvidia-a100-40gb")),
            T4_ONLY,
            [
                "spec: have the controller that removes its gates set nodeSelector accelerator: nvidia-t4; "
                "must not pin the pod to nvidia-a100-40gb (nodeSelector accelerator=nvidia-a100-40gb): not "
                "allowed in namespace ml-training [gpu-class]"
            ],
        ),
        "released-to-anywhere-where-not-all-is-allowed": (
            asking("nvidia-t4"),
            T4_ONLY,
            [must_pin("have the controller that removes its gates set nodeSelector accelerator: nvidia-t4")],
        ),
        "released-to-anywhere": (
            asking("nvidia-t4"),
            ANY,
            [
                f'metadata.annotations[{CLASS}] = "nvidia-t4": have the controller that removes its gates set '
                "nodeSelector accelerator: nvidia-t4; has no effect: gated pods are placed by the controller "
                "that removes their gates [gpu-class]"
            ],
        ),
        "one-gate-is-left": (asking(schedulingGates=GATED), T4_ONLY, []),
        "bound-pod-is-history": (asking("nvidia-t5", nodeName="node-1"), T4_ONLY, []),
    },
)
def test_update(document: JSON, options: GPUClassOptions, want: list[str]) -> None:
    assert [sentence for _, sentence in reported(document, options, is_update=True)] == want
    assert RULE.on_update


@cases(
    ("document", "options", "want"),
    {
        "template-pins": (asking(**selecting("nvidia-t4")), T4_ONLY, []),
        "template-does-not-pin": (
            asking(),
            T4_ONLY,
            [must_pin("in the template of the DaemonSet set nodeSelector accelerator: nvidia-t4")],
        ),
        "annotation-pins-nothing": (
            asking("nvidia-t4"),
            ANY,
            [
                f'metadata.annotations[{CLASS}] = "nvidia-t4": in the template of the DaemonSet set '
                "nodeSelector accelerator: nvidia-t4; has no effect: pods of a DaemonSet are placed by its "
                "controller [gpu-class]"
            ],
        ),
    },
)
def test_daemonset(document: JSON, options: GPUClassOptions, want: list[str]) -> None:
    assert [sentence for _, sentence in reported(document, options, made_by_daemonset=True)] == want


def test_template_whose_pods_will_be_pinned_is_fine() -> None:
    assert reported(asking("nvidia-t4"), T4_ONLY, phase=Phase.TEMPLATE) == []
    assert reported(asking(), T4_ONLY, phase=Phase.TEMPLATE) == [(Severity.DENIAL, must_pin(SET_T4))]


def test_pin_that_a_later_webhook_took_out_is_missed_where_not_all_is_allowed() -> None:
    stripped = asking("nvidia-t4")

    assert [f.sentence() for f in check(view(stripped), T4_ONLY, context())] == [must_pin(SET_T4)]
    only_warns = GPUClassOptions(
        mode=Mode.WARN, allowed=("nvidia-t4",)
    )  # then /mutate does not pin, and says so itself
    assert list(check(view(stripped), only_warns, context())) == []
