"""gpu-class: what is denied, what is warned of, and in which words."""

from policies.finding import Severity
from policies.gpus.classes import GPUClasses
from policies.rule import Mode, Phase
from policies.rules.gpu_class import RULE, GPUClassOptions, check
from tests.builders import JSON, container, context, gpu_class, gpu_container, pod, view
from tests.cases import cases
from tests.policies.rules.class_pods import (
    ANY,
    CLASS,
    GATED,
    PARAMS,
    T4_ONLY,
    UNKNOWN,
    affinity,
    annotated,
    asking,
    modelled,
    reported,
    selecting,
)


def test_a_misspelt_resource_is_left_to_the_rule_that_knows_the_name() -> None:
    assert reported(asking("nvidia-t4", resource="nvidia.com/gpus")) == []


@cases(
    ("written", "options", "offered"),
    of_classes_and_families=("nvidia-t4, nvidia-a100", GPUClassOptions(), "nvidia-t4 or nvidia-a100"),
    of_which_one_may_be_used=("nvidia-t4,nvidia-a100", GPUClassOptions(allowed=("nvidia-t4",)), "nvidia-t4"),
    of_nothing_known=("x,y", GPUClassOptions(allowed=("nvidia-t4",)), "nvidia-t4"),
)
def test_a_list_of_classes_is_a_choice(written: str, options: GPUClassOptions, offered: str) -> None:
    message = f"set {CLASS}: {offered}; must be one GPU class or family: it cannot be a list"

    assert reported(asking(written), options) == [(Severity.DENIAL, annotated(written, message))]


def test_where_to_see_the_classes_that_are_not_listed() -> None:
    many = GPUClasses(gpu_class(f"nvidia-{name}", f"nvidia-{name}", 16) for name in "abcde")
    (found,) = check(view(asking("zzz")), GPUClassOptions(), context(classes=many))

    assert found.remedy == f"set {CLASS}: nvidia-a or nvidia-b or nvidia-c or 2 more of gpu-admission classes"
    assert len(found.choices) == len("abc")


def must_pin(remedy: str) -> str:
    return f"spec: {remedy}; must pin the pod to a GPU class: namespace ml-training may not use every class"


BY_CARD = GPUClassOptions(label_key="example.com/card")
SET_T4 = f"set {CLASS}: nvidia-t4"
NOT_T4 = affinity("accelerator", "NotIn", "nvidia-t4")
PINS_ITSELF = (
    f"{SET_T4}, or remove the pod's own constraint; must be nvidia-t4, to which the pod pins itself (nodeSelector "
    "accelerator=nvidia-t4)"
)


