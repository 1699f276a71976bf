"""The denial of a request that does not fit its quota: what to write, what is missing, and who holds it.

The first line stands alone and is short, because it is what `kubectl get events` shows; the holders follow in lines of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import islice
from math import ceil, floor

from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason
from policies.gpus.resource_mapping import GPURequest, ResourceMapping
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path
from policies.pods.pod import Pod
from policies.quota.amounts import CLASSES, GPUS, NOTHING, Vector, exceeds, format_amount, total, unit
from policies.quota.demand import RULE_ID, pod_demand
from policies.quota.holders import holder_title, idle_first, idle_holders, largest_first
from policies.quota.ledger.decide import Shortfall
from policies.quota.ledger.quota_ledger import EXPIRY_SECONDS, Holder, QuotaLedger
from policies.quota.quota_request import QuotaRequest
from policies.quota.spec import NAME, hard_field

RECOUNT_SECONDS = 10
"""A controller counts at most this long after a reservation has expired."""
RELEASE_SECONDS = ceil(EXPIRY_SECONDS) + RECOUNT_SECONDS

MAX_CLASSES = 4
"""Classes for which a denied pod is computed again; each takes up to 4 ms."""
LONGEST = 190
"""Characters of a denial without the name of the pod and the contact, which make it some 300 together."""
AND_WAIT = "and wait until that much is free"
MAX_HOLDERS = 5
NAMES_LISTED = 2
"""Classes and resources in one amount; the line is short."""

ClassPins = Callable[[Pod], Mapping[str, tuple[str, str]]]
"""Returns the classes that an unpinned pod may name by its annotation, each with the node label and value that pin it."""

KEEPING = frozenset({"Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"})
"""Controllers whose pods do not end by themselves."""


def exceeded(
    namespace: str,
    ledger: QuotaLedger,
    shortfalls: Sequence[Shortfall],
    class_reason: str,
    request: QuotaRequest,
    now: datetime,
    class_pins: ClassPins,
) -> Finding:
    """Return the denial of a request that exceeds `hard` of the namespace. `class_reason`: why it counts for classes."""
    if not ledger.revisions.pods:  # without a cluster, no controller counts and reservations are usage
        shortfalls = tuple(
            replace(each, used=each.used + each.reserved, reserved=NOTHING) for each in shortfalls
        )
    can_never_fit = any(each.can_never_fit for each in shortfalls)
    part = min(_left(each) / each.requested for each in shortfalls)
    smaller = fewer(request.pod, request.catalogues.resource_mapping, part) if request.pod else ()
    fix = _cheaper_class(request, ledger, shortfalls, class_pins) or smaller
    keys = [each.key for each in shortfalls]
    edits = dict.fromkeys(edit.words for edit in fix)
    named, unnamed = (
        [*edits, *_remedies(request, ledger, shortfalls, now, fits_in_part=bool(smaller), holders=holders)]
        for holders in (ledger.holders, {})
    )
    ask = f"to raise {hard_field(keys[0]) if len(keys) == 1 else 'spec.hard'}"
    lengths = ((NAMES_LISTED, named), (NAMES_LISTED, unnamed), (1, named), (1, unnamed), (1, unnamed[:1]))
    texts = [(shortage_facts(shortfalls, now, most), ", or ".join(remedies)) for most, remedies in lengths]
    before = f"exceeded quota: {namespace}/{NAME}, "
    short = (each for each in texts if len(before) + sum(map(len, each)) + len(ask) <= LONGEST)
    facts, remedy = next(short, texts[-1])
    return Finding(
        rule=RULE_ID,
        reason=Reason.QUOTA_CAN_NEVER_FIT if can_never_fit else Reason.QUOTA_EXCEEDED,
        message=before + facts,
        fix=fix,
        remedy=remedy,
        ask=ask,
        details=tuple(_details(ledger, keys, class_reason, now)),
    )


def amounts_in_words(vector: Mapping[str, Fraction]) -> str:
    """Return amounts for people, equal ones once: `3 GPUs`, `3 GPUs (nvidia-a100)`, `3 GPUs and 2 nvidia-t4`."""
    by_amount: dict[Fraction, list[str]] = {}
    for key in sorted(vector, key=lambda key: (key != GPUS, key)):
        by_amount.setdefault(vector[key], []).append(key)
    return " and ".join(_one_amount(amount, keys) for amount, keys in by_amount.items())


def _one_amount(amount: Fraction, keys: Sequence[str]) -> str:
    names = [unit(key, amount) for key in keys]
    more = [f"{len(names) - NAMES_LISTED} more"] if len(names) > NAMES_LISTED + 1 else []
    listed = names[: len(names) if not more else NAMES_LISTED] + more
    if keys[0] == GPUS and len(keys) > 1:
        return f"{format_amount(amount)} {listed[0]} ({' and '.join(listed[1:])})"
    return f"{format_amount(amount)} {' and '.join(listed)}"


def shortage_facts(shortfalls: Sequence[Shortfall], now: datetime, most: int = 1) -> str:
    """Return what is requested, used and granted; dimensions with the same figures once."""
    by_figures: dict[tuple[Fraction, ...], list[str]] = {}
    for each in shortfalls:
        by_figures.setdefault((each.requested, each.used, each.reserved, each.hard), []).append(each.key)
    until = now.astimezone(UTC) + timedelta(seconds=RELEASE_SECONDS)
    facts = []
    for (requested, used, reserved, hard), keys in by_figures.items():
        amount = amounts_in_words(dict.fromkeys(keys, requested))
        if requested > hard:
            facts.append(f"{amount} can never fit: the quota grants {format_amount(hard)}")
            continue
        creating = f", {format_amount(reserved)} being created (until {until:%H:%M:%SZ})" if reserved else ""
        facts.append(f"requested {amount}, {format_amount(used)} of {format_amount(hard)} used{creating}")
    shown, more = facts[:most], len(facts) - most
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _left(each: Shortfall) -> Fraction:
    return max(each.hard - each.used - each.reserved, NOTHING)


def _cheaper_class(
    request: QuotaRequest, ledger: QuotaLedger, shortfalls: Sequence[Shortfall], class_pins: ClassPins
) -> tuple[Edit, ...]:
    """Return the edit that names a class on which an unpinned pod fits, which counts for every class that may take it."""
    pod = request.pod
    if pod is None or not all(each.key.startswith(CLASSES) for each in shortfalls):
        return ()
    pins = class_pins(pod).items()
    unlimited = (each for each in pins if f"{CLASSES}{each[0]}" not in ledger.hard)
    for name, (key, value) in islice(unlimited, MAX_CLASSES):
        selector = {**pod.node_selector, key: value}
        pinned = replace(pod, given_spec=replace(pod.spec, node_selector=selector))
        demand = pod_demand(pinned, request.catalogues, ledger.unclassified_pods)
        together = total((ledger.used or {}, ledger.reserved, demand.vector))
        if not demand.denials and not exceeds(together, ledger.hard):
            return (Edit(annotation_path(GPU_CLASS), name),)
    return ()


def fewer(pod: Pod, mapping: ResourceMapping, part: Fraction, path: str = "") -> tuple[Edit, ...]:
    """Return the edits by which a pod requests this part of what it requests, rounded down to a whole amount.

    path: of a pod template, before the paths of the pod. Empty if nothing whole is left, or if several containers, or a resource
    that is not counted in whole amounts, share the demand.
    """
    if (requested := _only_request(pod, mapping)) is None:
        return ()
    place, name = requested.place, requested.resource.name
    amount = floor(requested.quantity.value * part)
    return tuple(Edit(path + each, amount) for each in place.amount_paths(name)) if amount else ()


def _only_request(pod: Pod, mapping: ResourceMapping) -> GPURequest | None:
    """Return the only request of the pod, if it is one of a resource that is counted in whole amounts."""
    requested = tuple(mapping.requests(pod))
    is_only = len(requested) == 1 and requested[0].resource.measure.is_count and not mapping.fractions_of(pod)
    return requested[0] if is_only else None


def _remedies(
    request: QuotaRequest,
    ledger: QuotaLedger,
    shortfalls: Sequence[Shortfall],
    now: datetime,
    *,
    fits_in_part: bool,
    holders: Mapping[str, Sequence[Holder]],
) -> Iterator[str]:
    """Yield what else the author can do. `fits_in_part`: a smaller request fits now. `holders` may be named."""
    too_large = [each for each in shortfalls if each.can_never_fit]
    if too_large:
        if not fits_in_part:
            largest = _at_most(request, {each.key: each.hard for each in too_large}, too_large)
            is_full = any(_left(each) < each.hard for each in too_large)
            yield from (f"{each}, {AND_WAIT}" if is_full else each for each in largest)
        return
    if (replicas := _replicas(request.controlled_by, ledger, shortfalls)) is not None:
        if request.controlled_by.startswith("Deployment/"):
            own = f"rollingUpdate.maxUnavailable: 1 for an update, or replicas: {replicas}"
            yield f"set {own}, or wait until one of its own pods has ended"
        else:
            yield f"set replicas: {replicas} (its own pods hold the quota)"
        return
    if not fits_in_part:
        yield from _at_most(request, {each.key: _left(each) for each in shortfalls}, shortfalls)
    yield f"wait until {_release(request, shortfalls, now, holders)}"


def _release(
    request: QuotaRequest,
    shortfalls: Sequence[Shortfall],
    now: datetime,
    holders: Mapping[str, Sequence[Holder]],
) -> str:
    """Return who must release what: `Job/train releases 2 GPUs`, `others release room for 3 nvidia.com/mig-1g.10gb`.

    The amounts are whole: cards, or slices of the pod's own profile.
    """
    missing = {each.key: each.requested - _left(each) for each in shortfalls}
    scarcest = max(shortfalls, key=lambda each: (missing[each.key] / each.requested, each.key == GPUS))
    names = _covering(holders.get(scarcest.key, ()), missing[scarcest.key], request.controlled_by, now)
    who = f"{' and '.join(names) or 'others'} release{'s' if len(names) == 1 else ''}"
    if all(each.denominator == 1 for each in missing.values()):
        return f"{who} {amounts_in_words(missing)}"
    if request.pod and (own := _only_request(request.pod, request.catalogues.resource_mapping)):
        slices = max(ceil(missing[each.key] * own.quantity.value / each.requested) for each in shortfalls)
        if scarcest.requested < own.quantity.value:
            return f"{who} room for {slices} {own.resource.name}"
    whole = {key: Fraction(ceil(amount)) for key, amount in missing.items()}
    if all(whole[each.key] <= each.used + each.reserved for each in shortfalls):
        return f"{who} {amounts_in_words(whole)}"
    return f"{who} all that {'it holds' if len(names) == 1 else 'they hold'}"


def _covering(holders: Sequence[Holder], missing: Fraction, controlled_by: str, now: datetime) -> list[str]:
    """Return who holds what is missing, besides the author's own; none if that takes too many names.

    These are idle holders and then the largest, or the largest alone.
    """
    for ranked in (idle_first(holders), largest_first(holders)):
        left, names = missing, list[str]()
        for each in ranked:
            if left > 0 and each.name != controlled_by:
                left -= Fraction(each.amount)
                names.append(holder_title(each, now))
        if left <= 0 and len(names) <= NAMES_LISTED:
            return names
    return []


def _at_most(request: QuotaRequest, available: Vector, shortfalls: Sequence[Shortfall]) -> Iterator[str]:
    """Yield the largest request that is available, in the words of the pod, or else in whole GPUs."""
    part = min(available[each.key] / each.requested for each in shortfalls)
    if request.pod and (fix := fewer(request.pod, request.catalogues.resource_mapping, part)):
        yield f"{fix[0].words} or less"
    elif all(each.requested.denominator == 1 and available[each.key] >= 1 for each in shortfalls):
        scarcest = min(
            shortfalls, key=lambda each: (available[each.key] / each.requested, each.key != GPUS)
        ).key
        yield f"request {amounts_in_words({scarcest: Fraction(floor(available[scarcest]))})} or fewer"


def _replicas(controlled_by: str, ledger: QuotaLedger, shortfalls: Sequence[Shortfall]) -> int | None:
    """Return how many such pods fit, if the pods that the controller keeps leave no room for one more; else None."""
    if controlled_by.partition("/")[0] not in KEEPING:
        return None
    found = [
        floor(each.hard / each.requested)
        for each in shortfalls
        for holder in ledger.holders.get(each.key, ())
        if holder.name == controlled_by and Fraction(holder.amount) + each.requested > each.hard
    ]
    return min(found, default=None)


def _details(ledger: QuotaLedger, keys: Sequence[str], class_reason: str, now: datetime) -> Iterator[str]:
    """Yield who is idle, who holds most, once for dimensions with equal holders, and why an unpinned pod counts for classes."""
    yield from [text for key in keys if (text := idle_holders(ledger.holders.get(key, ()), key, now))][:1]
    by_holders: dict[str, list[str]] = {}
    for key in keys:
        largest = largest_first(ledger.holders.get(key, ()))[:MAX_HOLDERS]
        if text := ", ".join(f"{each.name} {format_amount(Fraction(each.amount))}" for each in largest):
            by_holders.setdefault(text, []).append(unit(key))
    for text, names in by_holders.items():
        yield f"largest holders of {' and '.join(names)}: {text}"
    classes = [key.removeprefix(CLASSES) for key in keys if key.startswith(CLASSES)]
    if classes and class_reason:
        yield f"counted for {', '.join(classes)}: {class_reason}"
