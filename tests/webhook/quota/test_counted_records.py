"""The records of pods and claims have the demand of the objects themselves."""

import itertools
import json
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given

from policies.placement.nodes import HOSTNAME, NO_NODES, NamedNode, NodeIndex
from policies.pods.pod import decode_pod
from policies.quota.demand import UnclassifiedPods, pod_demand
from policies.quota.waiting import GATE
from tests.builders import quota_ledger
from tests.cases import cases
from tests.strategies import PODS
from webhook.configuration.loader import load_directory
from webhook.quota.counted_records import ClaimHistory, CountedPod, RecordReader
from webhook.quota.ledger_objects import TeamObjects, encode_ledger_object, ledger_record

CONFIGURATION = load_directory(None)
READER = RecordReader(CONFIGURATION)
IMPLICIT = "resources/deviceclass.resource.kubernetes.io/gpu.nvidia.com"
KEYS = CONFIGURATION.classes.label_keys
T4 = (("accelerator", "nvidia-t4"),)
ONE_T4 = NodeIndex(KEYS, [NamedNode("n", "node", "node", T4)])
GPU = {
    "name": "main",
    "image": "i",
    "env": [{"name": "A", "value": "b"}],
    "resources": {"limits": {"nvidia.com/gpu": "2"}},
}


def raw(document: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(document).encode())


def pod(name: str = "p", *, metadata: Any = None, status: Any = None, **spec: Any) -> CountedPod:
    meta = {"name": name, "namespace": "team", "uid": f"uid-of-{name}", **(metadata or {})}
    document = {"metadata": meta, "spec": {"containers": [GPU], **spec}, "status": status or {}}
    found = READER.read_pod(raw(document))
    assert found is not None
    return found


@given(PODS)
def test_a_record_has_the_demand_of_its_pod(document: Any) -> None:
    named = {**(document.get("metadata") or {}), "name": "p", "namespace": "n", "uid": "u"}
    for placed in ({}, {"nodeName": "node"}, {"nodeSelector": {"kubernetes.io/hostname": "node"}}):
        stored = {**document, "metadata": named, "spec": {**document["spec"], **placed}}
        whole, found = decode_pod(raw(stored)), READER.read_pod(raw(stored))
        for unclassified_pods, nodes in itertools.product(UnclassifiedPods, (NO_NODES, ONE_T4)):
            want = pod_demand(whole, CONFIGURATION, unclassified_pods, nodes).vector
            assert (READER.demand_of_pod(found, unclassified_pods, nodes) if found else {}) == want


OURS, OTHER = {"name": GATE}, {"name": "example.com/other"}
DELETED = {"deletionTimestamp": "2027-01-31T12:00:00Z"}


@cases(
    ("found", "waits", "holds_quota"),
    without_a_gate=(pod(), False, True),
    under_another_gate=(pod(schedulingGates=[OTHER]), False, True),
    under_ours=(pod(schedulingGates=[OTHER, OURS]), True, False),
    that_has_failed=(pod(schedulingGates=[OURS], status={"phase": "Failed"}), False, False),
    that_was_deleted_and_has_a_finalizer=(pod(schedulingGates=[OURS], metadata=DELETED), False, False),
    that_was_deleted_and_runs=(pod(metadata=DELETED), False, True),
)
def test_who_waits_and_who_holds_quota(found: CountedPod, waits: bool, holds_quota: bool) -> None:
    assert (found.waits, found.holds_quota) == (waits, holds_quota)


def test_pods_of_one_job_share_their_blueprint() -> None:
    one, other = pod("one", nodeName="a"), pod("other", nodeName="b")

    assert one.blueprint is other.blueprint
    assert (one.node_name, other.node_name) == ("a", "b")


@cases(
    ("spec", "want"),
    it_is_on_one=({"nodeName": "a", "nodeSelector": {HOSTNAME: "b"}}, {("metadata.name", "a")}),
    it_selects_one=({"nodeSelector": {HOSTNAME: "b"}}, {(HOSTNAME, "b")}),
    anywhere=({}, set()),
)
def test_a_pod_is_counted_again_when_the_nodes_change_that_it_names(
    spec: Any, want: set[tuple[str, str]]
) -> None:
    assert set(pod(**spec).nodes) == want


@cases(
    ("stored", "want"),
    a_whole_number=({"resourceVersion": "18446744073709551615"}, 2**64 - 1),
    none=({}, 0),
    no_number=({"resourceVersion": "v7"}, 0),
)
def test_records_have_the_version(stored: dict[str, str], want: int) -> None:
    assert pod(metadata=stored).version == want
    assert claims().read_claim(claim(False, "owner", **stored)).version == want


@pytest.mark.parametrize("overhead", [{}, {"cpu": "250m"}], ids=["plain", "of-a-runtime-class"])
def test_a_pod_without_gpus_is_not_kept(overhead: dict[str, str]) -> None:
    document = {
        "metadata": {"name": "web", "uid": "u", "namespace": "n"},
        "spec": {"containers": [{"name": "c"}], "overhead": overhead},
    }

    assert READER.read_pod(raw(document)) is None


