"""The store on a real API server: the contract, the protocol under arbitrary histories, and its errors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis.stateful import run_state_machine_as_test

from policies.quota.amounts import Vector
from policies.quota.charge_request import LedgerError
from tests.builders import JSON
from tests.cluster.quota.quotas import QUOTAS, gpu_quota
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import INSTALLATION
from tests.webhook.quota.contract import StoreContract, read, reserve
from tests.webhook.quota.ledgers import hard_texts
from tests.webhook.quota.machine import machine, run_settings
from tests.webhook.quota.world import CATALOGUE, NAMESPACE, SECONDS, World, vector
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.documents import quota_path
from webhook.quota.store import LedgerConflict, QuotaGone


class ClusterLedger:
    """The quota of one namespace on the API server."""

    catalogue = CATALOGUE

    def __init__(self, plane: ControlPlane, store: ClusterStore, hard: Vector) -> None:
        self._client = plane.client()
        self.store = store
        self._client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.replace(hard)

    def grant(self, hard: Vector) -> None:
        _, document = self._client.get(quota_path(NAMESPACE))
        document["spec"]["hard"] = written(hard)
        status, answer = self._client.put(quota_path(NAMESPACE), document)
        assert status == 200, answer

    def replace(self, hard: Vector) -> None:
        self._client.delete(quota_path(NAMESPACE))
        status, answer = self._client.post(QUOTAS.format(NAMESPACE), gpu_quota(NAMESPACE, hard=written(hard)))
        assert status == 201, answer


def written(hard: Vector) -> JSON:
    return {key: value for key, value in hard_texts(hard).items() if value is not None}


@pytest.fixture
def make_ledger(
    quotas: ControlPlane, cluster_store: ClusterStore
) -> Iterator[Callable[[Vector], ClusterLedger]]:
    yield lambda hard: ClusterLedger(quotas, cluster_store, hard)
    quotas.client().delete(quota_path(NAMESPACE))


@pytest.fixture
def ledger(make_ledger: Callable[[Vector], ClusterLedger]) -> ClusterLedger:
    made = make_ledger(vector(gpus=4))
    World(made, vector(gpus=4)).initialised()
    return made


class TestClusterStore(StoreContract):
    pass


def test_no_history_breaks_it(make_ledger: Callable[[Vector], ClusterLedger]) -> None:
    run_state_machine_as_test(machine(make_ledger), settings=run_settings(examples=8, steps=30))


def test_a_new_quota_is_not_counted_yet(make_ledger: Callable[[Vector], ClusterLedger]) -> None:
    new = read(make_ledger(vector(gpus=4))).ledger
    assert (new.used, new.uncounted, new.revisions.pods) == (None, ("gpus",), 0)


def test_a_replaced_quota_is_another_ledger(ledger: ClusterLedger) -> None:
    before = read(ledger)
    ledger.replace(vector(gpus=4))
    world = World(ledger, vector(gpus=4))
    assert world.admit(world.request(gpus=1), before) is False
    assert read(ledger).ledger.quota_uid != before.ledger.quota_uid


def test_a_deleted_quota_is_gone(ledger: ClusterLedger, quotas: ControlPlane) -> None:
    before = read(ledger)
    quotas.client().delete(quota_path(NAMESPACE))
    with pytest.raises(
        (QuotaGone, LedgerConflict)
    ):  # until 1.33 the API server calls this a conflict; both are read again
        reserve(ledger, before, "pod1")
    assert ledger.store.read(NAMESPACE, SECONDS) is None


def test_everything_else_in_the_status_survives_a_reservation(
    ledger: ClusterLedger, quotas: ControlPlane
) -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    holders = {"gpus": [{"name": "Job/train", "amount": "8"}]}
    path = f"{quota_path(NAMESPACE)}/status"
    patched, _ = quotas.client().patch(path, {"status": {"conditions": [condition], "holders": holders}})
    assert patched == 200
    before = read(ledger).ledger
    reserve(ledger, read(ledger), "pod1")
    _, document = quotas.client().get(quota_path(NAMESPACE))
    assert document["status"]["conditions"] == [condition]
    assert document["status"]["holders"] == holders
    assert document["status"]["reserved"] == {"gpus": "1"}
    assert document["status"]["reservations"] == "gpus=1 | pod1"
    assert msgspec.structs.replace(read(ledger).ledger, reservations=before.reservations) == before


def test_a_status_that_cannot_be_read_is_an_error_and_not_an_empty_row(
    ledger: ClusterLedger, quotas: ControlPlane
) -> None:
    path = f"{quota_path(NAMESPACE)}/status"
    assert quotas.client().patch(path, {"status": {"used": {"gpus": "one"}}})[0] == 200
    with pytest.raises(
        LedgerError, match="the GPUQuota cannot be read: must be an amount such as 16"
    ) as error:
        read(ledger)
    assert not error.value.transient


def test_who_may_not_read_is_told_so(quotas: ControlPlane) -> None:
    client = ApiClient(load_access(str(quotas.kubeconfig("engineer"))))
    with pytest.raises(LedgerError, match=r"the GPUQuota could not be read: .* is forbidden") as error:
        ClusterStore(client, INSTALLATION).read(NAMESPACE, SECONDS)
    client.close()
    assert not error.value.transient


def test_a_kind_that_is_not_served_does_not_mean_no_quota() -> None:
    """So it looks while an API server starts."""
    with ControlPlane() as bare:
        client = ApiClient(load_access(str(bare.kubeconfig())))
        with pytest.raises(
            LedgerError, match=r"does not know the kind gpuquotas\.gpu-admission\.dev"
        ) as error:
            ClusterStore(client, INSTALLATION).read("default", SECONDS)
        client.close()
    assert error.value.transient


def test_an_api_server_that_is_gone(quotas: ControlPlane, tmp_path: Path) -> None:
    elsewhere = tmp_path / "kubeconfig"
    text = quotas.kubeconfig().read_text()
    elsewhere.write_text(text.replace(quotas.url, "https://127.0.0.1:1"))
    client = ApiClient(load_access(str(elsewhere)))
    with pytest.raises(LedgerError, match="could not be read") as error:
        ClusterStore(client, INSTALLATION).read(NAMESPACE, SECONDS)
    client.close()
    assert error.value.transient
