"""Creates a ledger object for each GPUQuota, writes changes of the spec into it, and deletes it with the quota.

The GPUQuota is read after the ledger, and a write names the version of the ledger that was read before. So an old spec never
replaces a newer one, and a ledger stays if its GPUQuota was deleted and created again.
"""

from collections.abc import Callable

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.cluster_store import NO_LEDGER_OBJECT, ClusterStore
from webhook.quota.store import VersionedLedger

CALL_SECONDS = 10.0
"""Timeout of one read or write of a ledger or a GPUQuota."""


class LedgerWriter:
    """For any number of threads. `granted` returns the GPUQuota in the informer as a ledger that was never counted.

    `current` and `swap` raise LedgerError, or LedgerConflict if another process changed the ledger meanwhile.
    """

    def __init__(
        self,
        store: ClusterStore,
        observed: ObservedLedgers,
        granted: Callable[[str], QuotaLedger | None],
    ) -> None:
        self._store = store
        self._observed = observed
        self._granted = granted

    def current(self, namespace: str, *, fresh: bool) -> VersionedLedger | None:
        """Return the stored ledger with the present spec of the GPUQuota, None without a GPUQuota.

        Creates the ledger if there is none, writes a changed spec into it, and deletes it if its GPUQuota is gone. `fresh`: read
        the ledger from the API server, because others write it faster than the watch shows it.
        """
        ledger_object = None if fresh else self._observed.get(namespace)
        if ledger_object is None:
            granted = None if fresh else self._granted(namespace)
            # If a ledger exists that is not observed yet, its creation conflicts.
            ledger_object = VersionedLedger(granted, NO_LEDGER_OBJECT) if granted else self._read(namespace)
            if ledger_object is None:
                return None
            if ledger_object.version == NO_LEDGER_OBJECT:
                # Never counted, so it grants nothing: if the call times out, the ledger may be created at any time later.
                return self._with_spec(namespace, self.swap(namespace, ledger_object, ledger_object.ledger))
            self._observed.observe(namespace, ledger_object)
        if ledger_object.ledger.used is not None and self.has_spec(namespace, ledger_object):
            return ledger_object
        return self._with_spec(namespace, ledger_object)

    def has_spec(self, namespace: str, ledger_object: VersionedLedger) -> bool:
        """Whether the ledger has the spec of the GPUQuota in the informer. Makes no call."""
        granted = self._granted(namespace)
        return granted is not None and spec_of(ledger_object.ledger) == spec_of(granted)

    def swap(self, namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        written = self._store.compare_and_swap(namespace, before, ledger, CALL_SECONDS)
        self._observed.observe(namespace, written)
        return written

    def _read(self, namespace: str) -> VersionedLedger | None:
        try:
            return self._store.read(namespace, CALL_SECONDS)
        except LedgerError as error:
            # An unreadable ledger denies requests, even after its quota was deleted.
            if error.transient or not self._store.discard(namespace, CALL_SECONDS):
                raise
            return None

    def _with_spec(self, namespace: str, ledger_object: VersionedLedger) -> VersionedLedger | None:
        """Read the GPUQuota, and write its spec into the ledger. Without a GPUQuota, delete the ledger and return None."""
        granted, ledger = self._store.granted(namespace, CALL_SECONDS), ledger_object.ledger
        if granted is None:
            self._store.delete(namespace, ledger_object.version, CALL_SECONDS)
            self._observed.forget(namespace, ledger.ledger_uid)
            return None
        if spec_of(ledger) == spec_of(granted):
            return ledger_object
        updated = msgspec.structs.replace(
            ledger,
            quota_uid=granted.quota_uid,
            generation=granted.generation,
            hard=granted.hard,
            unclassified_pods=granted.unclassified_pods,
        )
        return self.swap(namespace, ledger_object, updated)


def spec_of(ledger: QuotaLedger) -> tuple[object, ...]:
    """Return the fields that a ledger copies from its GPUQuota."""
    return ledger.quota_uid, ledger.generation, ledger.hard, ledger.unclassified_pods