@cases(
    ("document", "options", "want"),
    class_without_mig=(
        asking("nvidia-t4", resource="nvidia.com/mig-1g.10gb"),
        ANY,
        annotated("nvidia-t4", f"set {CLASS}: nvidia-a100-80gb; must be a class with nvidia.com/mig-1g.10gb"),
    ),
    pinned_to_something_else=(
        asking("nvidia-a100", **selecting("nvidia-t4")),
        ANY,
        annotated("nvidia-a100", PINS_ITSELF),
    ),
    pinned_to_a_family=(
        asking("nvidia-t4", **selecting("nvidia-a100")),
        ANY,
        annotated(
            "nvidia-t4",
            f"set {CLASS}: nvidia-a100, or remove the pod's own constraint; must be nvidia-a100-40gb, nvidia-a100-80gb, to "
            "which the pod pins itself (nodeSelector accelerator=nvidia-a100)",
        ),
    ),
    an_empty_name=(asking(""), T4_ONLY, annotated("", f"{SET_T4}, or remove it; {UNKNOWN}")),
    near_to_a_class_that_the_namespace_may_not_use=(
        asking("A100"),
        T4_ONLY,
        annotated("A100", f"{SET_T4}; {UNKNOWN}; namespace ml-training may not use nvidia-a100"),
    ),
    near_to_a_class_without_its_slice=(
        asking("T4", resource="nvidia.com/mig-1g.10gb"),
        ANY,
        annotated("T4", f"set {CLASS}: nvidia-a100-80gb; {UNKNOWN}; nvidia-t4 has no nvidia.com/mig-1g.10gb"),
    ),
    pod_excludes_its_own_class=(
        asking("nvidia-t4", **NOT_T4),
        ANY,
        annotated(
            "nvidia-t4",
            "remove the annotation, or those constraints; must not contradict the pod's own constraints on node label "
            "accelerator",
        ),
    ),
    class_without_the_label=(
        asking("nvidia-t4"),
        GPUClassOptions(label_key="example.com/card"),
        f"metadata.annotations[{CLASS}]: nvidia-t4 (annotation {CLASS}) must have node label example.com/card "
        "in its GPUClass to pin a pod; ask the platform team to add the label to the GPUClass, or to change "
        "labelKey of gpu-class in the policy",
    ),
    family_of_which_one_class_is_not_allowed=(
        asking(**selecting("nvidia-a100")),
        GPUClassOptions(allowed=("nvidia-t4", "nvidia-a100-40gb")),
        "spec: set nodeSelector accelerator: nvidia-a100-40gb or nvidia-t4; must not pin the pod to nvidia-a100-80gb "
        "(nodeSelector accelerator=nvidia-a100): not allowed in namespace ml-training",
    ),
    could_be_any_class=(asking(), T4_ONLY, must_pin(SET_T4)),
    has_gpus_of_a_vendor_without_an_allowed_class=(
        pod(gpu_container("1"), gpu_container(resource="amd.com/gpu", name="b")),
        T4_ONLY,
        must_pin(f"remove amd.com/gpu, and {SET_T4}"),
    ),
    could_be_a_class_that_nobody_knows=(
        asking(**affinity("accelerator", "In", "nvidia-t4", "somebody-elses")),
        T4_ONLY,
        must_pin(SET_T4),
    ),
    nobody_gets_around_it_by_naming_a_node=(
        asking("nvidia-t4", nodeName="node-1"),
        T4_ONLY,
        must_pin("set nodeSelector accelerator: nvidia-t4"),
    ),
)
def test_denial(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert reported(document, options) == [(Severity.DENIAL, want)]


@cases(
    ("document", "options", "want"),
    label_like_no_class=(
        asking(**selecting("quantum")),
        ANY,
        'spec.nodeSelector[accelerator] = "quantum": remove it; should be a GPU class: the pod stays pending unless a node has '
        "this label",
    ),
    misspelt_label=(
        asking(**selecting("nvidia-t5")),
        ANY,
        'spec.nodeSelector[accelerator] = "nvidia-t5": did you mean nvidia-t4? The value should be a GPU class: the pod '
        "stays pending unless a node has this label",
    ),
    constraints_that_contradict_each_other=(
        asking(**selecting("nvidia-t4"), **affinity("accelerator", "In", "nvidia-a100")),
        ANY,
        "spec: remove the constraint that contradicts the others; no GPU class meets nodeSelector "
        "accelerator=nvidia-t4; node affinity accelerator in (nvidia-a100): the pod stays pending",
    ),
    family_that_cannot_be_narrowed=(
        asking("nvidia-a100-80gb", **selecting("nvidia-a100")),
        ANY,
        f'metadata.annotations[{CLASS}] = "nvidia-a100-80gb": remove the pod\'s own constraints, and the '
        "annotation pins it; cannot narrow nvidia-a100-40gb, nvidia-a100-80gb, to which the pod pins "
        "itself (nodeSelector accelerator=nvidia-a100)",
    ),
    annotation_beside_node_name=(
        asking("nvidia-t4", nodeName="node-1"),
        ANY,
        f'metadata.annotations[{CLASS}] = "nvidia-t4": set nodeSelector accelerator: nvidia-t4; has no '
        "effect: spec.nodeName says where the pod runs",
    ),
    default_without_the_label=(
        asking(),
        GPUClassOptions(default="nvidia-t4", label_key="example.com/card"),
        "nvidia-t4 (the default of the policy) must have node label example.com/card in its GPUClass to pin "
        "a pod; ask the platform team to add the label to the GPUClass, or to change labelKey of gpu-class "
        "in the policy",
    ),
)
def test_warning(document: JSON, options: GPUClassOptions, want: str) -> None:
    assert reported(document, options) == [(Severity.WARNING, want)]


@cases(
    ("document", "options"),
    unclassifiedPods=(asking(), ANY),
    pinned_by_annotation_to_what_is_allowed=(asking("nvidia-t4"), T4_ONLY),
    pinned_by_itself_to_what_is_allowed=(asking(**selecting("nvidia-t4")), T4_ONLY),
    pinned_by_default=(asking(), GPUClassOptions(allowed=("nvidia-t4",), default="nvidia-t4")),
    family_is_allowed_and_so_its_class=(modelled(), GPUClassOptions(allowed=("nvidia-a100",))),
    gated_pod_is_looked_at_when_it_is_released=(asking(schedulingGates=GATED), T4_ONLY),
    gated_pod_with_a_class=(asking("nvidia-t4", schedulingGates=GATED), ANY),
    no_gpu=(asking(resource="google.com/tpu", annotations={PARAMS: "7b"}), ANY),
    share_of_unknown_memory=(modelled("405b", resource="nvidia.com/gpu.shared"), ANY),
    no_class_to_pin_it_to=(modelled("405b"), GPUClassOptions(label_key="example.com/card")),
    a_label_that_no_class_has=(asking(**selecting("x", "example.com/card")), BY_CARD),
    no_gpu_at_all=(pod(container()), T4_ONLY),
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
            'parameters such as 70b, 350M or 1.3e9, not "x"'
        ),
        (
            'metadata.annotations[gpu-admission.dev/model-batch] = "0": set for example gpu-admission.dev/model-batch: '
            '"8"; must be a batch size, a whole number from 1 to 1000000000, not "0"'
        ),
        (
            f'metadata.annotations[{CLASS}] = "nvidia-t5": did you mean nvidia-t4? The value must be a GPU class or a '
            "family of classes"
        ),
        (
            "spec: set nodeSelector accelerator: nvidia-t4; must not pin the pod to nvidia-a100-40gb, "
            "nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100): not allowed in namespace ml-training"
        ),
    ]


