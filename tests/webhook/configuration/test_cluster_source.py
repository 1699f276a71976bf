"""Which documents of a cluster are in force, and the source that follows them, on a scripted API server."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.gpus.device_classes import ClusterDevices
from policies.gpus.device_slices import type_key
from policies.gpus.device_types import DeviceType, DeviceTypes
from policies.pods.pod import Toleration
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.webhook.cluster.apiserver import ApiServer, Collections, group, status
from webhook.cluster import informer
from webhook.cluster.informer import WatchTimings
from webhook.cluster.objects import NAMESPACE
from webhook.configuration import cluster_source, dynamic_resources
from webhook.configuration.cluster_source import ClusterSource, DocumentStatus, Record, documents_in_force
from webhook.configuration.documents import Document, is_valid_pause
from webhook.configuration.dynamic_resources import ClusterDevicesWatch
from webhook.configuration.loader import load_directory
from webhook.configuration.source import ConfigurationState, readiness_details

QUICK = WatchTimings(watch=60.0, pause_least=0.02, pause_most=0.1)
POLICY = {
    "metadata": {"name": "default", "uid": "1", "generation": 1, "resourceVersion": "4"},
    "spec": {"rules": {"gpu-requests": {"maxPerPod": 1}}},
}


@pytest.fixture
def cluster() -> Collections:
    cluster = Collections(gpupolicies=[], gpuclasses=[], gpuresourcemappings=[], deviceclasses=[])
    cluster.answers["/apis/resource.k8s.io"] = group("v1")
    return cluster


@pytest.fixture
def server(tmp_path: Path, cluster: Collections) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, cluster) as server:
        yield server
        cluster.ended.set()


@pytest.fixture
def states() -> list[ConfigurationState]:
    return []


@pytest.fixture
def source(
    server: ApiServer, states: list[ConfigurationState], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterSource]:
    monkeypatch.setattr(informer, "TIMINGS", QUICK)
    source = ClusterSource(server.client(), states.append, NAMESPACE)
    yield source
    source.stop()


def test_documents_are_in_force_once_all_kinds_were_listed(
    cluster: Collections, source: ClusterSource, states: list[ConfigurationState]
) -> None:
    cluster.objects["gpupolicies"] = [POLICY]
    waited = source.must_wait

    source.start()
    source.wait()

    assert waited
    assert [policy.name for policy in source.configuration.policies.policies] == ["default"]
    assert not source.must_wait
    assert states == [source.state]
    assert readiness_details(source)["read"] is True


FAST = {
    "metadata": {"name": "fast", "uid": "2", "resourceVersion": "4"},
    "spec": {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        "extendedResourceName": "example.com/fastgpu",
    },
}


def test_device_classes_are_part_of_what_is_in_force(cluster: Collections, source: ClusterSource) -> None:
    cluster.objects["deviceclasses"] = [FAST]
    without = source.configuration

    source.start()
    source.wait()

    mapping = source.configuration.resource_mapping
    assert mapping.resource("example.com/fastgpu") is not None
    assert mapping.digest != without.resource_mapping.digest
    assert source.configuration.version != without.version


def test_taints_of_devices_are_of_no_version(
    source: ClusterSource, states: list[ConfigurationState], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = DeviceType("gpu.nvidia.com")
    devices = [ClusterDevices((), DeviceTypes((kind,)))]
    monkeypatch.setattr(ClusterDevicesWatch, "all", lambda _watch: devices[0])
    source.start()
    source.wait()
    state = source.state

    devices[0] = msgspec.structs.replace(devices[0], taints={type_key(kind): (Toleration(key="sick"),)})
    source._wake.set()

    assert eventually(lambda: source.configuration.devices == devices[0])
    assert (source.state, states) == (state, [state])


def test_a_cluster_without_device_classes_has_the_digest_of_the_documents(
    cluster: Collections, source: ClusterSource
) -> None:
    cluster.answers.clear()
    without = source.configuration.resource_mapping.digest

    source.start()
    source.wait()

    assert source.state.read
    assert source.configuration.resource_mapping.digest == without


def test_documents_are_in_force_before_built_in_ones_would_be_where_device_classes_may_not_be_read(
    cluster: Collections, source: ClusterSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.objects["deviceclasses"] = status(403, "deviceclasses is forbidden")
    cluster.objects["gpupolicies"] = [POLICY]
    clock = [monotonic()]
    for module in (cluster_source, dynamic_resources):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    source.start()
    assert eventually(lambda: bool(source.documents))

    clock[0] += 9.0

    assert eventually(lambda: source.state.read), "only as late as the built-in ones"
    assert [policy.name for policy in source.configuration.policies.policies] == ["default"]


def test_kinds_that_are_not_installed_are_not_waited_for(cluster: Collections, source: ClusterSource) -> None:
    del cluster.objects["gpuclasses"]

    source.start()
    source.wait()

    assert not source.state.read
    assert readiness_details(source)["from"] == "cluster"
    assert source.configuration.policies.policies == ()
    cluster.objects["gpuclasses"] = []
    assert eventually(lambda: source.state.read)


def test_an_api_server_that_is_away_is_waited_for_but_not_forever(
    server: ApiServer,
    cluster: Collections,
    source: ClusterSource,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cluster_source, "START_SECONDS", 2.0)
    server.answer = lambda _: status(503, "starting")

    source.start()
    waited = source.must_wait
    source.wait()

    assert waited
    assert not source.must_wait
    assert eventually(
        lambda: "documents could not be read yet: the built-in ones are in force" in caplog.messages
    )
    server.answer = cluster
    assert eventually(lambda: source.state.read)


GOOD = {"rules": {"gpu-requests": {"maxPerPod": 1}}}
BAD = {"rules": {"gpu-requests": {"maxPerPod": -1}}}
UNTIL = "2027-01-31T18:00:00Z"


def policy(name: str, spec: dict[str, Any]) -> Document:
    return Document("GPUPolicy", name, spec)


def record(document: Document, accepted: dict[str, Any] | None = None) -> Record:
    return Record(document.title, 1, document, DocumentStatus(accepted=accepted))


def in_force(records: list[Record], last_good: tuple[Document, ...] | None = None) -> dict[str, Any]:
    return {document.name: document.spec for document in documents_in_force(records, last_good).documents}


def test_what_is_stored_holds_if_all_of_it_is_good() -> None:
    chosen = documents_in_force([record(policy("b", GOOD)), record(policy("a", {}))], (policy("old", {}),))

    assert [each.name for each in chosen.configuration.policies.policies] == ["a", "b"]
    assert chosen.problems == ()


def test_nothing_stored_is_the_built_in_configuration() -> None:
    assert documents_in_force([], None).configuration.version == load_directory(None).version


def test_one_bad_document_holds_everything_back() -> None:
    last_good = (policy("a", GOOD), policy("gone", {}))

    chosen = documents_in_force([record(policy("a", BAD)), record(policy("new", {}))], last_good)

    assert chosen.documents == last_good
    assert [str(problem) for problem in chosen.problems] == [
        "GPUPolicy/a spec.rules.gpu-requests.maxPerPod: must be 0 or more, or null for no limit, not -1"
    ]


@cases(
    ("records", "want"),
    what_the_controller_wrote_down=(
        [record(policy("a", BAD), accepted=GOOD), record(policy("b", {}), accepted={})],
        {"a": GOOD, "b": {}},
    ),
    not_what_was_never_in_force=(
        [record(policy("a", BAD), accepted=GOOD), record(policy("new", {}))],
        {"a": GOOD},
    ),
    without_a_controller_what_is_good=([record(policy("a", BAD)), record(policy("b", GOOD))], {"b": GOOD}),
    what_was_written_down_has_to_be_good_too=(
        [record(policy("a", BAD), accepted=BAD), record(policy("b", {}), accepted=GOOD)],
        {"b": GOOD},
    ),
    what_hangs_on_a_bad_one_goes_with_it=(
        [
            record(policy("a", {"rules": {"gpu-class": {"default": "card"}}})),
            record(Document("GPUClass", "card", {"memoryGiB": 0})),
        ],
        {},
    ),
)
def test_a_process_that_has_just_started(records: list[Record], want: dict[str, Any]) -> None:
    assert in_force(records) == want


def test_old_and_new_processes_come_to_the_same_version() -> None:
    records = [record(policy("a", BAD), accepted=GOOD), record(policy("b", GOOD), accepted={})]

    started = documents_in_force(records, None)
    running = documents_in_force(records, (policy("b", {}), policy("a", GOOD)))

    assert started.configuration.version == running.configuration.version


@cases(
    ("stored", "want"),
    paused=({**BAD, "pausedUntil": UNTIL}, {**GOOD, "pausedUntil": UNTIL}),
    resumed=(BAD, GOOD),
    no_moment=({**BAD, "pausedUntil": "soon"}, {**GOOD, "pausedUntil": "2026-01-01T00:00:00Z"}),
)  # fmt: skip
def test_a_pause_holds_whatever_else_is_wrong(stored: dict[str, Any], want: dict[str, Any]) -> None:
    last_good = (policy("a", {**GOOD, "pausedUntil": "2026-01-01T00:00:00Z"}),)

    assert in_force([record(policy("a", stored))], last_good) == {"a": want}


@cases(
    ("value", "want"),
    none=(None, True),
    moment=(UNTIL, True),
    no_time_zone=("2027-01-31T18:00:00", False),
    number=(5, False),
)
def test_what_a_pause_may_be(value: Any, want: bool) -> None:
    assert is_valid_pause(value) is want


def test_the_version_does_not_depend_on_the_order() -> None:
    first, second = record(policy("a", {})), record(Document("GPUClass", "card", {"memoryGiB": 8}))

    versions = {
        documents_in_force(records, None).configuration.version
        for records in ([first, second], [second, first])
    }
    changed = msgspec.structs.replace(first, document=policy("a", GOOD))

    assert len(versions) == 1
    assert documents_in_force([changed, second], None).configuration.version not in versions
