"""The namespaces in which a replica found no quota, and for how long it answers by that; and whether such a one has a team.

Before a controller counts a new ledger, it raises the epoch (`ClusterStore.raise_epoch`), and waits for NO_QUOTA_SECONDS. A
replica reads the epoch more often than that. So no review is answered by an old read once the quota counts.

A namespace without a ledger that belongs to a team is denied until it is counted.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from math import inf
from time import monotonic

import msgspec

from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from policies.quota.quota_request import LedgerError
from policies.quota.team_spec import TeamMatch, Teams
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, Page
from webhook.cluster.namespaces import read_labels
from webhook.quota.team_documents import decode_team, team_path

log = logging.getLogger("gpu_admission.quota")

READ_SECONDS = 0.5
"""Seconds between two reads of the epoch."""
REMEMBERED_SECONDS = 4.0
"""After this time a namespace is read again, whatever the epoch says. So a new GPUQuota denies even if no controller runs."""
NAMESPACES_REMEMBERED = 4096

LISTED_SECONDS = 0.5
"""A list is at most so old, and of the epoch that is known (`NoQuota.epoch`)."""

_PAGE = msgspec.json.Decoder(Page[msgspec.Raw])


class NoQuota:
    """Thread-safe. `read_epoch` returns the version of the epoch; its argument is a timeout in seconds."""

    def __init__(
        self, read_epoch: Callable[[float], int] = lambda _seconds: 0, clock: Callable[[], float] = monotonic
    ) -> None:
        self._read_epoch, self._clock = read_epoch, clock
        self._epoch_read = 0, -inf  # the epoch that its last read showed, and when that began
        self._found_at: dict[str, tuple[float, int]] = {}  # when the read began, and the epoch known then

    def read(self) -> None:
        """Read the epoch. If that fails, the last read counts until it is too old."""
        begun = self._clock()
        with contextlib.suppress(LedgerError):
            self._epoch_read = self._read_epoch(NO_QUOTA_SECONDS), begun

    def epoch(self) -> int:
        """Return the version of the epoch that is known."""
        return self._epoch_read[0]

    def note_no_quota(self, namespace: str, begun: float, epoch: int) -> None:
        """Note that a read found no quota, when it began, and the epoch that was known then."""
        if len(self._found_at) >= NAMESPACES_REMEMBERED:
            self._found_at.clear()
        self._found_at[namespace] = begun, epoch

    def is_current(self, namespace: str) -> bool:
        """Whether the last read found no quota, and no later quota can count yet."""
        begun, epoch = self._found_at.get(namespace, (-inf, 0))
        now, (epoch_now, read_at) = self._clock(), self._epoch_read
        is_epoch_same = epoch == epoch_now and now - read_at < NO_QUOTA_SECONDS
        # The read used a list of ClusterGPUQuotas that was up to LISTED_SECONDS old.
        return now - begun < (REMEMBERED_SECONDS if is_epoch_same else NO_QUOTA_SECONDS - LISTED_SECONDS)


def team_listed_now(api: ApiClient, namespace: str, seconds: float) -> TeamMatch | None:
    """Return the team of a namespace by a list that begins now. Raises LedgerError."""
    return TeamLookup(api).of(namespace, seconds)


class TeamLookup:
    """All ClusterGPUQuotas, from a list that began at most LISTED_SECONDS ago. Any number of threads may call it.

    Labels are read only if a ClusterGPUQuota has a selector, and none has a name for the namespace. While the API server does not
    serve the kind, no namespace has a team.
    """

    def __init__(
        self, api: ApiClient, clock: Callable[[], float] = monotonic, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self._api, self._clock, self._epoch = api, clock, epoch
        self._listing = threading.Lock()
        self._teams, self._listed_at, self._listed_in = Teams(), float("-inf"), 0

    def of(self, namespace: str, seconds: float) -> TeamMatch | None:
        """Return the team of a namespace. `seconds` is the timeout of each of two reads. Raises LedgerError."""
        try:
            teams = self._listed(seconds)
            if (team := teams.of_name(namespace)) is not None or not teams.has_selectors:
                return team
            return teams.of(namespace, dict(read_labels(self._api, namespace, seconds)))
        except errors.ApiError as error:
            transient = isinstance(error, errors.Unreachable | errors.Unavailable | errors.NotFound)
            problem = f"the ClusterGPUQuotas could not be read: {error}"
            raise LedgerError(problem, transient=transient) from None
        except msgspec.MsgspecError as error:
            raise LedgerError(f"the ClusterGPUQuotas cannot be read: {error}", transient=False) from None

    def _listed(self, seconds: float) -> Teams:
        # One thread lists, and the others wait for it: they may not decide by an older list.
        if self._is_due and self._listing.acquire(timeout=seconds):
            try:
                if self._is_due:
                    self._list(seconds)
            finally:
                self._listing.release()
        if self._is_due:
            raise errors.Unreachable("the list took too long")
        return self._teams

    @property
    def _is_due(self) -> bool:
        return self._clock() - self._listed_at >= LISTED_SECONDS or self._listed_in != self._epoch()

    def _list(self, seconds: float) -> None:
        begun, epoch = self._clock(), self._epoch()
        try:
            listed = _PAGE.decode(self._api.get(team_path(), timeout=seconds)).items or ()
        except errors.NotFound:
            # Until it knows all stored kinds, an API server that has just started answers 503 instead
            # (`k8s.io/apiserver/pkg/util/notfoundhandler`).
            log.warning("the API server does not serve ClusterGPUQuotas: no namespace has a team")
            listed = ()
        self._teams = Teams(decode_team(each).match for each in listed)
        self._listed_at, self._listed_in = begun, epoch
