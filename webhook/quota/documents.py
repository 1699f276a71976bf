"""GPUQuota objects, and what ClusterGPUQuota shares with them: the spec, and the status that the controller writes for people.

No decision reads the status. Decisions read the ledger of the namespace.
"""

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, TypeVar

import msgspec

from policies.quota.amounts import ZERO, Amounts, format_amount, parse_amount, total
from policies.quota.budget import gpu_hours, moment
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger
from policies.quota.spec import NAME, LimitsSpec, QuotaSpec
from webhook.cluster.api import api_path
from webhook.cluster.events import Regarding
from webhook.cluster.informer import Resource
from webhook.cluster.objects import Condition, PartialObject, timestamp
from webhook.configuration.documents import API_VERSION, QUOTA

PLURAL = "gpuquotas"

READY, EXCEEDED, STALE = "Ready", "Exceeded", "Stale"
BUDGET_SPENT, BUDGET_LOW = "BudgetSpent", "BudgetLow"
"""A condition only of quotas with a budget."""
NOT_COUNTED, UNREADABLE = "NotCounted", "Unreadable"
"""Reasons of Ready. NotCounted is also for a ledger in which one dimension was never counted."""

QUOTAS = Resource(f"/apis/{API_VERSION}", PLURAL)

Spec = TypeVar("Spec", bound=LimitsSpec)
Status = TypeVar("Status", bound="LimitsStatus")


def quota_path(namespace: str, *rest: str) -> str:
    """Return the API path of the namespace's quota, or of its subresource."""
    return api_path(f"/apis/{API_VERSION}", "namespaces", namespace, PLURAL, NAME, *rest)


def quota_reference(namespace: str, uid: str) -> Regarding:
    """Return what an Event on the quota is about."""
    return Regarding(API_VERSION, QUOTA, NAME, uid, namespace)


class PlaceInLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that waits in line, or the pods of a gang that wait together.

    name: of the pod, of a gang that of its first one. gang: its key, such as `Job/train`. pods: how many of them wait. place:
    from 1; 0 where it has none. since: the creation of the first pod. demand: what must be free for all of them. reason and
    message: why they wait, as in Conditions.
    """

    name: str
    gang: str = ""
    pods: int = 1
    place: int = 0
    since: str = ""
    demand: Amounts = {}
    reason: str = ""
    message: str = ""

    @property
    def owner(self) -> str:
        """Its pod or gang as kind and name."""
        return self.gang or f"Pod/{self.name}"

    @property
    def title(self) -> str:
        """Who waits: `Job/train (8 pods)`, `Pod/notebook`."""
        return f"{self.owner} ({self.pods} pods)" if self.gang else self.owner


class WaitingPods(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pods that wait in line: how many, since when the first one, what they need, and the first places."""

    pods: int
    since: str = ""
    demand: Amounts = {}
    next: tuple[PlaceInLine, ...] = ()


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The present period of the budget, and its GPU-hours as decimals, by `gpus` and `classes/NAME`.

    `used` was counted at the time `until`. `unknown` may have been used besides, while no controller watched.
    """

    period: str
    start: str
    end: str
    until: str
    granted: Mapping[str, str]
    used: Mapping[str, str] = {}
    unknown: Mapping[str, str] = {}

    @classmethod
    def of(cls, ledger: QuotaLedger) -> "BudgetStatus | None":
        """Return the budget of a ledger. None without one, or before its first count."""
        budget, spending = ledger.budget, ledger.spending
        if budget is None or spending is None:
            return None
        spent = {key: spending.spent.get(key, 0) for key in budget.granted}
        return cls(
            period=budget.period.value,
            start=timestamp(moment(spending.start)),
            end=timestamp(moment(spending.end)),
            until=timestamp(moment(spending.until)),
            granted=_decimals(budget.granted),
            used=_decimals(spent),
            unknown=_decimals({key: amount for key, amount in spending.unknown.items() if amount}),
        )


def _decimals(amounts: Mapping[str, int]) -> dict[str, str]:
    return {key: format_amount(gpu_hours(amount)) for key, amount in sorted(amounts.items())}


class IdleHolder(msgspec.Struct, frozen=True):
    """An owner of pods whose GPUs all do no work: `Job/train`, its whole-GPU equivalents, and since when (RFC 3339)."""

    name: str
    gpus: Fraction
    since: str


class IdleGPUs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the GPUs of a namespace do, as Prometheus measured it.

    gpus: whole-GPU equivalents of the owners that are idle; None if nothing is measured, and then `measured` says why. holders:
    those that hold the most. observed: they were idle until then, rounded down, so that the status changes rarely.
    """

    gpus: Fraction | None = None
    holders: tuple[IdleHolder, ...] = ()
    observed: str = ""
    measured: str = ""


