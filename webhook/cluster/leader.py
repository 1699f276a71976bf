"""Leader election by a Lease of coordination.k8s.io, as in client-go, and whether anybody leads. Two leaders at once do no harm.

One leader saves work. Every candidate measures by its own monotonic clock how long the Lease has been unchanged. It takes the
Lease after the duration that the Lease says, and writes by resourceVersion. Clocks of different machines are never compared.
"""

import logging
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import CONTROLLER, ObjectMeta, PartialObject, timestamp

log = logging.getLogger("gpu_admission.cluster")

SLOW_CALLS = 3
"""Calls between two renewals, if one attempt fails: its read, then read and write of the next."""
API = "/apis/coordination.k8s.io/v1"

READ_SECONDS = 10.0
READ_SECONDS_AWAY = 0.5
"""Seconds between two reads while no controller is alive. Until a read shows one, pods that would wait in line are denied."""
ALIVE_SECONDS = 60.0
"""A Lease that was not renewed for this time has no leader: its duration is 5 s."""


class LeaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. A leader that cannot renew stops after `renew`. Others take over after `lease`, so two may lead for a moment.

    client-go has 15, 10 and 2. This `lease` is shorter, because nobody counts without a leader: pods that ended still hold quota
    then, and new pods are denied what a team guarantees them.
    """

    lease: int = 5
    renew: float = 10.0
    retry: float = 1.0


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(PartialObject, frozen=True, rename="camel"):
    """The object by which candidates elect a leader."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    spec: LeaseSpec = LeaseSpec()


decode_lease = msgspec.json.Decoder(Lease).decode


def lease_path(namespace: str, name: str) -> str:
    return api_path(API, "namespaces", namespace, "leases", name)


class LeaderElector:
    """The candidate `identity` for the Lease `namespace/name`."""

    def __init__(
        self, api: ApiClient, namespace: str, name: str, identity: str, *, timings: LeaseTimings | None = None
    ) -> None:
        self.identity = identity
        self._api = api
        self._namespace, self._name = namespace, name
        self._leases = api_path(API, "namespaces", namespace, "leases")
        self._path = lease_path(namespace, name)
        self._timings = timings or LeaseTimings()
        self._lease: Lease | None = None
        self._unchanged_since = 0.0
        self._leader_until = 0.0

    def is_leader(self) -> bool:
        return monotonic() < self._leader_until

    def run(self, stopping: threading.Event) -> None:
        """Try to hold the Lease until `stopping`. Then release it, so that the next leader does not wait. Body of a thread."""
        while not stopping.is_set():
            was_leader = self.is_leader()
            try:
                self.try_once()
            except (errors.ApiError, msgspec.MsgspecError) as error:
                self._lease = None  # nobody could renew it then, so its duration starts again
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            if self.is_leader() != was_leader:
                log.info("%s %s", self.identity, "became leader" if self.is_leader() else "stopped leading")
            stopping.wait(self._timings.retry * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        self._release()

    def try_once(self) -> None:
        """Read the Lease, and take or renew it if that is allowed. Raises `errors.ApiError`."""
        begun = monotonic()
        try:
            lease = decode_lease(self._api.get(self._path, timeout=self._timings.renew / 2))
        except errors.NotFound:
            self._write(begun, None)
            return
        self._observe(lease)
        holder, seconds = lease.spec.holder_identity, lease.spec.lease_duration_seconds or self._timings.lease
        slow = SLOW_CALLS * (monotonic() - begun)  # a renewal may be as slow as this read
        if holder in {self.identity, "", None} or monotonic() - self._unchanged_since > seconds + slow:
            self._write(begun, lease)
        else:
            self._leader_until = 0.0

    def _observe(self, lease: Lease) -> None:
        if self._lease is None or lease.metadata.resource_version != self._lease.metadata.resource_version:
            self._unchanged_since = monotonic()
        self._lease = lease

    def _write(self, begun: float, before: Lease | None) -> None:
        now = timestamp(datetime.now(UTC), "microseconds")
        old = before.spec if before else LeaseSpec()
        renewal = old.holder_identity == self.identity
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self._timings.lease,
            acquire_time=old.acquire_time if renewal else now,
            renew_time=now,
            lease_transitions=(old.lease_transitions or 0) + (before is not None and not renewal),
        )
        version = before.metadata.resource_version if before else ""
        metadata = ObjectMeta(name=self._name, namespace=self._namespace, resource_version=version)
        body = msgspec.json.encode(Lease(metadata, spec=spec))
        timeout = self._timings.renew / 2
        try:
            if before is None:
                written = self._api.post(self._leases, body, timeout=timeout)
            else:
                written = self._api.put(self._path, body, timeout=timeout)
        except (errors.Conflict, errors.AlreadyExists):
            self._leader_until = 0.0  # another candidate was faster
            return
        self._observe(decode_lease(written))
        self._leader_until = begun + self._timings.renew

    def _release(self) -> None:
        if not self.is_leader() or self._lease is None:
            return
        self._leader_until = 0.0
        spec = msgspec.structs.replace(self._lease.spec, holder_identity=None)
        body = msgspec.json.encode(Lease(self._lease.metadata, spec=spec))
        try:
            self._api.put(self._path, body, timeout=self._timings.retry)
        except errors.ApiError as error:
            log.info("lease %s/%s was not released: %s", self._namespace, self._name, error)


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
