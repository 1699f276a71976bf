"""One part away at a time, with the rest of the real thing around it: what goes on, what waits, and that it comes back."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.controllers import Command, eventually, uses
from tests.cluster.outage.samples import pod
from tests.cluster.proxy import Proxy, address, through
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace, install_quota_kind
from tests.controlplane.webhook import Webhook, serving

POLICIES = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec: {rules: {gpu-quota: {}}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: trusting}
spec: {priority: 1, match: {namespaces: [trusting]}, rules: {gpu-quota: {onLedgerError: allow}}}
"""


@pytest.fixture(scope="module")
def own_plane() -> Iterator[ControlPlane]:
    """Serve the API of a plane of which parts are ended and restarted."""
    with ControlPlane() as own:
        install_quota_kind(own.client())
        yield own


@pytest.fixture
def webhook(own_plane: ControlPlane) -> Iterator[Webhook]:
    with serving(own_plane, POLICIES, host=70, arguments=("--kubeconfig", own_plane.kubeconfig())) as running:
        yield running


@pytest.fixture(scope="module")
def controller(own_plane: ControlPlane) -> Command:
    running = Command(own_plane, "controller")
    running.start()
    return running


def team_with_quota(own_plane: ControlPlane, controller: Command, name: str = "") -> Namespace:
    """Return a namespace with room for two GPUs, counted for the first time."""
    team = Namespace(own_plane, name)
    team.quota({"gpus": "2"})
    assert uses(team, 0, seconds=40), controller.log()
    return team


def create(team: Namespace, *, gpu: bool = True) -> tuple[int, Any]:
    return team.client.post(team.path("pods"), pod(gpu=gpu))


def admitted(team: Namespace) -> bool:
    return create(team)[0] == 201


def test_webhook_that_comes_back_is_called_at_once(quotas: ControlPlane) -> None:
    team = Namespace(quotas)
    with serving(quotas, host=70) as webhook:
        webhook.stop()
        status, answer = create(team)
        assert status == 500
        assert "connection refused" in answer["message"]
        webhook.start()
        accepted(create(team))


@pytest.mark.slow
def test_controller_down_holds_the_quota_and_gives_nothing_back(
    own_plane: ControlPlane, webhook: Webhook, controller: Command
) -> None:
    team = team_with_quota(own_plane, controller)
    first = accepted(create(team))
    assert uses(team, 1)

    own_plane.processes.kill(controller.name)
    accepted(create(team))
    status, answer = create(team)
    assert status == 403, answer
    assert "exceeded quota: " in answer["message"]
    team.delete_pod(first["metadata"]["name"])
    assert create(team)[0] == 403  # nobody counts that it has gone
    assert create(team, gpu=False)[0] == 201

    controller.start()
    assert eventually(lambda: admitted(team), seconds=40), (controller.log(), webhook.log())


@pytest.mark.slow
def test_api_server_restarted_finds_everything_at_work(
    own_plane: ControlPlane, webhook: Webhook, controller: Command
) -> None:
    team = team_with_quota(own_plane, controller)
    before = [*webhook.pids(), controller.pid]
    own_plane.kill("kube-apiserver")
    assert webhook.ready()
    assert controller.get("/healthz")[0] == 200
    own_plane.restart("kube-apiserver")
    assert eventually(lambda: admitted(team), seconds=40), webhook.log()
    assert uses(team, 1, seconds=40)
    assert [*webhook.pids(), controller.pid] == before  # nobody had to be restarted


@pytest.mark.slow
def test_etcd_down_stops_the_api_server_and_not_us(
    own_plane: ControlPlane, webhook: Webhook, controller: Command
) -> None:
    team = team_with_quota(own_plane, controller)
    before = webhook.pids()
    outcome: list[int] = []
    own_plane.kill("etcd")
    waiting = threading.Thread(target=lambda: outcome.append(create(team)[0]))
    waiting.start()
    waiting.join(60)
    assert outcome
    assert outcome[0] >= 500  # or what the API server says in its place: no pod is let in
    assert webhook.ready()
    own_plane.restart("etcd")
    assert eventually(lambda: create(team, gpu=False)[0] == 201, seconds=60)
    assert eventually(lambda: admitted(team), seconds=40), webhook.log()
    assert webhook.pids() == before


@pytest.mark.slow
def test_ledger_out_of_reach_is_answered_by_the_policy(
    own_plane: ControlPlane, controller: Command, tmp_path: Path
) -> None:
    strict = team_with_quota(own_plane, controller)
    trusting = team_with_quota(own_plane, controller, "trusting")
    with Proxy(address(own_plane)) as proxy:
        kubeconfig = through(own_plane, proxy, tmp_path)
        with serving(own_plane, POLICIES, host=71, arguments=("--kubeconfig", kubeconfig)) as webhook:
            assert admitted(strict)
            proxy.close()

            status, answer = create(strict)
            assert status == 403, answer
            assert "the quota could not be checked" in answer["message"]
            assert admitted(trusting)
            assert create(strict, gpu=False)[0] == 201
            assert webhook.ready()  # else every replica would leave the Service at once

            proxy.listen()
            assert eventually(lambda: admitted(strict)), webhook.log()
