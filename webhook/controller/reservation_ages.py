"""How long this process has observed each quota and each reservation, by its own monotonic clock.

No other clock proves that a reservation is old: wall clocks jump, and what is dropped too early may still be stored.
So a restarted controller waits for the whole bound again.
"""

import threading
from time import monotonic

import msgspec

from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, NO_QUOTA_SECONDS, QuotaLedger


class _Observation(msgspec.Struct, frozen=True):
    """Since when one quota object is known, since when in this generation, and since when each of its reservations."""

    quota_uid: str
    since: float
    generation: int
    generation_since: float
    reservations: dict[str, float]


class ReservationAges:
    """First observations by namespace, for any thread: observations are replaced, never changed."""

    def __init__(self, *, expiry: float = EXPIRY_SECONDS, no_quota: float = NO_QUOTA_SECONDS) -> None:
        self._expiry = expiry
        self._no_quota = no_quota
        self._lock = threading.Lock()
        self._observed: dict[str, _Observation] = {}

    def observe(self, namespace: str, ledger: QuotaLedger) -> None:
        """Record a ledger that was just read. An older read may arrive later; that does no harm."""
        now = monotonic()
        with self._lock:
            before = self._observed.get(namespace)
            if before is None or before.quota_uid != ledger.quota_uid:
                before = _Observation(ledger.quota_uid, now, ledger.generation, now, {})
            self._observed[namespace] = _Observation(
                ledger.quota_uid,
                before.since,
                ledger.generation,
                before.generation_since if before.generation == ledger.generation else now,
                {each: before.reservations.get(each, now) for each in ledger.reservations.ids},
            )

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._observed.pop(namespace, None)

    def generation_since(self, namespace: str) -> float:
        """Return when this process first read the quota in its present uid and generation."""
        observed = self._observed.get(namespace)
        return observed.generation_since if observed else monotonic()

    def initialization_wait(self, namespace: str) -> float:
        """Return the seconds until the quota may be initialised; 0 or less: it may now."""
        observed = self._observed.get(namespace)
        return observed.since + self._no_quota - monotonic() if observed else self._no_quota

    def expired(self, namespace: str, when: float) -> frozenset[str]:
        """Return the reservations, by `Reservations.ids`, that had been observed for the whole bound at that moment."""
        observed = self._observed.get(namespace)
        reservations = observed.reservations if observed else {}
        return frozenset(each for each, since in reservations.items() if since + self._expiry <= when)

    def next_expiry(self, namespace: str) -> float | None:
        """Return the seconds until the oldest reservation has been observed for the whole bound."""
        observed = self._observed.get(namespace)
        if observed is None or not observed.reservations:
            return None
        return min(observed.reservations.values()) + self._expiry - monotonic()
