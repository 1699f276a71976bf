"""Which GPU nodes a pod fits on, and what is against the others; and what it demands of the quota."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple

from msgspec.structs import asdict

from policies.finding import ContactEdit, Edit, Edits
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_selection import REQUIRED_AFFINITY
from policies.placement.named_nodes import NODE_NAME, NodeIndex
from policies.placement.pinning import candidate_classes
from policies.pods.label_selector import ABSENT, meets
from policies.pods.limit_ranger import text
from policies.pods.pod import NodeSelectorTerm, Pod, Toleration
from policies.pods.quantity import NANO, Quantity
from policies.pods.tolerations import describe_toleration, tolerated, tolerating, toleration_of
from policies.quota.amounts import NOTHING, format_amount
from policies.quota.demand import Catalogue, pod_demand
from webhook.cluster.capacity import GPUNode
from webhook.cluster.objects import timestamp
from webhook.cluster.taints import OF_CONDITIONS, is_going, is_hard, is_lasting
from webhook.quota.counted_records import LONG_PENDING_SECONDS
from webhook.quota.documents import QuotaRecord
from webhook.tools.status.listed_capacity import gpu_amounts
from webhook.tools.status.summaries import IdleOwner, QuotaSummary
from webhook.tools.why.explanation import Awaited, NodeFit, QuotaDemand, QuotaFit, Way

NO_OTHERS: Mapping[str, Fraction] = {}
HUGE_PAGES, MIB = "hugepages-", Fraction(2**20)


def requested_gpus(pod: Pod, mapping: ResourceMapping) -> dict[str, Fraction]:
    """Return the GPU resources that the pod requests, by name."""
    return {resource.name: amount for resource, amount in gpu_amounts(pod, mapping).items() if amount}


def format_requests(requested: Mapping[str, Fraction]) -> str:
    return ", ".join(f"{format_amount(amount)} {name}" for name, amount in requested.items())


def classes_for(pod: Pod, nodes: NodeIndex, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the classes to which the pod is pinned; empty where it is not pinned."""
    candidates = candidate_classes(pod, catalogue.classes, nodes)
    return tuple(gpu_class.name for gpu_class in candidates.classes) if candidates.is_narrowed else ()


def node_fits(
    pod: Pod,
    nodes: Iterable[GPUNode],
    requested: dict[str, Fraction],
    startup_taints: Collection[Toleration] = (),
    others: Mapping[str, Fraction] = NO_OTHERS,
) -> tuple[NodeFit, ...]:
    """Return whether the pod fits on each node, or on the node that it is bound to; nodes with the fewest obstacles first.

    startup_taints: the startupTaints of all NodePools of Karpenter, which go by themselves. others: what the pod requests besides
    GPUs.
    """
    if pod.spec.node_name:
        nodes = [node for node in nodes if node.name == pod.spec.node_name]
    fits = (_node_fit(pod, node, requested, startup_taints, others) for node in nodes)
    return tuple(sorted(fits, key=lambda each: each.order))


def _node_fit(
    pod: Pod,
    node: GPUNode,
    requested: dict[str, Fraction],
    startup_taints: Collection[Toleration],
    others: Mapping[str, Fraction],
) -> NodeFit:
    is_bound, free = bool(pod.spec.node_name), node.free
    obstacles = [*_obstacles(pod, node, requested, startup_taints), *_lacking_others(pod, node, others)]
    obstacles = [] if is_bound else obstacles
    remedies = [each.remedy for each in obstacles]
    return NodeFit(
        name=node.name,
        kind=node.kind,
        free=None if free is None else {name: free.get(name, NOTHING) for name in requested},
        allocatable={name: node.allocatable.get(name, NOTHING) for name in requested},
        against=tuple(each.text for each in obstacles),
        remedy=", and ".join(dict.fromkeys(remedies)) if all(remedies) else "",
        way=Way.together(each.way for each in obstacles) if all(remedies) else Way(),
        number=node.number,
    )


class Obstacle(NamedTuple):
    """Why a node cannot take a pod, as the predicate of a sentence, and what to write or wait for ("" for nothing)."""

    text: str
    remedy: str = ""
    way: Way = Way()


