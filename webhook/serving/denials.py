"""Gathers denials by owner for 60 s: one log line per owner, and Events on GPUQuotas, and on pods that a program may not change.

If a program was denied a change of a pod, the pod and its controller get an Event. The denial of a creation is in an Event of the
controller that makes the pods, but a change is often made by another one, and only its log would tell (Kueue removes its gate).

Controllers repeat denied requests for as long as they exist. A review only calls `add`, which does no I/O. A thread writes the
lines: soon after the first denial of an owner, then once a window.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf
from time import monotonic

import msgspec
from msgspec.structs import replace

from policies.pods.names import is_dns_label, is_dns_subdomain, is_kind, is_uid
from policies.pods.pod import OwnerReference
from policies.printable import printable
from webhook.cluster.events import FAILED_UPDATE, EventQueue, EventRecord, Regarding
from webhook.cluster.objects import decode_owned
from webhook.evaluation.decision import Outcome
from webhook.evaluation.kinds import POD
from webhook.quota.documents import quota_reference
from webhook.serving.handler import Review, ReviewResult
from webhook.threads import every, thread
from webhook.workloads.creators import is_program

log = logging.getLogger("gpu_admission.denials")

WINDOW_SECONDS = 60.0
CHECK_SECONDS = 0.5
"""Seconds between two checks for due lines. The first denial of an owner waits at most that long."""
MAX_OWNERS = 20
"""Owners of one namespace with lines of their own in a window. Anybody can invent owners."""
MAX_GATHERED = 500
"""Owners of all namespaces. Denials of further owners are only in the audit log."""
MAX_CHANGED = 8
"""Pods of one owner, and controllers, whose denied changes have Events in a window, so that a tenant cannot fill the queue."""
OTHERS = "others"
PLACEMENT = "pod-placement.validate.gpu-admission.dev"
"""The webhook that reviews changes of pods."""


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """A denied request, and the first line of the message.

    owner: the controller that repeats it, as `Deployment/train`; empty for a pod without a controller.
    reason, quota_uid: of the Event and its GPUQuota; empty if no quota denied it.
    changed_objects: the pod whose change by the program `user` was denied, and its controller if it has one; else empty.
    """

    namespace: str
    owner: str
    message: str
    reason: str = ""
    quota_uid: str = ""
    changed_objects: tuple[Regarding, ...] = ()
    user: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.namespace, self.owner, self.reason


def denial_of(review: Review, result: ReviewResult) -> Denial:
    request, status = review.request, result.response.status
    owner = result.metadata.controlled_by if result.metadata else ""
    if not owner and request.kind.kind != POD[1]:
        owner = f"{request.kind.kind}/{request.name}"
    reason = quota_uid = ""
    outcome = result.decisions[0].reservation if result.decisions else None
    if outcome is not None and outcome.ledger is not None:  # the quota is only asked if nothing else denies
        reason = next((finding.reason.name for finding in result.decisions[0].findings(Outcome.DENIED)), "")
        quota_uid = outcome.ledger.quota_uid if reason else ""
    return Denial(
        namespace=request.namespace,
        owner=printable(owner),
        message=printable(status.message.partition("\n")[0] if status else ""),
        reason=reason,
        quota_uid=quota_uid,
        changed_objects=tuple(_changed(review)),
        user=printable(request.user_info.username),
    )


def _changed(review: Review) -> Iterator[Regarding]:
    """Yield the stored pod that a program may not change, and its controller. Our controller reports its own denials."""
    request = review.request
    is_change = request.kind.key == POD and request.operation == "UPDATE"
    if not is_change or review.by_controller or not is_program(request.user_info.username):
        return
    try:
        stored = decode_owned(request.old_object).metadata
    except msgspec.MsgspecError:  # not from the API server, which stores no such object
        return
    yield Regarding("v1", "Pod", request.name, stored.uid or "", request.namespace)
    owner = stored.controller
    if owner is not None and _is_reference(owner):
        yield Regarding(owner.api_version, owner.kind, owner.name, owner.uid, request.namespace)


def _is_reference(owner: OwnerReference) -> bool:
    """Whether an object may be so named: a stored ownerReference may have any text, of any length."""
    group, _, version = owner.api_version.rpartition("/")
    is_version = is_dns_label(version) and (not group or is_dns_subdomain(group))
    return is_version and is_kind(owner.kind) and is_dns_subdomain(owner.name) and is_uid(owner.uid)


class _Gathered:
    """The denials of one owner since the last line about it. `due`: when to write the next line, a moment of `monotonic`."""

    def __init__(self, due: float = 0.0) -> None:
        self.due, self.count = due, 0
        self.first = self.last = datetime.now(UTC)
        self.denial: Denial | None = None  # the last one
        self.changes: dict[Regarding, tuple[Denial, int]] = {}
        """The last denial of a change of each object, and their number."""

    def add(self, denial: Denial) -> None:
        self.last = datetime.now(UTC)
        self.first = self.first if self.count else self.last
        self.count += 1
        self.denial = denial
        for changed in denial.changed_objects:
            if changed in self.changes or len(self.changes) < MAX_CHANGED:
                self.changes[changed] = denial, self.changes.get(changed, (denial, 0))[1] + 1


class DenialReports:
    """Gathers denials, and writes a line for each owner and window. Without `events`, only to the log."""

    def __init__(self, events: EventQueue | None = None, *, window: float = WINDOW_SECONDS) -> None:
        self._events = events
        self._window = window
        self._lock = threading.Lock()
        self._gathered: dict[tuple[str, str, str], _Gathered] = {}
        self._owners: Counter[str] = Counter()
        """Keys of `_gathered` by namespace: no review looks through all of them."""
        self._stopping = threading.Event()
        self._thread = thread(
            "denials", every(CHECK_SECONDS, lambda: self._write(monotonic())), self._stopping
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and write what has gathered."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(inf)

    def add(self, denial: Denial) -> None:
        """Take one denial. It never waits for a write."""
        with self._lock:
            if denial.key not in self._gathered and self._owners[denial.namespace] >= MAX_OWNERS:
                denial = replace(denial, owner=OTHERS)
            if denial.key not in self._gathered:
                if len(self._gathered) >= MAX_GATHERED:
                    return
                self._gathered[denial.key] = _Gathered()
                self._owners[denial.namespace] += 1
            self._gathered[denial.key].add(denial)

    def _write(self, now: float) -> None:
        """Write the lines that are due `now`, and hand their Events on."""
        for denial, gathered in self._take_due(now):
            log.info("%s", _line(denial, gathered))
            if self._events is not None:
                for event_record in _events(denial, gathered):
                    self._events.put(event_record)

    def _take_due(self, now: float) -> list[tuple[Denial, _Gathered]]:
        taken = []
        with self._lock:
            for key, gathered in [item for item in self._gathered.items() if item[1].due <= now]:
                if gathered.denial is not None:
                    taken.append((gathered.denial, gathered))
                    self._gathered[key] = _Gathered(now + self._window)
                    continue
                # Nothing since the last line: forget the owner.
                del self._gathered[key]
                namespace = key[0]
                self._owners[namespace] -= 1
                if not self._owners[namespace]:
                    del self._owners[namespace]
        return taken


def _events(denial: Denial, gathered: _Gathered) -> Iterator[EventRecord]:
    if denial.quota_uid:
        yield EventRecord(
            regarding=quota_reference(denial.namespace, denial.quota_uid),
            reason=denial.reason,
            message=f"{denial.owner}: {denial.message}" if denial.owner else denial.message,
            last=gathered.last,
            first=gathered.first,
            cause=denial.owner,
            count=gathered.count,
        )
    for changed, (of_change, count) in gathered.changes.items():
        said = f'admission webhook "{PLACEMENT}" denied the request: {of_change.message}'
        yield EventRecord(
            regarding=changed,
            reason=FAILED_UPDATE,
            message=f"change by {of_change.user}: {said}",
            last=gathered.last,
            first=gathered.first,
            count=count,
            related=next((owner for owner in of_change.changed_objects[1:] if owner != changed), None),
        )


def _line(denial: Denial, gathered: _Gathered) -> str:
    of_owner = f" of {denial.owner}" if denial.owner else ""
    if gathered.count == 1:
        return f"{denial.namespace}: 1 request{of_owner} denied: {denial.message}"
    seconds = (gathered.last - gathered.first).total_seconds()
    requests = f"{gathered.count} requests{of_owner} denied within {seconds:.0f} s"
    return f"{denial.namespace}: {requests}; the last: {denial.message}"
