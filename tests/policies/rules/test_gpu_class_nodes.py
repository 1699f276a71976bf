"""gpu-class where the nodes are known: a pod that no node could take gets a warning, and only such a pod."""

import pytest

from policies.gpus.classes import ClassCatalogue, NodeLabel
from policies.placement.named_nodes import Labels
from policies.placement.nodes import NodeFacts, NodeOffer
from policies.pods.annotations import INJECTED
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_class import GPUClassOptions, check, mutate
from tests.builders import CLASSES, JSON, apply, context, gpu_class, gpu_container, pod, view

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
CATALOGUE = ClassCatalogue([*CLASSES, L4])
GATED = [{"name": "kueue.x-k8s.io/admission"}]


def asking(name: str, **spec: object) -> JSON:
    return pod(gpu_container(), annotations={CLASS: name}, **spec)


def reported(
    document: JSON, *label_sets: Labels, options: GPUClassOptions | None = None, **tweaks: object
) -> list[str]:
    """Return what the rule says of a template, whose pods it would still pin."""
    facts = NodeFacts(
        keys=CATALOGUE.label_keys,
        label_sets=frozenset(label_sets),
        pools=tweaks.pop("pools", ()),  # type: ignore[arg-type] # as given
    )
    given = context(tweaks.pop("phase", Phase.TEMPLATE), classes=CATALOGUE, nodes=facts, **tweaks)  # type: ignore[arg-type] # likewise
    return [each.sentence() for each in check(view(document), options or GPUClassOptions(), given)]