def _obstacles(
    pod: Pod, node: GPUNode, requested: dict[str, Fraction], startup_taints: Collection[Toleration]
) -> Iterator[Obstacle]:
    """Yield why the scheduler would not put the pod there: by GPUs, labels and taints only."""
    lacking = list(_lacking(pod, node, requested))
    if any(node.allocatable.get(name, NOTHING) < amount for name, amount in requested.items()):
        # Its allocatable amount is too small: list this first.
        yield from lacking
        lacking = []
    which = f"Node {node.name}" if node.name else "one of them"
    if not node.is_ready:
        yield Obstacle("is not Ready", f"wait until {which} is Ready", Way(awaits=(Awaited.READY,)))
    if not node.is_schedulable:
        command = f"kubectl uncordon {node.name}, if it should take pods again"
        remedy = command if node.name else "ask to uncordon one of them"
        yield Obstacle("is cordoned", remedy, Way(contact_edits=(ContactEdit("Node", "spec.unschedulable"),)))
    yield from _taints(pod, node, which, startup_taints)
    yield from _labels(pod, node)
    yield from lacking


def _taints(
    pod: Pod, node: GPUNode, which: str, startup_taints: Collection[Toleration]
) -> Iterator[Obstacle]:
    for taint in filter(is_hard, node.taints):
        # `is not Ready` and `is cordoned` are obstacles of their own.
        repeats_condition = not node.takes_pods and (taint.key or "").startswith(OF_CONDITIONS)
        if repeats_condition or tolerated(taint, pod.spec.tolerations):
            continue
        text = f"has the taint {describe_toleration(taint)}"
        if is_lasting(taint, startup_taints):
            remedy = f"if its pods belong there, add to spec.tolerations: {toleration_of(taint)}"
            way = Way(edits=(Edit("spec.tolerations[-]", tolerating(taint)),))
            yield Obstacle(f"{text}, which the pod does not tolerate", remedy, way)
        elif is_going(taint):
            remedy = "wait until there is another node"
            yield Obstacle(f"{text}, for it will be removed", remedy, Way(awaits=(Awaited.NODE,)))
        else:
            remedy = f"wait until {which} has lost this taint"
            yield Obstacle(f"{text}, which goes by itself", remedy, Way(awaits=(Awaited.TAINT_GONE,)))


def _labels(pod: Pod, node: GPUNode) -> Iterator[Obstacle]:
    selected = sorted(pod.node_selector.items())
    unmet = [key for key, value in selected if _is_known(key, node) and node.labels.get(key) != value]
    for key in unmet:
        label = f"the label {key}={node.labels[key]}" if key in node.labels else f"no label {key}"
        remedy = f"if the pod may run there, remove nodeSelector {' and '.join(unmet)}"
        text = f"has {label}, and nodeSelector demands {pod.node_selector[key]}"
        yield Obstacle(text, remedy, Way(edits=(Edit(f"spec.nodeSelector[{key}]"),)))
    terms = pod.required_terms
    if terms and not any(_is_met(term, node) for term in terms):
        remedy = "if the pod may run there, remove its required node affinity"
        way = Way(edits=(Edit(REQUIRED_AFFINITY),))
        yield Obstacle("does not match the required node affinity", remedy, way)


def _lacking(pod: Pod, node: GPUNode, requested: dict[str, Fraction]) -> Iterator[Obstacle]:
    for name, amount in requested.items():
        has = node.allocatable.get(name, NOTHING)
        free = has if node.free is None else node.free.get(name, NOTHING)
        demanded = f"the pod requests {format_amount(amount)}"
        if has < amount:
            offered = {resource: number for resource, number in node.allocatable.items() if number}
            instead = ", but " + format_requests(offered) if offered and not has else ""
            text = f"has {format_amount(has)} {name} in all{instead}, and {demanded}"
            edits = _requesting(pod, name, has or next(iter(offered), ""))
            meant = f"{format_amount(has)} or fewer of {name}" if has else next(iter(offered), "")
            yield Obstacle(text, f"request {meant}" if edits else "", Way(edits=edits))
        elif free < amount:
            left = f"{format_amount(free)} of {format_amount(has)} {name}"
            remedy = f"wait until {format_amount(amount)} {'is' if amount == 1 else 'are'} free on one node"
            yield Obstacle(f"has {left} free, and {demanded}", remedy, Way(awaits=(Awaited.ROOM,)))


