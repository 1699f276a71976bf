"""The teams of one run of `check`: what the objects of all namespaces of a team request counts for each of them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache

import msgspec
from msgspec.structs import replace

from policies.policy import Labels
from policies.quota.amounts import NOTHING, Vector, positive_difference, total
from policies.quota.ledger.team import TeamShare
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import QuotaGrant
from policies.quota.team_spec import Teams, TeamSpec, stricter
from webhook.quota.team_documents import TeamRecord
from webhook.serving.lookups import NamespaceUnknown
from webhook.tools.status.teams import granted_by_team, holding, share_of, stated_ledgers

Key = tuple[str, str, str]
"""API group, kind and name: of two documents of one object the later one holds."""


class RunTeam(msgspec.Struct, frozen=True):
    """A team. `requested` is by namespace what each object requests.

    `is_written`: its ClusterGPUQuota is among the manifests, so that what a status says of it does not hold.
    """

    record: TeamRecord
    ledgers: TeamLedgers
    requested: dict[str, dict[Key, Vector]]
    is_written: bool

    def granted(self, namespace: str, own: QuotaGrant | None) -> QuotaGrant | None:
        """Return what a namespace is granted by its GPUQuota, if it has one, and by the team."""
        by_team = granted_by_team(self.record, namespace)
        if own is None or by_team is None or by_team.team is None:
            return by_team
        share = by_team.team
        if own.team is not None and not self.is_written:
            share = own.team
        elif namespace not in self.ledgers.ledgers:  # what it holds is among what the others hold
            beyond = positive_difference(own.held or {}, share.guaranteed)
            others = {key: amount - beyond.get(key, NOTHING) for key, amount in share.others.items()}
            share = replace(share, others={key: max(amount, NOTHING) for key, amount in others.items()})
        pods = stricter(own.unclassified_pods, by_team.unclassified_pods)
        return replace(own, team=share, unclassified_pods=pods)

    def share(self, namespace: str, share: TeamShare) -> TeamShare:
        """Return what a namespace sees of the team after what objects in the other namespaces request."""
        after = self.ledgers
        for other, requested in self.requested.items():
            if other != namespace:
                known = after.ledgers.get(other)
                used = total(((known and known.used) or {}, *requested.values()))
                after = after.with_ledger(other, holding(after.team, used))
        seen = share_of(after, namespace)
        growth = positive_difference(seen.others, share_of(self.ledgers, namespace).others)
        others = {key: amount + growth.get(key, NOTHING) for key, amount in share.others.items()}
        return replace(share, others=others, held=seen.held)


def run_teams(
    stored: Callable[[], Iterable[TeamRecord]],
    written: Mapping[str, TeamSpec],
    labels_of: Callable[[str], Labels],
) -> Callable[[str], RunTeam | None]:
    """Return what returns the team of a namespace: of the manifests, else of the cluster."""

    @cache
    def all_teams() -> tuple[Teams, dict[str, RunTeam]]:
        records = {each.name: each for each in stored()}
        for name, spec in written.items():
            before = records.get(name) or TeamRecord(name=name, uid="", version="")
            records[name] = replace(before, spec=spec, namespaces=spec.namespaces)
        found = {
            name: RunTeam(record, ledgers, {}, name in written)
            for name, record in records.items()
            if (ledgers := stated_ledgers(record)) is not None
        }
        return Teams(each.named for each in records.values() if each.named), found

    @cache
    def team_of(namespace: str) -> RunTeam | None:
        teams, found = all_teams()
        named = teams.named(namespace)
        if named is None and teams.has_selectors:
            with suppress(NamespaceUnknown):
                named = teams.of(namespace, dict(labels_of(namespace)))
        return found.get(named.name) if named else None

    return team_of