@cases(
    ("phase", "want"),
    pending=("Pending", False),
    running=("Running", False),
    unknown_may_still_run=("Unknown", False),
    succeeded=("Succeeded", True),
    failed=("Failed", True),
)
def test_phases(phase: str, want: bool) -> None:
    assert pod(status={"phase": phase}).is_terminal is want


OWNERS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "name": "other"},
    {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True},
]


def test_the_holder_is_the_controller_or_the_pod_itself() -> None:
    assert pod("p", metadata={"ownerReferences": OWNERS}).holder == "Job/train"
    assert pod("p", metadata={"ownerReferences": OWNERS[:1]}).holder == "Pod/p"


def claims() -> RecordReader:
    return RecordReader(CONFIGURATION)


def claim(mark: bool, owner: str, **metadata: str) -> msgspec.Raw:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}]
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"} if mark else {}
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]
    meta = {
        "name": "c",
        "namespace": "team",
        "uid": "u",
        "ownerReferences": owners,
        "annotations": annotations,
        **metadata,
    }
    return raw({"metadata": meta, "spec": {"devices": {"requests": requests}}})


@cases(
    ("mark", "owner", "named", "want"),
    made_by_the_scheduler_for_a_pod_with_demand_for_one=(True, "uid-of-p", "c", 1),
    its_status_does_not_name_the_claim=(True, "uid-of-p", "", 2),
    owned_by_nobody_who_lives=(True, "uid-of-gone", "c", 2),
    an_ordinary_claim_of_a_pod=(False, "uid-of-p", "c", 2),
)
def test_a_claim_has_the_demand_beyond_that_of_its_pod(mark: bool, owner: str, named: str, want: int) -> None:
    found = claims().read_claim(claim(mark, owner))
    pods = {("uid-of-p", named): {IMPLICIT: Fraction(1)}}

    assert claims().demand_of_claim(found, UnclassifiedPods.TOTAL_ONLY, pods)["gpus"] == want


def test_a_claim_made_again_under_its_name_is_no_pods() -> None:
    reader = claims()
    pods = {("uid-of-p", "c"): {IMPLICIT: Fraction(2)}}

    first, again = (reader.read_claim(claim(True, "uid-of-p", uid=uid)) for uid in ("first", "again"))

    demands = [
        reader.demand_of_claim(each, UnclassifiedPods.TOTAL_ONLY, pods).get("gpus", 0)
        for each in (first, again)
    ]
    assert demands == [0, 2]
    assert reader.read_claim(claim(True, "uid-of-p", uid="first")) == first


def test_a_record_keeps_the_annotations_that_have_demand() -> None:
    document = pod(metadata={"annotations": {"gpu-fraction": "0.5", "team": "a"}}).blueprint.document

    assert [each in document for each in (b"gpu-fraction", b"team")] == [True, False]


def test_a_ledger_that_cannot_be_read_says_why() -> None:
    metadata = {"name": "team", "uid": "u", "resourceVersion": "7"}
    ledger = msgspec.json.decode(encode_ledger_object("team", "7", quota_ledger(ledger_uid="u")))

    good = ledger_record(TeamObjects(), raw({**ledger, "metadata": metadata}))
    bad = ledger_record(TeamObjects(), raw({"metadata": metadata, "ledger": "{"}))

    assert (good.uid, good.namespace, good.ledger) == ("u", "team", quota_ledger(ledger_uid="u"))
    assert (bad.uid, bad.namespace, bad.ledger) == ("u", "team", None)
    assert bad.problem.startswith("the GPUQuotaLedger cannot be read: ")


def test_the_memory_of_claims_ends_with_the_pod() -> None:
    history = ClaimHistory()

    assert history.is_first("pod", "c", "one")
    assert not history.is_first("pod", "c", "two")
    assert history.is_first("pod", "the-scheduler-tried-again", "two")
    history.forget("pod")
    assert history.is_first("pod", "c", "two")


PLAIN = [{"name": f"c{number}"} for number in range(600)]
AMOUNTS = {"limits": {f"cpu{number}": "1" for number in range(70)}}


@cases(
    "spec",
    of_600_containers={"containers": PLAIN},
    of_70_amounts={"containers": [{"name": "c", "resources": AMOUNTS}]},
    of_a_gpu_and_600_containers={"containers": [GPU, *PLAIN]},
)
def test_a_stored_pod_is_read_however_long_it_is(spec: Any) -> None:
    # The webhook never sees pods without GPUs, and one that could not be read would stop the count of the whole cluster.
    found = READER.read_pod(raw({"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": spec}))
    assert (found is not None) == (GPU in spec["containers"])


@cases(("number", "kept"), looked_up=(64, 64), too_many_to_look_up=(2_000, 1))
def test_a_pod_keeps_few_of_the_nodes_that_it_names(number: int, kept: int) -> None:
    """Work through some 2,000 names of a thousand pods, and the controller has no time or memory left for others."""
    values = [f"node-{each}" for each in range(number)]
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": values}]}
    required = {"nodeSelectorTerms": [term]}

    record = pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})

    assert len(record.nodes) == kept, "names looked up at every count"
