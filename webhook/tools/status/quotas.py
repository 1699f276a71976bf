"""GPUQuotas as `status` shows them, from what the controller wrote into them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction

from policies.quota.amounts import DIMENSIONS, GPUS, NOTHING, parse_amount
from policies.quota.ledger.quota_ledger import Holder
from webhook.controller.conditions import TRUE
from webhook.quota.documents import QuotaRecord
from webhook.tools.status.report import QuotaHolder, QuotaRow, QuotaState, QuotaSummary


def key_order(key: str) -> tuple[int, str]:
    """Sort keys of amounts in the order of the dimensions."""
    dimension = key.partition("/")[0]
    return (DIMENSIONS.index(dimension) if dimension in DIMENSIONS else len(DIMENSIONS)), key


def quota_status(record: QuotaRecord, denied: int | None) -> QuotaSummary:
    """Return the status of a stored quota; `denied` is how many pods of its namespace were denied."""
    if record.spec is None:
        return QuotaSummary(
            namespace=record.namespace, state=QuotaState.NOT_COUNTED, message=record.problem, denied=denied
        )
    state, message = _state(record)
    used = record.status.used
    return QuotaSummary(
        namespace=record.namespace,
        state=state,
        message=message,
        rows=tuple(
            QuotaRow(
                key=key,
                hard=record.hard[key],
                used=None if used is None else used.get(key),
                reserved=record.status.reserved.get(key, NOTHING),
            )
            for key in sorted(record.hard, key=key_order)
        ),
        holders=_holders(record.status.holders.items()),
        denied=denied,
    )


def _state(record: QuotaRecord) -> tuple[QuotaState, str]:
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
    return tuple(sorted(found, key=lambda each: (-most_held(each.held), each.name)))


def most_held(held: Mapping[str, Fraction]) -> Fraction:
    """Return the GPUs of a holder, or without GPUs its largest amount."""
    return held.get(GPUS) or max(held.values(), default=NOTHING)
