"""Whether a namespace without a ledger belongs to a team, so that it is denied until it is counted."""

import logging
import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from policies.quota.quota_request import LedgerError
from policies.quota.team_spec import TeamMatch, Teams
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient, Page, api_path
from webhook.cluster.objects import decode_metadata
from webhook.quota.team_documents import decode_team, team_path

LISTED_SECONDS = 0.5
"""A list is at most so old, and of the epoch that is known (`NoQuota.epoch`)."""

_PAGE = msgspec.json.Decoder(Page[msgspec.Raw])

log = logging.getLogger("gpu_admission.quota")


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
            return teams.of(namespace, self._labels(namespace, seconds))
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

    def _labels(self, namespace: str, seconds: float) -> dict[str, str]:
        path = api_path("/api/v1", "namespaces", namespace)
        return dict(decode_metadata(self._api.get(path, timeout=seconds, accept=METADATA)).sorted_labels)
