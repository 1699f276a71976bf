"""Who may not list nodes gets an administrator's edits from `why` and `check`, whatever the nodes have and the pod asks."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.builders import JSON, gpu_container, node_affinity
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, cluster
from tests.webhook.tools.status.stored import CONFIG_MAP, published
from webhook.commands import main
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Explanation

A100, H100, L4, T4, L40S = ("nvidia-a100-80gb", "nvidia-h100-80gb", "nvidia-l4", "nvidia-t4", "nvidia-l40s")
GPU, ZONE = "nvidia.com/gpu", "topology.kubernetes.io/zone"
ML = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
UPGRADE = {"key": "nvidia.com/gpu.driver-upgrade", "value": "true", "effect": "NoSchedule"}
DRAINED = {"key": "drained", "effect": "NoExecute"}
UNCORDON = r"kubectl uncordon \w+, if it should take pods again|ask to uncordon one of them"
TOLERATED = [{"key": "dedicated", "operator": "Exists"}]


def node(
    name: str, gpu_class: str, gpus: int = 8, zone: str = "a", more: JSON | None = None, **spec: Any
) -> JSON:
    has = {"cpu": "64", "memory": "512Gi", GPU: str(gpus), **(more or {})}
    labels = {"accelerator": gpu_class, ZONE: zone, "kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": has, "capacity": has},
    }


NODES = [
    node("a1", A100),
    node("a2", A100, zone="b"),
    node("h1", H100, unschedulable=True),
    node("h2", H100, unschedulable=True),
    node("l1", L4, 4, taints=[ML]),
    node("l2", L4, 2, taints=[ML, DRAINED]),
    node("s1", L40S, taints=[UPGRADE]),
    node("t1", T4, 4, taints=[ML]),
    node("t2", T4, 2),
    node("m1", "nvidia-a30", 0, more={"nvidia.com/mig-1g.6gb": "4"}),
]
USED = {"a1": 6, "a2": 3, "l1": 3, "t2": 2}
HOLDING = [
    {"metadata": {"name": name}, "spec": {"nodeName": name, "containers": [gpu_container(str(gpus))]}}
    for name, gpus in USED.items()
]


def explained(folder: Path, pod: JSON, **objects: Any) -> Explanation:
    path = "/api/v1/namespaces/ml/pods"
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/10 nodes",
    }
    stored = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml", "uid": "u"},
        "spec": pod,
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    given = {"/api/v1/namespaces/ml/events": [], path: [stored], f"{path}/p": stored, **objects}
    with ApiServer(folder, answering({**cluster(), **given})) as server:
        return explain(server.client(), "pod", "p", "ml", datetime.now(UTC))


def edits(found: Explanation) -> list[tuple[str, str, str]]:
    """Return what an answer tells its reader to do, without names of nodes."""
    return [
        (
            each.source.value,
            each.reason,
            re.sub(UNCORDON, "uncordon one", each.remedy).replace("Node s1", "one of them"),
        )
        for each in found.reasons
    ]


def asks(gpus: int = 1, of: str = "", name: str = GPU, **spec: Any) -> JSON:
    selector = {"nodeSelector": {"accelerator": of, **spec.pop("nodeSelector", {})}} if of else {}
    container = {"name": "main", "resources": {"limits": {name: str(gpus)}}}
    return {"containers": [container], **selector, **spec}


MOST_OF_A100: Any = {"affinity": node_affinity([("accelerator", "In", A100)])}
IN_ZONE_C: Any = {"nodeSelector": {ZONE: "c"}}

ADMIN: dict[str, Any] = {"/api/v1/nodes": NODES, "/api/v1/pods": HOLDING}


def tenant() -> dict[str, Any]:
    """Return what the API server has for who may not list nodes, which were counted just now."""
    counted = published(datetime.now(UTC) - timedelta(seconds=5), NODES, USED)
    return {"/api/v1/nodes": FORBIDDEN, "/api/v1/pods": FORBIDDEN, CONFIG_MAP: counted}


SITUATIONS: dict[str, JSON] = {
    "one_of_any": asks(),
    "five_of_any": asks(5),
    "seven_of_any": asks(7),
    "sixteen_of_any": asks(16),
    "one_of_a_class": asks(1, A100),
    "as_many_as_are_free": asks(5, A100),
    "more_than_are_free": asks(6, A100),
    "a_whole_node": asks(8, A100),
    "more_than_a_node": asks(9, A100),
    "in_a_zone": asks(3, A100, nodeSelector={ZONE: "a"}),
    "in_the_other_zone": asks(6, A100, nodeSelector={ZONE: "b"}),
    "in_a_zone_without_nodes": asks(1, A100, **IN_ZONE_C),
    "any_in_a_zone_without_nodes": asks(1, "", **IN_ZONE_C),
    "by_affinity": asks(6, **MOST_OF_A100),
    "by_affinity_to_a_zone_without_nodes": asks(1, A100, affinity=node_affinity([(ZONE, "In", "c")])),
    "not_in_zones": asks(1, A100, affinity=node_affinity([(ZONE, "NotIn", "a"), (ZONE, "NotIn", "b")])),
    "cordoned": asks(1, H100),
    "all_of_a_cordoned_node": asks(8, H100),
    "more_than_a_cordoned_node": asks(9, H100),
    "cordoned_and_of_another_zone": asks(1, H100, nodeSelector={ZONE: "b"}),
    "tainted": asks(1, L4),
    "tainted_and_full": asks(2, L4),
    "tainted_and_too_small": asks(5, L4),
    "tolerated": asks(1, L4, tolerations=TOLERATED),
    "tolerated_and_full": asks(2, L4, tolerations=TOLERATED),
    "tolerated_of_which_one_is_drained": asks(4, L4, tolerations=TOLERATED),
    "tolerated_for_another_value": asks(1, L4, tolerations=[{**ML, "operator": "Equal", "value": "dev"}]),
    "every_taint_is_tolerated": asks(4, L4, tolerations=[{"operator": "Exists"}]),
    "tainted_while_a_driver_is_upgraded": asks(1, L40S),
    "upgraded_and_too_small": asks(9, L40S),
    "some_tainted_others_full": asks(1, T4),
    "some_tainted_others_too_small": asks(3, T4),
    "tolerated_by_one_that_others_fill": asks(1, T4, tolerations=TOLERATED),
    "a_class_without_nodes": asks(1, "nvidia-h200"),
    "no_class": asks(1, "team-x"),
    "a_slice": asks(1, name="nvidia.com/mig-1g.6gb"),
    "more_slices_than_there_are": asks(5, name="nvidia.com/mig-1g.6gb"),
    "a_slice_of_a_class_that_has_none": asks(1, A100, name="nvidia.com/mig-1g.10gb"),
    "a_whole_card_where_all_are_slices": asks(1, "nvidia-a30"),
    "of_another_vendor": asks(1, name="amd.com/gpu"),
    "shares_that_no_node_offers": asks(1, name="nvidia.com/gpu.shared"),
    "two_classes_by_affinity": asks(
        1, affinity=node_affinity([("accelerator", "In", L4), ("accelerator", "Exists")])
    ),
}


@cases("pod", **SITUATIONS)
def test_the_edits_are_those_of_an_administrator(tmp_path: Path, pod: JSON) -> None:
    of_admin, of_tenant = (explained(tmp_path, pod, **objects) for objects in (ADMIN, tenant()))
    assert of_tenant.nodes_from.startswith("nodes by class as the controller counted them at ")
    assert edits(of_tenant) == edits(of_admin)
    assert of_tenant.verdicts == of_admin.verdicts


def checked(folder: Path, pod: JSON, objects: JSON) -> Any:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ml"}, "spec": pod}
    with ApiServer(folder, answering({**cluster(), **objects})) as server:
        command = ["check", "-f", "-", "-o", "json", "--kubeconfig", str(server.kubeconfig())]
        result = CliRunner().invoke(main, command, input=json.dumps(document))
    return json.loads(result.stdout)["objects"]


@cases("pod", **SITUATIONS)
def test_the_findings_of_check_are_those_of_an_administrator(tmp_path: Path, pod: JSON) -> None:
    of_admin, of_tenant = (checked(tmp_path, pod, objects) for objects in (ADMIN, tenant()))
    assert of_tenant == of_admin
