"""A ledger that follows its GPUQuota, while others write both: what was read before the ledger never gets into it."""

from collections.abc import Callable
from fractions import Fraction

import msgspec
import pytest

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT
from policies.quota.quota_request import LedgerError
from tests.webhook.quota.quota_and_ledger_object import QuotaAndLedger
from webhook.controller.ledger_writer import Granted, LedgerWriter
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.cluster_store import NO_LEDGER_OBJECT
from webhook.quota.ledger_objects import PLURAL
from webhook.quota.store import LedgerConflict, VersionedLedger

TEAM = "team"


def spec(hard: int, generation: int, *, uid: str = "quota", used: int | None = None) -> QuotaLedger:
    """Return what a GPUQuota calls for; with `used`, as a ledger has it."""
    return QuotaLedger(
        quota_uid=uid,
        generation=generation,
        hard={"gpus": Fraction(hard)},
        unclassified_pods=UnclassifiedPods.TOTAL_ONLY,
        used=None if used is None else {"gpus": Fraction(used)},
    )


class FakeStore:
    """A ledger and a GPUQuota on an API server. `meanwhile` is done once, right after the GPUQuota was read."""

    reservations_limit = LIMIT

    def __init__(self, quota: QuotaLedger | None, ledger_object: QuotaLedger | None = None) -> None:
        self.quota = quota
        self.ledger_object: VersionedLedger | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.calls: list[str] = []
        self._number = 0
        if ledger_object is not None:
            self.put(ledger_object)

    def put(self, ledger: QuotaLedger) -> VersionedLedger:
        self._number += 1
        uid = self.ledger_object.ledger.ledger_uid if self.ledger_object else f"row-{self._number}"
        self.ledger_object = VersionedLedger(
            msgspec.structs.replace(ledger, ledger_uid=uid), str(self._number)
        )
        return self.ledger_object

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        del namespace, seconds
        self.calls.append("read")
        if self.ledger_object is not None:
            return self.ledger_object
        return None if self.quota is None else VersionedLedger(spec(1, 1), NO_LEDGER_OBJECT)

    def granted(self, namespace: str, seconds: float) -> QuotaLedger | None:
        del namespace, seconds
        self.calls.append("quota")
        found, meanwhile, self.meanwhile = self.quota, self.meanwhile, lambda: None
        meanwhile()
        return found

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        del namespace, seconds
        self.calls.append("write")
        self._must_be(before.version)
        return self.put(ledger)

    def delete(self, namespace: str, version: str, seconds: float) -> None:
        del namespace, seconds
        self.calls.append("delete")
        self._must_be(version)
        self.ledger_object = None

    def discard(self, namespace: str, seconds: float) -> bool:
        raise AssertionError(f"{namespace} can be read, within {seconds} s")

    def _must_be(self, version: str) -> None:
        if self.ledger_object is None and version != NO_LEDGER_OBJECT:
            raise LedgerConflict
        if self.ledger_object is not None and self.ledger_object.version != version:
            raise LedgerConflict


def keeper(store: FakeStore, *, watched: QuotaLedger | None = None) -> LedgerWriter:
    """Return a keeper that has observed the ledger of the store, and what its watch showed the quota to call for."""
    ledger_objects = ObservedLedgers()
    if store.ledger_object is not None:
        ledger_objects.observe(TEAM, store.ledger_object)
    return LedgerWriter(store, ledger_objects, lambda _: Granted.by(watched) if watched else None)


def hard(ledger_object: VersionedLedger | None) -> int | None:
    return None if ledger_object is None else int(ledger_object.ledger.hard["gpus"])


def used(ledger_object: VersionedLedger | None) -> int | None:
    return (
        None
        if ledger_object is None or ledger_object.ledger.used is None
        else int(ledger_object.ledger.used["gpus"])
    )


def test_a_row_that_has_the_spec_costs_no_call() -> None:
    store = FakeStore(spec(4, 1), spec(4, 1, used=2))

    assert hard(keeper(store, watched=spec(4, 1)).current(TEAM, fresh=False)) == 4
    assert store.calls == []


def test_a_changed_spec_is_in_force_after_one_read_and_one_write() -> None:
    store = FakeStore(spec(8, 2), spec(4, 1, used=2))

    ledger_object = keeper(store, watched=spec(8, 2)).current(TEAM, fresh=False)

    assert (hard(ledger_object), used(ledger_object)) == (8, 2)
    assert store.calls == ["quota", "write"]


