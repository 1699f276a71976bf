"""Which namespace belongs to which team, by the watches of ClusterGPUQuotas and namespaces, and what a quota grants there.

The ledgers of a team must fit one object, because one that cannot be written never frees quota. The specs of ClusterGPUQuotas are
bounded so that 500 namespaces fit (`policies.quota.team_spec`). The limits of their GPUQuotas come on top. So what would make the
object too large is left out, and condition TooLarge names it.
"""

import logging
import threading
from bisect import bisect_left
from functools import partial
from time import monotonic

from msgspec.structs import replace

from policies.quota.amounts import ZERO
from policies.quota.budget import Spending
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.team_spec import MAX_NAMESPACES, TeamNamespaces, Teams, stricter_of
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import Subscribers
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.namespaces import NamespaceRecord, Namespaces
from webhook.configuration.documents import API_VERSION
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.quota.ledger_objects import (
    LONGEST_BODY,
    NO_LEDGER_OBJECT,
    TeamObjects,
    ledger_without_quota,
    team_object_name,
)
from webhook.quota.team_documents import TEAM_PLURAL, TeamRecord, decode_team
from webhook.threads import thread

log = logging.getLogger("gpu_admission.controller")

TEAMS = Resource(f"/apis/{API_VERSION}", TEAM_PLURAL)

DELETED_SECONDS = 5.0
"""A GPUQuota or ClusterGPUQuota that was deleted stays in force for so long. `kubectl replace --force` makes it again, and then
nobody has started. `kubectl` needs some 0.2 s for that, and tools that reconcile need seconds."""

THE_SPEC = ""
"""The key of the spec of the ClusterGPUQuota, beside the names of namespaces."""

SPEC_PARTS = 16
"""A 16th of the object is reserved for changes of that spec: 64 KiB, or four more classes for each of 500 namespaces. GPUQuotas
cannot use it. Otherwise their authors could keep a new limit of `hard` out of force."""


class DeletedQuotas:
    """GPUQuotas that were deleted, and since when this process knows it."""

    def __init__(self, seconds: float = DELETED_SECONDS) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}

    def wait(self, namespace: str, ledger: QuotaLedger, desired: QuotaLedger | None) -> float:
        """Return the seconds until it is certain that the GPUQuota of a ledger stays deleted. `desired` was read after it."""
        if not ledger.has_quota or (desired is not None and desired.has_quota):
            self.forget(namespace)
            return 0.0
        return max(0.0, self._since.setdefault(namespace, monotonic()) + self._seconds - monotonic())

    def forget(self, namespace: str) -> None:
        self._since.pop(namespace, None)


