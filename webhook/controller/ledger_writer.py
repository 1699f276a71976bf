"""Keeps a row for each GPUQuota: makes it, has it follow the spec, and deletes it with the quota.

The GPUQuota is read after the ledger, and the ledger is swapped as it was known before. So a spec never replaces a newer one, and
no ledger goes whose quota is there again.
"""

from collections.abc import Callable
from typing import Protocol, Self

import msgspec

from policies.quota.amounts import Vector
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.cluster_store import NO_LEDGER_OBJECT
from webhook.quota.store import Store, VersionedLedger

CALL_SECONDS = 10.0
"""For one read or write of a ledger or a quota."""


class Granted(msgspec.Struct, frozen=True):
    """What a ledger has of its GPUQuota: which one, in which generation, and what that says."""

    quota_uid: str
    generation: int
    hard: Vector
    unclassified_pods: UnclassifiedPods

    @classmethod
    def by(cls, ledger: QuotaLedger) -> Self:
        return cls(ledger.quota_uid, ledger.generation, ledger.hard, ledger.unclassified_pods)


class LedgerObjectStore(Store, Protocol):
    """What a keeper needs of `webhook.quota.cluster_store.ClusterStore`."""

    def granted(self, namespace: str, seconds: float) -> QuotaLedger | None: ...

    def delete(self, namespace: str, version: str, seconds: float) -> None: ...

    def discard(self, namespace: str, seconds: float) -> bool: ...


class LedgerWriter:
    """For any number of threads. `granted_by` returns what the quota of a namespace grants, as its watch showed it last.

    Every method raises LedgerError, and LedgerConflict where the ledger was not the one that was observed.
    """

    def __init__(
        self,
        store: LedgerObjectStore,
        ledger_objects: ObservedLedgers,
        granted_by: Callable[[str], Granted | None],
    ) -> None:
        self._store = store
        self._ledger_objects = ledger_objects
        self._granted_by = granted_by

    def current(self, namespace: str, *, fresh: bool) -> VersionedLedger | None:
        """Return the ledger with the spec in force, read anew if `fresh`; None without a GPUQuota."""
        ledger_object = None if fresh else self._ledger_objects.get(namespace)
        if ledger_object is None:
            ledger_object = (None if fresh else self._new(namespace)) or self._read(namespace)
            if ledger_object is None:
                return None
            if ledger_object.version == NO_LEDGER_OBJECT:
                # Empty: a creation may come at any time later, and must then put nothing in force.
                return self._following(namespace, self.swap(namespace, ledger_object, ledger_object.ledger))
            self._ledger_objects.observe(namespace, ledger_object)
        if ledger_object.ledger.used is not None and self.has_spec(namespace, ledger_object):
            return ledger_object
        return self._following(namespace, ledger_object)

    def has_spec(self, namespace: str, ledger_object: VersionedLedger) -> bool:
        """Whether the ledger has what the quota grants as its watch showed it last."""
        return Granted.by(ledger_object.ledger) == self._granted_by(namespace)

    def swap(self, namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        written = self._store.compare_and_swap(namespace, before, ledger, CALL_SECONDS)
        self._ledger_objects.observe(namespace, written)
        return written

    def _new(self, namespace: str) -> VersionedLedger | None:
        """Return the ledger to create for a quota of which none was observed. Where there is one, that is a conflict."""
        if (granted := self._granted_by(namespace)) is None:
            return None
        return VersionedLedger(QuotaLedger(**msgspec.structs.asdict(granted)), NO_LEDGER_OBJECT)

    def _read(self, namespace: str) -> VersionedLedger | None:
        try:
            return self._store.read(namespace, CALL_SECONDS)
        except LedgerError as error:
            # Nobody would look for a ledger whose quota is gone, and it denies all the same.
            if error.transient or not self._store.discard(namespace, CALL_SECONDS):
                raise
            return None

    def _following(self, namespace: str, ledger_object: VersionedLedger) -> VersionedLedger | None:
        """Return the ledger with what its GPUQuota calls for now; None, without the ledger, where that is gone."""
        granted, ledger = self._store.granted(namespace, CALL_SECONDS), ledger_object.ledger
        if granted is None:
            self._store.delete(namespace, ledger_object.version, CALL_SECONDS)
            self._ledger_objects.forget(namespace, ledger.ledger_uid)
            return None
        spec = Granted.by(granted)
        if Granted.by(ledger) == spec:
            return ledger_object
        return self.swap(
            namespace, ledger_object, msgspec.structs.replace(ledger, **msgspec.structs.asdict(spec))
        )
