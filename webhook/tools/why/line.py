"""Why a pod waits in line for quota, or an object in a queue of Kueue, and what lets it start."""

from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import chain

from policies.finding import ContactEdit, Edit
from policies.pods.pod import Pod
from policies.printable import first_names
from policies.quota.amounts import ZERO, Amounts, total
from policies.quota.shortage_facts import amounts_in_words, escalation
from policies.quota.spec import NAME, hard_field
from policies.quota.waiting import QUEUE_NAME, Standing
from policies.times import utc
from webhook.cluster.objects import decode_owned
from webhook.configuration.documents import CLUSTER_QUOTA, QUOTA
from webhook.quota.documents import PlaceInLine, QuotaRecord, WaitingPods
from webhook.tools.status.kueue import KueueState
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Awaited, Cause, Remedy, Source
from webhook.workloads.gang_sources import gang_source

MAX_NAMES = 2
"""Places before a pod that are named."""
WAITS_IN_LINE = "waits in line for quota"
Ways = tuple[Remedy, ...]


def gang_keys(pod: Pod, owners: Collection[str]) -> frozenset[str]:
    """Return the keys that the gang of a pod may have. `owners`: the objects above it, as kind and name."""
    source = gang_source(pod)
    if source is None:
        return frozenset()
    names = {f"{source.kind}/{source.name}", *(() if source.is_pod_group else owners)}
    return frozenset(f"{name}/{source.part}".rstrip("/") for name in names)


def place_in_line(waiting: WaitingPods | None, gangs: Collection[str]) -> PlaceInLine | None:
    """Return the place of a gang; None if the status, which has the first places, lacks it."""
    return next((place for place in (waiting.next if waiting else ()) if place.gang in gangs), None)


def line_cause(
    pod: StoredPod,
    quota: QuotaRecord | None,
    place: PlaceInLine | None,
    needed: Amounts,
    contact: str,
    now: datetime,
) -> Cause:
    """Return why the pod waits, without its name. `needed`: its own demand on the quota."""
    waiting = quota.status.waiting if quota else None
    since = f"{WAITS_IN_LINE} since {utc(pod.metadata.created or now, now)}"
    more, raised = _ask_for_more(quota, place.demand if place else needed, contact)
    ways: Ways = Remedy(awaits=(Awaited.TURN,)), raised
    if place is None:
        message, remedy = _message_without_place(quota, waiting, needed), f"wait, or {more}"
        if waiting is None:
            remedy = f"if it stays so, ask {contact} whether a controller runs"
        return Cause(source=Source.LINE, message=f"{since}: {message}", remedy=remedy, ways=ways)
    gang = f" with the other pods of its gang {place.gang}" if place.gang else ""
    remedy, ways = _remedy_for(pod, place, more, contact, ways)
    return Cause(
        source=Source.LINE,
        message=f"{since}{gang}: {place.message}{_who_is_before(place, waiting)}",
        remedy=remedy,
        reason=place.reason,
        ways=ways,
    )


def _ask_for_more(quota: QuotaRecord | None, demand: Amounts, contact: str) -> tuple[str, Remedy]:
    """Return whom to ask to raise what, and the same as data: what has too little free, or else the quota."""
    team = quota.status.team if quota else None
    team_keys = _short_keys(demand, {key: team.free.get(key, ZERO) for key in team.hard}) if team else []
    own_keys = sorted(demand) if not team_keys else []
    if quota is not None and quota.spec is not None:
        held = total((quota.status.used or {}, quota.status.reserved))
        own_keys = (
            _short_keys(demand, {key: hard - held.get(key, ZERO) for key, hard in quota.hard.items()})
            or own_keys
        )
    to_raise, whom = escalation(own_keys, team_keys, team, contact)
    fields = (
        (kind, hard_field(key))
        for kind, keys in ((QUOTA, own_keys), (CLUSTER_QUOTA, team_keys))
        for key in keys
    )
    return f"ask {whom} {to_raise}", Remedy(contact_edits=tuple(ContactEdit(*field) for field in fields))


def _short_keys(demand: Amounts, free: Amounts) -> list[str]:
    return [key for key in sorted(demand.keys() & free.keys()) if demand[key] > free[key]]


