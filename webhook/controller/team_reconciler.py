"""Reconciles the object of a team: writes the counts of all its namespaces that are due in one swap.

The object follows its ClusterGPUQuota as a ledger follows its GPUQuota: that is read after the object. A namespace that does not
belong to the team any more leaves it, and the object goes when the ClusterGPUQuota and all namespaces are gone.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from time import monotonic, sleep

from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Refused, is_news
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from webhook.cluster import errors
from webhook.controller.moves import CALL_SECONDS, TeamMoves
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import (
    CONTEND_AGAIN,
    CONTEND_SECONDS,
    SOON,
    Counting,
    QuotaReconciler,
)
from webhook.controller.team_sizes import THE_SPEC
from webhook.controller.teams import TeamMembership, desired_ledger
from webhook.controller.work_queue import WorkItem
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.ledger_objects import VersionedTeamLedgers, is_team_object, team_name
from webhook.quota.store import LedgerConflict

log = logging.getLogger("gpu_admission.controller")

Outcome = float | Exception | None
"""What became of one name: the seconds until it is to be reconciled again, None if only a change will need that, or a LedgerError
or `errors.ApiError`."""
_Known = tuple[QuotaLedger, Counting]
"""A ledger as it stands in the object, and its count."""


class TeamReconciler:
    """Reconciles team objects, named `place`. For any number of threads, but only one at a time for a team."""

    def __init__(
        self,
        store: ClusterStore,
        observed: ObservedLedgers,
        membership: TeamMembership,
        moves: TeamMoves,
        quotas: QuotaReconciler,
    ) -> None:
        self._store, self._observed, self._membership = store, observed, membership
        self._moves, self._quotas = moves, quotas
        self._contended: set[str] = set()

    def reconcile_group(self, item: WorkItem) -> Mapping[str, Outcome]:
        """Reconcile the names of a group: those of a team with its object, others alone.

        Raises as `QuotaReconciler.reconcile`.
        """
        if is_team_object(item.group):
            return self.reconcile(item.group, item.names)
        return {name: self._quotas.reconcile(name) for name in item.names}

    def reconcile(self, place: str, names: Sequence[str]) -> dict[str, Outcome]:
        """Reconcile the object of that name, if it is one of `names`, and its ledgers of the namespaces among them.

        Namespaces in which pods wait are counted, too, because they take turns. One whose ledger stands in its own
        object joins the team after these counts, if it belongs to it. What takes longer than CONTEND_SECONDS is continued in a
        later call.
        """
        begun = monotonic()
        stored = self._observed.team(place)
        leaving = stored.team_ledgers.leaving if stored and place in names else ()
        ledgers = stored.team_ledgers.ledgers if stored else {}
        waiting = (each for each in ledgers if ledgers[each].marks or self._quotas.line.has_waiting(each))
        outcomes: dict[str, Outcome] = dict.fromkeys([*names, *leaving, *waiting])
        here, joining = list[str](), list[str]()
        for namespace in [name for name in outcomes if name != place]:
            if namespace not in leaving and self._observed.place(namespace) == namespace:
                joining.append(namespace)
            elif namespace in leaving or self._moves.place_of(namespace) != place:
                outcomes[namespace] = outcomes[place] = SOON  # it may be empty then
                if monotonic() < begun + CONTEND_SECONDS:
                    self._leave(place, namespace, outcomes)
            else:
                here.append(namespace)
        due = [name for name in here if outcomes[name] is None]
        try:
            self._count(place, due, outcomes)
        except (LedgerError, errors.ApiError) as error:
            outcomes.update(dict.fromkeys((place, *due), error))
        self._join(joining, outcomes)
        return outcomes

    def _join(self, joining: Sequence[str], outcomes: dict[str, Outcome]) -> None:
        """Reconcile ledgers in their own objects. One after the other: each writes the object of the team."""
        begun = monotonic()
        for namespace in joining:
            outcomes[namespace] = SOON
            if monotonic() < begun + CONTEND_SECONDS:
                try:
                    outcomes[namespace] = self._quotas.reconcile(namespace)
                except (LedgerError, errors.ApiError) as error:
                    outcomes[namespace] = error

    def _leave(self, place: str, namespace: str, outcomes: dict[str, Outcome]) -> None:
        outcomes[namespace] = SOON
        try:
            self._moves.leave(namespace, place)
        except (LedgerError, errors.ApiError) as error:
            outcomes[namespace] = error

    def _count(self, place: str, due: list[str], outcomes: dict[str, Outcome]) -> None:
        begun = monotonic()
        known: dict[str, _Known] = {}
        former: dict[str, Revisions] = {}
        spec: Team | None = None
        while monotonic() < begun + CONTEND_SECONDS:
            try:
                stored = self._current(place, fresh=place in self._contended)
                if stored is not None:
                    stored = self._with_specs(stored, due, outcomes, begun)
                for namespace in due:
                    if stored is None or not stored.team_ledgers.has(namespace):
                        # It left already: this finds where its ledger is now.
                        self._leave(place, namespace, outcomes)
                due = [name for name in due if outcomes[name] is None]
                known = {name: known[name] for name in due if name in known}
                if stored is None:
                    return
                if stored.team_ledgers.team != spec:  # it may have other dimensions
                    known, spec = {}, stored.team_ledgers.team
                again = self._counted(stored.team_ledgers, due, known, former, outcomes, begun)
                self._write(stored, known, outcomes, has_turns=not again)
                self._contended.discard(place)
            except LedgerConflict:
                # Others write this object faster than the watch shows it, so it is read. What they did not change stays counted.
                self._contended.add(place)
                self._quotas.metrics.conflicts.inc()
                sleep(random.uniform(0.0, 0.02))  # noqa: S311 - jitter
                continue
            if not again:
                return
        outcomes.update(dict.fromkeys(due, CONTEND_AGAIN))

    def _counted(
        self,
        ledgers: TeamLedgers,
        due: Sequence[str],
        known: dict[str, _Known],
        former: dict[str, Revisions],
        outcomes: dict[str, Outcome],
        begun: float,
    ) -> list[str]:
        """Count the ledgers that changed since they were counted, into `known`. Return those that must be counted again."""
        again = []
        for namespace in due:
            ledger, started = ledgers.ledgers[namespace], monotonic()
            if namespace in known and known[namespace][0] == ledger:
                continue
            known.pop(namespace, None)
            if started > begun + CONTEND_SECONDS:
                outcomes[namespace] = CONTEND_AGAIN
                continue
            try:
                in_team = replace(ledger, share=ledgers.share(namespace))
                counting = self._quotas.count(namespace, in_team, begun)
                if isinstance(counting, float):
                    outcomes[namespace] = counting
                elif isinstance(counting.result, Refused):
                    before = former.get(namespace)
                    former[namespace] = self._quotas.refused(namespace, counting, before, started)
                    again.append(namespace)
                else:
                    known[namespace] = ledger, counting
            except (LedgerError, errors.ApiError) as error:
                outcomes[namespace] = error
        return again

    def _write(
        self,
        stored: VersionedTeamLedgers,
        known: Mapping[str, _Known],
        outcomes: dict[str, Outcome],
        *,
        has_turns: bool,
    ) -> None:
        """Write the counts in one swap, each with what is held for its pods in line beside that of the others.

        `has_turns`: all are counted. Else pods would pass those of a namespace that is not.
        """
        before = counted = after = stored.team_ledgers
        for namespace, (former, counting) in known.items():
            if not isinstance(counting.result, Refused):
                ledger = self._quotas.line.credited(namespace, former, counting.result.ledger)
                counted = counted.with_ledger(namespace, ledger)
        turn = self._quotas.line.take_team_turn(counted, known if has_turns else ())
        for namespace, (former, _) in known.items():
            if is_news(former, turn.team_ledgers.ledgers[namespace]):
                after = after.with_ledger(namespace, turn.team_ledgers.ledgers[namespace])
        if after is not before:
            self._observed.observe_team(self._store.swap_team(stored.version, after, CALL_SECONDS))
        for namespace, (former, counting) in known.items():
            self._quotas.written(namespace, former, counting)
            self._quotas.start(namespace, turn.lifts(namespace))
            if has_turns:
                outcomes[namespace] = self._quotas.next(namespace, after.ledgers[namespace])

    def _current(self, place: str, *, fresh: bool) -> VersionedTeamLedgers | None:
        """Return the object with the spec of its ClusterGPUQuota. None if there is neither.

        Without a ClusterGPUQuota it keeps the last spec until it has no ledgers. Then it is deleted.
        """
        name = team_name(place)
        stored = (None if fresh else self._observed.team(place)) or self._store.read_team(name, CALL_SECONDS)
        if stored is not None:
            self._observed.observe_team(stored)
            if stored.team_ledgers.team == self._membership.desired(name) or self._membership.is_unreadable(
                name
            ):
                self._moves.sizes.forget(name, THE_SPEC)
                return stored
        desired = self._store.read_desired_team(name, CALL_SECONDS)
        if desired is None:
            if stored is None or stored.team_ledgers.ledgers:
                return stored
            self._store.delete(place, stored.version, CALL_SECONDS)
            self._observed.forget_team(place)
            return None
        before = stored or VersionedTeamLedgers(TeamLedgers(desired))
        if stored is not None and before.team_ledgers.team == desired:
            return stored
        after = before.team_ledgers.with_team(desired)
        if stored is not None and not self._moves.sizes.fits(
            before.team_ledgers, after, THE_SPEC, "the spec"
        ):
            return stored
        written = self._store.swap_team(before.version, after, CALL_SECONDS)
        self._observed.observe_team(written)
        return written

    def _with_specs(
        self, stored: VersionedTeamLedgers, due: Sequence[str], outcomes: dict[str, Outcome], begun: float
    ) -> VersionedTeamLedgers:
        """Return the object in which the ledgers have the specs of their GPUQuotas, which are read after it.

        Half of the time is for the counts: a GPUQuota that does not fit is read every time.
        """
        ledgers = stored.team_ledgers
        for namespace in filter(ledgers.has, due):
            ledger = ledgers.ledgers[namespace]
            watched = desired_ledger(self._quotas.watched_quota(namespace), ledgers.team)
            if watched is not None and watched.spec == ledger.spec:
                self._moves.sizes.forget(ledgers.team.name, namespace)
                continue
            if monotonic() > begun + CONTEND_SECONDS / 2:
                outcomes[namespace] = CONTEND_AGAIN
                continue
            try:
                desired = desired_ledger(self._store.read_desired(namespace, CALL_SECONDS), ledgers.team)
            except LedgerError as error:
                if error.transient:
                    outcomes[namespace] = error
                else:  # counted by the spec in force: a dimension that it lacked would be denied in the whole team
                    log.warning("%s: the GPUQuota stays as it was: %s", namespace, error)
                continue
            if (wait := self._quotas.deleted.wait(namespace, ledger, desired)) > 0:
                outcomes[namespace] = wait
            if wait or desired is None or desired.spec == ledger.spec:
                continue
            after = ledgers.with_ledger(namespace, ledger.with_spec_of(desired))
            if self._moves.sizes.fits(ledgers, after, namespace, f"the GPUQuota of {namespace}"):
                ledgers = after
        if ledgers is stored.team_ledgers:
            return stored
        written = self._store.swap_team(stored.version, ledgers, CALL_SECONDS)
        self._observed.observe_team(written)
        return written
