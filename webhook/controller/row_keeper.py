"""Keeps a row for each GPUQuota: makes it, has it follow the spec, and deletes it with the quota.

The GPUQuota is read after the row, and the row is swapped as it was known before. So a spec never replaces a newer one, and no
row goes whose quota is there again.
"""

from collections.abc import Callable
from typing import Protocol, Self

import msgspec

from policies.quota.amounts import Vector
from policies.quota.charge import Unpinned
from policies.quota.charge_request import LedgerError
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.controller.observed_rows import ObservedRows
from webhook.quota.cluster_store import NO_ROW
from webhook.quota.store import Store, VersionedLedger

CALL_SECONDS = 10.0
"""For one read or write of a row or a quota."""


class Granted(msgspec.Struct, frozen=True):
    """What a row has of a GPUQuota: which one, in which generation, and what that says."""

    quota_uid: str
    generation: int
    hard: Vector
    unpinned: Unpinned

    @classmethod
    def by(cls, ledger: QuotaLedger) -> Self:
        return cls(ledger.quota_uid, ledger.generation, ledger.hard, ledger.unpinned)


class RowStore(Store, Protocol):
    """What a keeper needs of `webhook.quota.cluster_store.ClusterStore`."""

    def granted(self, namespace: str, seconds: float) -> QuotaLedger | None: ...

    def delete(self, namespace: str, before: VersionedLedger, seconds: float) -> None: ...

    def discard(self, namespace: str, seconds: float) -> bool: ...


class RowKeeper:
    """For any number of threads. `granted_by` returns what the quota of a namespace grants, as its watch showed it last.

    Every method raises LedgerError, and LedgerConflict or QuotaGone where the row was not the one that was observed.
    """

    def __init__(
        self, store: RowStore, rows: ObservedRows, granted_by: Callable[[str], Granted | None]
    ) -> None:
        self._store = store
        self._rows = rows
        self._granted_by = granted_by

    def current(self, namespace: str, *, fresh: bool) -> VersionedLedger | None:
        """Return the row as it was observed last, read anew if `fresh`, with the spec in force; None where there is no quota."""
        row = None if fresh else self._rows.get(namespace)
        if row is None:
            row = (None if fresh else self._new(namespace)) or self._read(namespace)
            if row is None:
                return None
            if row.version == NO_ROW:
                # Empty: a creation may come at any time later, and must then put nothing in force.
                return self._following(namespace, self.swap(namespace, row, row.ledger))
            self._rows.observe(namespace, row)
        if row.ledger.used is not None and self.has_spec(namespace, row):
            return row
        return self._following(namespace, row)

    def has_spec(self, namespace: str, row: VersionedLedger) -> bool:
        """Whether the row has what the quota grants as its watch showed it last."""
        return Granted.by(row.ledger) == self._granted_by(namespace)

    def swap(self, namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        written = self._store.compare_and_swap(namespace, before, ledger, CALL_SECONDS)
        self._rows.observe(namespace, written)
        return written

    def _new(self, namespace: str) -> VersionedLedger | None:
        """Return the row to create for a quota of which none was observed. Where there is one, that is a conflict."""
        if (granted := self._granted_by(namespace)) is None:
            return None
        return VersionedLedger(QuotaLedger(**msgspec.structs.asdict(granted)), NO_ROW)

    def _read(self, namespace: str) -> VersionedLedger | None:
        try:
            return self._store.read(namespace, CALL_SECONDS)
        except LedgerError as error:
            # Nobody would look for a row whose quota is gone, and it denies all the same.
            if error.transient or not self._store.discard(namespace, CALL_SECONDS):
                raise
            return None

    def _following(self, namespace: str, row: VersionedLedger) -> VersionedLedger | None:
        """Return the row with what its GPUQuota calls for now; None, without the row, where that is gone."""
        granted, ledger = self._store.granted(namespace, CALL_SECONDS), row.ledger
        if granted is None:
            self._store.delete(namespace, row, CALL_SECONDS)
            self._rows.forget(namespace, ledger.row_uid)
            return None
        spec = Granted.by(granted)
        if Granted.by(ledger) == spec:
            return row
        return self.swap(namespace, row, msgspec.structs.replace(ledger, **msgspec.structs.asdict(spec)))
