"""The store on a real API server: the contract, and its errors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policies.quota.amounts import Amounts
from policies.quota.quota_request import LedgerError
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.quota.quotas import QUOTAS, gpu_quota
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import INSTALLATION, api_client
from tests.webhook.quota.contract import StoreContract, read, reserve
from tests.webhook.quota.ledgers import hard_texts
from tests.webhook.quota.quota_and_ledger_object import keeper
from tests.webhook.quota.world import CATALOGUE, NAMESPACE, SECONDS, World, vector
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.documents import quota_path
from webhook.quota.ledger_objects import NO_LEDGER_OBJECT, ledger_objects_path
from webhook.quota.store import LedgerConflict, VersionedLedger


class ClusterLedger:
    """The ledger of one namespace on the API server, which follows its quota at once, as a controller has it do."""

    catalogue = CATALOGUE

    def __init__(self, plane: ControlPlane, store: ClusterStore, hard: Amounts) -> None:
        self._client = plane.client()
        self.store = store
        self.ledger_objects = ObservedLedgers()
        self._keeper = keeper(store, self.ledger_objects)
        self._client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.replace(hard)

    def grant(self, hard: Amounts) -> None:
        _, document = self._client.get(quota_path(NAMESPACE))
        document["spec"]["hard"] = written(hard)
        accepted(self._client.put(quota_path(NAMESPACE), document))
        self.follow()

    def replace(self, hard: Amounts) -> None:
        """Delete the quota with its ledger, and make it again."""
        self.delete()
        self.create(hard)
        self.follow()

    def delete(self) -> None:
        self._client.delete(quota_path(NAMESPACE))
        self.follow()

    def create(self, hard: Amounts) -> None:
        accepted(self._client.post(QUOTAS.format(NAMESPACE), gpu_quota(NAMESPACE, hard=written(hard))))

    def follow(self) -> VersionedLedger | None:
        found = self._keeper.current(NAMESPACE, fresh=True)
        assert not isinstance(found, float)
        return found


def written(hard: Amounts) -> JSON:
    return {key: value for key, value in hard_texts(hard).items() if value is not None}


@pytest.fixture
def cluster_store(quotas: ControlPlane) -> Iterator[ClusterStore]:
    client = api_client(quotas)
    yield ClusterStore(client, INSTALLATION)
    client.close()


@pytest.fixture
def make_ledger(
    quotas: ControlPlane, cluster_store: ClusterStore
) -> Iterator[Callable[[Amounts], ClusterLedger]]:
    made: list[ClusterLedger] = []

    def make(hard: Amounts) -> ClusterLedger:
        made.append(ClusterLedger(quotas, cluster_store, hard))
        return made[-1]

    yield make
    for each in made[:1]:
        each.delete()


@pytest.fixture
def ledger(make_ledger: Callable[[Amounts], ClusterLedger]) -> ClusterLedger:
    made = make_ledger(vector(gpus=4))
    World(made, vector(gpus=4)).initialised()
    return made


class TestClusterStore(StoreContract):
    pass


def test_a_new_quota_is_not_counted_yet(make_ledger: Callable[[Amounts], ClusterLedger]) -> None:
    new = read(make_ledger(vector(gpus=4))).ledger
    assert (new.used, new.uncounted, new.revisions.pods) == (None, ("gpus",), 0)


def test_a_replaced_quota_is_another_ledger(ledger: ClusterLedger) -> None:
    before = read(ledger)
    ledger.replace(vector(gpus=4))
    world = World(ledger, vector(gpus=4))
    assert world.admit(world.request(gpus=1), before) is False
    assert read(ledger).ledger.quota_uid != before.ledger.quota_uid


def test_a_deleted_ledger_object_is_gone(ledger: ClusterLedger) -> None:
    before = read(ledger)
    ledger.delete()
    with pytest.raises(LedgerConflict):  # both are read again
        reserve(ledger, before, "pod1")
    assert ledger.store.read(NAMESPACE, SECONDS) is None


def test_a_quota_without_a_ledger_object_was_never_counted(ledger: ClusterLedger) -> None:
    """So it denies from its creation on, whether or not a controller runs."""
    ledger.delete()
    assert ledger.store.read(NAMESPACE, SECONDS) is None
    ledger.create(vector(gpus=3))
    found = ledger.store.read(NAMESPACE, SECONDS)
    assert found is not None
    assert (found.version, found.ledger.used, found.ledger.hard) == (NO_LEDGER_OBJECT, None, vector(gpus=3))


def test_a_creation_that_comes_late_puts_nothing_in_force(
    ledger: ClusterLedger, cluster_store: ClusterStore
) -> None:
    """A controller that was paused after it had found no ledger; meanwhile the quota was in force, and has gone."""
    ledger.delete()
    ledger.create(vector(gpus=4))
    paused = ledger.store.read(NAMESPACE, SECONDS)
    assert paused is not None
    ledger.follow()
    ledger.delete()

    cluster_store.compare_and_swap(NAMESPACE, paused, paused.ledger, SECONDS)

    assert (read(ledger).ledger.used, len(read(ledger).ledger.reservations)) == (None, 0)
    assert ledger.follow() is None, "a ledger object without a quota is deleted"


def test_a_write_leaves_no_managed_fields(ledger: ClusterLedger, quotas: ControlPlane) -> None:
    reserve(ledger, read(ledger), "pod1")
    _, ledger_object = quotas.client().get(ledger_objects_path(INSTALLATION, NAMESPACE))
    assert "managedFields" not in ledger_object["metadata"]


@cases(
    ("user", "server", "want", "transient"),
    who_may_not_read=(
        "engineer",
        "",
        r"the ledger of the quota could not be read: .* is forbidden",
        False,
    ),
    an_api_server_that_is_gone=("admin", "https://127.0.0.1:1", "could not be read", True),
)
def test_what_cannot_be_read(
    quotas: ControlPlane, tmp_path: Path, *, user: str, server: str, want: str, transient: bool
) -> None:
    text = quotas.kubeconfig(user).read_text()
    (tmp_path / "kubeconfig").write_text(text.replace(quotas.url, server or quotas.url))
    fails_to_read(tmp_path / "kubeconfig", want, transient=transient)


def test_a_kind_that_is_not_served_does_not_mean_no_quota() -> None:
    """So it looks while an API server starts."""
    with ControlPlane() as bare:
        want = r"does not know the kind gpuquotaledgers\.gpu-admission\.dev"
        fails_to_read(bare.kubeconfig(), want, transient=True)


def fails_to_read(kubeconfig: Path, want: str, *, transient: bool) -> None:
    client = ApiClient(load_access(str(kubeconfig)))
    with pytest.raises(LedgerError, match=want) as error:
        ClusterStore(client, INSTALLATION).read(NAMESPACE, SECONDS)
    client.close()
    assert error.value.transient is transient