@pytest.mark.parametrize(
    ("document", "label_sets", "options", "want"),
    [
        pytest.param(asking("nvidia-t4"), [T4], GPUClassOptions(), [], id="its-class-is-there"),
        pytest.param(
            asking("nvidia-l4"),
            [T4, A100],
            GPUClassOptions(),
            [
                (
                    "set gpu-admission.dev/gpu-class: nvidia-a100-80gb or nvidia-t4, of which there are nodes; class "
                    "nvidia-l4: no node matches accelerator=nvidia-l4, so the pod stays pending [gpu-class]"
                )
            ],
            id="others-are-there",
        ),
        pytest.param(
            asking("nvidia-l4"),
            [T4, A100],
            GPUClassOptions(allowed=("nvidia-l4", "nvidia-t4")),
            [
                (
                    "set gpu-admission.dev/gpu-class: nvidia-t4, of which there are nodes; class nvidia-l4: no node "
                    "matches accelerator=nvidia-l4, so the pod stays pending [gpu-class]"
                )
            ],
            id="of-the-others-it-may-use-one",
        ),
        pytest.param(
            asking("nvidia-l4"),
            [],
            GPUClassOptions(),
            [
                (
                    "class nvidia-l4: no node matches accelerator=nvidia-l4, so the pod stays pending; ask the "
                    "platform team for nodes of nvidia-l4 [gpu-class]"
                )
            ],
            id="nothing-is-there",
        ),
        pytest.param(
            asking("nvidia-l4"),
            [L4_BY_PRODUCT],
            GPUClassOptions(),
            [
                (
                    "class nvidia-l4: no node matches accelerator=nvidia-l4, so the pod stays pending; ask the "
                    "platform team to label nodes with nvidia.com/gpu.product=NVIDIA-L4, which lack accelerator "
                    "[gpu-class]"
                )
            ],
            id="its-nodes-lack-the-label",
        ),
        pytest.param(
            asking("nvidia-l4"),
            [L4_BY_PRODUCT],
            GPUClassOptions(label_key=PRODUCT),
            [],
            id="the-label-they-have",
        ),
        pytest.param(
            asking("nvidia-a100"),
            [A100],
            GPUClassOptions(),
            [
                (
                    "set gpu-admission.dev/gpu-class: nvidia-a100-80gb, of which there are nodes; class nvidia-a100: "
                    "no node matches accelerator=nvidia-a100, so the pod stays pending [gpu-class]"
                )
            ],
            id="a-family-goes-by-its-own-name",
        ),
        pytest.param(
            asking("nvidia-a100-80gb"),
            [A100_BY_FAMILY, T4],
            GPUClassOptions(),
            [
                (
                    "set gpu-admission.dev/gpu-class: nvidia-a100 or nvidia-t4, of which there are nodes; class "
                    "nvidia-a100-80gb: no node matches accelerator=nvidia-a100-80gb, so the pod stays pending [gpu-class]"
                )
            ],
            id="nodes-labelled-by-the-family-are-reached-by-its-name",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={"accelerator": "nvidia-a100-80gb"}),
            [A100_BY_FAMILY],
            GPUClassOptions(),
            [
                (
                    "set nodeSelector accelerator: nvidia-a100, of which there are nodes; class nvidia-a100-80gb: no node "
                    "matches nodeSelector accelerator=nvidia-a100-80gb, so the pod stays pending [gpu-class]"
                )
            ],
            id="and-by-its-label",
        ),
        pytest.param(
            asking("nvidia-a1O0"),
            [A100_BY_FAMILY],
            GPUClassOptions(allowed=("nvidia-a100", "nvidia-l4")),
            [
                (
                    'metadata.annotations[gpu-admission.dev/gpu-class] = "nvidia-a1O0": did you mean nvidia-a100? Must be a '
                    "GPU class or a family of classes [gpu-class]"
                )
            ],
            id="what-was-meant-is-a-family-with-nodes",
        ),
        pytest.param(
            asking("nvidia-t4"),
            [A100_BY_FAMILY],
            GPUClassOptions(allowed=("nvidia-a100", "nvidia-l4")),
            [
                (
                    'metadata.annotations[gpu-admission.dev/gpu-class] = "nvidia-t4": set gpu-admission.dev/gpu-class: '
                    "nvidia-a100; must be a class that namespace ml-training may use [gpu-class]"
                )
            ],
            id="what-is-allowed-is-a-family-with-nodes",
        ),
        pytest.param(
            pod(gpu_container()),
            [T4],
            GPUClassOptions(default="nvidia-l4"),
            [
                (
                    "set gpu-admission.dev/gpu-class: nvidia-t4, of which there are nodes; class nvidia-l4: no node "
                    "matches accelerator=nvidia-l4, so the pod stays pending [gpu-class]"
                )
            ],
            id="the-default-of-the-policy",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={"accelerator": "nvidia-l4"}),
            [T4],
            GPUClassOptions(),
            [
                (
                    "set nodeSelector accelerator: nvidia-t4, of which there are nodes; class nvidia-l4: no node "
                    "matches nodeSelector accelerator=nvidia-l4, so the pod stays pending [gpu-class]"
                )
            ],
            id="a-selector-of-its-own",
        ),
        pytest.param(
            asking("nvidia-l4"),
            [T4],
            GPUClassOptions(autoscaled_classes=("nvidia-l4",)),
            [],
            id="made-on-demand",
        ),
        pytest.param(
            asking("nvidia-l4"),
            [T4],
            GPUClassOptions(autoscaled_classes=("nvidia-*",)),
            [],
            id="made-on-demand-by-glob",
        ),
        pytest.param(
            asking("nvidia-l4", nodeName="n"), [T4], GPUClassOptions(), "has no effect", id="bound-by-hand"
        ),
        pytest.param(asking("nvidia-l4", schedulingGates=GATED), [T4], GPUClassOptions(), [], id="gated"),
        pytest.param(pod(gpu_container()), [], GPUClassOptions(), [], id="a-pod-of-no-class"),
        pytest.param(pod(), [], GPUClassOptions(default="nvidia-l4"), [], id="a-pod-without-gpu"),
        pytest.param(
            pod(gpu_container(), nodeSelector={"accelerator": "our-own"}),
            [(("accelerator", "our-own"),)],
            GPUClassOptions(),
            [],
            id="a-label-that-no-class-knows-but-a-node-has",
        ),
    ],
)
def test_what_is_said(
    document: JSON, label_sets: list[Labels], options: GPUClassOptions, want: list[str] | str
) -> None:
    said = reported(document, *label_sets, options=options)
    if isinstance(want, str):
        assert [want in each and "no node" not in each for each in said] == [True]
    else:
        assert said == want


A100_IN_B = (("accelerator", "nvidia-a100-80gb"), (ZONE, "b"))
T4_IN_A = (("accelerator", "nvidia-t4"), (ZONE, "a"))
NOT_ADDED = (
    "name a class with the annotation gpu-admission.dev/gpu-class; class nvidia-a100-80gb (the default of the "
    "policy) is not added: no node matches both accelerator=nvidia-a100-80gb and the pod's own nodeSelector and "
    "affinity [gpu-class]"
)