def _message_without_place(quota: QuotaRecord | None, waiting: WaitingPods | None, needed: Amounts) -> str:
    if quota is None:
        return "its namespace has no GPUQuota that you may read"
    if waiting is None:
        return "the controller has not given it a place yet"
    places = max((place.place for place in waiting.next), default=0)
    needs = f", needs {amounts_in_words(needed)}" if needed else ""
    return f"behind the first {places} places{needs}; {waiting.pods} pods wait"


def _who_is_before(place: PlaceInLine, waiting: WaitingPods | None) -> str:
    """Return who is before it in line."""
    before = [each for each in (waiting.next if waiting else ()) if 0 < each.place < place.place]
    if not before:
        return ""
    return f"; before it: {first_names([place.title for place in before], MAX_NAMES)}"


def _remedy_for(pod: StoredPod, place: PlaceInLine, more: str, contact: str, ways: Ways) -> tuple[str, Ways]:
    """Return what lets the pod start, in words and as data. `ways`: to wait, or to ask for more."""
    end, missing = f"end what is not needed, or {more}", (Remedy(contact_edits=(ContactEdit("Pod"),)),)
    in_quota = (ContactEdit(QUOTA, path) for path in ("spec.budget", "spec.queue.hold"))
    budget, hold = (Remedy(contact_edits=(edit,)) for edit in in_quota)
    remedies: dict[Standing, tuple[str, Ways]] = {
        Standing.NEXT: (f"it starts when enough of the quota is released: {end}", ways),
        Standing.BEHIND: (f"it starts after those before it: {end}", ways),
        Standing.INCOMPLETE: (
            f"create the missing pods: gpu-admission why -n {pod.metadata.namespace} {place.gang} "
            "says why they are missing",
            missing,
        ),
        Standing.UNREAD_GANG: (
            f"create {place.gang} if there is none; the log of the controller says what is wrong",
            missing,
        ),
        Standing.OTHER_GATE: (f"see the controller that sets {', '.join(pod.other_gates)}", ()),
        Standing.DENIED: ("correct what the denial says: the controller tries again within a minute", ()),
        Standing.TOO_LARGE: (f"request less, or {more}", ways[1:]),
        Standing.TOO_MANY: ("use fewer pods with more GPUs each", ()),
        Standing.BUDGET_SPENT: (
            f"it starts in the next period of the budget, or ask {contact} to raise spec.budget",
            (ways[0], budget),
        ),
        Standing.ON_HOLD: (f"ask {contact}, who set it in GPUQuota {NAME}", (hold,)),
    }
    return next((remedy for standing, remedy in remedies.items() if standing.value == place.reason), ("", ()))


def family_uids(document: bytes, pods: Sequence[StoredPod]) -> frozenset[str]:
    """Return the uids of an object, of its pods, and of the owners of both: a Workload may belong to any of them."""
    members = (decode_owned(document).metadata, *(pod.metadata for pod in pods))
    owners = chain.from_iterable(member.owner_references or () for member in members)
    return frozenset(filter(None, (*(member.uid for member in members), *(owner.uid for owner in owners))))


def kueue_cause(state: KueueState, contact: str) -> Cause | None:
    """Return why Kueue does not start the object yet, without its name. None once Kueue has admitted it."""
    label = f"metadata.labels[{QUEUE_NAME}]"
    remedy, ways = "wait until Kueue admits it", tuple[Remedy, ...]([Remedy(awaits=(Awaited.KUEUE,))])
    if not state.waits_for:
        return None
    if not state.is_active:
        remedy = f"ask {contact} to set spec.active: true of Workload {state.workload}"
        ways = (Remedy(contact_edits=(ContactEdit("Workload", "spec.active", "true"),)),)
    elif state.others is not None:
        remedy = f"set label {QUEUE_NAME}: {' or '.join(state.others)}"
        ways = tuple(Remedy(edits=(Edit(label, name),)) for name in state.others)
        if not state.others:
            remedy = f"ask {contact} for a LocalQueue of the namespace"
            ways = (Remedy(contact_edits=(ContactEdit("LocalQueue"),)),)
    elif state.stopped:
        remedy = f"wait until it is None, or ask {contact} why it is set"
    return Cause(source=Source.KUEUE, message=state.waits_for, remedy=remedy, ways=ways)
