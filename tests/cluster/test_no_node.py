"""`kubectl apply` warns of a pod on a class that no node has, by the nodes that serve sees in a real cluster."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, deployment, gpu_container, manifest, pod
from tests.cases import cases
from tests.cluster.applying import apply, named
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.cluster.workload_kinds import install
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import Webhook, serving

NAMESPACE = "waiting"
CLASS = "gpu-admission.dev/gpu-class"
POLICY = default_policy({"gpu-class": {"autoscaledClasses": ["nvidia-b200"]}})
H200 = "class nvidia-h200: no node matches nodeSelector accelerator=nvidia-h200, so the pod stays pending"
L4 = "set label accelerator=nvidia-l4 on nodes with nvidia.com/gpu.product=NVIDIA-L4"
CORDONED = "class nvidia-t4: all its nodes are cordoned now"
TAINTED = "has a taint that it does not tolerate, such as reserved=team-a:NoSchedule"
NO_AMD = "no schedulable node has amd.com/gpu now"
"""Of the warnings; whole they are in the tests of the rules."""


@pytest.fixture(scope="module")
def plane(nodes_plane: ControlPlane) -> Iterator[ControlPlane]:
    create_gpu_node(nodes_plane.client(), "t4", labels={"accelerator": "nvidia-t4"})
    create_gpu_node(nodes_plane.client(), "l4", labels={"nvidia.com/gpu.product": "NVIDIA-L4"})
    yield nodes_plane
    nodes_plane.kubectl("delete", "customresourcedefinition", "nodepools.karpenter.sh", "--ignore-not-found")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    reading = ("--kubeconfig", plane.kubeconfig())
    with serving(plane, POLICY, NAMESPACE, arguments=reading) as running:
        # The watch begins with the process; until it has listed once nobody is warned.
        assert eventually(lambda: warns(plane, asking("nvidia-h200"), H200))
        yield running


def asking(gpu_class: str, **spec: Any) -> JSON:
    return named("trainer", pod(gpu_container(), annotations={CLASS: gpu_class}, **spec), NAMESPACE)


def warns(plane: ControlPlane, document: JSON, *words: str) -> bool:
    """Whether kubectl shows such a warning for each of the words, and no other, of an object that is admitted on a dry run."""
    accepted, said = apply(plane, document, dry_run=True)
    assert accepted, said
    warnings = [line for line in said.splitlines() if line.startswith("Warning:")]
    return len(warnings) == len(words) and all(map(str.__contains__, warnings, words))


@pytest.mark.usefixtures("webhook")
@cases(
    ("document", "want"),
    a_class_whose_nodes_lack_the_label=(asking("nvidia-l4"), [L4]),
    a_class_that_the_policy_says_is_made_on_demand=(asking("nvidia-b200"), []),
    a_template=(
        deployment("web", gpu_container(), namespace=NAMESPACE, annotations={CLASS: "nvidia-h200"}),
        ["Deployment waiting/web: spec.template: set gpu-admission.dev/gpu-class: nvidia-b200 or nvidia-t4"],
    ),
)
def test_kubectl_apply_warns_of(plane: ControlPlane, document: JSON, want: list[str]) -> None:
    assert warns(plane, document, *want)


@pytest.mark.usefixtures("webhook")
def test_a_node_that_comes_ends_the_warning_and_one_that_goes_brings_it_back(plane: ControlPlane) -> None:
    create_gpu_node(plane.client(), "h200", labels={"accelerator": "nvidia-h200"})
    assert eventually(lambda: warns(plane, asking("nvidia-h200")))

    plane.kubectl("label", "node", "h200", "accelerator=other", "--overwrite")
    assert eventually(lambda: warns(plane, asking("nvidia-h200"), H200))

    plane.kubectl("label", "node", "h200", "accelerator=nvidia-h200", "--overwrite")
    assert eventually(lambda: warns(plane, asking("nvidia-h200")))

    plane.kubectl("delete", "node", "h200")
    assert eventually(lambda: warns(plane, asking("nvidia-h200"), H200))


@pytest.mark.usefixtures("webhook")
def test_a_class_whose_only_node_is_cordoned_a_taint_and_a_resource_that_no_node_has(
    plane: ControlPlane,
) -> None:
    plane.kubectl("cordon", "t4")
    assert eventually(lambda: warns(plane, asking("nvidia-t4"), CORDONED))
    plane.kubectl("uncordon", "t4")
    assert eventually(lambda: warns(plane, asking("nvidia-t4")))

    plane.kubectl("taint", "node", "t4", "reserved=team-a:NoSchedule")
    assert eventually(lambda: warns(plane, asking("nvidia-t4"), TAINTED))
    plane.kubectl("taint", "node", "t4", "reserved-")

    amd = named("trainer", pod(gpu_container(resource="amd.com/gpu")), NAMESPACE)
    assert eventually(lambda: warns(plane, amd, NO_AMD))


TEMPLATE = {"metadata": {"labels": {"accelerator": "nvidia-h200"}}}
POOL = manifest("karpenter.sh/v1", "NodePool", "gpu", {"template": TEMPLATE})


def test_a_node_pool_of_karpenter_is_as_good_as_a_node(plane: ControlPlane, webhook: Webhook) -> None:
    install(plane.client(), "karpenter.sh", "v1", "NodePool", scope="Cluster")
    assert eventually(lambda: apply(plane, POOL)[0])
    webhook.stop()  # pools are looked at once a minute, and first of all
    webhook.start()

    assert eventually(lambda: warns(plane, asking("nvidia-b200")) and warns(plane, asking("nvidia-l4"), L4))
    assert warns(plane, asking("nvidia-h200"))
