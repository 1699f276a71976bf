"""The namespaces in which a replica found no quota, and for how long it believes that."""

import contextlib
import threading
from collections.abc import Callable
from math import inf
from time import monotonic

from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from webhook.cluster import errors
from webhook.quota.epoch import Epoch
from webhook.quota.team_lookup import LISTED_SECONDS

READ_EVERY = 0.5
"""Seconds between two reads of the epoch."""

REMEMBERED_SECONDS = 4.0
"""After this time a namespace is read again, whatever the epoch. So a GPUQuota denies also while no controller runs."""

VANISHED_SECONDS = 60.0
"""For so long after a quota was seen, "no quota" is not remembered: who deletes a quota mostly creates another one at once, as
`kubectl replace --force` does, and an old answer would admit everything meanwhile."""

NAMESPACES_REMEMBERED = 4096


class NoQuota:
    """For any number of threads. Without a `read` of the epoch, only a read of the quota of a moment ago is believed."""

    def __init__(
        self, read: Callable[[float], Epoch] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._shown: tuple[Epoch, float] = Epoch(), -inf
        """What the last GET of the epoch showed, and when it began."""
        self._found: dict[str, tuple[float, int]] = {}
        """By namespace, when the read that found no quota began, and the version of the epoch that was known then."""
        self._seen: dict[str, float] = {}
        """By namespace, when a quota was seen."""

    def run(self, stopping: threading.Event) -> None:
        """Read the epoch every READ_EVERY seconds. Body of a thread."""
        while not stopping.is_set():
            begun = self._clock()
            with contextlib.suppress(errors.ApiError):
                self.read_epoch()
            stopping.wait(max(0.0, begun + READ_EVERY - self._clock()))

    def read_epoch(self) -> None:
        """Read the epoch now. Raises `errors.ApiError`."""
        if self._read is not None:
            begun = self._clock()
            self._shown = self._read(NO_QUOTA_SECONDS), begun

    def version(self) -> int:
        """Return the version of the epoch that is known now."""
        return self._shown[0].version

    def found(self, namespace: str, begun: float, version: int) -> None:
        """Note that a read found none, when it began, and the version that was known then."""
        if len(self._found) >= NAMESPACES_REMEMBERED:
            self._found.clear()
        self._found[namespace] = begun, version

    def saw_quota(self, namespace: str) -> None:
        self._found.pop(namespace, None)
        if len(self._seen) >= NAMESPACES_REMEMBERED and namespace not in self._seen:
            self._seen.clear()
        self._seen[namespace] = self._clock()

    def is_remembered(self, namespace: str) -> bool:
        """Whether a review needs no read of its own. Cheap, and true of most namespaces."""
        if (found := self._found.get(namespace)) is None or not self._believes(namespace, *found):
            return False
        now = self._clock()
        return (
            now - found[0] < REMEMBERED_SECONDS and now - self._seen.get(namespace, -inf) > VANISHED_SECONDS
        )

    def still_holds(self, namespace: str) -> bool:
        """Whether a review may be answered by the last read: it found none, and none that appeared later counts yet."""
        found = self._found.get(namespace)
        return found is not None and self._believes(namespace, *found)

    def _believes(self, namespace: str, begun: float, version: int) -> bool:
        # The read looked at a list of ClusterGPUQuotas that was up to LISTED_SECONDS old, of that version or a later one.
        now, (epoch, shown) = self._clock(), self._shown
        if now - begun < NO_QUOTA_SECONDS - LISTED_SECONDS:
            return True
        return (
            now - shown < NO_QUOTA_SECONDS and epoch.version > 0 and epoch.replaced_for(namespace) < version
        )
