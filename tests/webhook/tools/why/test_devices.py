"""Why a pod has no device: what the scheduler finds in the ResourceSlices, and what a driver reports of a device."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tests.builders import JSON
from tests.cases import cases
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.cluster.apiserver import Answer, ApiServer, Collections, group, status
from webhook.configuration.loader import load_directory
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.stored_pod import decode_stored
from webhook.tools.why.devices import device_causes

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ROOT = "/apis/resource.k8s.io/v1"
IS_GPU = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
IS_A100 = f'device.attributes["{DRIVER}"].productName.contains("A100")'
UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/1 nodes are available: 1 cannot allocate all claims.",
}
POD: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "ml"},
    "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}, {"name": "x", "resourceClaimName": "mine"}]},
    "status": {"phase": "Pending", "conditions": [UNSCHEDULED],
               "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-gpu"}, {"name": "none"}]},
}  # fmt: skip


def claim(name: str, *devices: str, requests: list[JSON] | None = None, **more: Any) -> JSON:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "n1", "device": each} for each in devices]
    allocation = {"allocation": {"devices": {"results": results}}} if devices else {}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": requests or [gpu()]}},
        "status": {**allocation, **more},
    }


def gpu(*expressions: str, name: str = "gpu.nvidia.com", **more: Any) -> JSON:
    selectors = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    return {"name": "gpu", "exactly": {"deviceClassName": name, **selectors, **more}}


def listed(*documents: JSON) -> list[JSON]:
    for document in documents:
        document["metadata"] |= {"uid": document["metadata"]["name"], "resourceVersion": "1"}
    return list(documents)


DEVICE_CLASS = {
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": IS_GPU}}]},
}
ABSENT = {
    "metadata": {"name": "amd"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.amd.com"'}}]},
}
SICK = {
    "metadata": {"name": "sick"},
    "spec": {
        "deviceSelector": {"driver": DRIVER},
        "taint": {"key": "example.com/sick", "value": "xid", "effect": "NoExecute", "timeAdded": "2026-11-28T08:00:00Z"},
    },
}  # fmt: skip


def causes(
    folder: Path,
    own: JSON,
    *others: JSON,
    rules: tuple[JSON, ...] = (),
    pod: JSON = POD,
    may_get: bool = True,
    **lists: Any,
) -> list[tuple[str, str]]:
    cluster = Collections(
        resourceslices=listed(*node_slices("n1", cards=3, partitions=False)),
        deviceclasses=listed(DEVICE_CLASS, ABSENT),
        resourceclaims=[own, *others],
        devicetaintrules=listed(*rules),
    )
    cluster.objects |= lists
    cluster.answers["/apis/resource.k8s.io"] = group("v1")
    for each in (own, *others):
        name = each["metadata"]["name"]
        cluster.answers[f"{ROOT}/namespaces/ml/resourceclaims/{name}"] = Answer(json.dumps(each).encode())
        if not may_get:
            cluster.answers[f"{ROOT}/namespaces/ml/resourceclaims/{name}"] = status(403, "may not")
    with ApiServer(folder, cluster) as server:
        reader = TolerantReader(server.client())
        found = device_causes(reader, load_directory(None), decode_stored(msgspec.json.encode(pod)), NOW)
        return [
            *((each.message, each.remedy) for each in found),
            *(("may not", right) for right in reader.omitted),
        ]


OF = "devices of DeviceClass gpu.nvidia.com"
NAME_ONE = "see kubectl get deviceclasses"
ADDED = "wait until a node with such devices is added"
CORRECT = "correct the selectors of the claim or its template"
SUBJECT = "ResourceClaim train-gpu (gpu)"
FOUND = f"{SUBJECT}: the scheduler found no device:"
WAIT, TOLERATE = (
    "wait until another claim is deleted",
    "tolerate the taint in the claim: {key: example.com/sick, operator: Equal, value: xid, effect: NoExecute}",
)
TAINT = "with taint example.com/sick=xid:NoExecute since 2026-11-28 08:00 UTC"


@cases(
    ("own", "others", "rules", "want"),
    one_is_free=(claim("train-gpu"), [claim("a", "gpu-0", "gpu-1")], (), []),
    all_are_allocated=(
        claim("train-gpu"),
        [claim("a", "gpu-0", "gpu-1", "gpu-2")],
        (),
        [(f"{FOUND} 3 of 3 {OF} match, all allocated", WAIT)],
    ),
    some_are_tainted=(
        claim("train-gpu"),
        [claim("a", "gpu-0", "gpu-1")],
        (SICK,),
        [(f"{FOUND} 3 of 3 {OF} match, 2 of them allocated, 1 {TAINT}", f"{WAIT}, or {TOLERATE}")],
    ),
    the_taint_is_tolerated=(
        claim("train-gpu", requests=[gpu(tolerations=[{"key": "example.com/sick", "operator": "Exists"}])]),
        [],
        (SICK,),
        [],
    ),
    too_few_are_free=(
        claim("train-gpu", requests=[gpu(count=2)]),
        [claim("a", "gpu-0", "gpu-1")],
        (),
        [
            (
                f"{FOUND} 3 of 3 {OF} match, 2 of them allocated, 1 free, but 2 are needed",
                f"{WAIT}, or use fewer devices",
            )
        ],
    ),
    nothing_matches=(
        claim("train-gpu", requests=[gpu(IS_A100)]),
        [],
        (),
        [(f"{SUBJECT}: its selectors match none of 3 {OF}", CORRECT)],
    ),
    no_device_of_its_class=(
        claim("train-gpu", requests=[gpu(name="amd")]),
        [],
        (),
        [(f"{SUBJECT}: the cluster has no device of DeviceClass amd", ADDED)],
    ),
    no_such_class=(
        claim("train-gpu", requests=[gpu(name="gone")]),
        [],
        (),
        [(f"{SUBJECT}: DeviceClass gone does not exist", NAME_ONE)],
    ),
    each_alternative=(
        claim("train-gpu", requests=[{"name": "gpu", "firstAvailable": [
            {"name": "big", "deviceClassName": "amd"}, {"name": "small", "deviceClassName": "gone"}]}]),
        [],
        (),
        [
            ("ResourceClaim train-gpu (gpu/big): the cluster has no device of DeviceClass amd", ADDED),
            ("ResourceClaim train-gpu (gpu/small): DeviceClass gone does not exist", NAME_ONE),
        ],
    ),
    its_second_claim=(
        claim("mine", requests=[gpu(IS_A100)]),
        [],
        (),
        [(f"ResourceClaim mine (gpu): its selectors match none of 3 {OF}", CORRECT)],
    ),
    allocated_and_the_driver_says_why_it_does_not_work=(
        claim("train-gpu", "gpu-0", devices=[
            {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "conditions": [
                {"type": "Ready", "status": "False", "message": "no MIG slice could be made",
                 "lastTransitionTime": "2026-11-29T11:00:00Z"},
                {"type": "Known", "status": "True"},
                {"type": "Bound", "status": "False"}]}]),
        [],
        (),
        [
            ("ResourceClaim train-gpu: condition Ready of device gpu-0 is False since 11:00 UTC: no MIG slice could be made",
             f"see the log of driver {DRIVER} on its node"),
            ("ResourceClaim train-gpu: condition Bound of device gpu-0 is False", f"see the log of driver {DRIVER} on its node"),
        ],
    ),
)  # fmt: skip
def test_why_a_claim_has_no_device(
    own: JSON, others: list[JSON], rules: tuple[JSON, ...], want: list[tuple[str, str]], tmp_path: Path
) -> None:
    assert causes(tmp_path, own, *others, rules=rules) == want


def test_without_the_right_to_read_slices_only_the_classes_are_known(tmp_path: Path) -> None:
    forbidden = status(403, "may not")
    assert causes(tmp_path, claim("train-gpu"), resourceslices=forbidden) == [
        ("may not", "list resourceslices.resource.k8s.io")
    ]


@cases(
    ("kind", "omitted"),
    of_claims=("resourceclaims", "list resourceclaims.resource.k8s.io in all namespaces"),
    of_taints=("devicetaintrules", "list devicetaintrules.resource.k8s.io"),
)
def test_a_right_that_is_lacking_is_said(kind: str, omitted: str, tmp_path: Path) -> None:
    forbidden: JSON = {kind: status(403, "may not")}

    assert ("may not", omitted) in causes(tmp_path, claim("train-gpu"), **forbidden)


def test_a_pod_that_the_scheduler_has_not_considered_says_nothing_of_devices(tmp_path: Path) -> None:
    running = {
        **POD,
        "status": {"phase": "Running", "resourceClaimStatuses": POD["status"]["resourceClaimStatuses"]},
    }
    assert causes(tmp_path, claim("train-gpu", requests=[gpu(IS_A100)]), pod=running) == []


def test_a_claim_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    omitted = causes(tmp_path, claim("train-gpu"), may_get=False)

    assert omitted[0] == ("may not", "get resourceclaims.resource.k8s.io -n ml")
