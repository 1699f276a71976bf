"""The status of every ClusterGPUQuota shows the ledgers of its team to people. The leader writes it. No decision depends on it.

Ready: all namespaces are counted. Exceeded: usage is above the limits. Stale: counts may lag. TooManyNamespaces: the last ones by
name are not in the team, and denied. TooLarge: something is not in force, because one object has all ledgers of the team.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from policies.quota.amounts import GPUS, NOTHING, Vector, format_amount, positive_difference, total
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.team_spec import MAX_NAMESPACES
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.cluster.events import NORMAL, WARNING, EventQueue, EventRecord
from webhook.cluster.informer import Informer
from webhook.configuration.documents import TEAM
from webhook.controller.quota_status import (
    CALL_SECONDS,
    EXCEEDED,
    FALSE,
    NOT_COUNTED,
    READY,
    TRUE,
    UNREADABLE,
    Verdict,
    exceeded,
    replaced,
    shown_names,
    stale_verdict,
)
from webhook.controller.records import LedgerRecord
from webhook.controller.status_writer import StatusWriter
from webhook.controller.teams import TeamMembership
from webhook.quota.documents import QuotaRecord
from webhook.quota.ledger_objects import KIND, team_object_name
from webhook.quota.team_documents import (
    Member,
    Members,
    TeamRecord,
    TeamStatus,
    encode_team_status,
    team_path,
    team_reference,
)

LARGEST = 10
"""Namespaces in a status. `gpu-admission quota` shows all."""
TOO_MANY = "TooManyNamespaces"
TOO_LARGE = "TooLarge"
WITH_EVENT = (EXCEEDED, TOO_MANY, TOO_LARGE)
"""An Event is written when one of them becomes True."""


class TeamStatusWriter(StatusWriter):
    """`stale` returns why counts may lag, or "". `left_out` is `TeamSizes.left_out`."""

    def __init__(
        self,
        api: ApiClient,
        membership: TeamMembership,
        quotas: Informer[QuotaRecord],
        ledger_objects: Informer[LedgerRecord],
        *,
        leads: Callable[[], bool],
        stale: Callable[[], str],
        left_out: Callable[[str, list[str]], list[str]],
        events: EventQueue,
    ) -> None:
        super().__init__(TEAM, leads, stale, lambda: [record.name for record in membership.all()])
        self._api, self._membership, self._quotas = api, membership, quotas
        self._ledger_objects, self._stale, self._events = ledger_objects, stale, events
        self._left_out = left_out

    def write(self, team: str) -> bool:
        """Write the status of a ClusterGPUQuota if it differs, and return whether it did. Raises `errors.ApiError`."""
        record = self._membership.record(team)
        ledger_object = next(iter(self._ledger_objects.items(team_object_name(team))), None)
        if record is None or (ledger_object is None and not record.problem):
            return False
        before, status = record.status, self._shown(record, ledger_object)
        if status is None or status == before:
            return False
        try:
            body = encode_team_status(record, status)
            self._api.put(team_path(team, "status"), body, timeout=CALL_SECONDS, accept=METADATA)
        except errors.NotFound:
            return False
        for reason, message, kind in _news(before, status):
            regarding = team_reference(team, record.uid)
            self._events.put(EventRecord(regarding=regarding, reason=reason, message=message, kind=kind))
        return True

    def _shown(self, record: TeamRecord, ledger_object: LedgerRecord | None) -> TeamStatus | None:
        """Return the status that it should have, None while the ledgers belong to a former ClusterGPUQuota."""
        before, now = record.status, datetime.now(UTC)
        team = ledger_object.team if ledger_object else None
        if team is None or record.problem:
            verdict = (FALSE, UNREADABLE, _unreadable(record, ledger_object))
            found = replaced(before.conditions, {READY: verdict}, before.observed_generation, now)
            return msgspec.structs.replace(before, conditions=found)
        ledgers, spec = team.team_ledgers, team.team_ledgers.team
        if spec.uid != record.uid:
            return None
        members = self._membership.members(record.name)
        keys = {*spec.hard, GPUS}
        counted = [each for each in ledgers.ledgers.values() if each.used is not None]
        amounts = {
            "used": _at(total(each.used or {} for each in counted), keys),
            "reserved": total(_only(each.reserved, keys) for each in ledgers.ledgers.values()),
            "guaranteedIdle": _idle(ledgers),
            "granted": total(self._granted(namespace, keys) for namespace in members),
        }
        used = amounts["used"] if counted or not members else None
        verdicts = {
            EXCEEDED: exceeded(amounts["used"], spec.hard, "used by all namespaces is within spec.hard"),
            "Stale": stale_verdict(self._stale()),
            TOO_MANY: _too_many(members),
            TOO_LARGE: _too_large(self._left_out(record.name, members)),
        }
        return TeamStatus(
            hard=spec.hard,
            used=used,
            reserved=amounts["reserved"],
            granted=amounts["granted"],
            guaranteed_idle=amounts["guaranteedIdle"],
            namespaces=Members(count=len(members), largest=_largest(ledgers, members, keys)),
            shown={
                name: {key: format_amount(amount) for key, amount in sorted(vector.items())}
                for name, vector in amounts.items()
            },
            conditions=replaced(
                before.conditions,
                {READY: _ready(ledgers, members, verdicts), **verdicts},
                spec.generation,
                now,
            ),
            observed_generation=spec.generation,
        )

    def _granted(self, namespace: str, keys: set[str]) -> Vector:
        quota = next(iter(self._quotas.items(namespace)), None)
        return _only(quota.hard, keys) if quota else {}


def _at(vector: Vector, keys: set[str]) -> Vector:
    return {key: vector.get(key, NOTHING) for key in sorted(keys)}


def _only(vector: Vector, keys: set[str]) -> Vector:
    return {key: amount for key, amount in vector.items() if key in keys}


def held_by(ledger: QuotaLedger | None) -> Vector:
    """Return what a ledger has used and reserved."""
    return total((ledger.used or {}, ledger.reserved)) if ledger else {}


def _idle(ledgers: TeamLedgers) -> Vector:
    """Return what is guaranteed and not used."""
    return total(
        positive_difference(guaranteed, held_by(ledgers.ledgers.get(namespace)))
        for namespace, guaranteed in ledgers.team.guaranteed.items()
    )


def _largest(ledgers: TeamLedgers, members: Sequence[str], keys: set[str]) -> tuple[Member, ...]:
    """Return the namespaces that use the most GPUs, and are guaranteed the most."""
    guaranteed = ledgers.team.guaranteed
    found = []
    for namespace in members:
        ledger = ledgers.ledgers.get(namespace)
        used = None if ledger is None or ledger.used is None else _at(held_by(ledger), keys)
        found.append(Member(name=namespace, used=used, guaranteed=guaranteed.get(namespace, {})))
    found.sort(key=lambda each: (-_gpus(each.used or {}), -_gpus(each.guaranteed), each.name))
    return tuple(found[:LARGEST])


def _gpus(vector: Vector) -> float:
    return float(vector.get(GPUS, NOTHING))


def _ready(ledgers: TeamLedgers, members: Sequence[str], others: Mapping[str, Verdict]) -> Verdict:
    """Return the condition Ready. `kubectl get` shows its reason as STATUS, so it names another condition that is True."""
    keys = ledgers.team.hard.keys()
    counted = {
        namespace
        for namespace, ledger in ledgers.ledgers.items()
        if ledgers.has(namespace) and ledger.used is not None and keys <= ledger.used.keys()
    }
    if missing := [namespace for namespace in members[:MAX_NAMESPACES] if namespace not in counted]:
        why = f"not counted for the team yet: {shown_names(missing)}"
        status, _, message = others[TOO_LARGE]
        return FALSE, NOT_COUNTED, f"{why}; {message}" if status == TRUE else why
    for kind, (status, _, message) in others.items():
        if status == TRUE:
            return TRUE, kind, message
    if not members:
        return TRUE, READY, "no namespace belongs to it"
    return TRUE, READY, "every stored pod and claim of its namespaces is counted"


def _too_many(members: Sequence[str]) -> Verdict:
    beyond = members[MAX_NAMESPACES:]
    if not beyond:
        return FALSE, "WithinLimit", f"at most {MAX_NAMESPACES} namespaces belong to it"
    why = f"{len(members)} namespaces belong to it, and a team has at most {MAX_NAMESPACES}"
    return TRUE, "BeyondLimit", f"{why}: all GPUs are denied in {shown_names(beyond)}"


def _too_large(left_out: Sequence[str]) -> Verdict:
    if not left_out:
        return FALSE, "Fits", "one object has all its ledgers"
    why = "one object has all ledgers of the team, and would be too large"
    return TRUE, "NoRoom", f"{why}: not in force: {shown_names(left_out)}"


def _unreadable(record: TeamRecord, ledger_object: LedgerRecord | None) -> str:
    if ledger_object is None:
        return f"{record.problem}: it limits nothing"
    if ledger_object.team is None:
        return (
            f"{ledger_object.problem}: requests are denied until {KIND} {ledger_object.namespace} is deleted"
        )
    return f"{record.problem}: what was in force before stays"


def _news(before: TeamStatus, after: TeamStatus) -> Iterator[tuple[str, str, str]]:
    """Yield reason, message and type of each Event about a new status."""
    if after.observed_generation != before.observed_generation:
        yield "InForce", f"generation {after.observed_generation} of its spec is in force", NORMAL
    for kind in WITH_EVENT:
        found, former = after.condition(kind), before.condition(kind)
        if found and found.status == TRUE and not (former and former.status == TRUE):
            yield kind, found.message, WARNING
