"""What an object keeps for its next pods is used once, whichever controller leads, on a real API server."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.builders import gpu_container
from tests.cluster.controllers import Running, eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.gangs import reference
from tests.cluster.waiting.line import Line, account_api
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.webhook import Webhook
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.loader import load_directory

LABELS = {"labels": {"app": "web"}}
TEMPLATE = {"metadata": LABELS, "spec": {"containers": [gpu_container("1")]}}
SPEC = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE}
Started = Callable[[], Running]


@pytest.fixture
def started(plane: ControlPlane, webhook: Webhook) -> Iterator[Started]:
    """Start controllers that compete for a Lease. The first one leads."""
    with ExitStack() as stack:

        def start() -> Running:
            configuration = load_directory(webhook.config)
            api = account_api(plane)
            return stack.enter_context(Running(plane, lease=CONTROLLER, api=api, configuration=configuration))

        yield start


class Web(Line):
    """A namespace with a ReplicaSet whose pods the test makes, and a quota of one GPU, which its pod `web-0` has."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        document = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": SPEC}
        made = accepted(self.client.post(f"/apis/apps/v1/namespaces/{self.name}/replicasets", document))
        self.owner = reference({**document, **made})
        in_force(self, {"gpus": "1"})
        self.replica("web-0")

    def replica(self, name: str) -> None:
        self.pod(name, metadata={"ownerReferences": [self.owner]})

    def comes_first(self) -> None:
        self.pod("first")
        time.sleep(1.1)  # a creationTimestamp has whole seconds

    @property
    def kept(self) -> int:
        return len(self.ledger_object().reservations.keeps)


def test_what_is_kept_is_used_once_though_the_leader_is_another(
    plane: ControlPlane, started: Started
) -> None:
    one, other = started(), started()
    web = Web(plane)
    web.comes_first()
    web.replica("web-1")
    web.delete_pod("web-0")
    assert web.starts("web-1")
    assert not web.kept
    web.replica("web-2")

    one.stop()
    assert eventually(other.leader.is_leader)
    web.change_quota({"hard": {"gpus": "2"}})
    assert web.starts("first")
    assert web.waits("web-2")


def test_a_controller_that_has_just_started_knows_what_is_kept(plane: ControlPlane, started: Started) -> None:
    one = started()
    web = Web(plane)
    web.change_quota({"queue": {"hold": True}})
    web.comes_first()
    web.delete_pod("web-0")
    assert eventually(lambda: web.kept == 1)
    one.stop()
    web.replica("web-1")
    started()
    web.change_quota({"queue": {"hold": False}})
    assert web.starts("web-1")
    assert web.waits("first")
    assert not web.kept


def test_a_standby_adds_what_the_leader_has_not_written(plane: ControlPlane, started: Started) -> None:
    one, other = started(), started()
    web = Web(plane)
    web.comes_first()
    assert not other.leader.is_leader()
    one.stop()
    web.delete_pod("web-0")
    web.replica("web-1")
    assert web.starts("web-1")
    assert web.waits("first")


def test_who_deletes_pods_before_a_change_of_leader_gains_nothing(
    plane: ControlPlane, started: Started
) -> None:
    one, other = started(), started()
    web = Web(plane)
    web.change_quota({"hard": {"gpus": "3"}})
    assert eventually(lambda: web.ledger_object().hard["gpus"] == 3)
    for name in ("web-1", "web-2"):
        web.replica(name)
    assert web.starts("web-1", "web-2")
    web.comes_first()
    for number in (3, 4, 5):
        web.replica(f"web-{number}")
    time.sleep(1.1)
    web.replica("web-6")
    web.change_quota({"hard": {"gpus": "0"}})
    assert eventually(lambda: not web.ledger_object().hard["gpus"])
    for number in range(3):
        web.delete_pod(f"web-{number}")
    assert eventually(lambda: web.kept == 3)
    web.change_quota({"hard": {"gpus": "3"}})
    assert web.starts("web-3", "web-4", "web-5")
    assert not web.kept

    one.stop()
    assert eventually(other.leader.is_leader)
    web.change_quota({"hard": {"gpus": "4"}})
    assert web.starts("first")
    assert web.waits("web-6")


def test_the_leader_is_killed_while_an_object_keeps_quota(plane: ControlPlane, started: Started) -> None:
    one = started()
    web = Web(plane)
    web.comes_first()
    assert web.is_counted()
    web.delete_pod("web-0")
    assert eventually(lambda: web.kept == 1)
    one.stop()
    started()
    time.sleep(5.0)
    assert web.waits("first")
    web.replica("web-1")
    assert web.starts("web-1")
    assert web.waits("first")
