"""Moves the ledger of a namespace between its own GPUQuotaLedger and that of its team. Its reservations move with it.

At any moment at most one object decides. The team's object decides if `movedTo` of the own object names it and it lists the
namespace, but not in `leaving`. Otherwise the namespace's own object decides. Each step is one swap:

    join   SEND    own:  movedTo := team
           ADD     team: has the ledger, counted with the team's dimensions
    leave  FREEZE  team: namespace added to `leaving`
           RETURN  own:  has the ledger again, movedTo := ""
           REMOVE  team: without the ledger

Any controller continues with the next step, also after a crash. `read` reads own, team and own again, until both reads of own
have one resourceVersion. SEND and RETURN write own with that resourceVersion; ADD, FREEZE and REMOVE write the team's object with
its own. So nobody moved the ledger between the reads and the swap.
The model (tests/model/teams.pml) calls them J1, J2, L1, L2, L3.
"""

import logging
import random
from enum import Enum
from time import monotonic, sleep
from typing import NoReturn

from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team, team_title
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from webhook.cluster.events import NORMAL, EventQueue, EventRecord
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.teams import TeamMembership, TeamSizes
from webhook.quota.cluster_store import CALL_SECONDS, ClusterStore
from webhook.quota.ledger_objects import NO_LEDGER_OBJECT, VersionedTeamLedgers, team_name, team_object_name
from webhook.quota.store import LedgerConflict, VersionedLedger
from webhook.quota.team_documents import team_reference

log = logging.getLogger("gpu_admission.controller")

MOVE_SECONDS = 8.0
"""How long a worker tries to move one ledger while others write the same objects."""
PAUSE_SECONDS = 0.02


class Step(Enum):
    """The steps above, between the own object of a namespace and the object of one team."""

    SEND = "send"
    ADD = "add"
    FREEZE = "freeze"
    RETURN = "return"
    REMOVE = "remove"


def next_step(
    namespace: str,
    team_object: str,
    own: VersionedLedger | None,
    team: TeamLedgers | None,
    *,
    should_be_in_team: bool,
) -> Step | None:
    """Return the next step between the own object of a namespace and the team's object `team_object`. None if none is needed.

    own, team: None if that object does not exist.
    """
    is_sent = own is not None and own.ledger.moved_to == team_object
    if team is not None and namespace in team.leaving:
        return Step.RETURN if is_sent else Step.REMOVE
    if team is not None and namespace in team.ledgers:
        return None if should_be_in_team and is_sent else Step.FREEZE
    if is_sent:
        return Step.ADD
    may_be_sent = own is not None and not own.ledger.moved_to
    return Step.SEND if should_be_in_team and may_be_sent else None


class PreparedJoin(VersionedLedger, frozen=True, kw_only=True):
    """The ledger as it will be in its team's object, once it is counted for the team. `own` is its present object."""

    team_ledgers: TeamLedgers
    own: VersionedLedger


