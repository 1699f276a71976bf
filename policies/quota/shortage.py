"""The denial of a request that does not fit its quota: what to write, what is missing, and who holds it.

The first line is short and complete, because `kubectl get events` shows only that; the holders follow in lines of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from itertools import islice
from math import ceil, floor

from msgspec.structs import replace

from policies.finding import (
    ContactEdit,
    Edit,
    Edits,
    Finding,
    Reason,
    Wait,
    choices_text,
    one_choice,
    separate_choices,
)
from policies.gpus.amount import edits_to_request_share
from policies.gpus.resource_mapping import GPURequest, ResourceMapping
from policies.placement.pinning import ClassPin
from policies.pods.pod import Pod
from policies.pods.requests import combined
from policies.quota.amounts import CLASSES, GPUS, ZERO, Amounts, amount_texts, format_amount, unit_name
from policies.quota.demand import pod_demand
from policies.quota.idleness import holder_title, idle_first, idle_holders, largest_first
from policies.quota.ledger.decide import Shortfall
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.quota_request import QuotaRequest
from policies.quota.shortage_facts import (
    MAX_KEYS_NAMED,
    amounts_in_words,
    escalation,
    largest_namespaces,
    missing_in_words,
    shortage_facts,
)
from policies.quota.spec import NAME, hard_field

QUOTA_EXCEEDED = Reason(
    "QuotaExceeded", "the request and the usage of the namespace together exceed the quota"
)
QUOTA_CAN_NEVER_FIT = Reason("QuotaCanNeverFit", "the request exceeds the whole quota")

MAX_CLASSES = 4
"""Classes that a denied pod is computed for again; each takes up to 4 ms."""
MAX_LENGTH = 190
"""Characters of a denial, without the names of pod and team and the contact. With them it has some 300."""
OUTER_LABELS = ("jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name")
"""By which pods of a Job of a JobSet, and of a StatefulSet of a LeaderWorkerSet, name the JobSet or LeaderWorkerSet."""
WAIT_UNTIL_FREE = "and wait until that much is free"
MAX_HOLDERS = 5
ClassPins = Callable[[Pod], Mapping[str, ClassPin]]
"""Returns by class how an unpinned pod may name it."""

Helps = Callable[[Edits, bool | None], bool]
"""Whether the object would be admitted with the edits: now, (True) once nothing of the quota is used, or (None) without it."""


def helps_always(_edits: Edits, _once_unused: bool | None) -> bool:
    """Believe every edit, where nothing can be tried."""
    return True


ENDLESS_KINDS = frozenset({"Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"})
"""Controllers whose pods do not end by themselves."""
_DEPLOYMENT = "Deployment/"
"""Its rolling update ends old pods."""


def exceeded_finding(
    namespace: str,
    ledger: QuotaLedger,
    shortfalls: Sequence[Shortfall],
    class_reason: str,
    request: QuotaRequest,
    now: datetime,
    class_pins: ClassPins,
    helps: Helps = helps_always,
) -> Finding:
    """Return the denial of a request that exceeds `hard` of its GPUQuota, or of its team.

    class_reason: why an unpinned pod counts for the exceeded classes.
    """
    if not ledger.revisions.pods:  # without a cluster, no controller counts and reservations are usage
        shortfalls = tuple(
            replace(each, used=each.used + each.reserved, reserved=ZERO) for each in shortfalls
        )
    can_never_fit = any(shortfall.can_never_fit for shortfall in shortfalls)
    fitting_share = min(_free(shortfall) / shortfall.requested for shortfall in shortfalls)
    mapping = request.catalogue.resource_mapping
    has_one_request = request.pod is not None and _only_request(request.pod, mapping) is not None
    smaller = (
        edits_to_request_share(request.pod, mapping, fitting_share) if request.pod and has_one_request else ()
    )
    ways = (_cheaper_class(request, ledger, shortfalls, class_pins), smaller)
    fix = next((edits for edits in ways if edits and helps(edits, False)), ())
    awaits, by_own = (_awaited_release(request, ledger, shortfalls), _replicas(request, ledger, shortfalls))
    largest_that_fits = _largest_that_fits(request, shortfalls) if not smaller and by_own is None else ()
    is_refused = bool(largest_that_fits) and not helps(largest_that_fits, can_never_fit)
    names_largest = not smaller and not is_refused
    named, unnamed = (
        [
            *filter(None, (choices_text(one_choice(*fix)),)),
            *_remedies(request, ledger, shortfalls, now, names_largest=names_largest, holders=holders),
        ]
        for holders in (ledger.holders, {})
    )
    own, of_team = (
        [each.key for each in shortfalls if bool(each.team) is is_team] for is_team in (False, True)
    )
    to_raise, contact = escalation(own, of_team, ledger.team_state.team if ledger.team_state else None)
    lengths = (
        (MAX_KEYS_NAMED, named),
        (MAX_KEYS_NAMED, unnamed),
        (1, named),
        (1, unnamed),
        (1, unnamed[:1]),
    )
    largest = _largest_namespace(ledger, shortfalls)
    shown_texts = [
        (shortage_facts(shortfalls, now, shown) + more, ", or ".join(remedies))
        for more in dict.fromkeys((largest and _LARGEST_LABEL + largest, ""))
        for shown, remedies in lengths
    ]
    before = "exceeded quota: " if shortfalls[0].team else f"exceeded quota: {namespace}/{NAME}, "
    longest = MAX_LENGTH + 2 * max(len(team_title(each.team)) if each.team else 0 for each in shortfalls)
    short = (text for text in shown_texts if len(before) + sum(map(len, text)) + len(to_raise) <= longest)
    facts, remedy = next(short, shown_texts[-1])
    named_namespace = facts.partition(_LARGEST_LABEL)[2]
    return Finding(
        reason=QUOTA_CAN_NEVER_FIT if can_never_fit else QUOTA_EXCEEDED,
        message=before + facts,
        choices=(*one_choice(*fix), *one_choice(*(largest_that_fits if names_largest else ()))),
        is_example=not fix and not has_one_request,
        awaits=awaits,
        remedy=remedy,
        ask_contact=to_raise,
        contact_choices=(tuple(_raised_limits(shortfalls)),),
        contact=contact,
        details=tuple(_details(ledger, shortfalls, named_namespace, class_reason, now)),
    )


def _largest_that_fits(request: QuotaRequest, shortfalls: Sequence[Shortfall]) -> Edits:
    """Return the edits by which the pod requests as much as fits: of what is free, or else of what the quota grants."""
    if request.pod is None:
        return ()
    too_large = [shortfall for shortfall in shortfalls if shortfall.can_never_fit]
    parts = (shortfall.maximum_hard / shortfall.requested for shortfall in too_large)
    part = min(parts) if too_large else min(_free(each) / each.requested for each in shortfalls)
    return edits_to_request_share(request.pod, request.catalogue.resource_mapping, part)


def _awaited_release(
    request: QuotaRequest, ledger: QuotaLedger, shortfalls: Sequence[Shortfall]
) -> Wait | None:
    """Return what must be released for the request to fit; if it can never fit, for what fits at most."""
    too_large = [shortfall for shortfall in shortfalls if shortfall.can_never_fit]
    if too_large:
        if not (amounts := {each.key: held for each in shortfalls if (held := each.used + each.reserved)}):
            return None
        by_own = any(_held_by_own(request, ledger, shortfall) for shortfall in shortfalls)
        return Wait(by_own=by_own, beside_choice=True, amounts=tuple(amount_texts(amounts).items()))
    by_own = bool(_own_pods(request, ledger, shortfalls))
    if by_own and _never_end(request) and not request.controlled_by.startswith(_DEPLOYMENT):
        return None
    return Wait(by_own=by_own, amounts=tuple(amount_texts(_missing(shortfalls)).items()))


def _missing(shortfalls: Sequence[Shortfall]) -> Amounts:
    """Return what must be released: more than the request, if usage already exceeds the quota."""
    return combined(({shortfall.key: _needed(shortfall) - shortfall.hard} for shortfall in shortfalls), max)


def _own_pods(request: QuotaRequest, ledger: QuotaLedger, shortfalls: Sequence[Shortfall]) -> str:
    """Return who must release something, if all that others hold is not enough; "" if it is."""
    if not any(_beside_own(request, ledger, shortfall) for shortfall in shortfalls):
        return ""
    missing = _missing(shortfalls)
    is_enough = all(_held_by_own(request, ledger, each) >= missing[each.key] for each in shortfalls)
    return "its own pods" if is_enough else "its own pods and others"


def _beside_own(request: QuotaRequest, ledger: QuotaLedger, shortfall: Shortfall) -> bool:
    """Whether the request exceeds the maximum beside what pods of the same controller hold."""
    own = _held_by_own(request, ledger, shortfall)
    return bool(own) and own + shortfall.requested > shortfall.maximum_hard


def _held_by_own(request: QuotaRequest, ledger: QuotaLedger, shortfall: Shortfall) -> Fraction:
    """Return what pods of the same workload hold. Those that are being created are known by their names."""
    key = shortfall.key
    if not request.controlled_by:
        return ZERO
    names = f"pods/{_outer_name(request) or request.controlled_by.partition('/')[2]}-"
    in_creation = (each.demand.get(key, ZERO) for each in ledger.reservations if each.name.startswith(names))
    held = (Fraction(holder.amount) for holder in ledger.holders.get(key, ()) if _is_own(request, holder))
    # A stored pod may be counted and still have its reservation, which is not in `reserved` then.
    return sum(held, ZERO) + min(sum(in_creation, ZERO), shortfall.reserved)


def _is_own(request: QuotaRequest, holder: Holder) -> bool:
    outer = _outer_name(request)
    is_made_by_it = bool(outer) and f"{holder.name.partition('/')[2]}-".startswith(f"{outer}-")
    return is_made_by_it or holder.name == request.controlled_by


def _outer_name(request: QuotaRequest) -> str:
    """Return the name of the object whose controller made that of the pod, and named it so; "" if the pod names none."""
    labels = (request.pod and request.pod.metadata and request.pod.metadata.labels) or {}
    return next((labels[key] for key in OUTER_LABELS if key in labels), "")


def _never_end(request: QuotaRequest) -> bool:
    """Whether the pods of its controller do not end by themselves, so that waiting for them is in vain."""
    restarts = request.pod is not None and request.pod.spec.restart_policy == "Always"
    return restarts or request.controlled_by.partition("/")[0] in {*ENDLESS_KINDS, "DaemonSet"}


def _raised_limits(shortfalls: Sequence[Shortfall]) -> Iterator[ContactEdit]:
    """Yield what the quotas must grant for the request to fit beside all that is used."""
    for shortfall in shortfalls:
        kind = "ClusterGPUQuota" if shortfall.team else "GPUQuota"
        yield ContactEdit(kind, hard_field(shortfall.key), str(_needed(shortfall)))


_LARGEST_LABEL = "; largest: "
"""Introduces the largest namespace of the team, at the end of the facts."""


def _largest_namespace(ledger: QuotaLedger, shortfalls: Sequence[Shortfall]) -> str:
    """Return the largest namespace of an exceeded team: `vision-prod 40`; "" if no team is exceeded, or it can never fit."""
    of_team = (shortfall.key for shortfall in shortfalls if shortfall.team and not shortfall.can_never_fit)
    largest = (largest_namespaces(ledger.team_state, key, 1) for key in of_team if ledger.team_state)
    return next(filter(None, largest), "")


def _needed(shortfall: Shortfall) -> Fraction:
    return shortfall.used + shortfall.reserved + shortfall.requested


def _free(shortfall: Shortfall) -> Fraction:
    return max(shortfall.hard - shortfall.used - shortfall.reserved, ZERO)


def _cheaper_class(
    request: QuotaRequest, ledger: QuotaLedger, shortfalls: Sequence[Shortfall], class_pins: ClassPins
) -> tuple[Edit, ...]:
    """Return the edit that pins an unpinned pod to a class with free quota. Unpinned, it counts for every possible class."""
    pod = request.pod
    if pod is None or not all(shortfall.key.startswith(CLASSES) for shortfall in shortfalls):
        return ()
    pins = class_pins(pod).items()
    unlimited = (pin for name, pin in pins if f"{CLASSES}{name}" not in ledger.limited)
    for pin in islice(unlimited, MAX_CLASSES):
        selector = {**pod.node_selector, pin.key: pin.value}
        pinned = replace(pod, given_spec=replace(pod.spec, node_selector=selector))
        demand = pod_demand(pinned, request.catalogue, ledger.unclassified_pods)
        if not demand.denials and ledger.has_room(demand.vector, times=1):
            return (pin.edit,)
    return ()


def _only_request(pod: Pod, mapping: ResourceMapping) -> GPURequest | None:
    """Return the only request of the pod, if it is one of a resource that is counted in whole amounts."""
    requested = tuple(mapping.requests(pod))
    is_only = (
        len(requested) == 1
        and requested[0].resource.measure.is_count
        and not mapping.fraction_annotations_of(pod)
    )
    return requested[0] if is_only else None


def _remedies(
    request: QuotaRequest,
    ledger: QuotaLedger,
    shortfalls: Sequence[Shortfall],
    now: datetime,
    *,
    names_largest: bool,
    holders: Mapping[str, Sequence[Holder]],
) -> Iterator[str]:
    """Yield what else the author can do. `names_largest`: the largest request that fits is one. `holders` may be named."""
    too_large = [shortfall for shortfall in shortfalls if shortfall.can_never_fit]
    if too_large:
        if names_largest:
            largest = _at_most(request, lambda shortfall: shortfall.maximum_hard, too_large)
            is_full = any(_free(each) < min(each.maximum_hard, each.requested) for each in shortfalls)
            yield from (f"{amount}, {WAIT_UNTIL_FREE}" if is_full else amount for amount in largest)
        return
    if (replicas := _replicas(request, ledger, shortfalls)) is not None:
        if request.controlled_by.startswith(_DEPLOYMENT):
            update = f"for an update set {room_for_update(replicas - 1)}"
            yield f"{update}; else set replicas: {replicas}, or wait until an old pod has ended"
        else:
            yield f"set replicas: {replicas} (its own pods hold the quota)"
        return
    if names_largest:
        yield from _at_most(request, _free, shortfalls)
    own = _own_pods(request, ledger, shortfalls)
    if not (own and _never_end(request)):
        yield f"wait until {_who_must_release_what(request, shortfalls, now, holders, own)}"


ROOM_FOR_UPDATE = (
    (Edit("spec.strategy.type", "Recreate"), Edit("spec.strategy.rollingUpdate")),
    *separate_choices(Edit("spec.strategy.rollingUpdate.maxUnavailable", 1)),
)


def room_for_update(fewer: int) -> str:
    """Return how a rolling update starts without room for one more pod. `fewer`: one replica less, 0 if there is none."""
    replicas = f", or replicas: {fewer}" if fewer else ""
    return f"type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1{replicas}"


def _who_must_release_what(
    request: QuotaRequest,
    shortfalls: Sequence[Shortfall],
    now: datetime,
    holders: Mapping[str, Sequence[Holder]],
    own: str,
) -> str:
    """Return who must release what: `Job/train releases 2 GPUs`, `others release room for 3 nvidia.com/mig-1g.10gb`.

    Amounts are whole cards, or slices of the profile that the pod requests.
    own: who must, if pods of the same controller are among them.
    """
    missing = _missing(shortfalls)
    scarcest = max(shortfalls, key=lambda each: (missing[each.key] / each.requested, each.key == GPUS))
    candidates = () if any(shortfall.team for shortfall in shortfalls) else holders.get(scarcest.key, ())
    others = [candidate for candidate in candidates if not _is_own(request, candidate)]
    names = _covering(others, missing[scarcest.key], now)
    is_one = len(names) == 1 and not own
    who = f"{own or ' and '.join(names) or 'others'} release{'s' if is_one else ''}"
    # Devices of claims have any weight: a slice that weighs as much is enough.
    if request.pod is None or all(amount.denominator == 1 for amount in missing.values()):
        return f"{who} {missing_in_words(missing)}"
    if only := _only_request(request.pod, request.catalogue.resource_mapping):
        slices = max(ceil(missing[each.key] * only.quantity.value / each.requested) for each in shortfalls)
        if scarcest.requested < only.quantity.value:
            return f"{who} room for {slices} {only.resource.name}"
    whole = {key: Fraction(ceil(amount)) for key, amount in missing.items()}
    if all(whole[shortfall.key] <= shortfall.used + shortfall.reserved for shortfall in shortfalls):
        return f"{who} {missing_in_words(whole)}"
    return f"{who} all that {'it holds' if is_one else 'they hold'}"


def _covering(holders: Sequence[Holder], missing: Fraction, now: datetime) -> list[str]:
    """Return the holders that together hold what is missing. Empty if they are too many to name.

    Idle holders come before the largest ones; if those are too many, only the largest count.
    """
    for ranked in (idle_first(holders), largest_first(holders)):
        left, names = missing, list[str]()
        for holder in ranked:
            if left > 0:
                left -= Fraction(holder.amount)
                names.append(holder_title(holder, now))
        if left <= 0 and len(names) <= MAX_KEYS_NAMED:
            return names
    return []


def _at_most(
    request: QuotaRequest, amount: Callable[[Shortfall], Fraction], shortfalls: Sequence[Shortfall]
) -> Iterator[str]:
    """Yield the largest request that fits, in the resource that the pod requests, or else in whole GPUs."""
    # GPUQuota and team may both be exceeded.
    available = combined(({shortfall.key: amount(shortfall)} for shortfall in shortfalls), min)
    part = min(available[shortfall.key] / shortfall.requested for shortfall in shortfalls)
    mapping = request.catalogue.resource_mapping
    fix = edits_to_request_share(request.pod, mapping, part) if request.pod else ()
    if request.pod and (_only_request(request.pod, mapping) or not fix):
        yield from (f"{edit.words} or less" for edit in fix[:1])
    elif all(each.requested.denominator == 1 and available[each.key] >= 1 for each in shortfalls):
        scarcest = min(
            shortfalls, key=lambda each: (available[each.key] / each.requested, each.key != GPUS)
        ).key
        yield f"request {amounts_in_words({scarcest: Fraction(floor(available[scarcest]))})} or fewer"


def _replicas(request: QuotaRequest, ledger: QuotaLedger, shortfalls: Sequence[Shortfall]) -> int | None:
    """Return how many pods of the controller fit, if its running pods are why no further one fits; else None."""
    if request.controlled_by.partition("/")[0] not in ENDLESS_KINDS or _outer_name(request):
        return None
    replicas = [
        floor(each.maximum_hard / each.requested) for each in shortfalls if _beside_own(request, ledger, each)
    ]
    return min(replicas, default=None)


def _details(
    ledger: QuotaLedger, shortfalls: Sequence[Shortfall], said: str, class_reason: str, now: datetime
) -> Iterator[str]:
    """Yield the largest namespaces of the team, idle holders, largest holders, and why an unpinned pod counts for classes.

    Dimensions with equal holders share a line. omitted: the largest namespace and its amount, if the first line names it.
    """
    keys = list(dict.fromkeys(shortfall.key for shortfall in shortfalls))
    of_team = [shortfall.key for shortfall in shortfalls if shortfall.team]
    for text, names in _by_text(
        of_team,
        lambda key: largest_namespaces(ledger.team_state, key, omitted=said) if ledger.team_state else "",
    ):
        yield f"{'next ' if said else ''}largest namespaces of {team_title(shortfalls[-1].team)}, {names}: {text}"
    yield from [text for key in keys if (text := idle_holders(ledger.holders.get(key, ()), key, now))][:1]
    for text, names in _by_text(keys, lambda key: _largest_holders(ledger, key)):
        yield f"largest holders of {names}: {text}"
    classes = [key.removeprefix(CLASSES) for key in keys if key.startswith(CLASSES)]
    if classes and class_reason:
        yield f"counted for {', '.join(classes)}: {class_reason}"


def _largest_holders(ledger: QuotaLedger, key: str) -> str:
    largest = largest_first(ledger.holders.get(key, ()))[:MAX_HOLDERS]
    return ", ".join(f"{holder.name} {format_amount(Fraction(holder.amount))}" for holder in largest)


def _by_text(keys: Iterable[str], text_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield each text that is not empty, with the dimensions that share it, in words."""
    by_text: dict[str, list[str]] = {}
    for key in keys:
        by_text.setdefault(text_of(key), []).append(unit_name(key))
    yield from ((text, " and ".join(names)) for text, names in by_text.items() if text)
