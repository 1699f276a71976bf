"""Raises the epoch before ledgers are counted for the first time."""

import threading
from collections.abc import Callable, Collection
from math import inf
from time import monotonic

from webhook.controller.observed_ledgers import ObservedLedgers

RAISE_EVERY = 0.2
"""Seconds between two raises at least. The ledgers that appear meanwhile share the next one."""


class EpochRaiser:
    """For any number of threads. `swap` raises the epoch for namespaces (`EpochObject.swap`)."""

    def __init__(self, observed: ObservedLedgers, swap: Callable[[Collection[str]], object]) -> None:
        self._observed, self._swap = observed, swap
        self._raising = threading.Lock()
        self._due: set[str] = set()
        self._raised_at = -inf

    def create(self) -> None:
        """Create the object of the epoch if it is missing. Raises `errors.ApiError`."""
        self._swap(())

    def wait(self, namespace: str) -> float:
        """Return the seconds until the ledger may be initialised.

        Raise the epoch if that was not done since the ledger was first observed. Raises `errors.ApiError`.
        """
        if (wait := self._observed.initialization_wait(namespace)) < inf:
            return wait
        self._due.add(namespace)
        if not self._raising.acquire(blocking=False):
            return RAISE_EVERY
        try:
            if (pause := self._raised_at + RAISE_EVERY - monotonic()) > 0:
                return pause
            due, begun = frozenset(self._due), monotonic()
            self._swap(due)
            self._raised_at = monotonic()
            self._due -= due
            self._observed.epoch_raised(due, begun)
        finally:
            self._raising.release()
        wait = self._observed.initialization_wait(namespace)
        return wait if wait < inf else RAISE_EVERY  # another ledger has taken its place
