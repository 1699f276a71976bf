"""The status of every GPUQuota: what its ledger says, for people. The leader writes it, and no decision depends on it."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from time import monotonic, sleep
from typing import Any

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.cluster.informer import Informer
from webhook.cluster.objects import Condition
from webhook.controller.conditions import EXCEEDED, TRUE, conditions, unreadable
from webhook.controller.records import LedgerRecord
from webhook.quota.documents import QuotaRecord, QuotaStatus, encode_status, quota_path
from webhook.quota.events import QuotaEvents

EVERY_SECONDS = 1.0
"""From a change to the write that shows it, with all that came meanwhile: a status is written once a second at most."""
PACE_SECONDS = 0.02
"""Between two writes: 50 a second of some 4 ms take the API server a fifth of a core, however many quotas change at once."""
FAILED_SECONDS = 10.0
"""After a write that failed, of that status; of all of them where no answer came: the others would get none, too."""
STALE_SECONDS = 150.0
"""Silence of a watch after which counts are stale: two and a half intervals of bookmarks."""
LOOK_SECONDS = 0.1
CALL_SECONDS = 10.0

log = logging.getLogger("gpu_admission.controller")


class QuotaStatusWriter:
    """Writes each status that differs from what its ledger says, one after the other.

    stale: why counts may lag, empty if they do not.
    unmapped_resources: as `conditions` takes it.
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
        events: QuotaEvents,
    ) -> None:
        self._api, self._quotas, self._ledger_objects = api, quotas, ledger_objects
        self._leads, self._stale, self._unmapped_resources = leads, stale, unmapped_resources
        self._events = events
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._was_stale = False

    def changed(self, namespace: str) -> None:
        """Take note that the quota of a namespace or its ledger has changed."""
        with self._lock:
            self._due.setdefault(namespace, monotonic() + EVERY_SECONDS)

    def all_changed(self) -> None:
        """Take note that what the conditions of all quotas say has changed."""
        for namespace in self._quotas.namespaces():
            self.changed(namespace)

    def run(self, stopping: threading.Event) -> None:
        """Write until `stopping`; the body of a thread."""
        while not stopping.wait(self.look()):
            pass

    def look(self) -> float:
        """Write what is due now, as long as this process leads; return the seconds until the next look."""
        if not self._leads():
            return LOOK_SECONDS
        if bool(self._stale()) != self._was_stale:
            self._was_stale = not self._was_stale
            self.all_changed()
        while self._leads() and (namespace := self._take(monotonic())) is not None:
            try:
                if self._write(namespace):
                    sleep(PACE_SECONDS)
            except errors.Conflict:  # the watch will show what was written meanwhile
                self.changed(namespace)
            except errors.ApiError as error:
                log.warning("%s: the status of the GPUQuota cannot be written: %s", namespace, error)
                self._again(namespace)
                if isinstance(error, errors.Unreachable):
                    return FAILED_SECONDS
                sleep(PACE_SECONDS)
            except Exception:  # a bug met in one namespace must not end the work on the others
                log.exception("%s: the status of the GPUQuota was not written", namespace)
        return LOOK_SECONDS

    def _again(self, namespace: str) -> None:
        """Have a status that could not be written wait, also if it changes meanwhile."""
        with self._lock:
            self._due[namespace] = monotonic() + FAILED_SECONDS

    def _take(self, now: float) -> str | None:
        """Return the namespace that is due first, None if none is due."""
        with self._lock:
            due, namespace = min(((due, name) for name, due in self._due.items()), default=(inf, ""))
            if due > now:
                return None
            del self._due[namespace]
            return namespace

    def _write(self, namespace: str) -> bool:
        """Write the status of a namespace's quota if it differs, and return whether it did. Raises `errors.ApiError`."""
        quota = next(iter(self._quotas.snapshot(namespace).items), None)
        record = next(iter(self._ledger_objects.snapshot(namespace).items), None)
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
            self._events.warn(namespace, quota.uid, EXCEEDED, exceeded.message)
        return True

    def _shown(self, quota: QuotaRecord, record: LedgerRecord) -> QuotaStatus | None:
        """Return the status that the quota should have, None while its ledger is that of the quota before."""
        before, ledger, now = quota.status, record.ledger, datetime.now(UTC)
        if ledger is None:
            found = unreadable(record.problem, before.conditions, before.observed_generation, now)
            return msgspec.structs.replace(before, conditions=found)
        if ledger.quota_uid != quota.uid:
            return None
        stale, unmapped_resources = self._stale(), self._unmapped_resources()
        return status_of(
            ledger,
            conditions(
                ledger, before.conditions, stale=stale, unmapped_resources=unmapped_resources, now=now
            ),
        )


def staleness(informers: Mapping[str, Informer[Any]]) -> str:
    """Return why counts from these informers may lag, empty if they do not."""
    silent = [
        f"no message about {name} for {informer.age:.0f} s"
        for name, informer in informers.items()
        if informer.age > STALE_SECONDS
    ]
    return "; ".join(silent)


def status_of(ledger: QuotaLedger, found: Sequence[Condition]) -> QuotaStatus:
    """Return the status that shows a ledger, with its conditions."""
    return QuotaStatus(
        hard=ledger.hard,
        used=ledger.used,
        reserved=ledger.reserved_shown,
        holders=ledger.holders,
        conditions=tuple(found),
        observed_generation=ledger.generation,
    )
