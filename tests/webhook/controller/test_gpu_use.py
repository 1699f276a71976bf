"""What the controller makes of one query: idle holders, since when, Events and metrics; and what it says without an answer."""

import logging
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from policies.quota.amounts import Amounts
from tests.builders import gpu_container, pod
from tests.cases import cases
from webhook.cluster.events import EventRecord
from webhook.cluster.objects import timestamp
from webhook.configuration.loader import load_directory
from webhook.controller import gpu_use
from webhook.controller.gpu_use import GPUUse, Measuring
from webhook.prometheus.client import Prometheus, PrometheusError, Sample
from webhook.quota.counted_records import CountedRecord, RecordReader
from webhook.quota.documents import IdleGPUs, IdleHolder

CATALOGUES_CONFIG_MAP = load_directory(None)
READER = RecordReader(CATALOGUES_CONFIG_MAP)
NOW = datetime(2026, 11, 26, 18, tzinfo=UTC)
HOUR = timedelta(hours=1)
AWAY = "Prometheus at http://prometheus did not answer: it is away"


class Scripted(Prometheus):
    """Answers with the use of GPUs by pod; an exception is raised."""

    def __init__(self) -> None:
        super().__init__("http://prometheus")
        self.use: dict[str, list[float]] | PrometheusError = {}
        self.asked: list[str] = []

    def query(self, promql: str, at: datetime | None = None) -> list[Sample]:
        assert at is None
        self.asked.append(promql)
        if isinstance(self.use, PrometheusError):
            raise self.use
        return [
            Sample({"namespace": "team", "pod": name, "gpu": f"GPU-{number}"}, use)
            for name, gpus in self.use.items()
            for number, use in enumerate(gpus)
        ]


