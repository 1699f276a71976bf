"""Which nodes are known to mount images as volumes, and that all nodes of a pod must be."""

from collections.abc import Iterable

from policies.placement.image_volumes import all_mount_images, mounts_images
from policies.placement.nodes import NodeGroup, NodeState, node_facts
from policies.pods.pod import Toleration
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases

GPUS = frozenset({"nvidia.com/gpu"})
NEW = NodeState(resources=GPUS, amounts=(("nvidia.com/gpu", 8),), mounts_images=True)
OLD = NodeState(resources=GPUS, amounts=(("nvidia.com/gpu", 8),))
SMALL = NodeState(resources=GPUS, amounts=(("nvidia.com/gpu", 1),))
TAINTED = NodeState(taints=(Toleration(key="team", effect="NoSchedule"),), resources=GPUS)


@cases(
    ("kubelet", "runtime", "system", "want"),
    containerd=("v1.36.3", "containerd://2.1.0", "linux", True),
    crio=("v1.37.0-eks-1234", "cri-o://1.36.2", "linux", True),
    of_a_distribution=("v1.36.1+k3s1", "containerd://2.2.3-k3s1", "linux", True),
    next_major=("v2.0.0", "containerd://10.0.0", "linux", True),
    gate_can_be_off=("v1.35.9", "containerd://2.2.0", "linux", False),
    old_containerd=("v1.36.0", "containerd://2.0.7", "linux", False),
    old_containerd_of_a_long_line=("v1.36.0", "containerd://1.7.30", "linux", False),
    old_crio=("v1.36.0", "cri-o://1.30.0", "linux", False),
    docker=("v1.36.2", "docker://29.6.2", "linux", False),
    windows=("v1.36.3", "containerd://2.1.0", "windows", False),
    nothing_known=("", "", "", False),
    no_version=("unknown", "containerd://latest", "linux", False),
)
def test_nodes_that_mount_images(kubelet: str, runtime: str, system: str, want: bool) -> None:
    assert mounts_images(kubelet, runtime, system) is want


@cases(
    ("states", "spec", "want"),
    all_new=([NEW], {}, True),
    one_old=([NEW, OLD], {}, False),
    an_old_one_that_is_too_small=([NEW, SMALL], {}, True),
    an_old_one_that_is_tainted=([NEW, TAINTED], {}, True),
    an_old_one_whose_taint_is_tolerated=(
        [NEW, TAINTED],
        {"tolerations": [{"operator": "Exists"}]},
        False,
    ),
    an_old_one_without_gpus=([NEW, NodeState()], {}, True),
    no_node=([], {}, False),
    only_one_that_is_too_small=([SMALL], {}, False),
    virtual_machines=([NEW], {"runtimeClassName": "kata"}, False),
    gpu_operator=([NEW], {"runtimeClassName": "nvidia"}, True),
)
def test_all_nodes_of_a_pod(states: Iterable[NodeState], spec: JSON, want: bool) -> None:
    nodes = node_facts((), [((), state) for state in states])

    assert all_mount_images(view(pod(gpu_container(), **spec)), {"nvidia.com/gpu": 2}, nodes) is want


def test_nodes_that_are_not_known_or_come_later() -> None:
    document = view(pod(gpu_container()))
    with_pool = node_facts((), [((), NEW)], (NodeGroup({}, pool="gpus"),))

    assert not all_mount_images(document, {"nvidia.com/gpu": 1}, None)
    assert not all_mount_images(document, {"nvidia.com/gpu": 1}, with_pool)
