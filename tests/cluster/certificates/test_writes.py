"""Every write to the API server: what it may meet, where a controller may die, what it leaves alone, what it needs."""

import dataclasses
import datetime as dt
import time
from collections.abc import Callable

import pytest

from certs.check import issued_by
from certs.reconciler import CertificateReconciler, RacedError
from certs.rotation import RotationPhase
from tests.cluster.certificates.damage import bundles_set, other_authority
from tests.cluster.certificates.reconcilers import SECRET_NAME, reconciler
from tests.controlplane import ControlPlane
from tests.controlplane.certificates import (
    NAME,
    REGISTRATION,
    Installation,
    within,
)
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import CONFIGURATIONS
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret
from webhook.cluster.api import ApiClient


def test_a_write_upon_what_has_changed_is_a_race(installation: Installation, quotas: ControlPlane) -> None:
    api = api_client(quotas)
    own = reconciler(api)
    while own.reconcile().written:
        pass
    secret, configurations = ClusterSecret(api, SECRET_NAME.of_authority), ClusterConfigurations(api)
    stored, [mutating, _] = secret.read(), configurations.read()
    assert stored is not None
    installation.ask("leaf")
    bundles_set(installation, other_authority())
    with pytest.raises(RacedError):
        secret.replace(stored, stored.content)
    with pytest.raises(RacedError):
        secret.create(stored.content)
    with pytest.raises(RacedError):
        configurations.publish(dataclasses.replace(mutating, bundles=(b"",)), b"ours")


class Dying:
    """An API client whose process ends at one of its writes, just before it or just after."""

    def __init__(self, api: ApiClient, writes: int, *, after: bool) -> None:
        self._api, self._left, self._after = api, writes, after
        self.get = api.get
        self.post = lambda *given, **options: self._write(lambda: api.post(*given, **options))
        self.patch = lambda *given, **options: self._write(lambda: api.patch(*given, **options))

    def _write(self, call: Callable[[], bytes]) -> bytes:
        if self._left > 0:
            self._left -= 1
            return call()
        if self._after:
            call()
        raise KeyboardInterrupt


def work_on(dying: CertificateReconciler, installation: Installation) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        dying.reconcile()
        assert_accepted(installation)
        time.sleep(0.02)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_another_controller_goes_on_where_one_died(
    installation: Installation, quotas: ControlPlane, after: bool
) -> None:
    """At the new leaf, in the middle; at every other write: tests/certs/test_reconciler.py."""
    api = api_client(quotas)
    survivor = reconciler(api)
    while survivor.reconcile().written:
        pass
    authority = installation.state().authority.certificate
    installation.ask("ca")

    dying = reconciler(Dying(api, 6, after=after))  # type: ignore[arg-type] # the three methods that are called
    with pytest.raises(KeyboardInterrupt):
        work_on(dying, installation)
    assert_accepted(installation)

    def done() -> bool:
        survivor.reconcile()
        assert_accepted(installation)
        state = installation.state()
        return state.phase is RotationPhase.STEADY and state.requested is None and installation.published()

    within(60, done)
    assert installation.state().authority.certificate != authority
    assert len(installation.state().authorities) == 1


def assert_accepted(installation: Installation) -> None:
    leaf = installation.state().leaf
    assert leaf is not None
    now = dt.datetime.now(dt.UTC)
    assert all(issued_by(leaf.certificate_pem(), bundle, now) for bundle in installation.bundles())


def test_other_configurations_and_other_parts_are_left_alone(
    installation: Installation, quotas: ControlPlane
) -> None:
    client = installation.client
    path = f"{REGISTRATION}/{CONFIGURATIONS[0]}s"
    ours = client.get(f"{path}/{NAME}")[1]
    foreign = {"metadata": {"name": "zz-gpu-admission-other"}, "webhooks": ours["webhooks"][:1]}
    assert client.post(path, foreign)[0] == 201
    stored = client.get(f"{path}/zz-gpu-admission-other")[1]
    try:
        own = reconciler(api_client(quotas))
        while own.reconcile().written:
            pass
        assert client.get(f"{path}/zz-gpu-admission-other")[1] == stored
        after = client.get(f"{path}/{NAME}")[1]
        for webhook in after["webhooks"]:
            assert webhook["clientConfig"].pop("caBundle")
        assert after["webhooks"] == ours["webhooks"]
        version = client.get(f"{path}/{NAME}")[1]["metadata"]["resourceVersion"]
        own.reconcile()
        assert client.get(f"{path}/{NAME}")[1]["metadata"]["resourceVersion"] == version, "nothing to do"
        installation.apply()
        assert installation.published(), "kubectl apply of manifests without caBundle leaves it"
    finally:
        client.delete(f"{path}/zz-gpu-admission-other")
