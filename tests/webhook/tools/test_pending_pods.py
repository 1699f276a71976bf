"""Owners of pending pods that hold quota, why the pods do not run, and what of their demand is certain."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from policies.placement.nodes import NO_NODES, NodeIndex
from policies.quota.amounts import Hard, amount_texts
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import QuotaSpec
from policies.quota.waiting import GATE
from tests.builders import JSON, container, gpu_container
from tests.builders import pod as pod_document
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.configuration.loader import load_directory
from webhook.quota.counted_records import RecordReader
from webhook.quota.documents import QuotaRecord, QuotaStatus
from webhook.tools.pending_pods import PendingOwner, certain_demand, pending_owners
from webhook.tools.status.quotas import quota_status

SPEC = QuotaSpec(hard=Hard(gpus=8))
CONFIGURATION = load_directory(None)
QUOTAS = {"team": UnclassifiedPods.TOTAL_ONLY}
FIT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
TRIED = f"{FIT}. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."


def pod(name: str, said: str = "", *, hour: int = 8, owner: str = "", **spec: Any) -> JSON:
    document = pod_document(gpu_container("2"), **spec)
    document["metadata"] = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "creationTimestamp": f"2026-11-22T{hour:02}:00:00Z",
    }
    if owner:
        document["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]
    return {**document, "status": {"phase": "Pending", "conditions": conditions if said else None}}


def found(
    folder: Path, *pods: JSON, namespace: str = "", nodes: NodeIndex | None = NO_NODES
) -> tuple[PendingOwner, ...]:
    path = "/api/v1/pods" if not namespace else f"/api/v1/namespaces/{namespace}/pods"
    with ApiServer(folder, answering({path: list(pods)})) as server:
        owners = pending_owners(server.client(), CONFIGURATION, QUOTAS, nodes, namespace)
    assert [request.query["fieldSelector"] for request in server.requests] == ["status.phase=Pending"]
    return owners


@cases(
    ("stored", "has_node", "reason"),
    the_scheduler_finds_no_node=(pod("a", TRIED), False, FIT),
    several_lines=(pod("a", "no node\nand more"), False, "no node"),
    a_long_reason=(pod("a", "x" * 1000), False, "x" * 199 + "…"),
    no_scheduler_looked=(pod("a"), False, "not considered by a scheduler yet"),
    a_gate_of_another=(
        pod("a", "gated", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        False,
        "scheduling gates: kueue.x-k8s.io/admission",
    ),
    on_its_node=(pod("a", nodeName="b"), True, "on its node, and not started there yet"),
    its_image_is_missing=(
        {**pod("a", nodeName="b"), "status": {"containerStatuses": [{"name": "main", "state": NO_IMAGE}]}},
        True,
        "container main: ImagePullBackOff: no such image",
    ),
)
def test_why_a_pod_is_pending(stored: JSON, has_node: bool, reason: str, tmp_path: Path) -> None:
    (owner,) = found(tmp_path, stored)
    assert (owner.owner, owner.has_node, owner.reason) == ("Pod/a", has_node, reason)
    assert (owner.pods, int(owner.gpus or 0), owner.since) == (1, 2, datetime(2026, 11, 22, 8, tzinfo=UTC))


def test_pods_of_one_owner_are_added_up_with_the_reason_of_most(tmp_path: Path) -> None:
    pods = [
        pod("a", "one", owner="train", hour=9),
        pod("b", FIT, owner="train", hour=7),
        pod("c", FIT, owner="train"),
        pod("d", owner="train", nodeName="b", hour=6),
        pod("e", FIT, hour=5, schedulingGates=[{"name": GATE}]),
    ]
    owners = found(tmp_path, *pods, namespace="team")
    assert [
        (each.owner, each.has_node, each.pods, int(each.gpus or 0), each.since.hour) for each in owners
    ] == [
        ("Job/train", True, 1, 2, 6),
        ("Job/train", False, 3, 6, 7),
    ]
    assert owners[1].reason == FIT


def test_what_depends_on_a_node_that_may_not_be_listed_is_no_number(tmp_path: Path) -> None:
    on_a_node = pod("a", owner="train", nodeName="b")
    slices = pod("b", owner="train", nodeName="b")
    slices["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.10gb": "1"}
    (owner,) = found(tmp_path, on_a_node, slices, nodes=None)
    assert (owner.gpus, amount_texts(owner.held)) == (
        None,
        {"resources/nvidia.com/gpu": "2", "resources/nvidia.com/mig-1g.10gb": "1"},
    )
    record = QuotaRecord(namespace="team", uid="", version="", spec=SPEC, status=QuotaStatus())
    assert [row.pending for row in quota_status(record, None, [owner]).rows] == [None]


READER = RecordReader(CONFIGURATION)


def pinned(*products: str) -> JSON:
    terms = [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": list(products)}]}
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


SMALL, LARGE = "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"


@cases(
    ("resource", "products", "want"),
    a_whole_card=("nvidia.com/gpu", (), {"gpus": "1", "resources/nvidia.com/gpu": "1"}),
    a_slice_that_is_the_same_part_of_every_card=(
        "nvidia.com/mig-2g.20gb",
        (),
        {"gpus": "2/7", "resources/nvidia.com/mig-2g.20gb": "1"},
    ),
    a_slice_that_is_different_parts=("nvidia.com/mig-1g.10gb", (), {"resources/nvidia.com/mig-1g.10gb": "1"}),
    of_one_class=(
        "nvidia.com/mig-1g.10gb",
        (LARGE,),
        {
            "classes/nvidia-a100": "1/7",
            "classes/nvidia-a100-80gb": "1/7",
            "gpus": "1/7",
            "resources/nvidia.com/mig-1g.10gb": "1",
        },
    ),
    of_two_classes_of_a_family=(
        "nvidia.com/mig-1g.10gb",
        (SMALL, LARGE),
        {"resources/nvidia.com/mig-1g.10gb": "1"},
    ),
)
def test_only_what_does_not_depend_on_the_node(
    resource: str, products: tuple[str, ...], want: dict[str, str]
) -> None:
    affinity = {"affinity": pinned(*products)} if products else {}
    document = pod_document(container(resources={"limits": {resource: "1"}}), nodeName="n1", **affinity)
    document["metadata"] = {
        "name": "a",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    record = READER.read_pod(msgspec.Raw(msgspec.json.encode(document)))
    assert record is not None

    assert amount_texts(certain_demand(READER, record, UnclassifiedPods.TOTAL_ONLY, None)) == want