class TeamView(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the namespace sees of its team.

    name: of the ClusterGPUQuota. hard: what it grants to all its namespaces. free: what this namespace can still have.
    guaranteed_to_others: the part of `hard` that it can never have. largest: by dimension, the namespaces with the most, used or
    guaranteed. contact: whom to ask for more.
    """

    name: str
    hard: Amounts = {}
    free: Amounts = {}
    guaranteed_to_others: Amounts = {}
    largest: Mapping[str, tuple[Holder, ...]] = {}
    contact: str = ""

    @classmethod
    def of(cls, ledger: QuotaLedger) -> "TeamView | None":
        """Return what a ledger sees of its team. None without one."""
        if (team_state := ledger.team_state) is None:
            return None
        hard, held = team_state.team.hard, ledger.held
        return cls(
            name=team_state.team.name,
            hard=hard,
            free={key: max(team_state.free(key, held.get(key, ZERO)), ZERO) for key in hard},
            guaranteed_to_others={key: each for key, each in team_state.guaranteed_to_others.items() if each},
            largest={
                key: tuple(
                    Holder(name, str(amount), guaranteed=is_guaranteed)
                    for name, amount, is_guaranteed in team_state.largest(key)
                )
                for key in hard
            },
            contact=team_state.team.contact,
        )


MAX_KEPT = 10
"""Objects that keep quota, in the status at most."""


class KeptQuota(msgspec.Struct, frozen=True, rename="camel"):
    """What an object, such as RayCluster/train, keeps while its pods are replaced. `reserved` includes it."""

    object: str
    demand: Amounts

    @classmethod
    def of(cls, ledger: QuotaLedger) -> tuple["KeptQuota", ...]:
        """Return what each object keeps in the dimensions of the status, of the first KEPT_SHOWN objects by name."""
        demands: dict[str, Amounts] = {}
        for keeper in ledger.keepers:
            kept = total(keep.demand for keep in ledger.reservations.keeps if keep.keeper_uid == keeper.uid)
            if shown := {key: kept[key] for key in kept if key in ledger.dimensions}:
                demands[f"{keeper.kind}/{keeper.name}"] = shown
        return tuple(cls(name, demand) for name, demand in sorted(demands.items())[:MAX_KEPT])


class LimitsStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the statuses of GPUQuota and ClusterGPUQuota share: a copy of ledgers for people, some seconds old at most.

    `used` is None before the first count. All amounts show `gpus` and the dimensions that `hard` names. `shown` has amounts of
    the status as decimals, by the name of the field, for the columns of `kubectl get`. `counted_at`: when the leader knew last
    that the count was complete (RFC 3339, UTC); empty before the first count.
    """

    hard: Amounts = {}
    used: Amounts | None = None
    reserved: Amounts = {}
    shown: Mapping[str, Mapping[str, str]] = {}
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    counted_at: str = ""

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def condition_if_true(self, kind: str) -> Condition | None:
        """Return the condition of a type if it is True."""
        condition = self.condition(kind)
        return condition if condition and condition.status == "True" else None


def decimals(amounts: Mapping[str, Amounts]) -> dict[str, dict[str, str]]:
    """Return `shown` of a status."""
    return {
        name: {key: format_amount(amount) for key, amount in sorted(vector.items())}
        for name, vector in amounts.items()
    }


class QuotaStatus(LimitsStatus, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The status of a GPUQuota."""

    waiting: WaitingPods | None = None
    holders: Mapping[str, tuple[Holder, ...]] = {}
    budget: BudgetStatus | None = None
    idle: IdleGPUs | None = None
    kept: tuple[KeptQuota, ...] = ()
    team: TeamView | None = None


class LimitsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What decoded GPUQuotas and ClusterGPUQuotas share. `spec` is None if it cannot be read; then `problem` says why.

    `version` is the resourceVersion. An unreadable status reads as empty, and the controller writes it again.
    """

    uid: str
    version: str
    generation: int = 0
    spec: LimitsSpec | None = None
    status: LimitsStatus = LimitsStatus()
    problem: str = ""

    @property
    def hard(self) -> Amounts:
        """The limits in force according to the status, else the limits of the spec."""
        if self.status.hard or self.spec is None:
            return self.status.hard
        return self.spec.amounts

    @property
    def is_pending(self) -> bool:
        """Whether the status shows limits in force from an older spec."""
        return bool(self.status.hard) and self.status.observed_generation < self.generation


def has_another_spec(before: LimitsRecord | None, after: LimitsRecord | None) -> bool:
    # Both a creation and a deletion count: for a replaced quota, a list may show the two in any order.
    return before is None or after is None or before.generation != after.generation


class QuotaRecord(LimitsRecord, frozen=True, kw_only=True):
    """A decoded GPUQuota."""

    namespace: str
    spec: QuotaSpec | None = None
    status: QuotaStatus = QuotaStatus()

    @property
    def desired(self) -> QuotaLedger | None:
        """The GPUQuota as a ledger that was never counted. None if the spec cannot be read."""
        return self.spec.ledger(self.uid, self.generation) if self.spec else None


class StoredObject(PartialObject, frozen=True):
    """An object with a spec and a status, which are decoded separately."""

    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def fields(
        self, kind: str, specs: msgspec.json.Decoder[Spec], statuses: msgspec.json.Decoder[Status]
    ) -> dict[str, Any]:
        """Return the fields of a LimitsRecord of this kind."""
        metadata, spec = self.metadata, None
        try:
            spec = specs.decode(self.spec)
            problem = next((f"{message} - at `$.{path}`" for path, message in spec.problems()), "")
        except msgspec.ValidationError as error:
            problem = str(error)
        status = statuses.type()
        with suppress(ValueError):
            status = statuses.decode(self.status)
        return {
            "uid": metadata.uid,
            "version": metadata.resource_version,
            "generation": metadata.generation,
            "spec": None if problem else spec,
            "status": status,
            "problem": f"the {kind} cannot be read: {problem}" if problem else "",
        }


def status_decoder(status: type[Status]) -> msgspec.json.Decoder[Status]:
    """Return the decoder of a status. It raises msgspec.ValidationError."""
    return msgspec.json.Decoder(status, dec_hook=lambda _fraction, text: parse_amount(text))


STORED_OBJECT = msgspec.json.Decoder(StoredObject)
_SPEC = msgspec.json.Decoder(QuotaSpec)
_STATUS = status_decoder(QuotaStatus)
_ENCODER = msgspec.json.Encoder(enc_hook=str, order="deterministic")


def decode_quota(document: bytes | msgspec.Raw) -> QuotaRecord | None:
    """Return the decoded quota. None if its name is not `default`. Raises msgspec.ValidationError if it is not an object."""
    stored = STORED_OBJECT.decode(document)
    if stored.metadata.name != NAME:
        return None
    return QuotaRecord(namespace=stored.metadata.namespace, **stored.fields(QUOTA, _SPEC, _STATUS))


def encode_status(regarding: Regarding, version: str, status: LimitsStatus) -> bytes:
    """Return the body of a status update, which succeeds only on this version of the object. It does not change the spec."""
    metadata = {"name": regarding.name, "uid": regarding.uid, "resourceVersion": version}
    if regarding.namespace:
        metadata["namespace"] = regarding.namespace
    written = {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "metadata": metadata,
        "status": status,
    }
    return _ENCODER.encode(written)
