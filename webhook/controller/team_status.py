"""The status of every ClusterGPUQuota shows the ledgers of its team to people. The leader writes it. No decision depends on it.

Ready: all namespaces are counted. Exceeded: usage is above the limits. Stale: counts may lag. TooManyNamespaces: the last ones by
name are not in the team, and denied. TooLarge: something is not in force, because one object has all ledgers of the team.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from policies.printable import first_names
from policies.quota.amounts import GPUS, ZERO, Amounts, positive_difference, total
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.team_spec import MAX_NAMESPACES
from webhook.cluster.api import ApiClient
from webhook.cluster.events import NORMAL, EventQueue
from webhook.cluster.objects import FALSE, TRUE
from webhook.configuration.documents import CLUSTER_QUOTA
from webhook.controller.quota_status import (
    MAX_KEYS,
    ConditionVerdict,
    exceeded_verdict,
    replace_conditions,
    stale_verdict,
)
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.status_writer import StatusWriter
from webhook.controller.teams import TeamSizes
from webhook.quota.documents import EXCEEDED, NOT_COUNTED, READY, STALE, UNREADABLE, LimitsStatus, decimals
from webhook.quota.ledger_objects import KIND, LedgerRecord, is_team_object, team_name, team_object_name
from webhook.quota.team_documents import Member, Members, TeamRecord, TeamStatus, team_path, team_reference

MAX_MEMBERS_SHOWN = 10
"""Namespaces in a status. `gpu-admission quota` shows all."""
TOO_MANY_NAMESPACES = "TooManyNamespaces"
TOO_LARGE = "TooLarge"


class TeamStatusWriter(StatusWriter[TeamRecord]):
    """Hears: ledger_objects, membership.changed, membership.moved."""

    kind = CLUSTER_QUOTA
    path, reference = staticmethod(team_path), staticmethod(team_reference)
    with_event = (EXCEEDED, TOO_MANY_NAMESPACES, TOO_LARGE)

    def __init__(
        self,
        api: ApiClient,
        informers: SharedInformers,
        sizes: TeamSizes,
        is_ready_leader: Callable[[], bool],
        events: EventQueue,
    ) -> None:
        records = informers.membership.records
        super().__init__(
            api, lambda: list(records), records.get, informers.why_stale, is_ready_leader, events
        )
        self._membership, self._sizes = informers.membership, sizes
        self._quotas, self._ledger_objects = informers.quotas, informers.ledger_objects
        self._ledger_objects.subscribe(self._ledger_object_changed)
        self._membership.changed.subscribe(self._team_changed)
        self._membership.moved.subscribe(self._namespace_moved)

    def _ledger_object_changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        changed = after or before
        if changed is not None and is_team_object(changed.namespace):
            self.changed(team_name(changed.namespace))

    def _team_changed(self, before: TeamRecord | None, after: TeamRecord | None) -> None:
        if changed := after or before:
            self.changed(changed.name)

    def _namespace_moved(self, _namespace: str, *teams: str) -> None:
        for team in teams:
            self.changed(team)

    def desired_status(self, record: TeamRecord) -> TeamStatus | None:
        """Return the status that it should have, None while the ledgers belong to a former ClusterGPUQuota."""
        ledger_record = self._ledger_objects.first(team_object_name(record.name))
        if ledger_record is None and not record.problem:
            return None
        before, team, now = record.status, ledger_record.team if ledger_record else None, datetime.now(UTC)
        if team is None or record.problem:
            verdicts = {READY: (FALSE, UNREADABLE, _unreadable_message(record, ledger_record))}
            unchanged = replace_conditions(before.conditions, verdicts, before.observed_generation, now)
            return msgspec.structs.replace(before, conditions=unchanged)
        ledgers, spec = team.team_ledgers, team.team_ledgers.team
        if spec.uid != record.uid:
            return None
        members = self._membership.members(record.name)
        keys = {*spec.hard, GPUS}
        counted = [ledger for ledger in ledgers.ledgers.values() if ledger.used is not None]
        amounts = {
            "used": _amounts_of(total(ledger.used or {} for ledger in counted), keys),
            "reserved": total(_limited_to(ledger.reserved, keys) for ledger in ledgers.ledgers.values()),
            "guaranteedIdle": _unused_guarantees(ledgers),
            "granted": total(
                _limited_to(quota.hard, keys) for member in members if (quota := self._quotas.first(member))
            ),
        }
        used = amounts["used"] if counted or not members else None
        verdicts = {
            EXCEEDED: exceeded_verdict(
                amounts["used"], spec.hard, "used by all namespaces is within spec.hard"
            ),
            STALE: stale_verdict(self.stale()),
            TOO_MANY_NAMESPACES: _too_many_verdict(members),
            TOO_LARGE: _too_large_verdict(self._sizes.left_out(record.name, members)),
        }
        return TeamStatus(
            hard=spec.hard,
            used=used,
            reserved=amounts["reserved"],
            granted=amounts["granted"],
            guaranteed_idle=amounts["guaranteedIdle"],
            namespaces=Members(count=len(members), largest=_largest_members(ledgers, members, keys)),
            shown=decimals(amounts),
            conditions=replace_conditions(
                before.conditions,
                {READY: _ready_verdict(ledgers, members, verdicts), **verdicts},
                spec.generation,
                now,
            ),
            observed_generation=spec.generation,
        )

    def news(self, before: LimitsStatus, after: LimitsStatus) -> Iterator[tuple[str, str, str]]:
        if after.observed_generation != before.observed_generation:
            yield "InForce", f"generation {after.observed_generation} of its spec is in force", NORMAL
        yield from super().news(before, after)


def _amounts_of(vector: Amounts, keys: set[str]) -> Amounts:
    return {key: vector.get(key, ZERO) for key in sorted(keys)}


def _limited_to(vector: Amounts, keys: set[str]) -> Amounts:
    return {key: amount for key, amount in vector.items() if key in keys}


def _unused_guarantees(ledgers: TeamLedgers) -> Amounts:
    """Return what is guaranteed and not used."""
    return total(
        positive_difference(
            guaranteed, ledgers.ledgers[namespace].held if namespace in ledgers.ledgers else {}
        )
        for namespace, guaranteed in ledgers.team.guaranteed.items()
    )


def _largest_members(ledgers: TeamLedgers, members: Sequence[str], keys: set[str]) -> tuple[Member, ...]:
    """Return the namespaces that use the most GPUs, and are guaranteed the most."""
    guaranteed = ledgers.team.guaranteed
    largest = []
    for namespace in members:
        ledger = ledgers.ledgers.get(namespace)
        used = None if ledger is None or ledger.used is None else _amounts_of(ledger.held, keys)
        largest.append(Member(name=namespace, used=used, guaranteed=guaranteed.get(namespace, {})))
    largest.sort(key=lambda member: (-_gpus_of(member.used or {}), -_gpus_of(member.guaranteed), member.name))
    return tuple(largest[:MAX_MEMBERS_SHOWN])


def _gpus_of(vector: Amounts) -> float:
    return float(vector.get(GPUS, ZERO))


def _ready_verdict(
    ledgers: TeamLedgers, members: Sequence[str], other_verdicts: Mapping[str, ConditionVerdict]
) -> ConditionVerdict:
    """Return the condition Ready. `kubectl get` shows its reason as STATUS, so it names another condition that is True."""
    keys = ledgers.team.hard.keys()
    counted = {
        namespace
        for namespace, ledger in ledgers.ledgers.items()
        if ledgers.has(namespace) and ledger.used is not None and keys <= ledger.used.keys()
    }
    if missing := [namespace for namespace in members[:MAX_NAMESPACES] if namespace not in counted]:
        why = f"not counted for the team yet: {first_names(missing, MAX_KEYS)}"
        status, _, message = other_verdicts[TOO_LARGE]
        return FALSE, NOT_COUNTED, f"{why}; {message}" if status == TRUE else why
    for kind, (status, _, message) in other_verdicts.items():
        if status == TRUE:
            return TRUE, kind, message
    if not members:
        return TRUE, READY, "no namespace belongs to it"
    return TRUE, READY, "every stored pod and claim of its namespaces is counted"


def _too_many_verdict(members: Sequence[str]) -> ConditionVerdict:
    beyond = members[MAX_NAMESPACES:]
    if not beyond:
        return FALSE, "WithinLimit", f"at most {MAX_NAMESPACES} namespaces belong to it"
    why = f"{len(members)} namespaces belong to it, and a team has at most {MAX_NAMESPACES}"
    return TRUE, "BeyondLimit", f"{why}: all GPUs are denied in {first_names(beyond, MAX_KEYS)}"


def _too_large_verdict(left_out: Sequence[str]) -> ConditionVerdict:
    if not left_out:
        return FALSE, "Fits", "all ledgers of the team fit one object"
    why = "the object with the ledgers of the team has no more room"
    return TRUE, "NoRoom", f"not in force: {first_names(left_out, MAX_KEYS)}; {why}"


def _unreadable_message(record: TeamRecord, ledger_object: LedgerRecord | None) -> str:
    if ledger_object is None:
        return f"{record.problem}: it limits nothing"
    if ledger_object.team is None:
        where = f"{KIND} {ledger_object.namespace}"
        return f"{ledger_object.problem}: requests are denied until {where} is deleted"
    return f"{record.problem}: what was in force before stays in force"