def _lacking_others(pod: Pod, node: GPUNode, others: Mapping[str, Fraction]) -> Iterator[Obstacle]:
    """Yield what the node has too little of besides GPUs."""
    if node.room is None:
        return
    compared = ((name, amount) for name, amount in others.items() if name in node.room or _may_lack(name))
    for name, amount in compared:
        has = node.room.get(name, NOTHING)
        free = max(has - (node.used or {}).get(name, NOTHING), NOTHING)
        most, left, demanded = (text(name, Quantity(int(each * NANO))) for each in (has, free, amount))
        if has < amount:
            edits = _requesting_other(pod, name, has)
            remedy = f"request {most} or less of {name}" if has else f"remove {name} from its resources"
            message = f"has {most} {name} in all, and the pod requests {demanded}"
            yield Obstacle(message, remedy if edits else "", Way(edits=edits))
        elif free < amount:
            remedy = f"wait until {demanded} {name} is free on one node"
            message = f"has {left} of {most} {name} free, and the pod requests {demanded}"
            yield Obstacle(message, remedy, Way(awaits=(Awaited.ROOM,)))


def _may_lack(name: str) -> bool:
    """Whether nodes may be without the resource: every kubelet reports cpu and memory."""
    return "/" in name or name.startswith(HUGE_PAGES)


def _requesting_other(pod: Pod, name: str, has: Fraction) -> Edits:
    """Return the edits by which the containers together request no more than a node has."""
    paths = [place.amount_paths(name) for place in pod.places if place.amount_paths(name)]
    if not has:
        return tuple(Edit(path) for of_place in paths for path in of_place)
    step = Fraction(1, 10) if name == "cpu" else Fraction(1) if "/" in name else MIB
    value = text(name, Quantity(int(has / max(len(paths), 1) // step * step * NANO)))
    # A request can be less than the limit, but not of what cannot be overcommitted.
    last = 0 if _may_lack(name) else -1
    return tuple(Edit(path, value) for of_place in paths for path in of_place[last:])


def _requesting(pod: Pod, name: str, instead: Fraction | str) -> Edits:
    """Return the edits that request fewer of a resource, or one of another in its place. Empty if each container needs more."""
    places = [place for place in pod.places if place.amount_paths(name)]
    paths = [path for place in places for path in place.amount_paths(name)]
    if isinstance(instead, str):
        if not instead or any(place.amount_paths(instead) for place in pod.places):
            return ()
        return (*map(Edit, paths), Edit(f"{places[0].path}.resources.limits[{instead}]", 1)) if places else ()
    share = int(instead // max(len(places), 1))
    return tuple(Edit(path, share) for path in paths) if share else ()


def _is_known(key: str, node: GPUNode) -> bool:
    return node.known is None or key in node.known


def _is_met(term: NodeSelectorTerm, node: GPUNode) -> bool:
    """Whether a node matches the term, as far as its labels are known (component-helpers `scheduling/corev1/nodeaffinity`)."""
    labels = (
        (frozenset((node.labels[expression.key],)) if expression.key in node.labels else ABSENT, expression)
        for expression in term.match_expressions or ()
        if _is_known(expression.key, node)
    )
    by_name = (field for field in term.match_fields or () if field.key == NODE_NAME and node.name)
    fields = ((frozenset((node.name,)), each) for each in by_name)
    return not term.is_empty and all(
        meets(offered, each.operator, frozenset(each.values or ())) for offered, each in (*labels, *fields)
    )


def quota_fit(
    pod: Pod,
    quota: QuotaRecord,
    status: QuotaSummary,
    nodes: NodeIndex,
    catalogue: Catalogue,
    now: datetime,
    *,
    is_held: bool,
) -> QuotaFit | None:
    """Return the demand of the pod on the quota, and its status; None if its spec cannot be read."""
    if quota.spec is None:
        return None
    demand = pod_demand(pod, catalogue, quota.spec.unclassified_pods, nodes=nodes)
    rows = tuple(
        QuotaDemand(**asdict(row), requested=demand.vector[row.key])
        for row in status.rows
        if demand.vector.get(row.key)
    )
    created = (pod.metadata and pod.metadata.creation_timestamp) or timestamp(now)
    since = datetime.fromisoformat(created)
    is_long = is_held and not pod.spec.node_name and (now - since).total_seconds() > LONG_PENDING_SECONDS
    return QuotaFit(
        state=status.state,
        rows=rows,
        is_held=is_held,
        unbound_since=since if is_long else None,
        team=quota.status.team,
    )


def idle_owner(status: QuotaSummary | None, names: Collection[str]) -> IdleOwner | None:
    """Return the idle owner with one of these names, such as `Notebook/ana`; None if none is known to be idle."""
    owners = status.idle_owners if status else ()
    return next((owner for owner in owners if owner.owner in names), None)
