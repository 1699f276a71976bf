"""Moves the ledger of a namespace between its own object and that of its team. What was decided by it moves with it.

At any moment at most one object decides. If the own object says `movedTo` a team, that is the object of this team, once it has
the namespace, not in `leaving`. Otherwise it is the own object. Each step is one swap:

    join   J1 own: movedTo := team      J2 team: has the ledger, counted with the team's dimensions
    leave  L1 team: it is leaving       L2 own: has the ledger again, movedTo := ""       L3 team: without it

Any controller continues with the next step, also after a crash. The own object is read before the team's and after it, and must
have the same version. J1 and L2 name the version of the own object that was read, the other steps that of the team's. So nobody
moved the ledger between the reads and the swap.
"""

import logging
import random
from enum import Enum
from time import monotonic, sleep

from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from webhook.cluster.events import NORMAL, EventQueue, EventRecord
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.team_sizes import TeamSizes
from webhook.controller.teams import TeamMembership
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.ledger_objects import NO_LEDGER_OBJECT, VersionedTeamLedgers, team_name, team_object_name
from webhook.quota.store import LedgerConflict, VersionedLedger
from webhook.quota.team_documents import team_reference

log = logging.getLogger("gpu_admission.controller")

CALL_SECONDS = 10.0
"""Timeout of one read or write of a ledger, a GPUQuota or a ClusterGPUQuota."""
MOVE_SECONDS = 8.0
"""How long a worker tries to move one ledger while others write the same objects."""
PAUSE_SECONDS = 0.02


class Step(Enum):
    """The steps above, between the own object of a namespace and the object of one team."""

    SEND = "J1"
    ADD = "J2"
    FREEZE = "L1"
    RETURN = "L2"
    REMOVE = "L3"


def next_step(
    namespace: str, team_object: str, own: VersionedLedger | None, team: TeamLedgers | None, *, belongs: bool
) -> Step | None:
    """Return the next step between the own object of a namespace and the team's object `team_object`. None if none is needed.

    belongs: whether the ledger should be in the team's object. own, team: None if that object does not exist.
    """
    is_sent = own is not None and own.ledger.moved_to == team_object
    if team is not None and namespace in team.leaving:
        return Step.RETURN if is_sent else Step.REMOVE
    if team is not None and namespace in team.ledgers:
        return None if belongs and is_sent else Step.FREEZE
    if is_sent:
        return Step.ADD
    return Step.SEND if belongs and own is not None and not own.ledger.moved_to else None


class Joining(VersionedLedger, frozen=True, kw_only=True):
    """The ledger as it will be in its team's object, once it is counted for the team. `own` is its present object."""

    own: VersionedLedger


