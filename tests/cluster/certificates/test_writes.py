"""Every write to the API server: what it may meet, and what it leaves alone.

Where a controller may die: tests/certs/test_reconciler.py.
"""

import dataclasses

import pytest

from certs.reconciler import RacedError
from tests.cluster.certificates.damage import SECRET_NAME, other_authority, reconciler
from tests.controlplane import ControlPlane
from tests.controlplane.certificates import (
    NAME,
    REGISTRATION,
    Installation,
)
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import CONFIGURATIONS, set_bundles
from webhook.certificates.objects import ClusterConfigurations, ClusterSecret


def test_a_write_upon_what_has_changed_is_a_race(installation: Installation, quotas: ControlPlane) -> None:
    api = api_client(quotas)
    own = reconciler(api)
    while own.reconcile().written:
        pass
    secret, configurations = ClusterSecret(api, SECRET_NAME.ca_secret), ClusterConfigurations(api)
    stored, [mutating, _] = secret.read(), configurations.read()
    assert stored is not None
    installation.ask("leaf")
    set_bundles(installation.client, other_authority())
    with pytest.raises(RacedError):
        secret.replace(stored, stored.content)
    with pytest.raises(RacedError):
        secret.create(stored.content)
    with pytest.raises(RacedError):
        configurations.publish(dataclasses.replace(mutating, bundles=(b"",)), b"ours")


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
