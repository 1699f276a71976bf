"""gpu-requests: a DaemonSet that holds a GPU on every node is warned of."""

from policies.finding import Severity
from policies.rules.gpu_requests import GPURequestsOptions, check_workload
from tests.builders import JSON, container, context, gpu_container, workload
from tests.cases import cases
from tests.policies.rules.requests import GPU


def advice(kind: str, *containers: JSON) -> list[str]:
    document = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "monitor"},
        "spec": {"template": {"spec": {"containers": list(containers)}}},
    }
    found = list(check_workload(workload(document), GPURequestsOptions(), context()))
    assert all(finding.severity is Severity.WARNING for finding in found)
    return [finding.sentence() for finding in found]


def test_a_daemonset_that_holds_gpus() -> None:
    assert advice("DaemonSet", container("agent"), gpu_container("2", "exporter")) == [
        f'containers[1].resources.limits[{GPU}] (container "exporter") = "2": remove the request if it only '
        "monitors GPUs; is held on every node of this DaemonSet, and no other pod gets it there; or ask the "
        "platform team to exempt its namespace in the GPUPolicy"
    ]


@cases(
    ("kind", "one"),
    deployment=("Deployment", gpu_container()),
    no_gpu=("DaemonSet", container()),
    zero=("DaemonSet", gpu_container("0")),
    share_of_a_gpu=("DaemonSet", gpu_container(resource="nvidia.com/gpu.shared")),
)
def test_other_workloads_are_left_alone(kind: str, one: JSON) -> None:
    assert advice(kind, one) == []
