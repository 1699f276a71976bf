"""The status of every GPUQuota shows its ledger to people. The leader writes it, and no decision depends on it."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from time import monotonic, sleep
from typing import Any

import msgspec

from policies.quota.amounts import format_amount
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.cluster.events import EventQueue, EventRecord
from webhook.cluster.informer import STALE_SECONDS, Informer
from webhook.controller.conditions import EXCEEDED, TRUE, conditions, unreadable
from webhook.controller.records import LedgerRecord
from webhook.quota.documents import QuotaRecord, QuotaStatus, encode_status, quota_path, quota_reference

EVERY_SECONDS = 1.0
"""From the first change to the write that shows all changes. So a status is written at most once a second."""
PACE_SECONDS = 0.02
"""Between two writes. 50 writes a second of some 4 ms take the API server a fifth of a core, however many quotas change."""
FAILED_SECONDS = 10.0
"""Pause of a status after a failed write, and of all statuses if the API server did not answer."""
LOOK_SECONDS = 0.1
CALL_SECONDS = 10.0

log = logging.getLogger("gpu_admission.controller")


class QuotaStatusWriter:
    """Writes each status that differs from its ledger, one after the other.

    `stale` and `unmapped_resources` return the arguments of `conditions`.
    """

    def __init__(
        self,
        api: ApiClient,
        quotas: Informer[QuotaRecord],
        ledger_objects: Informer[LedgerRecord],
        *,
        leads: Callable[[], bool],
        stale: Callable[[], str],
        unmapped_resources: Callable[[], Sequence[str] | None],
        events: EventQueue,
    ) -> None:
        self._api, self._quotas, self._ledger_objects = api, quotas, ledger_objects
        self._leads, self._stale, self._unmapped_resources = leads, stale, unmapped_resources
        self._events = events
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._was_stale = False

    def changed(self, namespace: str) -> None:
        with self._lock:
            self._due.setdefault(namespace, monotonic() + EVERY_SECONDS)

    def all_changed(self) -> None:
        for namespace in self._quotas.namespaces():
            self.changed(namespace)

    def run(self, stopping: threading.Event) -> None:
        """Write until `stopping`; the body of a thread."""
        while not stopping.wait(self.look()):
            pass

    def look(self) -> float:
        """Write the statuses that are due, while this process leads. Return the seconds until the next call."""
        if not self._leads():
            return LOOK_SECONDS
        if bool(self._stale()) != self._was_stale:
            self._was_stale = not self._was_stale
            self.all_changed()
        while self._leads() and (namespace := self._take(monotonic())) is not None:
            try:
                if self._write(namespace):
                    sleep(PACE_SECONDS)
            except errors.Conflict:  # the watch will show the newer version
                self.changed(namespace)
            except errors.ApiError as error:
                log.warning("%s: the status of the GPUQuota cannot be written: %s", namespace, error)
                with self._lock:  # a change in between must not shorten the pause
                    self._due[namespace] = monotonic() + FAILED_SECONDS
                if isinstance(error, errors.Unreachable):
                    return FAILED_SECONDS
                sleep(PACE_SECONDS)
            except Exception:  # a bug with one namespace must not end the work on the others
                log.exception("%s: the status of the GPUQuota was not written", namespace)
        return LOOK_SECONDS

    def _take(self, now: float) -> str | None:
        with self._lock:
            due, namespace = min(((due, name) for name, due in self._due.items()), default=(inf, ""))
            if due > now:
                return None
            del self._due[namespace]
            return namespace

    def _write(self, namespace: str) -> bool:
        """Write the status of a quota if it differs, and return whether it did. Raises `errors.ApiError`."""
        quota = next(iter(self._quotas.items(namespace)), None)
        record = next(iter(self._ledger_objects.items(namespace)), None)
        if quota is None or record is None:
            return False
        status = self._shown(quota, record)
        if status is None or status == quota.status:
            return False
        try:
            body = encode_status(quota, status)
            self._api.put(quota_path(namespace, "status"), body, timeout=CALL_SECONDS, accept=METADATA)
        except errors.NotFound:
            return False
        exceeded, before = status.condition(EXCEEDED), quota.status.condition(EXCEEDED)
        if exceeded and exceeded.status == TRUE and not (before and before.status == TRUE):
            regarding = quota_reference(namespace, quota.uid)
            self._events.put(EventRecord(regarding=regarding, reason=EXCEEDED, message=exceeded.message))
        return True

    def _shown(self, quota: QuotaRecord, record: LedgerRecord) -> QuotaStatus | None:
        """Return the status that the quota should have, None while the ledger belongs to a former quota."""
        before, ledger, now = quota.status, record.ledger, datetime.now(UTC)
        if ledger is None:
            found = unreadable(record.problem, before.conditions, before.observed_generation, now)
            return msgspec.structs.replace(before, conditions=found)
        if ledger.quota_uid != quota.uid:
            return None
        stale, unmapped_resources = self._stale(), self._unmapped_resources()
        amounts = {"used": ledger.used or {}, "reserved": ledger.reserved_shown}
        return QuotaStatus(
            hard=ledger.hard,
            used=ledger.used,
            reserved=amounts["reserved"],
            shown={
                name: {key: format_amount(amount) for key, amount in sorted(vector.items())}
                for name, vector in amounts.items()
            },
            holders=ledger.holders,
            conditions=conditions(
                ledger, before.conditions, stale=stale, unmapped_resources=unmapped_resources, now=now
            ),
            observed_generation=ledger.generation,
        )


def staleness(informers: Mapping[str, Informer[Any]]) -> str:
    """Return why counts from these informers may lag, or an empty text."""
    silent = [
        f"no message about {name} for {informer.age:.0f} s"
        for name, informer in informers.items()
        if informer.age > STALE_SECONDS
    ]
    return "; ".join(silent)
