"""GPUQuotas as `status` shows them, from what the controller wrote into them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction

import msgspec

from policies.quota.amounts import DIMENSIONS, GPUS, NOTHING, parse_amount, positive_difference, total
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.quota_request import QuotaGrant, QuotaRequest, ReservationOutcome, decide_alone
from webhook.configuration.loader import Configuration
from webhook.controller.quota_status import TRUE
from webhook.quota.documents import QuotaRecord
from webhook.tools.status.report import (
    DeniedOwner,
    PendingOwner,
    QuotaHolder,
    QuotaRow,
    QuotaState,
    QuotaSummary,
)


def key_order(key: str) -> tuple[int, str]:
    """Sort keys of amounts in the order of the dimensions."""
    dimension = key.partition("/")[0]
    return (DIMENSIONS.index(dimension) if dimension in DIMENSIONS else len(DIMENSIONS)), key


def quota_status(
    record: QuotaRecord,
    denials: Sequence[DeniedOwner] | None,
    pending: Sequence[PendingOwner] | None = None,
    held_up_before: datetime | None = None,
    *,
    is_stale: bool = False,
) -> QuotaSummary:
    """Return the status of a stored quota. `denials` and `pending` are those of its namespace, None where they cannot be read.

    held_up_before: a pod that is pending since then is a problem. is_stale: no controller writes the status.
    """
    held = None if pending is None else total(each.held for each in pending)
    denied = None if denials is None else sum(each.count for each in denials)
    since = min((each.first for each in denials or ()), default=None)
    state, message = _state(record)
    summary = QuotaSummary(
        namespace=record.namespace, state=state, message=message, denied=denied, denied_since=since
    )
    if record.spec is None:
        return summary
    used = record.status.used
    return msgspec.structs.replace(
        summary,
        state=QuotaState.STALE if is_stale and state is QuotaState.READY else state,
        rows=tuple(
            QuotaRow(
                key=key,
                hard=record.hard[key],
                used=None if used is None else used.get(key),
                reserved=record.status.reserved.get(key, NOTHING),
                pending=None if held is None else held.get(key, NOTHING),
            )
            for key in sorted(record.hard, key=key_order)
        ),
        holders=_holders(record.status.holders.items()),
        pending=tuple(pending or ()),
        is_held_up=any(held_up_before and each.since < held_up_before for each in pending or ()),
    )


def stated_grant(record: QuotaRecord) -> QuotaGrant | None:
    """Return what a quota grants, and what its status says is held. None if its spec cannot be read."""
    if record.spec is None:
        return None
    used = record.status.used
    held = None if used is None else total((used, record.status.reserved))
    return QuotaGrant(record.hard, record.spec.unclassified_pods, held)


class StatedQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota` as the status of its GPUQuota says it, since tenants read no ledger. It reserves nothing."""

    granted: QuotaGrant
    record: QuotaRecord
    configuration: Configuration

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        if quota_request.is_free:
            return ReservationOutcome()
        ledger = msgspec.structs.replace(
            self.granted.as_ledger(self.configuration),
            # A sum leaves out zeros, and what `used` lacks has not been counted.
            used=None
            if self.granted.held is None
            else dict.fromkeys(self.granted.hard, NOTHING) | self.granted.held,
            holders=self.record.status.holders,
        )
        return decide_alone(ledger, quota_request.on(ledger, {}))

    def grant(self) -> QuotaGrant:
        return self.granted


def stated_quota(
    record: QuotaRecord | None,
    configuration: Configuration,
    *,
    released: Mapping[str, Fraction] | None = None,
) -> StatedQuota | None:
    """Return a quota as if `released` were not held any more; None if there is none, or its spec cannot be read."""
    granted = stated_grant(record) if record else None
    if granted and granted.held and released:
        granted = msgspec.structs.replace(granted, held=positive_difference(granted.held, released))
    return StatedQuota(granted, record, configuration) if record and granted else None


def _state(record: QuotaRecord) -> tuple[QuotaState, str]:
    if record.spec is None:
        return QuotaState.NOT_COUNTED, record.problem
    ready = record.status.condition("Ready")
    if ready is None or ready.status != TRUE:
        return QuotaState.NOT_COUNTED, ready.message if ready else "not counted yet: GPU pods are denied"
    for kind, state in (("Exceeded", QuotaState.EXCEEDED), ("Stale", QuotaState.STALE)):
        condition = record.status.condition(kind)
        if condition is not None and condition.status == TRUE:
            return state, condition.message
    return QuotaState.READY, ""


def _holders(by_key: Iterable[tuple[str, Iterable[Holder]]]) -> tuple[QuotaHolder, ...]:
    held: dict[str, dict[str, Fraction]] = defaultdict(dict)
    for key, holders in by_key:
        for holder in holders:
            held[holder.name][key] = parse_amount(holder.amount)
    found = (QuotaHolder(name=name, held=amounts) for name, amounts in held.items())
    return tuple(sorted(found, key=lambda each: (GPUS not in each.held, -each.most[1], each.name)))
