"""What serve knows of the nodes: from scripted API servers, for what a real one does rarely, and with Karpenter's API."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies.placement.hardware import LabelKeys
from policies.placement.nodes import HOSTNAME, NO_NODES, NodeGroup, NodeState, node_facts
from policies.pods.pod import Toleration
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import ApiServer, Collections, group, status
from webhook.cluster import informer
from webhook.cluster.api import JSON, METADATA_LIST
from webhook.cluster.informer import WatchTimings
from webhook.cluster.nodes import OPEN_LABELS
from webhook.configuration.documents import Document
from webhook.configuration.loader import keys_to_know, load_objects
from webhook.serving import node_watch
from webhook.serving.node_watch import NodeWatch

KEYS = LabelKeys(frozenset({"accelerator"}), ("karpenter.k8s.aws/instance-*", "karpenter.sh/nodepool"))
POOL = {"karpenter.sh/nodepool": frozenset({"gpu"})}
INSTANCE = "karpenter.k8s.aws/instance-gpu-name"
QUICK = WatchTimings(watch=1, silence=1, pause_least=0.05, pause_most=0.1)


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "5", "labels": labels}}


def event(document: dict[str, Any], revision: int) -> bytes:
    metadata = {**document["metadata"], "resourceVersion": str(revision)}
    return json.dumps({"type": "MODIFIED", "object": {**document, "metadata": metadata}}).encode() + b"\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "TIMINGS", QUICK)
    monkeypatch.setattr(node_watch, "POOL_SECONDS", 0.1)


@contextmanager
def watching(
    folder: Path, cluster: Collections, keys: Callable[[], LabelKeys] = lambda: KEYS
) -> Iterator[tuple[NodeWatch, ApiServer]]:
    stopping = threading.Event()
    with ApiServer(folder, cluster) as server:
        watch = NodeWatch(server.client(), keys)
        watch.start(stopping)
        try:
            yield watch, server
        finally:
            stopping.set()
            cluster.ended.set()
            for thread in threading.enumerate():
                if thread.name == "nodes":
                    thread.join(10)


GPUS = {"cpu": "8", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}
EIGHT = (("nvidia.com/gpu", 8),)
RESERVED = {"key": "reserved", "value": "team-a", "effect": "NoSchedule"}
SEEN = Toleration(key="reserved", value="team-a", effect="NoSchedule")
PASSING = (
    {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
    {"key": "ToBeDeletedByClusterAutoscaler", "value": "1795474800", "effect": "NoSchedule"},
    {"key": "ebs.csi.aws.com/agent-not-ready", "effect": "NoExecute"},
    {"key": "maintenance", "effect": "PreferNoSchedule"},
)


@cases(
    ("spec", "want"),
    a_plain_node=({}, NodeState(resources=frozenset({"nvidia.com/gpu"}), amounts=EIGHT)),
    a_cordoned_node=({"unschedulable": True}, None),
    a_taint=({"taints": [RESERVED]}, NodeState(True, (SEEN,), frozenset({"nvidia.com/gpu"}), EIGHT)),
    taints_that_go_by_themselves=(
        {"taints": PASSING},
        NodeState(resources=frozenset({"nvidia.com/gpu"}), amounts=EIGHT, is_usable=False),
    ),
)
def test_the_state_of_a_node(tmp_path: Path, spec: dict[str, Any], want: NodeState | None) -> None:
    cluster = Collections(
        nodes=[{**node("a", accelerator="t4"), "spec": spec, "status": {"capacity": GPUS}}, node("b")]
    )
    with watching(tmp_path, cluster) as (watch, _):
        facts = eventually(watch.facts)

    assert facts
    assert facts.states.get((("accelerator", "t4"),)) == (frozenset({want}) if want else frozenset())


@cases(("kubelet", "want"), known_to_mount_images=("v1.36.3", True), not_known=("v1.35.0", False))
def test_a_node_that_mounts_images(tmp_path: Path, kubelet: str, want: bool) -> None:
    info = {
        "kubeletVersion": kubelet,
        "containerRuntimeVersion": "containerd://2.1.4",
        "operatingSystem": "linux",
    }
    cluster = Collections(nodes=[{**node("a"), "status": {"capacity": GPUS, "nodeInfo": info}}])
    with watching(tmp_path, cluster) as (watch, _):
        facts = eventually(watch.facts)

    assert facts
    assert [state.mounts_images for states in facts.states.values() for state in states] == [want]


def test_facts_stay_the_same_object_until_a_node_changes_in_what_they_say(tmp_path: Path) -> None:
    def seen(**status: Any) -> dict[str, Any]:
        return {**node("a", accelerator="t4"), "status": {"capacity": GPUS, **status}}

    cluster = Collections(nodes=[seen(), {**node("b", accelerator="t4"), "status": {"capacity": GPUS}}])
    with watching(tmp_path, cluster) as (watch, _):
        facts = eventually(watch.facts)
        cordoned = {**node("b", accelerator="t4", **{HOSTNAME: "last"}), "spec": {"unschedulable": True}}
        heartbeat = seen(
            conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-21T12:00:00Z"}]
        )
        for revision, each in enumerate((heartbeat, {**cordoned, "status": {"capacity": GPUS}}), 6):
            cluster.events["nodes"].append(event(each, revision))
        assert eventually(lambda: watch.index().find((HOSTNAME, "last")))
        assert watch.facts() is facts, "a heartbeat, and a cordon beside an equal node"
        cluster.events["nodes"].append(event({**seen(), "spec": {"unschedulable": True}}, 8))
        assert eventually(lambda: watch.facts() is not facts)

        found = watch.facts()

    assert found
    assert found.resources == frozenset(), "both are cordoned"


def test_only_the_labels_that_classes_go_by_are_kept_each_set_once(tmp_path: Path) -> None:
    cluster = Collections(
        nodes=[
            node("a", accelerator="t4", zone="x"),
            node("b", accelerator="t4", zone="y"),
            node("c", zone="x"),
        ]
    )
    with watching(tmp_path, cluster) as (watch, server):
        facts = eventually(watch.facts)
        requests = [{METADATA_LIST: False}, {JSON: False}, {JSON: True}]
        assert eventually(lambda: all(each in _requested(server) for each in requests)), (
            "the first: the revision"
        )

    assert facts == node_facts(KEYS, [((("accelerator", "t4"),), NodeState()), ((), NodeState())])


def _requested(server: ApiServer) -> list[dict[str, bool]]:
    nodes = [each for each in server.requests if each.path == "/api/v1/nodes"]
    return [{each.headers["Accept"]: "watch" in each.query} for each in nodes]


def test_labels_that_choose_hardware_are_known_and_names_of_nodes_are_not(tmp_path: Path) -> None:
    known = {
        "accelerator",
        "cloud.google.com/gke-nodepool",
        "example.com/rack",
        "nvidia.com/cuda.driver.major",
        "nvidia.com/gpu.memory",
        "topology.kubernetes.io/zone",
    }
    policy = Document(
        "GPUPolicy", "default", {"rules": {"gpu-class": {"hardwareLabels": ["example.com/rack"]}}}
    )
    keys = keys_to_know(load_objects([policy]))
    cluster = Collections(nodes=[node("a", **dict.fromkeys((*known, HOSTNAME, "pod-template-hash"), "x"))])
    with watching(tmp_path, cluster, lambda: keys) as (watch, _):
        facts = eventually(watch.facts)

    assert facts
    assert {key for labels in facts.label_sets for key, _ in labels} == known


def test_all_labels_of_nodes_with_extended_resources_are_known(tmp_path: Path) -> None:
    labels = {"accelerator": "t4", "cards": "4", HOSTNAME: "a"}
    there = {**node("a", **labels), "status": {"capacity": GPUS}}
    cluster = Collections(nodes=[there, node("b", cards="0")])
    with watching(tmp_path, cluster) as (watch, _):
        facts = eventually(watch.facts)
        assert facts
        assert facts.with_other_labels == {((("accelerator", "t4"),), ("cards=4",))}
        changed = {**node("a", **{**labels, "cards": "8"}), "status": {"capacity": GPUS}}
        cluster.events["nodes"].append(event(changed, 6))
        assert eventually(
            lambda: (
                (found := watch.facts())
                and [others for _, others in found.with_other_labels] == [("cards=8",)]
            )
        )


def test_a_change_of_labels_is_known_at_once(tmp_path: Path) -> None:
    cluster = Collections(nodes=[node("a", accelerator="t4")])
    with watching(tmp_path, cluster) as (watch, _):
        assert eventually(watch.facts)
        cluster.events["nodes"].append(event(node("a", accelerator="h100"), 6))
        assert eventually(lambda: (found := watch.facts()) and found.values_of("accelerator") == {"h100"})


def test_nodes_are_found_by_name_and_by_hostname(tmp_path: Path) -> None:
    t4, h100 = (("accelerator", "t4"),), (("accelerator", "h100"),)
    cluster = Collections(
        nodes=[
            node("a", accelerator="t4", **{HOSTNAME: "a"}),
            node("b.example.com", accelerator="h100", **{HOSTNAME: "b"}),
        ]
    )
    with watching(tmp_path, cluster) as (watch, _):
        index = eventually(lambda: watch.index() is not NO_NODES and watch.index())

    assert index
    references = [
        ("metadata.name", "a"),
        (HOSTNAME, "a"),
        ("metadata.name", "b.example.com"),
        (HOSTNAME, "b"),
    ]
    assert [index.find(each) for each in references] == [{t4}, {t4}, {h100}, {h100}]
    assert index.find((HOSTNAME, "b.example.com")) == frozenset(), "that is no hostname"
    assert index.keys == KEYS.names


def test_a_node_that_is_relabelled_and_one_that_is_deleted(tmp_path: Path) -> None:
    cluster = Collections(nodes=[node("a", accelerator="t4", **{HOSTNAME: "a"}), node("b", accelerator="t4")])
    changed = node("a", accelerator="h100", **{HOSTNAME: "renamed"})
    events = {"MODIFIED": changed, "DELETED": node("b")}
    for revision, (kind, document) in enumerate(events.items(), 6):
        document["metadata"]["resourceVersion"] = str(revision)
        cluster.events["nodes"].append(json.dumps({"type": kind, "object": document}).encode() + b"\n")
    with watching(tmp_path, cluster) as (watch, _):
        assert eventually(lambda: watch.index().find((HOSTNAME, "renamed")) == {(("accelerator", "h100"),)})
        index = watch.index()
        assert eventually(lambda: not index.find(("metadata.name", "b")))

    assert index.find(("metadata.name", "a")) == {(("accelerator", "h100"),)}
    assert index.find((HOSTNAME, "a")) == frozenset()


def test_nothing_is_known_before_the_first_list(tmp_path: Path) -> None:
    with ApiServer(tmp_path, Collections(nodes=[])) as server:
        watch = NodeWatch(server.client(), lambda: KEYS)

        assert watch.facts() is None
        assert watch.index() is NO_NODES


def test_nothing_is_known_of_other_labels_until_nodes_are_read_again(tmp_path: Path) -> None:
    keys = [KEYS]
    with watching(tmp_path, Collections(nodes=[node("a", accelerator="t4", pool="x")]), lambda: keys[0]) as (
        watch,
        _,
    ):
        assert eventually(watch.facts)
        keys[0] = LabelKeys(frozenset({"pool"}))
        facts = eventually(lambda: (found := watch.facts()) and found.keys == keys[0] and found)

    assert facts
    assert facts.label_sets == {(("pool", "x"),)}


def requirements(*found: tuple[str, str, list[str]]) -> dict[str, Any]:
    named = [{"key": key, "operator": operator, "values": values} for key, operator, values in found]
    return {"spec": {"requirements": named}}


@cases(
    ("template", "want"),
    labels_of_its_template=(
        {"metadata": {"labels": {"accelerator": "t4"}}},
        {"accelerator": frozenset({"t4"}), **POOL},
    ),
    requirements=(
        requirements(("accelerator", "In", ["t4", "l4"])),
        {"accelerator": frozenset({"t4", "l4"}), **POOL},
    ),
    any_value=(requirements(("accelerator", "Exists", [])), {"accelerator": None, **POOL}),
    a_label_of_the_provider=(
        requirements((INSTANCE, "In", ["t4"]), ("karpenter.sh/capacity-type", "In", ["spot"])),
        {INSTANCE: frozenset({"t4"}), "karpenter.sh/capacity-type": frozenset({"spot"}), **POOL},
    ),
    a_pool_that_says_nothing_makes_any_machine=({}, POOL),
)
def test_node_pools_of_karpenter(tmp_path: Path, template: dict[str, Any], want: Any) -> None:
    pool = {"metadata": {"name": "gpu"}, "spec": {"template": template}}
    cluster = Collections(nodes=[], nodepools=[pool])
    cluster.answers["/apis/karpenter.sh"] = group("v1", "v1beta1")
    with watching(tmp_path, cluster) as (watch, _):
        facts = eventually(watch.facts)

    assert facts
    assert facts.pools == (NodeGroup(want, OPEN_LABELS, "gpu"),)


def test_startup_taints_of_a_node_pool_of_karpenter_are_read(tmp_path: Path) -> None:
    starting = {"key": "example.com/checks", "value": "running", "effect": "NoSchedule"}
    pool = {"metadata": {"name": "gpu"}, "spec": {"template": {"spec": {"startupTaints": [starting]}}}}
    there = {**node("a", accelerator="t4"), "spec": {"taints": [starting]}, "status": {"capacity": GPUS}}
    cluster = Collections(nodes=[there], nodepools=[pool])
    cluster.answers["/apis/karpenter.sh"] = group("v1", "v1beta1")
    with watching(tmp_path, cluster) as (watch, _):
        facts = eventually(watch.facts)

    assert facts
    assert facts.pools[0].startup_taints == (msgspec.convert(starting, Toleration),)
    assert [state.taints for states in facts.states.values() for state in states] == [()]


def test_pools_that_may_not_be_seen_leave_everything_unsaid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Collections(nodes=[node("a", accelerator="t4")])
    cluster.answers["/apis/karpenter.sh"] = status(403, "nodepools is forbidden", "Forbidden")
    with watching(tmp_path, cluster) as (watch, server):
        eventually(lambda: len([r for r in server.requests if r.path == "/apis/karpenter.sh"]) > 1)
        facts = watch.facts()

    assert facts is None
    reported = {record.getMessage() for record in caplog.records if record.name == "gpu_admission.nodes"}
    assert reported == {"classes without nodes cannot be warned about: node pools: nodepools is forbidden"}