class TeamMoves:
    """Moves ledgers into and out of the objects of teams. Thread-safe, but only one thread at a time may move a namespace."""

    def __init__(
        self,
        store: ClusterStore,
        observed: ObservedLedgers,
        metrics: ControllerMetrics,
        membership: TeamMembership,
        events: EventQueue,
    ) -> None:
        self._store, self._observed, self._metrics = store, observed, metrics
        self._membership, self._events = membership, events
        self.sizes = TeamSizes()

    def team_object_of(self, namespace: str) -> str:
        """Return the name of the team's object in which the ledger should be; "" if in none."""
        team = self._membership.team_of(namespace)
        return team_object_name(team) if team and not self._membership.is_beyond(namespace) else ""

    def is_beyond(self, namespace: str) -> bool:
        """Whether MAX_NAMESPACES namespaces of its team are before this one, so that the team does not count it."""
        return self._membership.is_beyond(namespace)

    def desired_team(self, namespace: str) -> Team | None:
        """Return the spec of the team of a namespace. None without one.

        If the ClusterGPUQuota cannot be read, what is in force stays.
        """
        team = self._membership.team_of(namespace)
        if not team:
            return None
        known = self._observed.team(team_object_name(team))
        return self._membership.desired(team) or (known.team_ledgers.team if known else None)

    def read(
        self, namespace: str, team_object: str
    ) -> tuple[VersionedLedger | None, VersionedTeamLedgers | None]:
        """Return the own object and the team's. The own one did not change before the other was read. Raises LedgerError."""
        own = self._store.read_own(namespace, CALL_SECONDS)
        while True:
            team = self._store.read_team(team_name(team_object), CALL_SECONDS)
            again = self._store.read_own(namespace, CALL_SECONDS)
            if (own and own.version) == (again and again.version):
                return own, team
            own = again

    def joining(self, namespace: str, team_object: str) -> Joining | None:
        """Return the ledger that has to be counted for the team's object, and then to `join`.

        None if it is there, or another ledger of the namespace had to be removed there first. Raises LedgerError, and
        LedgerConflict if the team's object had to be created.
        """
        own, team = self.read(namespace, team_object)
        step = next_step(namespace, team_object, own, team.team_ledgers if team else None, belongs=True)
        if step in {Step.FREEZE, Step.RETURN, Step.REMOVE}:
            self.leave(namespace, team_object)
            return None
        if own is None or step is None:
            if team is not None:
                self._observed.observe_team(team)
            return None
        if team is None:
            self._make(team_name(team_object))
            raise LedgerConflict("the object of the team was created")
        after = team.team_ledgers.with_ledger(namespace, own.ledger)
        if step is Step.SEND and not self.sizes.fits(
            team.team_ledgers, after, namespace, f"namespace {namespace}"
        ):
            # Otherwise a user could keep the namespace out of its team by a GPUQuota that is large enough.
            denying = replace(own.ledger, used=None)
            if denying != own.ledger:
                written = self._store.compare_and_swap(namespace, own, denying, CALL_SECONDS)
                self._observed.observe(namespace, written)
            problem = (
                f"the ledgers of ClusterGPUQuota {team_name(team_object)} would be too large for one object"
            )
            raise LedgerError(problem, transient=False)
        return Joining(after.of(namespace) or own.ledger, team.version, after, own=own)

    def _make(self, name: str) -> None:
        """Create the object of a team without ledgers. A creation names no version, so a ledger that was read before may be old.

        If the ClusterGPUQuota is gone, the ledger that is on its way leaves the team again. If it cannot be read, the object
        would limit nothing, so this raises LedgerError.
        """
        if self._membership.is_unreadable(name):
            raise LedgerError(f"ClusterGPUQuota {name} cannot be read", transient=False)
        gone = Team(name=name, uid="", generation=0, hard={})
        made = TeamLedgers(self._membership.desired(name) or gone)
        self._observed.observe_team(self._store.swap_team(NO_LEDGER_OBJECT, made, CALL_SECONDS))

    def join(self, namespace: str, before: Joining, ledger: QuotaLedger) -> VersionedLedger:
        """Write the ledger into the object of the team. Raises LedgerError and LedgerConflict."""
        if before.team_ledgers is not None and not before.own.ledger.moved_to:
            team_object = team_object_name(before.team_ledgers.team.name)
            sent = replace(before.own.ledger, moved_to=team_object)
            self._store.compare_and_swap(namespace, before.own, sent, CALL_SECONDS)
        in_team = VersionedLedger(before.ledger, before.version, before.team_ledgers)
        written = self._store.compare_and_swap(namespace, in_team, ledger, CALL_SECONDS)
        self._observed.observe(namespace, written)
        if written.team_ledgers is not None:
            self._tell(
                written.team_ledgers.team, namespace, "NamespaceJoined", "is counted for the team from now on"
            )
        return written

    def leave(self, namespace: str, team_object: str) -> None:
        """Move a ledger from the team's object into its own, unless it belongs there and does not leave it yet.

        Raises LedgerError.
        """
        until = monotonic() + MOVE_SECONDS
        while monotonic() < until:
            own, team = self.read(namespace, team_object)
            belongs = self.team_object_of(namespace) == team_object
            step = next_step(
                namespace, team_object, own, team.team_ledgers if team else None, belongs=belongs
            )
            if team is None or step not in {Step.FREEZE, Step.RETURN, Step.REMOVE}:
                self._observe_current(namespace, own, team)
                return
            try:
                self._leave(namespace, step, own, team)
            except LedgerConflict:
                self._metrics.conflicts.inc()
                sleep(random.uniform(0.0, PAUSE_SECONDS))  # noqa: S311 - jitter
        raise LedgerError("too many others write to the ledger of the team", transient=True)

    def _tell(self, team: Team, namespace: str, reason: str, what: str) -> None:
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
        """Observe where the ledger is. If neither of these objects has it, forget it, so that it is read again."""
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
            self._tell(ledgers.team, namespace, "NamespaceLeft", "is no longer counted for the team")
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
