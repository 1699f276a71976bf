"""Doctor on pods that hold quota and find no node."""

from pathlib import Path

from tests.builders import JSON, gpu_container
from tests.builders import pod as pod_document
from tests.cases import cases
from tests.webhook.tools.doctor.quotas import COUNTED, QUOTAS, quota
from tests.webhook.tools.installed_clusters import assert_found

FIT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
QUOTA = {QUOTAS: [quota(COUNTED)], "/api/v1/nodes": []}


def pod(name: str, since: str, *, node: str = "") -> JSON:
    """Return a pending pod of the day on which doctor looks, at 12:00."""
    document = pod_document(gpu_container("2"), nodeName=node)
    created = f"2027-01-31T{since}:00Z"
    document["metadata"] = {"name": name, "namespace": "team", "uid": name, "creationTimestamp": created}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FIT}
    return {**document, "status": {"phase": "Pending", "conditions": [condition]}}


def pods(*found: JSON) -> JSON:
    return {"/api/v1/pods": list(found)}


HOLDS = "pending-with-quota: pods in team hold"


@cases(
    ("objects", "want"),
    for_nine_minutes=({**QUOTA, **pods(pod("a", "11:51"))}, []),
    on_a_node=({**QUOTA, **pods(pod("a", "11:00", node="b"))}, []),
    without_a_quota=(pods(pod("a", "11:00")), []),
    for_longer=(
        {**QUOTA, **pods(pod("a", "11:49"))},
        [
            f"{HOLDS} 2 GPUs of the quota and have no node: Pod/a since 2027-01-31 11:49 UTC, {FIT}\n"
            "gpu-admission why Pod/a -n team says what each node lacks; delete what is not needed"
        ],
    ),
    several=(
        {**QUOTA, **pods(pod("a", "11:49"), pod("b", "11:00"), pod("c", "11:59"))},
        [
            f"{HOLDS} 4 GPUs of the quota and have no node: Pod/b since 2027-01-31 11:00 UTC, {FIT}; and 1 more"
        ],
    ),
)
def test_pods_that_hold_quota_without_a_node(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("pending-pods", objects, want, tmp_path)
