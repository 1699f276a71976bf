"""Creates a ledger object for each GPUQuota, writes changes of the spec into it, and deletes it with the quota.

The GPUQuota is read after the ledger, and a write names the version of the ledger that was known before. So an old spec never
replaces a newer one, and a ledger stays if its quota was created again.
"""

from collections.abc import Callable

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.cluster_store import NO_LEDGER_OBJECT, ClusterStore
from webhook.quota.store import VersionedLedger

CALL_SECONDS = 10.0
"""For one read or write of a ledger or a quota."""


class LedgerWriter:
    """For any number of threads. `granted_by` returns the ledger that the GPUQuota in the informer calls for, never counted.

    Every method raises LedgerError, or LedgerConflict if the ledger was not the observed one.
    """

    def __init__(
        self,
        store: ClusterStore,
        ledger_objects: ObservedLedgers,
        granted_by: Callable[[str], QuotaLedger | None],
    ) -> None:
        self._store = store
        self._ledger_objects = ledger_objects
        self._granted_by = granted_by

    def current(self, namespace: str, *, fresh: bool) -> VersionedLedger | None:
        """Return the ledger with the spec in force, None without a GPUQuota. `fresh`: read it first."""
        ledger_object = None if fresh else self._ledger_objects.get(namespace)
        if ledger_object is None:
            granted = None if fresh else self._granted_by(namespace)
            # If a ledger exists that is not observed yet, its creation conflicts.
            ledger_object = VersionedLedger(granted, NO_LEDGER_OBJECT) if granted else self._read(namespace)
            if ledger_object is None:
                return None
            if ledger_object.version == NO_LEDGER_OBJECT:
                # Uncounted: the creation may take effect at any time later, and must then put nothing in force.
                return self._following(namespace, self.swap(namespace, ledger_object, ledger_object.ledger))
            self._ledger_objects.observe(namespace, ledger_object)
        if ledger_object.ledger.used is not None and self.has_spec(namespace, ledger_object):
            return ledger_object
        return self._following(namespace, ledger_object)

    def has_spec(self, namespace: str, ledger_object: VersionedLedger) -> bool:
        """Whether the ledger has the spec of the GPUQuota in the informer."""
        granted = self._granted_by(namespace)
        return granted is not None and spec_of(ledger_object.ledger) == spec_of(granted)

    def swap(self, namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        written = self._store.compare_and_swap(namespace, before, ledger, CALL_SECONDS)
        self._ledger_objects.observe(namespace, written)
        return written

    def _read(self, namespace: str) -> VersionedLedger | None:
        try:
            return self._store.read(namespace, CALL_SECONDS)
        except LedgerError as error:
            # An unreadable ledger denies requests, even after its quota was deleted.
            if error.transient or not self._store.discard(namespace, CALL_SECONDS):
                raise
            return None

    def _following(self, namespace: str, ledger_object: VersionedLedger) -> VersionedLedger | None:
        """Write the present spec of the GPUQuota into the ledger. Delete the ledger and return None if there is no GPUQuota."""
        granted, ledger = self._store.granted(namespace, CALL_SECONDS), ledger_object.ledger
        if granted is None:
            self._store.delete(namespace, ledger_object.version, CALL_SECONDS)
            self._ledger_objects.forget(namespace, ledger.ledger_uid)
            return None
        if spec_of(ledger) == spec_of(granted):
            return ledger_object
        following = msgspec.structs.replace(
            ledger,
            quota_uid=granted.quota_uid,
            generation=granted.generation,
            hard=granted.hard,
            unclassified_pods=granted.unclassified_pods,
        )
        return self.swap(namespace, ledger_object, following)


def spec_of(ledger: QuotaLedger) -> tuple[object, ...]:
    """Return what a ledger has from its GPUQuota: which object, which generation, and its spec."""
    return ledger.quota_uid, ledger.generation, ledger.hard, ledger.unclassified_pods
