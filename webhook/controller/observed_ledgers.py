"""The newest version of each ledger that this process has observed, and since when it knows the ledger and its reservations.

Only the monotonic clock of the process proves that a reservation is old. Wall clocks jump, and the object of a reservation that
is dropped too early may still be stored. So a restarted controller waits EXPIRY_SECONDS again.

A ledger stands in the object of its namespace, or in that of a team. The resourceVersions of both are of one kind, and ordered as
whole numbers. So the newest object that has a ledger is where it is. What was observed stays when it moves.
"""

import threading
from collections import deque
from math import inf
from time import monotonic

import msgspec

from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, JOINING_SECONDS, NO_QUOTA_SECONDS, QuotaLedger
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from webhook.quota.ledger_objects import VersionedTeamLedgers, team_object_name
from webhook.quota.store import VersionedLedger


class _Observation(msgspec.Struct, frozen=True):
    """A ledger, and since when this process knows it (`since`), its present spec, and each of its reservations.

    object_name: the object that has it. version: of that object when a change of the ledger was last seen. team: the spec of its
      team in that object.
    """

    ledger: QuotaLedger
    object_name: str
    version: int
    team: Team | None
    since: float
    spec_since: float
    reservations: dict[str, float]


class ObservedLedgers:
    """Thread-safe: an observation is replaced, never changed, and no lock is held during a call of the API server."""

    def __init__(self, *, expiry: float = EXPIRY_SECONDS, no_quota: float = NO_QUOTA_SECONDS) -> None:
        self._expiry = expiry
        self._no_quota = no_quota
        self.raised: deque[tuple[float, float]] = deque(maxlen=16)
        """When this process raised the epoch: the begin and the end of each write."""
        self._lock = threading.Lock()
        self._observed: dict[str, _Observation] = {}
        self._teams: dict[str, VersionedTeamLedgers] = {}
        """By the name of the object."""

    def get(self, namespace: str) -> VersionedLedger | None:
        """Return the newest observed version. A swap fails if there is a newer one.

        None while the ledger leaves a team. While it joins one, `moved_to` is set.
        """
        observed = self._observed.get(namespace)
        if observed is None:
            return None
        if observed.object_name == namespace:
            return VersionedLedger(observed.ledger, str(observed.version))
        team = self._teams.get(observed.object_name)
        return team.of(namespace) if team else None

    def knows(self, namespace: str) -> bool:
        """Whether a ledger of the namespace was observed, wherever it is now."""
        return namespace in self._observed

    def object_name(self, name: str) -> str:
        """Return the name of the object that has the ledger of a namespace: that of its team, or else the namespace itself."""
        observed = self._observed.get(name)
        return observed.object_name if observed else name

    def ledgers(self) -> dict[str, QuotaLedger]:
        """Return the newest ledgers by namespace, without what they see of their team. Unreadable ones are left out."""
        return {namespace: observed.ledger for namespace, observed in list(self._observed.items())}

    def uncounted(self) -> int:
        """Return how many ledgers were never counted in full: some lack a dimension that `hard`, or that of the team, gained."""
        return sum(map(_is_uncounted, list(self._observed.values())))

    def full(self) -> list[str]:
        """Return the namespaces in which a dimension of the quota, or of the team, is used up."""
        ledgers = ((namespace, self.get(namespace)) for namespace in list(self._observed))
        return [namespace for namespace, ledger in ledgers if ledger and ledger.ledger.is_full]

    def team(self, object_name: str) -> VersionedTeamLedgers | None:
        """Return the newest observed version of a team's object."""
        return self._teams.get(object_name)

    def teams(self) -> dict[str, TeamLedgers]:
        """Return the newest ledgers of all teams, by the name of the team."""
        return {team.team_ledgers.team.name: team.team_ledgers for team in list(self._teams.values())}

    def observe(self, namespace: str, ledger_object: VersionedLedger) -> None:
        """Record a ledger that was just read or written, unless a newer version is recorded: they come in any order."""
        if ledger_object.team_ledgers is not None:
            self.observe_team(VersionedTeamLedgers(ledger_object.team_ledgers, ledger_object.version))
        else:
            with self._lock:
                version = int(ledger_object.version)
                if self._version_of(namespace) < version:
                    self._record(namespace, ledger_object.ledger, namespace, version)

    def observe_team(self, versioned: VersionedTeamLedgers) -> None:
        """Record the ledgers in a team's object in the same way."""
        team_ledgers, version = versioned.team_ledgers, int(versioned.version)
        object_name = team_object_name(team_ledgers.team.name)
        with self._lock:
            before = self._teams.get(object_name)
            if before is not None and int(before.version) >= version:
                return
            known = before.team_ledgers.ledgers if before else {}
            for namespace, ledger in team_ledgers.ledgers.items():
                observed = self._observed.get(namespace)
                is_known = observed is not None and (observed.object_name, observed.team) == (
                    object_name,
                    team_ledgers.team,
                )
                if is_known and known.get(namespace) is ledger:
                    continue
                if team_ledgers.has(namespace) and self._version_of(namespace) < version:
                    self._record(namespace, ledger, object_name, version, team_ledgers.team)
            self._teams[object_name] = versioned

    def _version_of(self, namespace: str) -> int:
        """Return the version of the newest object that was observed to have the ledger."""
        observed = self._observed.get(namespace)
        if observed is None:
            return -1
        team = self._teams.get(observed.object_name)
        return max(observed.version, int(team.version) if team and team.team_ledgers.has(namespace) else 0)

    def _record(
        self, namespace: str, ledger: QuotaLedger, object_name: str, version: int, team: Team | None = None
    ) -> None:
        now, before, joining = monotonic(), self._observed.get(namespace), ledger.reservations.joining
        early = now - max(0.0, self._expiry - JOINING_SECONDS)  # what demands nothing goes sooner
        if before is None or before.ledger.ledger_uid != ledger.ledger_uid:
            before = _Observation(ledger, object_name, version, team, now, now, {})
        is_same = before.team == team and before.ledger.spec == ledger.spec
        self._observed[namespace] = _Observation(
            ledger,
            object_name,
            version,
            team,
            before.since,
            before.spec_since if is_same else now,
            {
                reservation: before.reservations.get(reservation, early if reservation in joining else now)
                for reservation in ledger.reservations.expiring_ids
            },
        )

    def forget(self, namespace: str, ledger_uid: str) -> None:
        """Forget a ledger that was deleted or cannot be read, but not another one in its place."""
        with self._lock:
            observed = self._observed.get(namespace)
            if observed is not None and observed.ledger.ledger_uid == ledger_uid:
                del self._observed[namespace]

    def forget_team(self, object_name: str) -> None:
        """Forget a team's object that was deleted or cannot be read. Its ledgers are observed again where they are."""
        with self._lock:
            self._teams.pop(object_name, None)

    def spec_since(self, namespace: str) -> float:
        """Return when this process first observed the ledger with the present quota in its present generation."""
        observed = self._observed.get(namespace)
        return observed.spec_since if observed else monotonic()

    def initialization_wait(self, namespace: str) -> float:
        """Return the seconds until the quota may be initialised; inf if the epoch must be raised first.

        For `no_quota` seconds after that, replicas may still answer by an earlier "no quota".
        """
        observed = self._observed.get(namespace)
        since = observed.since if observed else inf
        ended = next((ended for begun, ended in tuple(self.raised) if begun >= since), inf)
        return max(0.0, ended + self._no_quota - monotonic())

    def expired(self, namespace: str, when: float) -> frozenset[str]:
        """Return the ids (`Reservations.ids`) of the reservations that at that moment were observed for EXPIRY_SECONDS."""
        observed = self._observed.get(namespace)
        reservations = observed.reservations if observed else {}
        return frozenset(each for each, since in reservations.items() if since + self._expiry <= when)

    def next_expiry(self, namespace: str) -> float | None:
        """Return the seconds until the oldest reservation has been observed for EXPIRY_SECONDS."""
        observed = self._observed.get(namespace)
        if observed is None or not observed.reservations:
            return None
        return min(observed.reservations.values()) + self._expiry - monotonic()


def _is_uncounted(observed: _Observation) -> bool:
    used, hard = observed.ledger.used, observed.ledger.hard
    limited = {**hard, **observed.team.hard} if observed.team else hard
    return used is None or not limited.keys() <= used.keys()
