"""Whether a controller is alive: by the Lease that its leader renews every few seconds."""

import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.leader import decode_lease, lease_path
from webhook.cluster.objects import CONTROLLER

READ_SECONDS = 10.0
READ_SECONDS_AWAY = 0.5
"""Seconds between two reads while no controller is alive. Until a read shows one, pods that would wait in line are denied."""
ALIVE_SECONDS = 60.0
"""A Lease that was not renewed for this time has no leader: its duration is 5 s."""


class Heartbeat:
    """Reads the Lease at most every READ_SECONDS, or READ_SECONDS_AWAY while nobody leads. Thread-safe.

    Only our own monotonic clock counts: it measures how long `renewTime` has been the same. A process that has just started
    trusts the Lease until it has been the same for ALIVE_SECONDS.
    """

    def __init__(self, api: ApiClient, namespace: str, clock: Callable[[], float] = monotonic) -> None:
        self._api, self._path = api, lease_path(namespace, CONTROLLER)
        self._clock = clock
        self._reading = threading.Lock()
        self._read_at = float("-inf")
        self._renewed, self._since = "", float("-inf")

    def is_alive(self, seconds: float) -> bool:
        """Whether a controller renewed its Lease within ALIVE_SECONDS. A read takes at most `seconds`."""
        # One thread reads. The others use the last answer, or wait if that is too old.
        if self._is_due and self._reading.acquire(timeout=0.0 if self._is_fresh else max(0.0, seconds)):
            try:
                if self._is_due:
                    self._read(seconds)
            finally:
                self._reading.release()
        return self._is_fresh

    @property
    def _is_fresh(self) -> bool:
        return self._clock() - self._since < ALIVE_SECONDS

    @property
    def _is_due(self) -> bool:
        return self._clock() - self._read_at >= (READ_SECONDS if self._is_fresh else READ_SECONDS_AWAY)

    def _read(self, seconds: float) -> None:
        now = self._clock()
        try:
            renewed = decode_lease(self._api.get(self._path, timeout=seconds)).spec.renew_time
        except (errors.ApiError, msgspec.MsgspecError):
            return
        finally:
            self._read_at = now
        if renewed and renewed != self._renewed:
            self._renewed, self._since = renewed, now
