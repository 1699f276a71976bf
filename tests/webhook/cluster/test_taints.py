"""Taints that go by themselves, of kubelets, clouds, networks, autoscalers and device operators; all others are lasting."""

from policies.pods.pod import Toleration
from tests.cases import cases
from webhook.cluster.nodes import is_permanent_taint


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Toleration:
    return Toleration(key=key, value=value, effect=effect)


@cases(
    ("taint", "want"),
    a_card=(taint("nvidia.com/gpu", "present"), True),
    a_pool_of_a_team=(taint("dedicated", "ml-workloads"), True),
    spot_of_aks=(taint("kubernetes.azure.com/scalesetpriority", "spot"), True),
    a_preference=(taint("dedicated", "ml-workloads", "PreferNoSchedule"), False),
    a_condition=(taint("node.kubernetes.io/disk-pressure"), False),
    a_node_that_is_shut_down=(taint("node.cloudprovider.kubernetes.io/shutdown"), False),
    cilium=(taint("node.cilium.io/agent-not-ready", "true", "NoExecute"), False),
    istio=(taint("cni.istio.io/not-ready"), False),
    gardener=(taint("node.gardener.cloud/critical-components-not-ready"), False),
    cluster_api=(taint("node.cluster.x-k8s.io/uninitialized"), False),
    cluster_autoscaler=(taint("DeletionCandidateOfClusterAutoscaler", "1795474800", "NoExecute"), False),
    karpenter=(taint("karpenter.sh/disrupted"), False),
    spot_interruption=(taint("aws-node-termination-handler/spot-itn", "i-0abc"), False),
    gke_maintenance=(taint("cloud.google.com/impending-node-termination"), False),
    aks_repair=(taint("remediator.kubernetes.azure.com/unschedulable"), False),
    amd_driver=(taint("amd-gpu-driver-upgrade", "true"), False),
    amd_partitioning=(taint("amd-dcm", "up", "NoExecute"), False),
    a_driver_upgrade=(taint("nvidia.com/gpu.driver-upgrade", "true"), False),
)
def test_which_taints_are_lasting(taint: Toleration, want: bool) -> None:
    assert is_permanent_taint(taint) is want


@cases(
    ("startup", "want"),
    of_another_key=(taint("other"), True),
    of_another_effect=(taint("example.com/checks", effect="NoExecute"), True),
    of_another_value=(taint("example.com/checks", "done"), False),
)
def test_startup_taints_of_pools_are_compared_by_key_and_effect(startup: Toleration, want: bool) -> None:
    assert is_permanent_taint(taint("example.com/checks", "running"), [startup]) is want
