"""The namespaces in which a replica found no quota, and for how long it answers by that.

Before a controller counts a new ledger, it raises the epoch (`ClusterStore.raise_epoch`), and waits for NO_QUOTA_SECONDS. A
replica reads the epoch more often than that. So no review is answered by an old read once the quota counts.
"""

import contextlib
from collections.abc import Callable
from math import inf
from time import monotonic

from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from policies.quota.quota_request import LedgerError
from webhook.quota.team_lookup import LISTED_SECONDS

READ_SECONDS = 0.5
"""Seconds between two reads of the epoch."""
REMEMBERED_SECONDS = 4.0
"""After this time a namespace is read again, whatever the epoch says. So a new GPUQuota denies even if no controller runs."""
NAMESPACES_REMEMBERED = 4096


class NoQuota:
    """Thread-safe. `read_epoch` returns the version of the epoch; its argument is a timeout in seconds."""

    def __init__(
        self, read_epoch: Callable[[float], int] = lambda _seconds: 0, clock: Callable[[], float] = monotonic
    ) -> None:
        self._read_epoch, self._clock = read_epoch, clock
        self._shown = 0, -inf  # the epoch that its last read showed, and when that began
        self._found: dict[str, tuple[float, int]] = {}  # when the read began, and the epoch known then

    def read(self) -> None:
        """Read the epoch. If that fails, the last read counts until it is too old."""
        begun = self._clock()
        with contextlib.suppress(LedgerError):
            self._shown = self._read_epoch(NO_QUOTA_SECONDS), begun

    def epoch(self) -> int:
        """Return the version of the epoch that is known."""
        return self._shown[0]

    def note_no_quota(self, namespace: str, begun: float, epoch: int) -> None:
        """Note that a read found no quota, when it began, and the epoch that was known then."""
        if len(self._found) >= NAMESPACES_REMEMBERED:
            self._found.clear()
        self._found[namespace] = begun, epoch

    def is_current(self, namespace: str) -> bool:
        """Whether the last read found no quota, and no later quota can count yet."""
        begun, epoch = self._found.get(namespace, (-inf, 0))
        now, (shown, shown_at) = self._clock(), self._shown
        is_shown = epoch == shown and now - shown_at < NO_QUOTA_SECONDS
        # The read used a list of ClusterGPUQuotas that was up to LISTED_SECONDS old.
        return now - begun < (REMEMBERED_SECONDS if is_shown else NO_QUOTA_SECONDS - LISTED_SECONDS)