class TeamMoves:
    """Moves ledgers into and out of the objects of teams. Thread-safe, but only one thread at a time may move a namespace."""

    def __init__(
        self,
        store: ClusterStore,
        observed: ObservedLedgers,
        metrics: ControllerMetrics,
        membership: TeamMembership,
        sizes: TeamSizes,
        events: EventQueue,
    ) -> None:
        self._store, self._observed, self._metrics = store, observed, metrics
        self._membership, self._sizes, self._events = membership, sizes, events

    def read(
        self, namespace: str, team_object: str
    ) -> tuple[VersionedLedger | None, VersionedTeamLedgers | None]:
        """Return the own object and the team's. Own did not change before the team's was read. Raises LedgerError."""
        own = self._store.read_own(namespace, CALL_SECONDS)
        while True:
            team = self._store.read_team(team_name(team_object), CALL_SECONDS)
            again = self._store.read_own(namespace, CALL_SECONDS)
            if (own and own.version) == (again and again.version):
                return own, team
            own = again

    def prepare_join(self, namespace: str, team_object: str) -> PreparedJoin | None:
        """Return the ledger as it will be in the team's object. The caller must count it, and pass both to `join`.

        None if the ledger is in the team's object, or an unfinished leave had to be completed first. Raises LedgerError, and
        LedgerConflict if the team's object had to be created.
        """
        own, team = self.read(namespace, team_object)
        ledgers = team.team_ledgers if team else None
        step = next_step(namespace, team_object, own, ledgers, should_be_in_team=True)
        if step in {Step.FREEZE, Step.RETURN, Step.REMOVE}:
            self.leave(namespace, team_object)
            return None
        if own is None or step is None:
            if team is not None:
                self._observed.observe_team(team)
            return None
        if team is None:
            self._create_team_object(team_name(team_object))
            raise LedgerConflict("the object of the team was created")
        after = team.team_ledgers.with_ledger(namespace, own.ledger)
        what = f"namespace {namespace}"
        if step is Step.SEND and not self._sizes.fits(team.team_ledgers, after, namespace, what):
            self._refuse_too_large(namespace, own, team.team_ledgers.team.name)
        return PreparedJoin(
            ledger=after.of(namespace) or own.ledger, version=team.version, team_ledgers=after, own=own
        )

    def _refuse_too_large(self, namespace: str, own: VersionedLedger, team: str) -> NoReturn:
        # An uncounted ledger denies every request. Else a GPUQuota with many limits would keep its namespace out of the team.
        uncounted = replace(own.ledger, used=None)
        if uncounted != own.ledger:
            written = self._store.compare_and_swap(namespace, own, uncounted, CALL_SECONDS)
            self._observed.observe(namespace, written)
        problem = f"the ledgers of {team_title(team)} would be too large for one object"
        raise LedgerError(problem, transient=False)

    def _create_team_object(self, name: str) -> None:
        """Create the object of a team without ledgers. A create has no resourceVersion precondition: the caller must read again.

        If the ClusterGPUQuota is gone, the ledger returns to its own object in the next reconciliation. If it cannot be read, the
        object would limit nothing, so this raises LedgerError.
        """
        if self._membership.is_unreadable(name):
            raise LedgerError(f"{team_title(name)} cannot be read", transient=False)
        gone = Team(name=name, uid="", generation=0, hard={})
        made = TeamLedgers(self._membership.desired(name) or gone)
        self._observed.observe_team(self._store.swap_team(NO_LEDGER_OBJECT, made, CALL_SECONDS))

    def join(self, namespace: str, before: PreparedJoin, ledger: QuotaLedger) -> VersionedLedger:
        """Write the ledger into the object of the team. Raises LedgerError and LedgerConflict."""
        team = before.team_ledgers.team
        if not before.own.ledger.moved_to:
            sent = replace(before.own.ledger, moved_to=team_object_name(team.name))
            self._store.compare_and_swap(namespace, before.own, sent, CALL_SECONDS)
        in_team = VersionedLedger(before.ledger, before.version, before.team_ledgers)
        written = self._store.compare_and_swap(namespace, in_team, ledger, CALL_SECONDS)
        self._observed.observe(namespace, written)
        self._record_event(team, namespace, "NamespaceJoined", "is counted for the team from now on")
        return written

    def leave(self, namespace: str, team_object: str) -> None:
        """Move a ledger from the team's object into its own. Raises LedgerError.

        Does nothing if the namespace belongs to the team and is not in `leaving`.
        """
        until = monotonic() + MOVE_SECONDS
        while monotonic() < until:
            own, team = self.read(namespace, team_object)
            ledgers = team.team_ledgers if team else None
            belongs = self._membership.team_object_of(namespace) == team_object
            step = next_step(namespace, team_object, own, ledgers, should_be_in_team=belongs)
            if team is None or step not in {Step.FREEZE, Step.RETURN, Step.REMOVE}:
                self._observe_current(namespace, own, team)
                return
            try:
                self._leave(namespace, step, own, team)
            except LedgerConflict:
                self._metrics.conflicts.inc()
                sleep(random.uniform(0.0, PAUSE_SECONDS))  # noqa: S311 - jitter
        raise LedgerError("too many others write to the ledger of the team", transient=True)

    def _record_event(self, team: Team, namespace: str, reason: str, what: str) -> None:
        log.info("%s: %s (ClusterGPUQuota %s)", namespace, what, team.name)
        if team.uid:
            regarding, message = team_reference(team.name, team.uid), f"namespace {namespace} {what}"
            event = EventRecord(
                regarding=regarding, reason=reason, message=message, kind=NORMAL, cause=namespace
            )
            self._events.put(event)

    def _observe_current(
        self, namespace: str, own: VersionedLedger | None, team: VersionedTeamLedgers | None
    ) -> None:
        """Update `ObservedLedgers` from the object that has the ledger. If neither has it, forget it: it is read again."""
        if team is not None and team.team_ledgers.has(namespace):
            self._observed.observe_team(team)
            return
        if own is None or own.ledger.moved_to:
            known = self._observed.ledgers().get(namespace)
            self._observed.forget(namespace, known.ledger_uid if known else "")
        if own is not None:
            self._observed.observe(namespace, own)

    def _leave(
        self, namespace: str, step: Step, own: VersionedLedger | None, team: VersionedTeamLedgers
    ) -> None:
        ledgers = team.team_ledgers
        if step is Step.RETURN and own is not None:
            returned = returned_ledger(ledgers.ledgers[namespace])
            written = self._store.compare_and_swap(namespace, own, returned, CALL_SECONDS)
            self._observed.observe(namespace, written)
            self._record_event(ledgers.team, namespace, "NamespaceLeft", "is no longer counted for the team")
            return
        after = ledgers.leave(namespace) if step is Step.FREEZE else ledgers.without(namespace)
        self._observed.observe_team(self._store.swap_team(team.version, after, CALL_SECONDS))


def returned_ledger(ledger: QuotaLedger) -> QuotaLedger:
    """Return what the own object has of a ledger that leaves a team.

    Without a GPUQuota it has no limits. So it becomes uncounted, and denies until it is counted for another team, or deleted.
    """
    if ledger.has_quota:
        return ledger
    return replace(ledger, used=None)
