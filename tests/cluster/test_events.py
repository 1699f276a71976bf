"""Events on a real API server: counted together by all replicas, found by kubectl, written with `create` and `patch` alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, api_client
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.events import EventRecord, EventWriter, Regarding

AT = datetime(2026, 11, 22, 8, tzinfo=UTC)
WRITER = "engineer"
"""Of the plane's users the one without any right."""


@pytest.fixture(scope="module")
def writing(quotas: ControlPlane) -> Iterator[ControlPlane]:
    """Allow WRITER what the webhook's service account may do with Events, in all namespaces."""
    quotas.kubectl("create", "clusterrole", "event-writer", "--verb=create,patch", "--resource=events")
    quotas.kubectl(
        "create", "clusterrolebinding", "event-writer", "--clusterrole=event-writer", f"--user={WRITER}"
    )
    allowed = ("auth", "can-i", "patch", "events", "--all-namespaces")
    assert eventually(lambda: quotas.kubectl(*allowed, user=WRITER, check=False).returncode == 0)
    yield quotas
    quotas.kubectl("delete", "clusterrolebinding", "event-writer")
    quotas.kubectl("delete", "clusterrole", "event-writer")


@pytest.fixture
def team(quotas: ControlPlane) -> Namespace:
    return Namespace(quotas)


@pytest.fixture
def api(writing: ControlPlane) -> ApiClient:
    return ApiClient(load_access(str(writing.kubeconfig(WRITER))))


def quota_event(
    team: Namespace, uid: str, message: str = "too many", count: int = 1, after: int = 0
) -> EventRecord:
    return EventRecord(
        regarding=Regarding("gpu-admission.dev/v1alpha1", "GPUQuota", "default", uid, team.name),
        reason="QuotaExceeded",
        message=message,
        first=AT + timedelta(seconds=after),
        last=AT + timedelta(seconds=after + 5),
        cause="ReplicaSet/train",
        count=count,
    )


def stored(team: Namespace) -> list[dict[str, object]]:
    fields = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp")
    events = team.client.get(team.path("events"))[1]["items"]
    return [{field: event.get(field) for field in fields} for event in events]


def test_repetitions_raise_the_count_of_one_event(team: Namespace, api: ApiClient) -> None:
    uid = team.quota({"gpus": "1"})
    replicas = [EventWriter(api, "gpu-admission-webhook") for _ in range(2)]
    for number, replica in enumerate((*replicas, replicas[0])):
        replica.write(
            quota_event(team, uid, f"pod train-{number}: too many", count=number + 1, after=60 * number)
        )
    (event,) = stored(team)
    assert (event["type"], event["reason"]) == ("Warning", "QuotaExceeded")
    assert (event["message"], event["count"]) == ("pod train-2: too many", 6)
    times = (event["firstTimestamp"], event["lastTimestamp"])
    assert times == ("2026-11-22T08:00:00Z", "2026-11-22T08:02:05Z")


def test_replicas_that_count_at_the_same_time_lose_nothing(team: Namespace, api: ApiClient) -> None:
    uid = team.quota({"gpus": "1"})

    def write() -> None:
        replica = EventWriter(api, "gpu-admission-webhook")
        for _ in range(5):
            replica.write(quota_event(team, uid))

    with ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(write) for _ in range(2)]:
            running.result()
    assert [event["count"] for event in stored(team)] == [10]


def test_other_owners_and_other_quotas_have_events_of_their_own(team: Namespace, api: ApiClient) -> None:
    writer, first = EventWriter(api, "gpu-admission-webhook"), team.quota({"gpus": "1"})
    writer.write(quota_event(team, first))
    team.delete_quota()
    writer.write(quota_event(team, team.quota({"gpus": "1"})))
    assert [event["count"] for event in stored(team)] == [1, 1]


def test_what_cannot_be_written_is_logged(plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    writer = EventWriter(api_client(plane), "test")
    elsewhere = Regarding("v1", "ConfigMap", "x", "uid", "no-such-namespace")
    writer.write(EventRecord(regarding=elsewhere, reason="Lost", message="", first=AT, last=AT))
    assert caplog.messages == [
        'no-such-namespace: event Lost of ConfigMap x was not written: namespaces "no-such-namespace" not found'
    ]


def test_an_event_that_somebody_else_put_there_is_counted_as_far_as_a_count_goes(
    team: Namespace, api: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    ours = quota_event(team, team.quota({"gpus": "4"}))
    about = {"kind": "Pod", "name": "other", "namespace": team.name}
    theirs = {"metadata": {"name": ours.name}, "involvedObject": about, "count": 2**31 - 1}
    assert team.client.post(team.path("events"), theirs)[0] == 201

    EventWriter(api, "gpu-admission").write(ours)

    (event,) = stored(team)
    assert (event["count"], event["message"]) == (2**31 - 1, "too many")
    assert not caplog.records
