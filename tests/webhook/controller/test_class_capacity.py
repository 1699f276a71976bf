"""When the controller writes how many nodes and free GPUs a class has, and what it counts."""

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from policies.quota.waiting import GATE
from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.resource_slices import DRIVER, node_slices
from tests.webhook.controller.counters import CONFIGURATION, Counter, _raw, slices_of
from webhook.cluster import errors
from webhook.cluster.published_capacity import decode
from webhook.configuration.documents import CLASS
from webhook.controller.class_capacity import CapacityWriter, counted_classes, granted_and_allocatable
from webhook.controller.metrics import Scraped, grant_gauges
from webhook.quota.counted_records import ClaimedDevice
from webhook.quota.documents import decode_quota
from webhook.quota.team_documents import decode_team

A100, T4, GPU = "nvidia-a100-80gb", "nvidia-t4", "nvidia.com/gpu"
NOW = datetime(2026, 11, 26, 22, tzinfo=UTC)
CONFIG_MAP = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-capacity"
OF_T4 = "/apis/gpu-admission.dev/v1alpha1/gpuclasses/nvidia-t4/status"


def node(name: str, gpu_class: str) -> JSON:
    return {
        "metadata": {"name": name, "uid": name, "labels": {"accelerator": gpu_class}},
        "status": {"allocatable": {GPU: "8"}},
    }


def pod(name: str, gpus: int, on: str = "", of: str = "", phase: str = "Pending", **spec: Any) -> JSON:
    selector = {"nodeSelector": {"accelerator": of}} if of else {}
    return {
        "metadata": {"name": name, "uid": name, "namespace": "team"},
        "spec": {"containers": [gpu_container(str(gpus))], "nodeName": on or None, **selector, **spec},
        "status": {"phase": phase},
    }


@cases(
    ("pods", "free", "pending"),
    none=([], 16, 0),
    bound_ones_hold=([pod("a", 3, on="x"), pod("b", 3, on="x"), pod("c", 4, on="y")], 6, 0),
    those_of_one_job=([pod(f"w-{index}", 2, on="x") for index in range(3)], 10, 0),
    others_wait_for_a_node=([pod("a", 3, of=A100), pod("b", 2, of=A100)], 16, 5),
    of_another_class=([pod("a", 3, of=T4)], 16, 0),
    of_no_class=([pod("a", 3)], 16, 0),
    ended=([pod("a", 3, on="x", phase="Succeeded")], 16, 0),
    that_wait_in_line=([pod("a", 3, of=A100, schedulingGates=[{"name": GATE}])], 16, 0),
)
def test_what_is_counted(pods: list[JSON], free: int, pending: int) -> None:
    counter: Any = Counter([node("x", A100), node("y", A100), node("cpu", "")], pods)
    found = counted_classes(counter, slices_of())[A100]
    assert (found.nodes, found.gpus) == (2, Fraction(16))
    assert (found.free, found.pending) == (Fraction(free), Fraction(pending))
    assert found.alike[0].most[GPU].free == max(
        8 - sum(_gpus(each) for each in pods if each["spec"]["nodeName"] == "y"), 0
    )


def _gpus(document: JSON) -> int:
    return int(document["spec"]["containers"][0]["resources"]["limits"][GPU])


