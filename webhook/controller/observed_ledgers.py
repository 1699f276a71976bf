"""The newest version of each ledger that this process has observed, and since when it knows the ledger and its reservations.

Only the monotonic clock of the process proves that a reservation is old. Wall clocks jump, and the object of a reservation that
is dropped too early may still be stored. So a restarted controller waits EXPIRY_SECONDS again.
"""

import threading
from time import monotonic

import msgspec

from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, NO_QUOTA_SECONDS, QuotaLedger
from webhook.quota.store import VersionedLedger


class _Observation(msgspec.Struct, frozen=True):
    """A ledger. The times say since when the object, its present spec and each of its reservations are known."""

    ledger_object: VersionedLedger
    since: float
    spec_since: float
    reservations: dict[str, float]


class ObservedLedgers:
    """For any number of threads. An observation is replaced, never changed. No lock is held over a call."""

    def __init__(self, *, expiry: float = EXPIRY_SECONDS, no_quota: float = NO_QUOTA_SECONDS) -> None:
        self._expiry = expiry
        self._no_quota = no_quota
        self._lock = threading.Lock()
        self._observed: dict[str, _Observation] = {}

    def get(self, namespace: str) -> VersionedLedger | None:
        """Return the newest observed version. A swap shows whether it still is the newest."""
        observed = self._observed.get(namespace)
        return observed.ledger_object if observed else None

    def ledgers(self) -> dict[str, QuotaLedger]:
        """Return the newest ledgers by namespace. Unreadable ledgers are left out."""
        return {
            namespace: observed.ledger_object.ledger for namespace, observed in list(self._observed.items())
        }

    def observe(self, namespace: str, ledger_object: VersionedLedger) -> None:
        """Record a ledger that was just read or written, unless a newer version is recorded: they come in any order."""
        now, ledger = monotonic(), ledger_object.ledger
        with self._lock:
            before = self._observed.get(namespace)
            # The resourceVersions of a kind are ordered as whole numbers.
            if before is not None and int(ledger_object.version) <= int(before.ledger_object.version):
                return
            if before is None or before.ledger_object.ledger.ledger_uid != ledger.ledger_uid:
                before = _Observation(ledger_object, now, now, {})
            self._observed[namespace] = _Observation(
                ledger_object,
                before.since,
                before.spec_since if spec_of(before.ledger_object.ledger) == spec_of(ledger) else now,
                {each: before.reservations.get(each, now) for each in ledger.reservations.expiring_ids},
            )

    def forget(self, namespace: str, ledger_uid: str) -> None:
        """Forget a ledger that was deleted or cannot be read, but not another one in its place."""
        with self._lock:
            observed = self._observed.get(namespace)
            if observed is not None and observed.ledger_object.ledger.ledger_uid == ledger_uid:
                del self._observed[namespace]

    def spec_since(self, namespace: str) -> float:
        """Return when this process first observed the ledger with the present quota in its present generation."""
        observed = self._observed.get(namespace)
        return observed.spec_since if observed else monotonic()

    def initialization_wait(self, namespace: str) -> float:
        """Return the seconds until the quota may be initialised: replicas believe an earlier "no quota" so long."""
        observed = self._observed.get(namespace)
        return max(0.0, observed.since + self._no_quota - monotonic()) if observed else self._no_quota

    def expired(self, namespace: str, when: float) -> frozenset[str]:
        """Return the ids (`Reservations.ids`) of the reservations that at that moment were observed for EXPIRY_SECONDS."""
        observed = self._observed.get(namespace)
        reservations = observed.reservations if observed else {}
        return frozenset(each for each, since in reservations.items() if since + self._expiry <= when)

    def next_expiry(self, namespace: str) -> float | None:
        """Return the seconds until the oldest reservation has been observed for EXPIRY_SECONDS."""
        observed = self._observed.get(namespace)
        if observed is None or not observed.reservations:
            return None
        return min(observed.reservations.values()) + self._expiry - monotonic()


def spec_of(ledger: QuotaLedger) -> tuple[object, ...]:
    """Return the fields that a ledger copies from its GPUQuota."""
    granted = ledger.hard, ledger.unclassified_pods, ledger.max_waiting, ledger.budget
    return ledger.quota_uid, ledger.generation, *granted
