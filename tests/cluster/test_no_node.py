"""`kubectl apply` warns of a pod on a class that no node has, by the nodes that serve sees in a real cluster."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, deployment, gpu_container, manifest, pod
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.cluster.test_admission import apply, named
from tests.cluster.test_workload_kinds import install
from tests.controlplane import ControlPlane, create_gpu_node
from tests.controlplane.webhook import Webhook, serving

NAMESPACE = "waiting"
CLASS = "gpu-admission.dev/gpu-class"
POLICY = default_policy({"gpu-class": {"autoscaledClasses": ["nvidia-b200"]}})
H200 = (
    "Warning: pod waiting/trainer: set gpu-admission.dev/gpu-class: nvidia-t4, of which there are nodes; class "
    "nvidia-h200: no node matches "
    "nodeSelector accelerator=nvidia-h200, so the pod stays pending [gpu-class]"
)
L4 = (
    "Warning: pod waiting/trainer: class nvidia-l4: no node matches nodeSelector accelerator=nvidia-l4, so the pod stays "
    "pending; ask the platform team to label nodes with nvidia.com/gpu.product=NVIDIA-L4, which lack accelerator [gpu-class]"
)

CORDONED = (
    "Warning: pod waiting/trainer: class nvidia-t4: all its nodes are cordoned now, so the pod stays pending, and holds quota; "
    "ask the platform team to uncordon one of them [gpu-class]"
)
TAINTED = (
    "Warning: pod waiting/trainer: spec.tolerations: add {key: reserved, operator: Equal, value: team-a, effect: "
    "NoSchedule} if the pod may run there; no node with "
    "nvidia.com/gpu can take the pod now: each has a taint that the pod does not tolerate, such as reserved=team-a:NoSchedule "
    "[gpu-toleration]"
)
NO_AMD = (
    'Warning: pod waiting/trainer: spec.containers[0].resources.limits[amd.com/gpu] (container "main") = "1": request '
    "nvidia.com/gpu; no schedulable node has amd.com/gpu now: the pod stays pending, and holds quota [gpu-requests]"
)


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
        assert eventually(lambda: warned(plane, asking("nvidia-h200")) == [H200])
        yield running


def asking(gpu_class: str, **spec: Any) -> JSON:
    return named("trainer", pod(gpu_container(), annotations={CLASS: gpu_class}, **spec), NAMESPACE)


def warned(plane: ControlPlane, document: JSON) -> list[str]:
    """Return the warnings that kubectl shows; the object is let in, and not stored."""
    accepted, said = apply(plane, document, dry_run=True)
    assert accepted, said
    return [line for line in said.splitlines() if line.startswith("Warning:")]


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(asking("nvidia-h200"), [H200], id="a-class-that-is-not"),
        pytest.param(asking("nvidia-l4"), [L4], id="a-class-whose-nodes-lack-the-label"),
        pytest.param(asking("nvidia-b200"), [], id="a-class-that-the-policy-says-is-made-on-demand"),
        pytest.param(
            deployment("web", gpu_container(), namespace=NAMESPACE, annotations={CLASS: "nvidia-h200"}),
            [
                H200.replace("pod waiting/trainer: ", "Deployment waiting/web: spec.template: ").replace(
                    "nodeSelector ", ""
                )
            ],
            id="a-template",
        ),
    ],
)
def test_kubectl_apply_warns_of(plane: ControlPlane, document: JSON, want: list[str]) -> None:
    assert warned(plane, document) == want


@pytest.mark.usefixtures("webhook")
def test_a_node_that_comes_ends_the_warning_and_one_that_goes_brings_it_back(plane: ControlPlane) -> None:
    create_gpu_node(plane.client(), "h200", labels={"accelerator": "nvidia-h200"})
    assert eventually(lambda: warned(plane, asking("nvidia-h200")) == [])

    plane.kubectl("label", "node", "h200", "accelerator=other", "--overwrite")
    assert eventually(lambda: warned(plane, asking("nvidia-h200")) == [H200])

    plane.kubectl("label", "node", "h200", "accelerator=nvidia-h200", "--overwrite")
    assert eventually(lambda: warned(plane, asking("nvidia-h200")) == [])

    plane.kubectl("delete", "node", "h200")
    assert eventually(lambda: warned(plane, asking("nvidia-h200")) == [H200])


@pytest.mark.usefixtures("webhook")
def test_a_class_whose_only_node_is_cordoned_a_taint_and_a_resource_that_no_node_has(
    plane: ControlPlane,
) -> None:
    plane.kubectl("cordon", "t4")
    assert eventually(lambda: warned(plane, asking("nvidia-t4")) == [CORDONED])
    plane.kubectl("uncordon", "t4")
    assert eventually(lambda: warned(plane, asking("nvidia-t4")) == [])

    plane.kubectl("taint", "node", "t4", "reserved=team-a:NoSchedule")
    assert eventually(lambda: warned(plane, asking("nvidia-t4")) == [TAINTED])
    plane.kubectl("taint", "node", "t4", "reserved-")

    amd = named("trainer", pod(gpu_container(resource="amd.com/gpu")), NAMESPACE)
    assert eventually(lambda: warned(plane, amd) == [NO_AMD])


TEMPLATE = {"metadata": {"labels": {"accelerator": "nvidia-h200"}}}
POOL = manifest("karpenter.sh/v1", "NodePool", "gpu", {"template": TEMPLATE})


def test_a_node_pool_of_karpenter_is_as_good_as_a_node(plane: ControlPlane, webhook: Webhook) -> None:
    install(plane.client(), "karpenter.sh", "v1", "NodePool", scope="Cluster")
    assert eventually(lambda: apply(plane, POOL)[0])
    webhook.stop()  # pools are looked at once a minute, and first of all
    webhook.start()

    assert eventually(
        lambda: warned(plane, asking("nvidia-b200")) == [] and warned(plane, asking("nvidia-l4")) == [L4]
    )
    assert warned(plane, asking("nvidia-h200")) == []