@pytest.mark.parametrize(
    ("document", "options", "label_sets", "want", "said"),
    [
        pytest.param(
            pod(gpu_container(), nodeSelector={ZONE: "a"}),
            DEFAULT,
            [A100_IN_B, T4_IN_A],
            None,
            [NOT_ADDED],
            id="a-default-whose-nodes-are-elsewhere",
        ),
        pytest.param(
            pod(
                gpu_container(),
                affinity={
                    "nodeAffinity": {
                        REQUIRED: {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["b"]}]}
                            ]
                        }
                    }
                },
            ),
            DEFAULT,
            [A100_IN_B, T4_IN_A],
            None,
            [NOT_ADDED],
            id="by-affinity-likewise",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={ZONE: "b"}),
            DEFAULT,
            [A100_IN_B, T4_IN_A],
            "nvidia-a100-80gb",
            [],
            id="a-node-meets-both",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={"team": "vision"}),
            DEFAULT,
            [A100_IN_B],
            "nvidia-a100-80gb",
            [],
            id="a-label-that-nobody-follows",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={ZONE: "a"}),
            DEFAULT,
            [T4_IN_A],
            "nvidia-a100-80gb",
            [
                "set gpu-admission.dev/gpu-class: nvidia-t4, of which there are nodes; class nvidia-a100-80gb: no node matches "
                "nodeSelector accelerator=nvidia-a100-80gb, by the policy's default, so the pod stays pending [gpu-class]"
            ],
            id="a-class-without-any-node-is-no-fault-of-the-pod",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={ZONE: "a"}),
            GPUClassOptions(default="nvidia-a100-80gb", autoscaled_classes=("nvidia-a100",)),
            [A100_IN_B, T4_IN_A],
            "nvidia-a100-80gb",
            [],
            id="nodes-that-are-made-on-demand",
        ),
        pytest.param(
            pod(gpu_container(), nodeSelector={ZONE: "a"}),
            GPUClassOptions(default="nvidia-a100-80gb", allowed=("nvidia-a100",)),
            [A100_IN_B, T4_IN_A],
            "nvidia-a100-80gb",
            [
                "remove what else the pod's nodeSelector or affinity demands; class nvidia-a100-80gb: no node matches "
                "nodeSelector accelerator=nvidia-a100-80gb, by the policy's default, so the pod stays pending [gpu-class]"
            ],
            id="where-classes-are-restricted-pods-stay-pinned",
        ),
        pytest.param(
            pod(
                gpu_container(),
                annotations={"gpu-admission.dev/model-params": "13b"},
                nodeSelector={ZONE: "b"},
            ),
            GPUClassOptions(),
            [(("accelerator", "nvidia-a100-40gb"), (ZONE, "a")), A100_IN_B],
            None,
            [
                (
                    "name a class with the annotation gpu-admission.dev/gpu-class; class nvidia-a100-40gb (13b bf16 "
                    "serving needs 36.4 GiB by rule of thumb) is not added: no node matches both "
                    "accelerator=nvidia-a100-40gb and the pod's own nodeSelector and affinity [gpu-class]"
                )
            ],
            id="an-estimate-likewise",
        ),
        pytest.param(
            asking("nvidia-a100-80gb", nodeSelector={ZONE: "a"}),
            GPUClassOptions(),
            [A100_IN_B, T4_IN_A],
            "nvidia-a100-80gb",
            [
                "remove what else the pod's nodeSelector or affinity demands; class nvidia-a100-80gb: no node matches "
                "nodeSelector accelerator=nvidia-a100-80gb, so the pod stays pending [gpu-class]"
            ],
            id="what-the-annotation-names-is-added",
        ),
    ],
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


def test_a_pool_that_makes_the_class_is_enough() -> None:
    pools = (NodeOffer({"accelerator": frozenset({"nvidia-l4"})}, pool="gpu"),)

    assert reported(asking("nvidia-l4"), T4, pools=pools) == []


def test_nothing_is_said_while_the_nodes_are_not_known() -> None:
    given = context(Phase.TEMPLATE, classes=CATALOGUE)

    assert list(check(view(asking("nvidia-l4")), GPUClassOptions(), given)) == []


def test_a_pod_of_a_daemonset_is_not_judged() -> None:
    assert all("no node" not in each for each in reported(asking("nvidia-l4"), T4, made_by_daemonset=True))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(
            GPUClassOptions(autoscaled_classes=("",)),
            [("autoscaledClasses[0]", "must not be empty")],
            id="an-empty-glob",
        ),
    ],
)
def test_options_that_make_no_sense(options: GPUClassOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want


def test_a_pool_of_no_class_is_told() -> None:
    (problem,) = GPUClassOptions(autoscaled_classes=("nvidia-l40",)).class_problems(CATALOGUE)

    assert problem == ("autoscaledClasses[0]", '"nvidia-l40" matches no class: did you mean nvidia-l4?')
