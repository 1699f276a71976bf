"""Reconciles the object of a team: writes the counts of all its namespaces that are due in one swap.

The object gets the spec of its ClusterGPUQuota, which is read after the object. A namespace that no longer belongs to the team
leaves the object. The object is deleted when the ClusterGPUQuota is deleted and all namespaces have left.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from time import monotonic, sleep

from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Refused, must_be_written
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from webhook.cluster import errors
from webhook.controller.reconciler import (
    CONTEND_SECONDS,
    CONTENDED_RETRY_SECONDS,
    MARGIN_SECONDS,
    Counting,
    QuotaReconciler,
)
from webhook.controller.teams import THE_SPEC, TeamSizes, desired_ledger
from webhook.controller.work_queue import WorkItem
from webhook.quota.cluster_store import CALL_SECONDS
from webhook.quota.ledger_objects import VersionedTeamLedgers, is_team_object, team_name
from webhook.quota.store import LedgerConflict

log = logging.getLogger("gpu_admission.controller")

Outcome = float | LedgerError | errors.ApiError | None
"""The outcome for one name: the seconds until it is reconciled again, None if only a change requires that, or the error."""
_CountedLedger = tuple[QuotaLedger, Counting]
"""A ledger as it stands in the object, and its count."""


class TeamReconciler:
    """Reconciles the objects of teams. `team_object` is the name of one. Only one thread at a time may reconcile a team."""

    def __init__(self, quotas: QuotaReconciler, sizes: TeamSizes) -> None:
        self._quotas, self._sizes = quotas, sizes
        self._store, self._observed, self._membership = quotas.store, quotas.observed, quotas.membership
        self._moves, self._line, self._metrics = quotas.moves, quotas.line, quotas.metrics
        self._contended: set[str] = set()

    def reconcile_group(self, item: WorkItem) -> Mapping[str, Outcome]:
        """Reconcile the names of a group: those of a team with its object, others alone.

        Raises as `QuotaReconciler.reconcile`.
        """
        if is_team_object(item.group):
            return self.reconcile(item.group, item.names)
        return {name: self._quotas.reconcile(name) for name in item.names}

    def reconcile(self, team_object: str, names: Sequence[str]) -> dict[str, Outcome]:
        """Reconcile the ledgers of the namespaces in `names`, and the object itself if `names` has it.

        Namespaces with waiting pods are counted, too, because the namespaces of a team take turns in starting pods. After these
        counts, a namespace whose ledger still is in its own object joins the team, if it belongs to it. A later call continues
        what takes longer than CONTEND_SECONDS.
        """
        begun = monotonic()
        stored = self._observed.team(team_object)
        leaving = stored.team_ledgers.leaving if stored and team_object in names else ()
        ledgers = stored.team_ledgers.ledgers if stored else {}
        waiting = (name for name in ledgers if ledgers[name].marks or self._line.has_waiting(name))
        outcomes: dict[str, Outcome] = dict.fromkeys([*names, *leaving, *waiting])
        here, to_join = list[str](), list[str]()
        for namespace in [name for name in outcomes if name != team_object]:
            if namespace not in leaving and self._observed.object_name(namespace) == namespace:
                to_join.append(namespace)
            elif namespace in leaving or self._membership.team_object_of(namespace) != team_object:
                outcomes[namespace] = outcomes[team_object] = MARGIN_SECONDS  # an empty object may be deleted
                if monotonic() < begun + CONTEND_SECONDS:
                    self._leave(team_object, namespace, outcomes)
            else:
                here.append(namespace)
        due = [name for name in here if outcomes[name] is None]
        try:
            self._count(team_object, due, outcomes)
        except (LedgerError, errors.ApiError) as error:
            outcomes.update(dict.fromkeys((team_object, *due), error))
        self._join(to_join, outcomes)
        return outcomes

    def _join(self, to_join: Sequence[str], outcomes: dict[str, Outcome]) -> None:
        """Reconcile ledgers in their own objects. One after the other: each writes the object of the team."""
        begun = monotonic()
        for namespace in to_join:
            outcomes[namespace] = MARGIN_SECONDS
            if monotonic() < begun + CONTEND_SECONDS:
                try:
                    outcomes[namespace] = self._quotas.reconcile(namespace)
                except (LedgerError, errors.ApiError) as error:
                    outcomes[namespace] = error

    def _leave(self, team_object: str, namespace: str, outcomes: dict[str, Outcome]) -> None:
        outcomes[namespace] = MARGIN_SECONDS
        try:
            self._moves.leave(namespace, team_object)
        except (LedgerError, errors.ApiError) as error:
            outcomes[namespace] = error

    def _count(self, team_object: str, due: list[str], outcomes: dict[str, Outcome]) -> None:
        begun = monotonic()
        counts: dict[str, _CountedLedger] = {}
        former: dict[str, Revisions] = {}
        spec: Team | None = None
        while monotonic() < begun + CONTEND_SECONDS:
            try:
                stored = self._current(team_object, fresh=team_object in self._contended)
                if stored is not None:
                    stored = self._with_specs(stored, due, outcomes, begun)
                for namespace in due:
                    if stored is None or not stored.team_ledgers.has(namespace):
                        # It left already: this finds where its ledger is now.
                        self._leave(team_object, namespace, outcomes)
                due = [name for name in due if outcomes[name] is None]
                counts = {name: counts[name] for name in due if name in counts}
                if stored is None:
                    return
                if stored.team_ledgers.team != spec:  # it may have other dimensions
                    counts, spec = {}, stored.team_ledgers.team
                again = self._counted(stored.team_ledgers, due, counts, former, outcomes, begun)
                self._write(stored, counts, outcomes, has_turns=not again)
                self._contended.discard(team_object)
            except LedgerConflict:
                # Others write this object faster than the watch shows it, so read it. Counts of unchanged ledgers stay valid.
                self._contended.add(team_object)
                self._metrics.conflicts.inc()
                sleep(random.uniform(0.0, 0.02))  # noqa: S311 - jitter
                continue
            if not again:
                return
        outcomes.update(dict.fromkeys(due, CONTENDED_RETRY_SECONDS))

    def _counted(
        self,
        ledgers: TeamLedgers,
        due: Sequence[str],
        counts: dict[str, _CountedLedger],
        former: dict[str, Revisions],
        outcomes: dict[str, Outcome],
        begun: float,
    ) -> list[str]:
        """Count the ledgers that changed since they were counted, into `counts`. Return those that must be counted again."""
        again = []
        for namespace in due:
            ledger, started = ledgers.ledgers[namespace], monotonic()
            if namespace in counts and counts[namespace][0] == ledger:
                continue
            counts.pop(namespace, None)
            if started > begun + CONTEND_SECONDS:
                outcomes[namespace] = CONTENDED_RETRY_SECONDS
                continue
            try:
                in_team = replace(ledger, team_state=ledgers.team_state(namespace))
                counting = self._quotas.count(namespace, in_team, begun)
                if isinstance(counting, float):
                    outcomes[namespace] = counting
                elif isinstance(counting.result, Refused):
                    before = former.get(namespace)
                    former[namespace] = self._quotas.list_again(namespace, counting, before, started)
                    again.append(namespace)
                else:
                    counts[namespace] = ledger, counting
            except (LedgerError, errors.ApiError) as error:
                outcomes[namespace] = error
        return again

    def _write(
        self,
        stored: VersionedTeamLedgers,
        counts: Mapping[str, _CountedLedger],
        outcomes: dict[str, Outcome],
        *,
        has_turns: bool,
    ) -> None:
        """Write all counts in one swap, and hold quota for the next pods in line.

        `has_turns`: every due namespace is counted, so pods may start. Otherwise they would pass the pods of one that is not.
        """
        before = counted = after = stored.team_ledgers
        for namespace, (former, counting) in counts.items():
            if not isinstance(counting.result, Refused):
                ledger = self._line.credited(namespace, former, counting.result.ledger)
                counted = counted.with_ledger(namespace, ledger)
        turn = self._line.take_team_turn(counted, counts if has_turns else ())
        for namespace, (former, _) in counts.items():
            if must_be_written(former, turn.team_ledgers.ledgers[namespace]):
                after = after.with_ledger(namespace, turn.team_ledgers.ledgers[namespace])
        if after is not before:
            self._observed.observe_team(self._store.swap_team(stored.version, after, CALL_SECONDS))
        for namespace, (former, counting) in counts.items():
            self._quotas.report_written(namespace, former, counting)
            self._quotas.start(namespace, turn.ungate_uids(namespace))
            if has_turns:
                outcomes[namespace] = self._quotas.seconds_until_next(namespace, after.ledgers[namespace])

    def _current(self, team_object: str, *, fresh: bool) -> VersionedTeamLedgers | None:
        """Return the object with the spec of its ClusterGPUQuota. None if there is neither.

        Without a ClusterGPUQuota it keeps the last spec until it has no ledgers. Then it is deleted.
        """
        name = team_name(team_object)
        stored = (None if fresh else self._observed.team(team_object)) or self._store.read_team(
            name, CALL_SECONDS
        )
        if stored is not None:
            self._observed.observe_team(stored)
            if stored.team_ledgers.team == self._membership.desired(name) or self._membership.is_unreadable(
                name
            ):
                self._sizes.forget(name, THE_SPEC)
                return stored
        desired = self._store.read_desired_team(name, CALL_SECONDS)
        if desired is None:
            if stored is None or stored.team_ledgers.ledgers:
                return stored
            self._store.delete(team_object, stored.version, CALL_SECONDS)
            self._observed.forget_team(team_object)
            return None
        before = stored or VersionedTeamLedgers(TeamLedgers(desired))
        if stored is not None and before.team_ledgers.team == desired:
            return stored
        after = before.team_ledgers.with_team(desired)
        if stored is not None and not self._sizes.fits(before.team_ledgers, after, THE_SPEC, "the spec"):
            return stored
        written = self._store.swap_team(before.version, after, CALL_SECONDS)
        self._observed.observe_team(written)
        return written

    def _with_specs(
        self, stored: VersionedTeamLedgers, due: Sequence[str], outcomes: dict[str, Outcome], begun: float
    ) -> VersionedTeamLedgers:
        """Return the object with the current spec of each due GPUQuota, which is read after the object.

        A GPUQuota that does not fit is read every time, so this takes at most half of CONTEND_SECONDS. The counts get the rest.
        """
        ledgers = stored.team_ledgers
        for namespace in filter(ledgers.has, due):
            ledger = ledgers.ledgers[namespace]
            watched = desired_ledger(self._quotas.watched_quota(namespace), ledgers.team)
            if watched is not None and watched.spec == ledger.spec:
                self._sizes.forget(ledgers.team.name, namespace)
                continue
            if monotonic() > begun + CONTEND_SECONDS / 2:
                outcomes[namespace] = CONTENDED_RETRY_SECONDS
                continue
            try:
                desired = desired_ledger(self._store.read_desired(namespace, CALL_SECONDS), ledgers.team)
            except LedgerError as error:
                if error.transient:
                    outcomes[namespace] = error
                else:  # count by the spec in force: the whole team is denied a dimension without a count
                    log.warning("%s: the GPUQuota stays as it was: %s", namespace, error)
                continue
            if (wait := self._quotas.deleted.wait(namespace, ledger, desired)) > 0:
                outcomes[namespace] = wait
            if wait or desired is None or desired.spec == ledger.spec:
                continue
            after = ledgers.with_ledger(namespace, ledger.with_spec_of(desired))
            if self._sizes.fits(ledgers, after, namespace, f"the GPUQuota of {namespace}"):
                ledgers = after
        if ledgers is stored.team_ledgers:
            return stored
        written = self._store.swap_team(stored.version, ledgers, CALL_SECONDS)
        self._observed.observe_team(written)
        return written