def test_cards_in_resource_slices_are_counted_as_claims_leave_them() -> None:
    without_plugin = node("x", A100) | {"status": {"allocatable": {"cpu": "64"}}}
    counter: Any = Counter([without_plugin], [])
    result = {"request": "gpu", "driver": DRIVER, "pool": "x", "device": "gpu-0"}
    claim = {
        "metadata": {"name": "c", "namespace": "team", "uid": "c"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    counter.claims = SimpleNamespace(all=lambda: [counter.reader.read_claim(_raw(claim))])

    found = counted_classes(counter, slices_of(*node_slices("x", cards=2, partitions=False)))[A100]

    assert [found.nodes, found.gpus, found.free, found.blocked] == [1, 2, 1, 0]
    assert {name: (each.allocatable, each.free) for name, each in found.resources.items()} == {
        DRIVER: (Fraction(2), Fraction(1))
    }
    assert found.alike[0].most[DRIVER].free == 1


def test_cards_are_counted_again_only_if_slices_or_allocations_differ() -> None:
    slices = slices_of(*node_slices("x", cards=2, partitions=False))
    one = [(ClaimedDevice("gpu", DRIVER, "x", "gpu-0"),)]

    def free() -> Fraction:
        return sum((card.free for card in slices.cards_by_node(CONFIGURATION, list(one))["x"]), Fraction(0))

    assert free() == 1
    before = slices.cards_by_node(CONFIGURATION, list(one))
    assert slices.cards_by_node(CONFIGURATION, list(one)) is before
    one.append((ClaimedDevice("gpu", DRIVER, "x", "gpu-1"),))
    assert free() == 0
    slices._changed(None, slices._record(_raw(node_slices("y", partitions=False)[0])))
    slices._pools.refresh(CONFIGURATION.resource_mapping)
    assert set(slices.cards_by_node(CONFIGURATION, list(one))) == {"x", "y"}


class Api:
    def __init__(self) -> None:
        self.patches: list[tuple[str, JSON]] = []
        self.fails: dict[str, errors.ApiError] = {}

    def patch(self, path: str, body: bytes, **_: Any) -> bytes:
        if path in self.fails:
            raise self.fails[path]
        self.patches.append((path, json.loads(body)))
        return b""


class World:
    def __init__(self) -> None:
        self.own_counter, self.api = Counter([node("x", A100)], []), Api()
        configuration: Any = SimpleNamespace(documents=[SimpleNamespace(kind=CLASS, name=T4)])
        self.writer = CapacityWriter(
            self.api,  # type: ignore[arg-type]
            "gpu-admission",
            cast(Any, SimpleNamespace(usage=self, configuration=lambda: configuration, slices=slices_of())),
        )

    def wrote(self, seconds: float) -> list[str]:
        """Return the paths that are written so many seconds after the first look."""
        self.api.patches.clear()
        self.writer.write(NOW + timedelta(seconds=seconds))
        return [path for path, _ in self.api.patches]


def test_it_writes_what_changed_and_the_rest_once_a_minute() -> None:
    world = World()
    assert world.wrote(0) == [CONFIG_MAP, OF_T4]
    assert world.wrote(10) == []
    world.own_counter = Counter([node("x", A100), node("y", A100)], [])
    assert world.wrote(20) == [CONFIG_MAP]
    assert world.wrote(60) == [OF_T4]
    assert world.wrote(80) == [CONFIG_MAP]


def test_what_it_writes() -> None:
    world = World()
    world.own_counter = Counter([node("x", A100), node("t", T4)], [pod("a", 3, on="t"), pod("b", 1, of=T4)])
    world.writer.write(NOW)
    (_, config_map), (_, status) = world.api.patches
    shown = {"observed": "2026-11-26T22:00:00Z", "nodes": 1, "gpus": "8", "free": "5", "pending": "1"}
    assert status == {"status": {"capacity": shown}}
    read = decode(json.dumps(config_map).encode())
    assert read is not None
    assert read.observed == NOW
    assert {name: each.free for name, each in read.classes.items()} == {A100: Fraction(8), T4: Fraction(5)}


def test_while_a_watch_is_silent_nothing_is_written() -> None:
    world = World()
    world.own_counter.informers["nodes"].age = 151.0
    assert world.wrote(0) == []


def test_a_class_that_only_a_directory_has() -> None:
    world = World()
    world.api.fails[OF_T4] = errors.NotFound("gpuclasses nvidia-t4 not found")
    assert world.wrote(0) == [CONFIG_MAP]


def test_a_problem_is_logged_and_a_new_leader_writes_everything(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.api.fails[CONFIG_MAP] = errors.Forbidden("may not patch configmaps")
    world.writer.sync()
    assert caplog.messages == ["the capacity of classes cannot be published: may not patch configmaps"]

    world.api.fails.clear()
    for _ in range(2):
        world.writer.sync()
    assert [path for path, _ in world.api.patches] == [CONFIG_MAP, OF_T4]

    world.writer.forget()
    world.writer.sync()
    assert [path for path, _ in world.api.patches] == [CONFIG_MAP, OF_T4] * 2


METADATA = {"uid": "u", "resourceVersion": "1", "generation": 1}
NAMED = {"namespaces": {"names": ["vision-*"]}}


@cases(
    ("teams", "quotas", "want"),
    none=([], {}, {}),
    quotas_alone_may_grant_more_than_there_is=([], {"other": 100}, {}),
    a_team=([{"gpus": 64}], {}, {"gpus": (64, 16)}),
    a_quota_outside_teams=([{"gpus": 8}], {"other": 8}, {"gpus": (16, 16)}),
    a_quota_in_a_team_is_a_part_of_it=([{"gpus": 8}], {"vision-cv": 8}, {"gpus": (8, 16)}),
    a_class_and_its_family=(
        [{"classes": {A100: 4}}, {"classes": {"nvidia-a100": 8, T4: 1}}],
        {},
        {f"classes/{A100}": (4, 8), "classes/nvidia-a100": (12, 8), f"classes/{T4}": (1, 8)},
    ),
    one_that_cannot_be_read=([{"gpus": "many"}, {"gpus": 1}], {}, {"gpus": (1, 16)}),
)
def test_what_is_granted_beside_what_there_is(
    teams: list[JSON], quotas: dict[str, int], want: dict[str, tuple[int, int]]
) -> None:
    counter: Any = Counter([node("x", A100), node("y", T4)], [])
    records = [
        decode_team(
            _raw({"metadata": {**METADATA, "name": f"team-{number}"}, "spec": {**NAMED, "hard": hard}})
        )
        for number, hard in enumerate(teams)
    ]
    membership: Any = SimpleNamespace(
        records=dict(enumerate(records)), team_of=lambda name: "team-0" if name.startswith("vision-") else ""
    )
    granting: Any = SimpleNamespace(
        all=lambda: [_quota(namespace, gpus) for namespace, gpus in quotas.items()]
    )
    usage_cache: Any = SimpleNamespace(own_counter=counter)
    informers: Any = SimpleNamespace(
        usage=usage_cache, membership=membership, quotas=granting, slices=slices_of()
    )
    registry = CollectorRegistry()
    registry.register(Scraped(lambda: grant_gauges(granted_and_allocatable(informers))))

    for position, name in enumerate(("granted", "node")):
        shown = {
            key: registry.get_sample_value(f"gpu_admission_{name}_gpus", {"dimension": key}) for key in want
        }
        assert shown == {key: amounts[position] for key, amounts in want.items()}
    assert len([each for family in registry.collect() for each in family.samples]) == 2 * len(want)


def _quota(namespace: str, gpus: int) -> Any:
    metadata = {**METADATA, "name": "default", "namespace": namespace}
    return decode_quota(_raw({"metadata": metadata, "spec": {"hard": {"gpus": gpus}}}))
