"""What this process has seen in the rows, and since when by its own monotonic clock.

Nobody else's clock can tell that an entry is old: a foreign or a wall clock jumps, and what is dropped too early may still be
stored. So a restarted controller waits the whole bound again.
"""

import threading
from time import monotonic

import msgspec

from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, NO_QUOTA_SECONDS, QuotaLedger


class _Sight(msgspec.Struct):
    """Of one quota object: since when it is known, since when in this generation, and each entry."""

    quota_uid: str
    since: float
    generation: int
    generation_since: float
    entries: dict[str, float]


class ReservationAges:
    """First sights by namespace. Any thread may report and ask."""

    def __init__(self, *, expiry: float = EXPIRY_SECONDS, no_quota: float = NO_QUOTA_SECONDS) -> None:
        self._expiry = expiry
        self._no_quota = no_quota
        self._lock = threading.Lock()
        self._sights: dict[str, _Sight] = {}

    def see(self, namespace: str, row: QuotaLedger) -> None:
        """Take note of a row as it was read just now; a row read earlier may come later, and does no harm."""
        now = monotonic()
        with self._lock:
            sight = self._sights.get(namespace)
            if sight is None or sight.quota_uid != row.quota_uid:
                sight = self._sights[namespace] = _Sight(row.quota_uid, now, row.generation, now, {})
            if sight.generation != row.generation:
                sight.generation, sight.generation_since = row.generation, now
            sight.entries = {entry.id: sight.entries.get(entry.id, now) for entry in row.reservations}

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._sights.pop(namespace, None)

    def read_at(self, namespace: str) -> float:
        """Return when this process first read the quota object as it is now (its uid and generation)."""
        with self._lock:
            sight = self._sights.get(namespace)
            return sight.generation_since if sight else monotonic()

    def waits(self, namespace: str) -> float:
        """Return how many seconds are left before the quota may be initialised; 0 or less: it may."""
        with self._lock:
            sight = self._sights.get(namespace)
            return sight.since + self._no_quota - monotonic() if sight else self._no_quota

    def matured(self, namespace: str, when: float) -> frozenset[str]:
        """Return the entries that at that moment had been in sight for the whole bound."""
        with self._lock:
            sight = self._sights.get(namespace)
            entries = sight.entries if sight else {}
            return frozenset(entry for entry, since in entries.items() if since + self._expiry <= when)

    def next_maturity(self, namespace: str) -> float | None:
        """Return in how many seconds the oldest entry will have been in sight for the whole bound."""
        with self._lock:
            sight = self._sights.get(namespace)
            if sight is None or not sight.entries:
                return None
            return min(sight.entries.values()) + self._expiry - monotonic()
