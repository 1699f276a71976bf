"""What a scan counts where its caller may not read everything; on a real API server: tests/cluster/scan/."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.builders import gpu_container, uid
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from webhook.tools.scan.scanning import Scan

NODE = {"metadata": {"name": "l4-0", "uid": "n", "labels": {"accelerator": "nvidia-l4"}}}


def pod(name: str, resource: str = "nvidia.com/gpu", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": uid(name)},
        "spec": {"nodeName": "l4-0", "containers": [gpu_container("2", resource=resource)], **spec},
    }


@cases(
    ("stored", "may_list_nodes", "gpus", "classes"),
    the_node_decides=(pod("a"), True, "2", {"nvidia-l4": "2"}),
    an_unknown_node_decides_nothing=(pod("a"), False, "2", {}),
    but_a_class_that_the_pod_pins=(
        pod("a", nodeSelector={"accelerator": "nvidia-t4"}), False, "2", {"nvidia-t4": "2"},
    ),
    the_largest_part_of_a_slice=(pod("a", "nvidia.com/mig-1g.10gb"), False, "1/2", {}),
)  # fmt: skip
def test_what_pods_of_a_namespace_hold(
    tmp_path: Path, stored: dict[str, Any], may_list_nodes: bool, gpus: str, classes: dict[str, str]
) -> None:
    objects: dict[str, Any] = {
        "/api": [],
        "/apis": [],
        "/api/v1/namespaces/ml/pods": [stored],
        "/api/v1/nodes": [NODE] if may_list_nodes else status(403, "no", "Forbidden"),
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        now = datetime(2026, 11, 21, tzinfo=UTC)
        (use,) = Scan(server.client(), now=now, namespace="ml").report(with_trial=False).namespaces

    held = {name: str(amount) for name, amount in use.classes.items()}
    assert (str(use.gpus), held) == (gpus, classes)