class World:
    """Pods of one namespace, and what was measured of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prometheus = Scripted()
        self.pods: dict[str, tuple[CountedRecord, Amounts]] = {}
        self.status: IdleGPUs | None = None
        self.events: list[EventRecord] = []
        self.recounted: list[str] = []
        self.reshown, self.failures, self.clock = 0, 0, 1000.0
        monkeypatch.setattr(gpu_use, "monotonic", lambda: self.clock)
        usage_cache: Any = SimpleNamespace(
            own_counter=SimpleNamespace(
                catalogue=CATALOGUES_CONFIG_MAP, demands=lambda: list(self.pods.values())
            )
        )
        quotas: Any = SimpleNamespace(
            first=lambda _namespace: SimpleNamespace(status=SimpleNamespace(idle=self.status))
        )
        events: Any = SimpleNamespace(put=self.events.append)
        metrics: Any = SimpleNamespace(use_failures=SimpleNamespace(inc=lambda: self._count("failures")))
        self.use = GPUUse(
            Measuring(prometheus=self.prometheus),
            usage_cache,
            quotas,
            events=events,
            metrics=metrics,
        )
        self.use.holders_changed.subscribe(self.recounted.append)
        self.use.outage_changed.subscribe(lambda: self._count("reshown"))

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def add(
        self, name: str, *, owner: str = "", gpus: int = 1, age: timedelta = 10 * HOUR, node: str = "a"
    ) -> None:
        document = pod(gpu_container(str(gpus)), nodeName=node)
        document["metadata"] |= {
            "name": name,
            "uid": name,
            "namespace": "team",
            "creationTimestamp": timestamp(NOW - age),
        }
        if owner:
            document["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
        record = READER.read_pod(msgspec.Raw(msgspec.json.encode(document)))
        assert record is not None
        self.pods[name] = record, {"gpus": Fraction(gpus), "resources/nvidia.com/gpu": Fraction(gpus)}

    def measure(self, at: datetime = NOW, **largest: list[float]) -> dict[str, str]:
        """Measure once, five minutes later than before. Return since when holders are idle."""
        self.clock += 300
        self.prometheus.use = {name.replace("_", "-"): each for name, each in largest.items()}
        self.use.measure(at)
        return self.use.idle("team")

    def away(self, at: datetime = NOW) -> None:
        self.clock += 300
        self.prometheus.use = PrometheusError(AWAY)
        self.use.measure(at)

    def metrics(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.name.removeprefix("gpu_admission_"), *sample.labels.values()): sample.value
            for family in self.use.collect()
            for sample in family.samples
        }


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


SINCE = "2026-11-26T16:00:00Z"


def test_one_query_asks_for_all_gpus_with_enough_samples(world: World) -> None:
    world.measure()

    window = 'gpu_admission:gpu_use:ratio{job=""}[7200s]'
    assert world.prometheus.asked == [
        f"max_over_time({window}) and count_over_time({window}) >= 108",
    ]


def test_a_holder_is_idle_where_all_gpus_of_all_its_pods_are(world: World) -> None:
    for name, owner, count in (
        ("a-0", "a", 2),
        ("a-1", "a", 2),
        ("b-0", "b", 1),
        ("b-1", "b", 1),
        ("c", "", 1),
    ):
        world.add(name, owner=owner, gpus=count)

    assert world.measure(a_0=[0.0, 0.01], a_1=[0.0, 0.0], b_0=[0.0], b_1=[0.6], c=[0.049]) == {
        "Job/a": SINCE,
        "Pod/c": SINCE,
    }
    assert world.use.idle_status("team") == IdleGPUs(
        gpus=Fraction(5),
        holders=(IdleHolder("Job/a", Fraction(4), SINCE), IdleHolder("Pod/c", Fraction(1), SINCE)),
        observed="2026-11-26T18:00:00Z",
    )
    assert world.use.idle_status("other") == IdleGPUs(gpus=Fraction(0))
    assert world.metrics() == {
        ("idle_gpus", "team"): 5.0,
        ("use_pods", "idle"): 4.0,
        ("use_pods", "busy"): 1.0,
        ("use_pods", "unknown"): 0.0,
        ("use_age_seconds",): 0.0,
    }
    assert world.recounted == ["team"]


@cases(
    ("age", "node", "measured"),
    younger_than_the_window=(2 * HOUR - timedelta(seconds=1), "a", [0.0]),
    on_no_node=(10 * HOUR, "", [0.0]),
    not_measured=(10 * HOUR, "a", []),
    of_a_former_pod_with_more_gpus=(10 * HOUR, "a", [0.0, 0.0]),
)
def test_what_is_not_known_is_not_idle(
    age: timedelta, node: str, measured: list[float], world: World
) -> None:
    world.add("other")
    world.add("one", age=age, node=node)

    assert world.measure(other=[0.0], one=measured) == {"Pod/other": SINCE}
    assert world.metrics()["use_pods", "unknown"] == 1


def test_idle_begins_no_earlier_than_the_pod_and_lasts_until_it_works(world: World) -> None:
    world.add("one", age=2 * HOUR)
    world.add("old")

    assert world.measure(one=[0.0], old=[0.0]) == {"Pod/one": SINCE, "Pod/old": SINCE}
    assert world.measure(NOW + 4 * HOUR, one=[0.0], old=[0.9]) == {"Pod/one": "2026-11-26T20:00:00Z"}
    assert world.measure(NOW + 5 * HOUR, one=[0.0], old=[0.0]) == {
        "Pod/one": "2026-11-26T20:00:00Z",
        "Pod/old": "2026-11-26T21:00:00Z",
    }


def test_a_pause_longer_than_the_window_may_hide_work(world: World) -> None:
    world.add("one")
    world.measure(one=[0.0])

    assert world.measure(NOW + 2 * HOUR, one=[0.0]) == {"Pod/one": SINCE}
    assert world.measure(NOW + 5 * HOUR, one=[0.0]) == {"Pod/one": "2026-11-26T21:00:00Z"}


@cases(
    ("observed", "want"),
    lately=("2026-11-26T17:00:00Z", "2026-11-26T11:00:00Z"),
    too_long_ago=("2026-11-26T15:00:00Z", SINCE),
)
def test_a_new_leader_goes_on_from_what_the_status_says(observed: str, want: str, world: World) -> None:
    world.add("one", age=100 * HOUR)
    world.add("two")
    holders = tuple(
        IdleHolder(name, Fraction(1), "2026-11-26T11:00:00Z") for name in ("Pod/one", "Pod/three")
    )
    world.status = IdleGPUs(gpus=Fraction(2), holders=holders, observed=observed)
    assert world.use.idle_status("team") is world.status  # until the first round

    assert world.measure(one=[0.0], two=[0.0]) == {"Pod/one": want, "Pod/two": SINCE}


def test_a_status_changes_only_when_holders_do_and_twice_in_a_window(world: World) -> None:
    world.add("one")
    shown = []
    for minutes in range(0, 120, 5):
        world.measure(NOW + timedelta(minutes=minutes), one=[0.0])
        shown.append(world.use.idle_status("team").observed)

    assert sorted(set(shown)) == ["2026-11-26T18:00:00Z", "2026-11-26T19:00:00Z"]
    assert world.recounted == ["team"]


def test_a_result_is_forgotten_after_two_rounds_without_prometheus(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpu_admission.controller")
    world.add("one")
    assert world.use.idle_status("team") == IdleGPUs(measured="nothing was measured yet")
    world.measure(one=[0.0])
    reshown = world.reshown

    world.away()
    world.away()
    assert world.use.idle("team") == {"Pod/one": SINCE}
    assert world.use.idle_status("team").measured == ""
    world.away()
    assert world.use.idle("team") == {}
    assert world.use.idle_status("team") == IdleGPUs(measured=AWAY)
    assert world.recounted == ["team", "team"]
    assert world.reshown == reshown + 2  # the problem, and that nothing is known any more
    assert world.failures == 3
    assert ("use_pods", "idle") not in world.metrics()
    assert world.metrics()["use_age_seconds",] == 900

    assert world.measure(one=[0.0]) == {"Pod/one": SINCE}
    assert caplog.messages == ["the use of GPUs is measured", AWAY, "the use of GPUs is measured"]


def test_a_prometheus_without_our_series_measures_nothing(world: World) -> None:
    world.add("one")
    world.measure()

    assert world.use.idle_status("team") == IdleGPUs(
        measured="Prometheus has no series gpu_admission:gpu_use:ratio that is old enough: are the recording rules and the "
        "exporters there?"
    )


def test_an_event_once_a_day_on_each_idle_pod(world: World) -> None:
    world.add("one", gpus=2)
    for hours in range(0, 50, 1):
        world.measure(NOW + hours * HOUR, one=[0.0, 0.0])

    assert [each.message for each in world.events] == [
        f"has been idle for {how_long}: 2 GPUs, each under 5 % busy; delete the pod, or scale its owner down, if it is no longer "
        "needed"
        for how_long in ("2 h", "26 h", "2 d")
    ]
    (event,) = {
        (each.regarding.kind, each.regarding.name, each.regarding.namespace, each.reason)
        for each in world.events
    }
    assert event == ("Pod", "one", "team", "GPUsIdle")


def test_many_events_come_in_portions_the_largest_pods_first(world: World) -> None:
    for number in range(150):
        world.add(f"p-{number}", gpus=2 if number == 149 else 1)
    largest = {f"p_{number}": [0.0] * (2 if number == 149 else 1) for number in range(150)}
    world.measure(NOW, **largest)
    assert (len(world.events), world.events[0].regarding.name) == (100, "p-149")

    world.measure(NOW, **largest)
    world.measure(NOW, **largest)
    assert len({each.regarding.name for each in world.events}) == len(world.events) == 150


def test_a_follower_forgets_what_it_knew(world: World) -> None:
    world.add("one")
    world.measure(one=[0.0])
    assert world.use.idle("team")

    world.use.forget()

    assert not world.use.idle("team")
    assert world.use.idle_status("team") == IdleGPUs(measured="nothing was measured yet")