@pytest.mark.parametrize(
    "generous", [spec(1000, 1, used=2), msgspec.structs.replace(spec(4, 1, used=2), hard={})]
)
def test_a_row_that_grants_more_than_its_quota_is_taken_back(generous: QuotaLedger) -> None:
    store = FakeStore(spec(4, 1), generous)

    ledger_object = keeper(store, watched=spec(4, 1)).current(TEAM, fresh=False)

    assert (hard(ledger_object), used(ledger_object)) == (4, 2)
    assert store.calls == ["quota", "write"]


def test_a_watch_that_lags_behind_takes_no_spec_back() -> None:
    store = FakeStore(spec(8, 2), spec(8, 2, used=2))

    assert hard(keeper(store, watched=spec(4, 1)).current(TEAM, fresh=False)) == 8
    assert store.calls == ["quota"]


def test_what_somebody_else_wrote_into_a_row_does_not_stay_in_force() -> None:
    store = FakeStore(spec(4, 1), spec(400, 1, used=2))

    ledger_object = keeper(store, watched=spec(4, 1)).current(TEAM, fresh=False)

    assert (hard(ledger_object), used(ledger_object)) == (4, 2)


def test_a_spec_that_was_read_before_another_controller_wrote_is_not_written() -> None:
    store = FakeStore(spec(8, 2), spec(4, 1, used=2))
    paused = keeper(store, watched=spec(8, 2))
    store.meanwhile = lambda: store.put(spec(1, 3, used=2))

    with pytest.raises(LedgerConflict):
        paused.current(TEAM, fresh=False)
    assert hard(store.ledger_object) == 1


def test_the_row_of_a_new_quota_costs_one_write_and_one_read() -> None:
    store = FakeStore(spec(4, 1))

    ledger_object = keeper(store, watched=spec(4, 1)).current(TEAM, fresh=False)

    assert (hard(ledger_object), used(ledger_object)) == (4, None)
    assert store.calls == ["write", "quota"]


def test_a_new_quota_that_has_a_row_already_finds_it() -> None:
    store = FakeStore(spec(4, 1))
    late = keeper(store, watched=spec(4, 1))
    store.put(spec(4, 1, used=2))

    with pytest.raises(LedgerConflict):
        late.current(TEAM, fresh=False)
    assert used(late.current(TEAM, fresh=True)) == 2


def test_the_row_of_a_new_quota_goes_where_the_quota_has_gone_meanwhile() -> None:
    store = FakeStore(None)

    assert keeper(store, watched=spec(4, 1)).current(TEAM, fresh=False) is None
    assert (store.ledger_object, store.calls) == (None, ["write", "quota", "delete"])


def test_a_row_goes_with_its_quota() -> None:
    store = FakeStore(None, spec(4, 1, used=2))

    assert keeper(store).current(TEAM, fresh=False) is None
    assert (store.ledger_object, store.calls) == (None, ["quota", "delete"])


def test_a_row_stays_whose_quota_is_there_again() -> None:
    store = FakeStore(None, spec(4, 1, used=2))
    store.meanwhile = lambda: store.put(spec(6, 1, uid="another", used=2))

    with pytest.raises(LedgerConflict):
        keeper(store).current(TEAM, fresh=False)
    assert hard(store.ledger_object) == 6


def test_a_quota_that_replaces_another_one_finds_its_row() -> None:
    store = FakeStore(spec(6, 1, uid="another"), spec(4, 1, used=2))

    ledger_object = keeper(store, watched=spec(6, 1, uid="another")).current(TEAM, fresh=False)

    assert ledger_object is not None
    assert (ledger_object.ledger.quota_uid, hard(ledger_object), used(ledger_object)) == ("another", 6, 2)


def test_where_there_is_neither_row_nor_quota_nothing_is_made() -> None:
    store = FakeStore(None)

    assert keeper(store).current(TEAM, fresh=False) is None
    assert store.calls == ["read"]


def damaged() -> QuotaAndLedger:
    around = QuotaAndLedger(4)
    around.controller().keep()
    assert around.ledger_object is not None
    around.ledger_object["ledger"] = "{"
    return around


def test_a_row_that_cannot_be_read_goes_with_its_quota_too() -> None:
    around = damaged()
    around.remove()

    assert around.controller().keep() is None
    assert around.ledger_object is None


def test_a_row_that_cannot_be_read_stays_with_its_quota() -> None:
    around = damaged()
    ledger_object = around.ledger_object

    with pytest.raises(LedgerError, match="cannot be read"):
        around.controller().keep()
    assert around.ledger_object is ledger_object


def test_a_row_that_is_corrected_meanwhile_stays() -> None:
    around = damaged()
    around.remove()
    around.before(
        "DELETE",
        PLURAL,
        lambda: around.ledger_object and around.ledger_object["metadata"].update(resourceVersion="99"),
    )

    assert around.controller().keep() is None
    assert around.ledger_object is not None
