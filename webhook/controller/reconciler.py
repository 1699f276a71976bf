"""Reconciles the ledger of a namespace: writes a new count, and removes reservations that are confirmed or expired.

`policies.quota.ledger.reconcile` decides what a count allows. This module has the clock, the lists and the writes.

It creates a ledger object for each GPUQuota, writes changes of the spec into it, and deletes it with the quota. The GPUQuota is
read after the ledger, and a write names the version of the ledger that was read before. So an old spec never replaces a newer
one, and a ledger stays if its GPUQuota was deleted and created again.
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic, sleep, time

import msgspec

from policies.quota.budget import next_change
from policies.quota.catalogue import CatalogueVersion
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import (
    SPENDING_MS,
    Reconciled,
    Refused,
    begin_transition,
    catalogue_version_to_count_by,
    initialise,
    must_be_written,
    reconcile,
)
from policies.quota.line import Turn
from policies.quota.quota_request import LedgerError
from webhook.cluster.collection import EVER_LISTED
from webhook.cluster.events import EventQueue, EventRecord
from webhook.controller.gpu_use import GPUUse
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.moves import PreparedJoin, TeamMoves
from webhook.controller.quota_status import quoted
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.teams import DeletedQuotas, desired_ledger, desired_team
from webhook.controller.usage_counter import Counted, UsageCounter
from webhook.controller.waiting_line import WaitingLine
from webhook.quota.cluster_store import CALL_SECONDS, ClusterStore
from webhook.quota.config_maps import BudgetNotes
from webhook.quota.documents import quota_reference
from webhook.quota.ledger_objects import NO_LEDGER_OBJECT
from webhook.quota.store import LedgerConflict, VersionedLedger

log = logging.getLogger("gpu_admission.controller")

CONTEND_SECONDS = 8.0
"""How long a worker retries a ledger that others keep writing, before it takes another namespace."""
CONTENDED_RETRY_SECONDS = 0.5
"""Seconds until the next attempt after CONTEND_SECONDS."""
EPOCH_RAISE_SECONDS = 0.5
"""Minimum of seconds between two raises of the epoch. After each, all replicas read the namespaces without a quota again."""
LISTS_POLL_SECONDS = 0.3
"""Seconds until the next look for lists that another thread is reading."""
API_SERVER_WENT_BACK = (
    "the ledger was counted from newer lists than the API server has: was etcd restored from a backup? "
    "See Ledgers in docs/operate/operations.md"
)
"""A list that begins after the ledger was read is never older than the lists of its count, unless etcd was restored."""
LINE_TURN_SECONDS = 30.0
"""Interval of turns for changes that no watch reports: the size of a gang, the end of a pause, a starved pod."""
SILENT_WATCH_SECONDS = 30.0
"""Seconds until the next count of a budget while a watch is silent."""
MARGIN_SECONDS = 0.05
"""Added to waits, so that they do not end too early."""


class _Plan(msgspec.Struct, frozen=True):
    """How to count a ledger: with which counter, by which catalogue version. The ledger may have begun a move to another version.

    needs_full_count: a dimension of the ledger was never counted, or its catalogue is unknown.
    """

    ledger: QuotaLedger
    counter: UsageCounter
    version: CatalogueVersion
    needs_full_count: bool


class Counting(msgspec.Struct, frozen=True):
    plan: _Plan
    result: Reconciled | Refused


@dataclass(eq=False)
class QuotaReconciler:
    """Reconciles the ledgers of namespaces. Thread-safe, but only one thread at a time may reconcile a namespace."""

    store: ClusterStore
    informers: SharedInformers
    metrics: ControllerMetrics
    events: EventQueue
    line: WaitingLine
    enforces: Callable[[str], bool]
    """Says whether the quota of a namespace denies anything. Where it does not, nobody waits in line."""
    notes: BudgetNotes
    clock: Callable[[], int]
    """Returns ms since 1970, as for the counts."""
    moves: TeamMoves
    deleted: DeletedQuotas = field(default_factory=DeletedQuotas)
    gpu_use: GPUUse | None = None
    """None if the use of GPUs is not measured."""

    def __post_init__(self) -> None:
        self.usage_cache, self.observed = self.informers.usage, self.informers.observed
        self.membership, self.watched_quota = self.informers.membership, self.informers.watched_quota
        self._contended: set[str] = set()
        self._listing, self._raising = threading.Lock(), threading.Lock()

    def reconcile(self, namespace: str) -> float | None:
        """Update the ledger. Return the seconds until the next time, or None. Raises LedgerError, `errors.ApiError`."""
        begun = monotonic()
        former: Revisions | None = None
        while monotonic() < begun + CONTEND_SECONDS:
            started, fresh = monotonic(), namespace in self._contended
            try:
                if (wait := self._first_wait(namespace, fresh=fresh)) > 0:
                    return wait
                ledger_object = self.current(namespace, fresh=fresh)
                self._contended.discard(namespace)
                if ledger_object is None:
                    return self._without_quota(namespace)
                if isinstance(ledger_object, float) or self.membership.exceeds_max_namespaces(namespace):
                    return ledger_object if isinstance(ledger_object, float) else None
                counting = self.count(namespace, ledger_object.ledger, begun)
                if isinstance(counting, float):
                    return counting
                if isinstance(counting.result, Refused):
                    former = self.list_again(namespace, counting, former, started)
                    continue
                counted = self.line.credited(namespace, ledger_object.ledger, counting.result.ledger)
                turn = self._take_turn(namespace, counted)
                in_force = self._write(namespace, ledger_object, turn.ledger)
                self.report_written(namespace, ledger_object.ledger, counting)
                self.start(namespace, turn.ungate_uids)
            except LedgerConflict:
                # Others write this ledger faster than the watch shows it. Read it first, also in the next call.
                self._contended.add(namespace)
                self.metrics.conflicts.inc()
                sleep(random.uniform(0.0, 0.02))  # noqa: S311 - jitter
            else:
                return self.seconds_until_next(namespace, in_force)
        return CONTENDED_RETRY_SECONDS

    def count(self, namespace: str, ledger: QuotaLedger, begun: float) -> Counting | float:
        """Count a ledger, or return the seconds until it can be counted. Raises LedgerError, `errors.ApiError`."""
        plan = self._plan_count(self._with_noted_spending(namespace, ledger).without_late_marks(self.clock()))
        if (wait := self._wait(namespace, plan)) > 0:
            return wait
        return Counting(plan, self._reconcile_count(namespace, plan, self._count(namespace, plan, begun)))

    def list_again(
        self, namespace: str, counting: Counting, former: Revisions | None, started: float
    ) -> Revisions:
        """List again after a refused count, and return its revisions. `former` are those of the one before. Raises as `count`."""
        result, revisions = counting.result, counting.plan.ledger.revisions
        if result is Refused.OLDER and revisions == former:
            raise LedgerError(API_SERVER_WENT_BACK, transient=False)
        if isinstance(result, Refused):
            log.info("%s: %s; listing again", namespace, result.value)
            self.metrics.refused.labels(result.name.lower()).inc()
        counting.plan.counter.refresh(namespace, since=started, nodes_since=started, slices_since=started)
        return revisions

    def _take_turn(self, namespace: str, ledger: QuotaLedger) -> Turn:
        """Return the ledger with what is held for the next pods in line, and the pods whose gates go."""
        # A ledger that joins a team has its turn there, with the others.
        turn = None if ledger.team_state else self.line.take_turn(namespace, ledger)
        return turn or Turn(ledger, (), {})

    def start(self, namespace: str, uids: tuple[str, ...]) -> None:
        """Remove the gates of the pods whose turn it is; of all, where the quota denies nothing."""
        if not self.line.has_waiting(namespace):
            return
        if self.enforces(namespace):
            self.line.start(namespace, uids)
        else:
            self.line.start_all(namespace, partial(self.enforces, namespace))

    def _without_quota(self, namespace: str) -> float | None:
        self.metrics.forget(namespace)
        self.line.start_all(namespace, partial(self._desired, namespace))
        return LINE_TURN_SECONDS if self.line.has_waiting(namespace) else None

    def _first_wait(self, namespace: str, *, fresh: bool) -> float:
        """Return the seconds that a ledger has to wait if it was never counted and has the spec of its quota."""
        if self.observed.object_name(namespace) != namespace:
            return MARGIN_SECONDS  # from then on it is counted with the others of its team
        ledger_object = self.observed.get(namespace)
        if (
            fresh
            or ledger_object is None
            or ledger_object.ledger.used is not None
            or not self._has_spec(namespace, ledger_object)
        ):
            return 0.0
        wait = self._initialization_wait(namespace)
        return wait + MARGIN_SECONDS if wait else LISTS_POLL_SECONDS * self._listing.locked()

    def _wait(self, namespace: str, plan: _Plan) -> float:
        """Return the seconds until the ledger may be counted. Raises `errors.ApiError`."""
        if not plan.counter.synced:
            return LISTS_POLL_SECONDS
        if not plan.needs_full_count:
            return 0.0
        if wait := self._initialization_wait(namespace):
            return wait + MARGIN_SECONDS
        return 0.0 if self._list_if_many(namespace, plan.counter) else LISTS_POLL_SECONDS

    def _initialization_wait(self, namespace: str) -> float:
        """Return the seconds until the ledger may be initialised. Raise the epoch if it must be, for many at once."""
        is_due = self.observed.initialization_wait(namespace) == inf
        if is_due and self._raising.acquire(blocking=False):
            try:
                begun, raised = monotonic(), self.observed.raised
                if not raised or raised[-1][0] + EPOCH_RAISE_SECONDS <= begun:
                    self.store.raise_epoch(CALL_SECONDS)
                    raised.append((begun, monotonic()))
            finally:
                self._raising.release()
        wait = self.observed.initialization_wait(namespace)
        return wait if wait < inf else EPOCH_RAISE_SECONDS

    def _list_if_many(self, namespace: str, counter: UsageCounter) -> bool:
        """List everything if many namespaces need new lists. Return False while another thread does that."""
        since = self.observed.spec_since(namespace)
        if counter.is_listed(namespace, since) or not counter.pods.is_longer(self.observed.uncounted()):
            return True
        if not self._listing.acquire(blocking=False):
            return False
        try:
            counter.refresh_all(since)
        finally:
            self._listing.release()
        return True

    def _plan_count(self, ledger: QuotaLedger) -> _Plan:
        """Return how to count the ledger. Raises `errors.ApiError`.

        A count under another catalogue version migrates to ours without a pause, if all replicas can read both catalogues.
        Otherwise the ledger is counted in full, and denies requests until all reservations under the other version are gone.
        """
        own = self.usage_cache.own_counter
        target = CatalogueVersion(own.digest, ledger.unclassified_pods)
        if self.usage_cache.publish(own) or ledger.class_catalogue == str(target):
            moving = begin_transition(ledger, str(target))
            by = CatalogueVersion.parse(catalogue_version_to_count_by(moving) or "")
            counter = self.usage_cache.of(by.digest) if by else None
            if by and counter:
                is_uncounted = ledger.used is None or bool(ledger.uncounted)
                return _Plan(moving, counter, by, needs_full_count=is_uncounted)
        return _Plan(ledger, own, target, needs_full_count=True)

    def _count(self, namespace: str, plan: _Plan, now: float) -> Counted:
        """Count from lists that are new enough. The first count needs lists that began after the ledger was first observed."""
        ledger, counter = plan.ledger, plan.counter
        since = self.observed.spec_since(namespace) if plan.needs_full_count else EVER_LISTED
        counter.refresh(namespace, since=since, nodes_since=since)
        self.usage_cache.refresh_claims(namespace)
        counted = self._count_now(namespace, plan)
        if self._may_expire_more(namespace, ledger, counted, now):
            counter.refresh(namespace, since=now, nodes_since=0.0)
            counted = self._count_now(namespace, plan)
        return counted

    def _count_now(self, namespace: str, plan: _Plan) -> Counted:
        deleted = self.usage_cache.deleted(namespace)
        idle = self.gpu_use.idle(namespace) if self.gpu_use else {}
        return plan.counter.count(namespace, plan.ledger, plan.version.unclassified_pods, deleted, idle)

    def _may_expire_more(self, namespace: str, ledger: QuotaLedger, counted: Counted, now: float) -> bool:
        """Whether a list that starts now may expire a reservation that the present lists cannot expire."""
        expired = self.observed.expired
        overdue = expired(namespace, now) - expired(namespace, counted.list_started)
        objects = counted.listing.objects
        shown = (each.id for each in ledger.reservations if not each.is_change and each.object_uid in objects)
        return bool(overdue.intersection(ledger.reservations.ids).difference(shown))

    def _reconcile_count(self, namespace: str, plan: _Plan, counted: Counted) -> Reconciled | Refused:
        if counted.listing.revisions.are_mixed:
            # A ledger without a count would accept it.
            return Refused.OLDER
        expired = self.observed.expired(namespace, counted.list_started)
        if not plan.needs_full_count:
            return reconcile(plan.ledger, counted.listing, expired)
        waited = not self.observed.initialization_wait(namespace)
        return initialise(plan.ledger, counted.listing, expired, waited=waited)

    def _write(self, namespace: str, versioned: VersionedLedger, ledger: QuotaLedger) -> QuotaLedger:
        """Return the ledger in force."""
        if not isinstance(versioned, PreparedJoin) and not must_be_written(versioned.ledger, ledger):
            return versioned.ledger
        return self.swap(namespace, versioned, ledger).ledger

    def report_written(self, namespace: str, before: QuotaLedger, counting: Counting) -> None:
        """Report a count that was written, or was no news."""
        plan, reconciled = counting.plan, counting.result
        if isinstance(reconciled, Refused):
            return
        ledger = reconciled.ledger
        if ledger.class_catalogue not in {None, before.class_catalogue}:
            self.metrics.recount_time.labels(namespace).set(time())
            what = f"quota {ledger.quota_uid}" if ledger.quota_uid else "the quota of its team"
            log.info("%s: counted by %s; %s is in force", namespace, plan.version, what)
        self.metrics.confirmed.labels(namespace).inc(len(reconciled.confirmed))
        if reconciled.expired:
            self.metrics.expired.labels(namespace).inc(len(reconciled.expired))
            log.info("%s: %d reservations expired", namespace, len(reconciled.expired))
        if reconciled.unreadable:
            self.metrics.unreadable.labels(namespace).inc(len(reconciled.unreadable))
            dropped = f"dropped reservations that could not be read: {quoted(reconciled.unreadable)}"
            log.error("%s: %s", namespace, dropped)
            quota = quota_reference(namespace, ledger.quota_uid)
            self.events.put(EventRecord(regarding=quota, reason="UnreadableReservations", message=dropped))

    def seconds_until_next(self, namespace: str, ledger: QuotaLedger) -> float | None:
        """Return when the ledger must be reconciled again without a change. None if never."""
        if catalogue_version_to_count_by(ledger) != ledger.class_catalogue:
            return MARGIN_SECONDS  # all reservations are counted by the next catalogue version, too
        expiry = self.observed.next_expiry(namespace)
        line = LINE_TURN_SECONDS if ledger.marks or self.line.has_waiting(namespace) else None
        claims = self.usage_cache.claims_wait(namespace)
        waits = [each for each in (expiry, line, claims, self._budget_wait(ledger)) if each is not None]
        return max(MARGIN_SECONDS, min(waits)) + MARGIN_SECONDS if waits else None

    def _budget_wait(self, ledger: QuotaLedger) -> float | None:
        """Return the seconds until the budget may be spent, its period ends, or it is counted as often as it must be."""
        if ledger.budget is None or ledger.spending is None:
            return None
        due = next_change(ledger.budget, ledger.spending, ledger.used or {})
        wait = (min(due, ledger.spending.until + SPENDING_MS) - self.clock()) / 1000
        # It is overdue after a count only if that added nothing, because a watch is silent.
        return wait if wait > -1 else SILENT_WATCH_SECONDS

    def _with_noted_spending(self, namespace: str, ledger: QuotaLedger) -> QuotaLedger:
        """Return the ledger of a new budget with what the namespace spent before, of a quota that was deleted."""
        if ledger.budget is None or ledger.spending is not None:
            return ledger
        return msgspec.structs.replace(ledger, spending=self.notes.get(namespace))

    def _note_spending(self, namespace: str, ledger: QuotaLedger) -> None:
        """Note what is spent until now, before the ledger is deleted."""
        if ledger.spending is not None:
            plan = self._plan_count(ledger)
            listing = self._count_now(namespace, plan).listing if plan.counter.synced else None
            self.notes.put(namespace, (listing and listing.spending) or ledger.spending)

    def current(self, namespace: str, *, fresh: bool) -> VersionedLedger | float | None:
        """Return the stored ledger, created or with a changed spec if need be. None, and no ledger, without a GPUQuota.

        The seconds to wait, if the GPUQuota was just deleted: until then the ledger stays as it is.

        `fresh`: read it from the API server, because others write it faster than the watch shows it. The ledger of a namespace
        that joins a team is returned as it will be there. Raises LedgerError, or LedgerConflict if another process changed the
        ledger meanwhile.
        """
        ledger_object = None if fresh else self.observed.get(namespace)
        if ledger_object is None:
            desired = None if fresh else self._desired(namespace)
            # If a ledger exists that is not observed yet, its creation conflicts.
            ledger_object = VersionedLedger(desired, NO_LEDGER_OBJECT) if desired else self._read(namespace)
            if ledger_object is None:
                return None
            if ledger_object.version == NO_LEDGER_OBJECT:
                # Never counted, so it grants nothing: if the call times out, the ledger may be created at any time later.
                ledger_object = self.swap(namespace, ledger_object, ledger_object.ledger)
            self.observed.observe(namespace, ledger_object)
        if ledger_object.ledger.moved_to:
            return self._prepared_join(namespace, ledger_object.ledger.moved_to)
        is_uncounted = ledger_object.ledger.used is None or self.membership.exceeds_max_namespaces(namespace)
        if is_uncounted or not self._has_spec(namespace, ledger_object):
            followed = self._follow_spec(namespace, ledger_object)
            if followed is None or isinstance(followed, float):
                return followed
            ledger_object = followed
        team_object = self.membership.team_object_of(namespace)
        return self._prepared_join(namespace, team_object) if team_object else ledger_object

    def _prepared_join(self, namespace: str, team_object: str) -> PreparedJoin:
        if (prepared := self.moves.prepare_join(namespace, team_object)) is None:
            raise LedgerConflict  # it stands in the object of a team
        return prepared

    def _desired(self, namespace: str) -> QuotaLedger | None:
        """Return what the GPUQuota and the ClusterGPUQuota in the informers ask for, never counted."""
        return desired_ledger(
            self.watched_quota(namespace), desired_team(namespace, self.membership, self.observed)
        )

    def _has_spec(self, namespace: str, ledger_object: VersionedLedger) -> bool:
        """Whether the ledger has the spec of the GPUQuota in the informer. Makes no call."""
        desired = self._desired(namespace)
        return desired is not None and ledger_object.ledger.spec == desired.spec

    def swap(self, namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> VersionedLedger:
        if isinstance(before, PreparedJoin):
            return self.moves.join(namespace, before, ledger)
        written = self.store.compare_and_swap(namespace, before, ledger, CALL_SECONDS)
        self.observed.observe(namespace, written)
        return written

    def _read(self, namespace: str) -> VersionedLedger | None:
        try:
            if (own := self.store.read_own(namespace, CALL_SECONDS)) is not None:
                return own
            desired = self._read_desired(namespace)
            return None if desired is None else VersionedLedger(desired, NO_LEDGER_OBJECT)
        except LedgerError as error:
            # An unreadable ledger denies requests, even after its quota was deleted.
            if error.transient or not self.store.discard(namespace, CALL_SECONDS):
                raise
            return None

    def _read_desired(self, namespace: str) -> QuotaLedger | None:
        quota = self.store.read_desired(namespace, CALL_SECONDS)
        return desired_ledger(quota, desired_team(namespace, self.membership, self.observed))

    def _follow_spec(self, namespace: str, ledger_object: VersionedLedger) -> VersionedLedger | float | None:
        """Read the GPUQuota, and write its spec into the ledger. Without GPUQuota and team, delete it and return None.

        Both are looked for after the ledger was read.
        """
        desired, ledger = self._read_desired(namespace), ledger_object.ledger
        if (wait := self.deleted.wait(namespace, ledger, desired)) > 0:
            return wait
        if desired is None:
            if self.store.has_team(namespace, CALL_SECONDS):  # what is reserved would be lost
                raise LedgerError("the watch does not show its ClusterGPUQuota yet", transient=True)
            self._note_spending(namespace, ledger)
            self.store.delete(namespace, ledger_object.version, CALL_SECONDS)
            self.observed.forget(namespace, ledger.ledger_uid)
            self.deleted.forget(namespace)
            return None
        updated = ledger.with_spec_of(desired)
        if not desired.has_quota or self.membership.exceeds_max_namespaces(namespace):
            # Its own object has no limits, or not those of its team: it is counted when it joins the team.
            updated = msgspec.structs.replace(updated, used=None)
        return ledger_object if updated == ledger else self.swap(namespace, ledger_object, updated)