class TeamMembership:
    """The team of each namespace, and the namespaces of each team. Thread-safe.

    `moved` is called with a namespace that now belongs to another team or to none, and the names of the teams that it left and
    entered; also if it was created or deleted. If only its place among the first MAX_NAMESPACES of its team changed, `moved` gets
    the namespace alone. `changed` is called with a ClusterGPUQuota before and after a change.

    Hears: namespaces.informer.
    """

    def __init__(self, api: ApiClient, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self.moved = Subscribers[...]("teams")
        self.changed = Subscribers[[TeamRecord | None, TeamRecord | None]]("teams")
        self.informer = Informer(api, TEAMS, decode_team, self._team_changed)
        self._lock = threading.RLock()
        self.records: dict[str, TeamRecord] = {}
        """By name."""
        self._teams = Teams()
        self._is_stale = False
        self._team_of: dict[str, str] = {}
        self._members: dict[str, list[str]] = {}
        """By team, sorted."""
        namespaces.informer.subscribe(self._namespace_changed)

    @property
    def synced(self) -> bool:
        """Whether everything was listed once."""
        return self.informer.synced and self._namespaces.informer.synced

    def team_of(self, namespace: str) -> str:
        """Return the name of the ClusterGPUQuota to which the namespace belongs, "" if to none."""
        with self._lock:
            self._refresh()
            return self._team_of.get(namespace, "")

    def last_team_of(self, namespace: str) -> str:
        """Return the team of a namespace, perhaps an old one, "" if none. It takes no lock, so callers may hold one."""
        return self._team_of.get(namespace, "")

    def members(self, team: str) -> list[str]:
        """Return all namespaces that belong to the team, sorted. Only the first MAX_NAMESPACES of them are in it."""
        with self._lock:
            self._refresh()
            return list(self._members.get(team, ()))

    def exceeds_max_namespaces(self, namespace: str) -> bool:
        """Whether the team counts MAX_NAMESPACES namespaces that sort before this one, and so does not count this one."""
        with self._lock:
            self._refresh()
            members = self._members.get(self._team_of.get(namespace, ""), [])
            return bisect_left(members, namespace) >= MAX_NAMESPACES

    def team_object_of(self, namespace: str) -> str:
        """Return the name of the team's object in which the ledger should be; "" if in none."""
        team = self.team_of(namespace)
        return team_object_name(team) if team and not self.exceeds_max_namespaces(namespace) else ""

    def desired(self, team: str) -> Team | None:
        """Return the spec of the ClusterGPUQuota in the informer. None without one, or if it cannot be read."""
        record = self.records.get(team)
        return record.team if record else None

    def is_unreadable(self, team: str) -> bool:
        """Whether there is a ClusterGPUQuota, and it cannot be read. Then what is in force stays."""
        record = self.records.get(team)
        return record is not None and record.spec is None

    def _namespace_changed(self, before: NamespaceRecord | None, after: NamespaceRecord | None) -> None:
        """Look for the team of a namespace that changed. It takes some 0.3 µs for each team."""
        changed = after or before
        with self._lock:
            if changed is not None and not self._is_stale:
                self._update(changed.key)

    def _team_changed(self, before: TeamRecord | None, after: TeamRecord | None) -> None:
        changed = after or before
        if changed is None:
            return
        with self._lock:
            if after is None:
                thread("deleted team", partial(self._forget_later, changed), threading.Event()).start()
                return
            if after.spec is None:
                log.error("ClusterGPUQuota %s: %s", after.name, after.problem)
            self.records[after.name] = after
            # Everything that belongs to some team may now belong to another one. That takes long, so it is not done here.
            self._is_stale = self._is_stale or _namespaces_of(before) != _namespaces_of(after)
        self.changed(before, after)

    def _forget_later(self, record: TeamRecord, stopping: threading.Event) -> None:
        stopping.wait(DELETED_SECONDS)
        self._deleted(record)

    def _deleted(self, record: TeamRecord) -> None:
        """Forget a ClusterGPUQuota that was deleted, unless it was made again."""
        with self._lock:
            if self.records.get(record.name) != record:
                return
            del self.records[record.name]
            self._is_stale = True
            self._refresh()  # nobody may ask for an idle team
        self.changed(record, None)

    def _refresh(self) -> None:
        if not self._is_stale or not self.synced:
            return
        self._is_stale = False
        self._teams = Teams(record.match for record in self.records.values())
        for namespace in {*self._team_of, *self._namespaces.names()}:
            self._update(namespace)

    def _update(self, namespace: str) -> None:
        labels, before = self._namespaces.watched_labels(namespace), self._team_of.get(namespace, "")
        team_match = None if labels is None else self._teams.of(namespace, dict(labels))
        after = team_match.name if team_match else ""
        if after == before:
            return
        for team, belongs in ((before, False), (after, True)):
            if team:
                self._set_member(team, namespace, belongs=belongs)
        self._team_of[namespace] = after
        if not after:
            del self._team_of[namespace]
        self.moved(namespace, *filter(None, (before, after)))

    def _set_member(self, team: str, namespace: str, *, belongs: bool) -> None:
        """Add a namespace to the sorted ones of a team, or remove it. Another one may then be beyond MAX_NAMESPACES, or not."""
        members = self._members.setdefault(team, [])
        at = bisect_left(members, namespace)
        if belongs:
            members.insert(at, namespace)
        else:
            del members[at]
        for other in members[MAX_NAMESPACES - 1 : MAX_NAMESPACES + 1]:
            self.moved(other)
        if not members:
            del self._members[team]


def _namespaces_of(record: TeamRecord | None) -> TeamNamespaces | None:
    return record.namespaces if record else None


def desired_team(namespace: str, membership: TeamMembership, observed: ObservedLedgers) -> Team | None:
    """Return the spec of the team of a namespace. None without one.

    If the ClusterGPUQuota is invalid, return the spec stored in the team's ledger object.
    """
    team = membership.team_of(namespace)
    if not team:
        return None
    stored = observed.team(team_object_name(team))
    return membership.desired(team) or (stored.team_ledgers.team if stored else None)


def desired_ledger(quota: QuotaLedger | None, team: Team | None) -> QuotaLedger | None:
    """Return the ledger that a GPUQuota and a team ask for together, never counted. None without either.

    A namespace of a team that has no GPUQuota has a ledger without limits of its own. The limits of the team stand beside it.
    """
    if team is None:
        return quota
    own = quota or ledger_without_quota()
    return replace(own, unclassified_pods=stricter_of(own.unclassified_pods, team.unclassified_pods))


class TeamSizes:
    """Remembers for each team what is left out of its object. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left_out: dict[str, dict[str, str]] = {}
        """By team and namespace: what is not in force."""

    def fits(self, before: TeamLedgers, after: TeamLedgers, namespace: str, what: str) -> bool:
        """Whether the object has room for a change, or becomes smaller by it. If not, note that `what` is left out."""
        size, ledger = _size(after), after.ledgers.get(namespace)
        has_quota = ledger is not None and bool(ledger.quota_uid)
        if size <= LONGEST_BODY - has_quota * (LONGEST_BODY // SPEC_PARTS) or size <= _size(before):
            self.forget(after.team.name, namespace)
            return True
        with self._lock:
            left_out = self._left_out.setdefault(after.team.name, {})
            is_known, left_out[namespace] = namespace in left_out, what
        if not is_known:
            log.warning("ClusterGPUQuota %s: its ledgers have no room for %s", after.team.name, what)
        return False

    def forget(self, team: str, namespace: str) -> None:
        """Note that nothing is left out of this namespace."""
        with self._lock:
            self._left_out.get(team, {}).pop(namespace, None)

    def left_out(self, team: str, members: list[str]) -> list[str]:
        """Return what is not in force, of the spec and of these namespaces. Others are forgotten."""
        with self._lock:
            wanted = {THE_SPEC, *members}
            left_out = {name: what for name, what in self._left_out.pop(team, {}).items() if name in wanted}
            if left_out:
                self._left_out[team] = left_out
            return [left_out[name] for name in sorted(left_out)]


def _size(ledgers: TeamLedgers) -> int:
    """Return the bytes of the object once every ledger is counted in full, without reservations.

    Holders and stored names take no room from others: one that is too large is written without them.
    """
    full = {name: _counted_in_full(ledger, ledgers) for name, ledger in ledgers.ledgers.items()}
    reserved = sum(ledger.reservations.size for ledger in full.values())
    return len(TeamObjects().encode(NO_LEDGER_OBJECT, replace(ledgers, ledgers=full))) - reserved


def _counted_in_full(ledger: QuotaLedger, ledgers: TeamLedgers) -> QuotaLedger:
    granted = ledger.budget.granted if ledger.budget else {}
    used = {**dict.fromkeys((*ledger.hard, *ledgers.team.hard, *granted), ZERO), **(ledger.used or {})}
    counted = replace(ledger, used=used, holders={}, stored_names={})
    if not granted:
        return counted
    return replace(counted, spending=Spending(start=0, end=0, until=0, spent=granted, unknown=granted))
