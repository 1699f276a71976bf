"""The teams of one run of `check`: each namespace of a team sees what the objects of the other namespaces request."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from msgspec.structs import replace

from policies.policy import Labels
from policies.quota.amounts import NOTHING, Vector, positive_difference, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import TeamState
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.team_spec import Teams, TeamSpec, stricter
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.quota.team_documents import TeamRecord
from webhook.tools.status.teams import (
    namespace_ledger_from_status,
    share_of,
    team_ledgers_from_status,
    uncounted_ledger,
)


@dataclass(eq=False)
class RunTeam:
    """A team, with its ledgers by its status.

    `is_written`: its ClusterGPUQuota is among the manifests. Then the share in the status of a GPUQuota is out of date.
    """

    record: TeamRecord
    ledgers: TeamLedgers
    is_written: bool

    def __post_init__(self) -> None:
        self._after = self.ledgers
        """With what the objects of the run request."""

    def ledger(self, namespace: str, own: QuotaLedger | None) -> QuotaLedger | None:
        """Return what a namespace has by its GPUQuota, if there is one, and by the team."""
        by_team = namespace_ledger_from_status(self.record, namespace)
        if own is None or by_team is None or by_team.team_state is None:
            return by_team
        state = by_team.team_state
        if own.team_state is not None and not self.is_written:
            state = own.team_state
        elif namespace not in self.ledgers.ledgers:  # what it holds is among what the others hold
            beyond = positive_difference(own.held, state.guaranteed)
            left = {key: amount - beyond.get(key, NOTHING) for key, amount in state.taken_by_others.items()}
            state = replace(
                state, taken_by_others={key: max(amount, NOTHING) for key, amount in left.items()}
            )
        pods = stricter(own.unclassified_pods, by_team.unclassified_pods)
        return replace(own, team_state=state, unclassified_pods=pods)

    def count(self, namespace: str, requested: Vector) -> None:
        """Note what the objects of a namespace request together."""
        known, team = self.ledgers.ledgers.get(namespace), self.ledgers.team
        # If the status does not name the namespace, at most the idle part of all guarantees is left of its own guarantee.
        guaranteed = team.guaranteed.get(namespace, {})
        unnamed = positive_difference(guaranteed, self.record.status.guaranteed_idle)
        used = (known.used or {}) if known else unnamed
        self._after = self._after.with_ledger(namespace, uncounted_ledger(team, total((used, requested))))

    def team_state(self, namespace: str, state: TeamState) -> TeamState:
        """Return the state of the team for a namespace after the requests of objects in the other namespaces."""
        before, after = share_of(self.ledgers, namespace), share_of(self._after, namespace)
        growth = positive_difference(after.taken_by_others, before.taken_by_others)
        by_others = {key: amount + growth.get(key, NOTHING) for key, amount in state.taken_by_others.items()}
        return replace(state, taken_by_others=by_others, taken=after.taken)


def run_teams(
    stored: Callable[[], Iterable[TeamRecord]],
    written: Mapping[str, TeamSpec],
    labels_of: Callable[[str], Labels],
) -> Callable[[str], RunTeam | None]:
    """Return a function: of a namespace, its team by the manifests, else by the cluster; None without one."""

    @cache
    def all_teams() -> tuple[Teams, dict[str, RunTeam]]:
        records = {each.name: each for each in stored()}
        for name, spec in written.items():
            before = records.get(name) or TeamRecord(name=name, uid="", version="")
            records[name] = replace(before, spec=spec, namespaces=spec.namespaces)
        found = {
            name: RunTeam(record, ledgers, name in written)
            for name, record in records.items()
            if (ledgers := team_ledgers_from_status(record)) is not None
        }
        return Teams(each.match for each in records.values()), found

    @cache
    def team_of(namespace: str) -> RunTeam | None:
        teams, run_teams = all_teams()
        team = teams.of_name(namespace)
        if team is None and teams.has_selectors:
            with suppress(NamespaceUnknown):
                team = teams.of(namespace, dict(labels_of(namespace)))
        return run_teams.get(team.name) if team else None

    return team_of
