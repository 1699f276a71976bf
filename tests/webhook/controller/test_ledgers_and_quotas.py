"""A ledger follows its GPUQuota while others write both. A spec that was read before the ledger is never written."""

from collections.abc import Callable
from fractions import Fraction
from typing import cast

import msgspec
import pytest

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT
from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.quota.quota_and_ledger_object import QuotaAndLedger, keeper
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import QuotaReconciler
from webhook.quota.cluster_store import NO_LEDGER_OBJECT, ClusterStore
from webhook.quota.ledger_objects import PLURAL
from webhook.quota.store import LedgerConflict, VersionedLedger

TEAM = "team"


def spec(hard: int, generation: int, *, uid: str = "quota", used: int | None = None) -> QuotaLedger:
    """Return the ledger that a GPUQuota calls for, with `used` a counted one."""
    counted = None if used is None else {"gpus": Fraction(used)}
    return quota_ledger(quota_uid=uid, generation=generation, hard={"gpus": Fraction(hard)}, used=counted)


class FakeStore:
    """A ledger and a GPUQuota on an API server. `meanwhile` is called once, right after the GPUQuota was read."""

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
        uid = self.ledger_object.ledger.ledger_uid if self.ledger_object else f"ledger-{self._number}"
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


def keeping(store: FakeStore, *, watched: QuotaLedger | None = None) -> QuotaReconciler:
    """Return a reconciler that has observed the ledger of the store, and whose watch showed the quota as `watched`."""
    ledger_objects = ObservedLedgers()
    if store.ledger_object is not None:
        ledger_objects.observe(TEAM, store.ledger_object)
    return keeper(cast(ClusterStore, store), ledger_objects, watched)


def shown(ledger_object: VersionedLedger | None) -> tuple[int, int | None] | None:
    if ledger_object is None:
        return None
    ledger = ledger_object.ledger
    return int(ledger.hard["gpus"]), None if ledger.used is None else int(ledger.used["gpus"])


@cases(
    ("quota", "before", "watched", "want", "calls"),
    unchanged=(spec(4, 1), spec(4, 1, used=2), spec(4, 1), (4, 2), []),
    changed=(spec(8, 2), spec(4, 1, used=2), spec(8, 2), (8, 2), ["quota", "write"]),
    somebody_raised_the_ledger=(spec(4, 1), spec(1000, 1, used=2), spec(4, 1), (4, 2), ["quota", "write"]),
    somebody_emptied_the_ledger=(
        spec(4, 1),
        msgspec.structs.replace(spec(4, 1, used=2), hard={}),
        spec(4, 1),
        (4, 2),
        ["quota", "write"],
    ),
    the_watch_lags_behind=(spec(8, 2), spec(8, 2, used=2), spec(4, 1), (8, 2), ["quota"]),
    a_new_quota=(spec(4, 1), None, spec(4, 1), (4, None), ["write", "quota"]),
    another_quota_in_its_place=(
        spec(6, 1, uid="another"),
        spec(4, 1, used=2),
        spec(6, 1, uid="another"),
        (6, 2),
        ["quota", "write"],
    ),
    a_new_quota_gone_meanwhile=(None, None, spec(4, 1), None, ["write", "quota", "delete"]),
    a_deleted_quota=(None, spec(4, 1, used=2), None, None, ["quota", "delete"]),
    neither_ledger_nor_quota=(None, None, None, None, ["read"]),
)
def test_the_ledger_follows_its_quota(
    quota: QuotaLedger | None,
    before: QuotaLedger | None,
    watched: QuotaLedger | None,
    want: tuple[int, int | None] | None,
    calls: list[str],
) -> None:
    """`want` is hard and used of the ledger."""
    store = FakeStore(quota, before)

    found = keeping(store, watched=watched).current(TEAM, fresh=False)

    assert shown(found) == want
    assert found is None or found.ledger.quota_uid == (quota.quota_uid if quota else "")
    assert shown(store.ledger_object) == want
    assert store.calls == calls


@cases(
    ("quota", "watched", "written"),
    a_newer_spec=(spec(8, 2), spec(8, 2), spec(1, 3, used=2)),
    a_quota_that_is_there_again=(None, None, spec(6, 1, uid="another", used=2)),
)
def test_a_write_of_another_controller_after_the_quota_was_read_stays(
    quota: QuotaLedger | None, watched: QuotaLedger | None, written: QuotaLedger
) -> None:
    store = FakeStore(quota, spec(4, 1, used=2))
    paused = keeping(store, watched=watched)
    store.meanwhile = lambda: store.put(written)

    with pytest.raises(LedgerConflict):
        paused.current(TEAM, fresh=False)
    assert shown(store.ledger_object) == shown(VersionedLedger(written, ""))


def test_a_new_quota_that_has_a_ledger_already_finds_it() -> None:
    store = FakeStore(spec(4, 1))
    late = keeping(store, watched=spec(4, 1))
    store.put(spec(4, 1, used=2))

    with pytest.raises(LedgerConflict):
        late.current(TEAM, fresh=False)
    assert shown(late.current(TEAM, fresh=True)) == (4, 2)


def damaged() -> QuotaAndLedger:
    around = QuotaAndLedger(4)
    around.controller().keep()
    assert around.ledger_object is not None
    around.ledger_object["ledger"] = "{"
    return around


def test_a_ledger_that_cannot_be_read_goes_with_its_quota_too() -> None:
    around = damaged()
    around.remove()

    assert around.controller().keep() is None
    assert around.ledger_object is None


def test_a_ledger_that_cannot_be_read_stays_with_its_quota() -> None:
    around = damaged()
    ledger_object = around.ledger_object

    with pytest.raises(LedgerError, match="cannot be read"):
        around.controller().keep()
    assert around.ledger_object is ledger_object


def test_a_ledger_that_is_corrected_meanwhile_stays() -> None:
    around = damaged()
    around.remove()
    around.before(
        "DELETE",
        PLURAL,
        lambda: around.ledger_object and around.ledger_object["metadata"].update(resourceVersion="99"),
    )

    assert around.controller().keep() is None
    assert around.ledger_object is not None
