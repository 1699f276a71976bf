"""GPUQuotas of one run of `check`: what the other manifests have requested so far counts as used.

Without a cluster nobody knows what runs there. So a pod that does not fit may still be admitted, and gets a warning.
Each namespace of a team sees what the objects of the other namespaces request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.finding import INVALID_DOCUMENT, Finding, warning
from policies.pods.field_paths import path_parts, value_at
from policies.policy import Labels
from policies.quota.amounts import ZERO, Amounts, positive_difference, total
from policies.quota.fit import TemplateDemand, demands_that_can_start, starting_demand
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import TeamState
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import QuotaRequest, ReservationOutcome, decide_by_own_catalogue
from policies.quota.spec import INEFFECTIVE_QUOTA, LimitsSpec, QuotaSpec
from policies.quota.team_spec import TeamMatch, Teams, TeamSpec, limits_warnings, stricter_of
from policies.registry import QUOTA_RULE
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.configuration.documents import (
    CLUSTER_QUOTA,
    CONFIGURATION,
    GROUP,
    QUOTA,
)
from webhook.configuration.loader import Configuration, quota_problems
from webhook.quota.team_documents import TeamRecord
from webhook.tools.check.manifests import Manifest, decode_own_object
from webhook.tools.check.placeholders import is_placeholder
from webhook.tools.check.run_context import CheckedCluster
from webhook.tools.status.teams import (
    namespace_ledger_from_status,
    team_ledgers_from_status,
    team_state_of,
    uncounted_ledger,
)

ObjectKey = tuple[str, str, str]
"""API group, kind and name. If two documents have the same key, the later one counts."""


@dataclass(eq=False)
class RunTeam:
    """A team, with its ledgers by its status.

    `is_written`: its ClusterGPUQuota is among the manifests. Then the share in the status of a GPUQuota is out of date.
    """

    record: TeamRecord
    ledgers: TeamLedgers
    is_written: bool

    def __post_init__(self) -> None:
        self._ledgers_after = self.ledgers
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
            borrowed = positive_difference(own.held, state.guaranteed)
            left = {key: amount - borrowed.get(key, ZERO) for key, amount in state.taken_by_others.items()}
            state = replace(state, taken_by_others={key: max(amount, ZERO) for key, amount in left.items()})
        pods = stricter_of(own.unclassified_pods, by_team.unclassified_pods)
        return replace(own, team_state=state, unclassified_pods=pods)

    def count(self, namespace: str, requested: Amounts) -> None:
        """Note what the objects of a namespace request together."""
        ledger, team = self.ledgers.ledgers.get(namespace), self.ledgers.team
        # If the status does not name the namespace, at most the idle part of all guarantees is left of its own guarantee.
        guaranteed = team.guaranteed.get(namespace, {})
        unnamed = positive_difference(guaranteed, self.record.status.guaranteed_idle)
        used = (ledger.used or {}) if ledger else unnamed
        self._ledgers_after = self._ledgers_after.with_ledger(
            namespace, uncounted_ledger(team, total((used, requested)))
        )

    def team_state(self, namespace: str, state: TeamState) -> TeamState:
        """Return the state of the team for a namespace after the requests of objects in the other namespaces."""
        before, after = team_state_of(self.ledgers, namespace), team_state_of(self._ledgers_after, namespace)
        growth = positive_difference(after.taken_by_others, before.taken_by_others)
        by_others = {key: amount + growth.get(key, ZERO) for key, amount in state.taken_by_others.items()}
        return replace(state, taken_by_others=by_others, taken=after.taken)


def run_teams(
    stored: Callable[[], Iterable[TeamRecord]],
    written: Mapping[str, TeamSpec],
    labels_of: Callable[[str], Labels],
) -> Callable[[str], RunTeam | None]:
    """Return a function: namespace → its team by the manifests, else by the cluster; None without one."""

    @cache
    def all_teams() -> tuple[Teams, dict[str, RunTeam]]:
        records = {record.name: record for record in stored()}
        for name, spec in written.items():
            before = records.get(name) or TeamRecord(name=name, uid="", version="")
            records[name] = replace(before, spec=spec, namespaces=spec.namespaces)
        found = {
            name: RunTeam(record, ledgers, name in written)
            for name, record in records.items()
            if (ledgers := team_ledgers_from_status(record)) is not None
        }
        return Teams(record.match for record in records.values()), found

    @cache
    def team_of(namespace: str) -> RunTeam | None:
        teams, run_teams = all_teams()
        team = teams.of_name(namespace)
        if team is None and teams.has_selectors:
            with suppress(NamespaceUnknown):
                team = teams.of(namespace, dict(labels_of(namespace)))
        return run_teams.get(team.name) if team else None

    return team_of


class RunQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota` for the object `key`: what the other objects request counts as used.

    `stored.used` is what the cluster holds already, None if unknown.
    """

    namespace: str
    stored: QuotaLedger
    configuration: Configuration
    requested: dict[ObjectKey, Amounts]
    team: RunTeam | None = None
    key: ObjectKey = ("", "", "")
    has_controller: bool = True

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide as serve does; what is allowed counts from now on."""
        ledger = self.ledger()
        outcome = decide_by_own_catalogue(
            ledger, quota_request, self.configuration, waiting=ledger.waiting, is_served=self.has_controller
        )
        if outcome.request and outcome.verdict and outcome.verdict.allowed:
            self.count(outcome.request.demand)
        return outcome

    def growth(self, requested: Sequence[TemplateDemand], held: Amounts) -> Amounts:
        """Return what the pods of a workload will hold beyond what it `held` already; what does not fit holds nothing."""
        ledger = self.ledger()
        left = ledger.using(positive_difference(ledger.held, held)).left
        return positive_difference(
            starting_demand(demands_that_can_start(requested, ledger.maximum_hard), left), held
        )

    def ledger(self) -> QuotaLedger:
        by_others = (demand for other, demand in self.requested.items() if other != self.key)
        stored, team_state = self.stored, self.stored.team_state
        if self.team is not None and team_state is not None:
            stored = replace(stored, team_state=self.team.team_state(self.namespace, team_state))
        return stored.using(total((stored.used or {}, *by_others)))

    def count(self, demand: Amounts) -> None:
        self.requested[self.key] = demand
        if self.team is not None:
            self.team.count(self.namespace, total(self.requested.values()))


def is_quota(manifest: Manifest) -> bool:
    return manifest.group_kind in {(GROUP, QUOTA), (GROUP, CLUSTER_QUOTA)}


def run_quotas(
    manifests: Sequence[Manifest],
    configuration: Configuration,
    cluster: CheckedCluster | None,
    labels_of: Callable[[str], Labels],
) -> Callable[[str], RunQuota | None]:
    """Return a function: namespace → its quota: of the manifests, else of the cluster, else of the configuration.

    A document that is not valid grants nothing; `quota_findings` says so.
    """
    documents = map(decode_own_object, filter(is_quota, manifests))
    read = [document for document in documents if not document.problems]
    written = ledgers_without_usage({name: spec for each in read for name, spec in each.quotas.items()})
    written_teams = {name: spec for document_set in read for name, spec in document_set.teams.items()}
    configured = ledgers_without_usage(configuration.quotas)
    stored = cluster.teams if cluster else tuple
    team_of = run_teams(stored, written_teams, labels_of)
    is_alone = len({manifest.namespace for manifest in manifests}) == 1

    @cache
    def quota_of(namespace: str) -> RunQuota | None:
        in_force = cluster.quota(namespace) if cluster else None
        ledger = written.get(namespace) or in_force or configured.get(namespace)
        if ledger and in_force:
            ledger = replace(
                ledger, used=in_force.used, waiting=in_force.waiting, team_state=in_force.team_state
            )
        # The status of a GPUQuota says all about a team that the objects of one namespace need.
        is_in_status = ledger is not None and (is_alone or ledger.team_state is None) and not written_teams
        team = None if is_in_status else team_of(namespace)
        if team is not None:
            if ledger is None and cluster and team.record.status.used is None:
                cluster.note_uncounted(namespace, team.record.name)
            ledger = team.ledger(namespace, ledger)
        if ledger is None:
            return None
        has_controller = cluster is None or cluster.has_controller
        return RunQuota(namespace, ledger, configuration, {}, team, has_controller=has_controller)

    return quota_of


def ledgers_without_usage(specs: Mapping[str, QuotaSpec]) -> dict[str, QuotaLedger]:
    """Return the ledgers of GPUQuotas by namespace. Their use is unknown."""
    return {name: spec.ledger() for name, spec in specs.items()}


def teams_in(manifests: Iterable[Manifest]) -> tuple[TeamMatch, ...]:
    """Return the valid ClusterGPUQuotas of the manifests."""
    read = (
        decode_own_object(manifest) for manifest in manifests if manifest.group_kind == (GROUP, CLUSTER_QUOTA)
    )
    return tuple(
        TeamMatch(name, spec.namespaces)
        for document_set in read
        if not document_set.problems
        for name, spec in document_set.teams.items()
    )


def quota_findings(
    manifest: Manifest, configuration: Configuration, teams: Iterable[TeamMatch], kinds: Collection[str]
) -> Iterator[Finding]:
    """Yield what the webhook would say of a GPUQuota or ClusterGPUQuota: a denial for each problem, else its warnings.

    A problem is only a warning where a placeholder stands for the value, and where a document of the run may define the name.
    teams: the ClusterGPUQuotas of the run. kinds: of its documents.
    """
    read = decode_own_object(manifest)
    specs: list[LimitsSpec] = [*read.quotas.values(), *read.teams.values()]
    checked = (quota_problems(spec, configuration.classes, configuration.resource_mapping) for spec in specs)
    problems = [(problem.path, problem.message, "") for problem in read.problems]
    problems += [(problem.path, problem.message, kind) for problem, kind in chain.from_iterable(checked)]
    ineffective = partial(warning, rule=QUOTA_RULE.id, reason=INEFFECTIVE_QUOTA)
    denial = partial(Finding, rule=CONFIGURATION, reason=INVALID_DOCUMENT)
    for path, message, kind in problems:
        parts = path_parts(path)
        is_known_later = kind in kinds or any(map(is_placeholder, (value_at(manifest.data, parts), *parts)))
        yield (ineffective if is_known_later else denial)(path=path, message=message)
    for spec in () if problems else specs:
        for path, message in limits_warnings(manifest.name, spec, teams):
            yield ineffective(path=f"spec.{path}", message=message)