@cases(
    ("document", "options", "want"),
    released_to_its_class=(asking("nvidia-t4", **selecting("nvidia-t4")), T4_ONLY, []),
    released_to_another_class=(
        asking("nvidia-t4", **selecting("nvidia-a100-40gb")),
        ANY,
        [
            f'metadata.annotations[{CLASS}] = "nvidia-t4": set {CLASS}: nvidia-a100-40gb, or remove the '
            "pod's own constraint; must be nvidia-a100-40gb, to which the pod pins itself (nodeSelector "
            "accelerator=nvidia-a100-40gb)"
        ],
    ),
    released_to_a_class_without_its_slice=(
        asking("nvidia-t4", resource="nvidia.com/mig-9g.9gb", **selecting("amd-mi300x")),
        ANY,
        [
            f'metadata.annotations[{CLASS}] = "nvidia-t4": set {CLASS}: amd-mi300x, or remove the pod\'s own constraint; must be '
            "amd-mi300x, to which the pod pins itself (nodeSelector accelerator=amd-mi300x)"
        ],
    ),
    released_to_what_is_not_allowed=(
        asking(**selecting("nvidia-a100-40gb")),
        T4_ONLY,
        [
            "spec: have the controller that removes its gates set nodeSelector accelerator: nvidia-t4; "
            "must not pin the pod to nvidia-a100-40gb (nodeSelector accelerator=nvidia-a100-40gb): not "
            "allowed in namespace ml-training"
        ],
    ),
    released_to_anywhere_where_not_all_is_allowed=(
        asking("nvidia-t4"),
        T4_ONLY,
        [must_pin("have the controller that removes its gates set nodeSelector accelerator: nvidia-t4")],
    ),
    released_to_anywhere=(
        asking("nvidia-t4"),
        ANY,
        [
            f'metadata.annotations[{CLASS}] = "nvidia-t4": have the controller that removes its gates set '
            "nodeSelector accelerator: nvidia-t4; has no effect: gated pods are placed by the controller "
            "that removes their gates"
        ],
    ),
    one_gate_is_left=(asking(schedulingGates=GATED), T4_ONLY, []),
    bound_pod_is_history=(asking("nvidia-t5", nodeName="node-1"), T4_ONLY, []),
)
def test_update(document: JSON, options: GPUClassOptions, want: list[str]) -> None:
    assert [sentence for _, sentence in reported(document, options, is_update=True)] == want
    assert RULE.checks_updates


@cases(
    ("document", "options", "want"),
    template_pins=(asking(**selecting("nvidia-t4")), T4_ONLY, []),
    template_does_not_pin=(
        asking(),
        T4_ONLY,
        [must_pin("in the template of the DaemonSet set nodeSelector accelerator: nvidia-t4")],
    ),
    annotation_pins_nothing=(
        asking("nvidia-t4"),
        ANY,
        [
            f'metadata.annotations[{CLASS}] = "nvidia-t4": in the template of the DaemonSet set '
            "nodeSelector accelerator: nvidia-t4; has no effect: pods of a DaemonSet are placed by its "
            "controller"
        ],
    ),
)
def test_daemonset(document: JSON, options: GPUClassOptions, want: list[str]) -> None:
    assert [sentence for _, sentence in reported(document, options, made_by_daemonset=True)] == want


def test_template_whose_pods_will_be_pinned_is_fine() -> None:
    assert reported(asking("nvidia-t4"), T4_ONLY, phase=Phase.TEMPLATE) == []
    assert reported(asking(), T4_ONLY, phase=Phase.TEMPLATE) == [(Severity.DENIAL, must_pin(SET_T4))]


def test_pin_that_a_later_webhook_took_out_is_missed_where_not_all_is_allowed() -> None:
    stripped = asking("nvidia-t4")

    assert [f.sentence() for f in check(view(stripped), T4_ONLY, context())] == [must_pin(SET_T4)]
    # Then /mutate does not pin, and says so itself.
    only_warns = GPUClassOptions(mode=Mode.WARN, allowed=("nvidia-t4",))
    assert list(check(view(stripped), only_warns, context())) == []
