"""Which GPU nodes a pod fits on, and what is against the others; and what it demands of the quota."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from msgspec.structs import asdict

from policies.finding import ContactEdit, Edit, Edits
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_selection import REQUIRED_AFFINITY
from policies.placement.nodes import NODE_NAME_FIELD, NodeIndex
from policies.placement.pinning import candidate_classes
from policies.pods.label_selector import ABSENT, meets
from policies.pods.limit_ranges import amount_text as quantity_text
from policies.pods.pod import NodeSelectorTerm, Pod, Toleration
from policies.pods.quantity import NANO, Quantity
from policies.pods.tolerations import tolerated, toleration_for, toleration_text, toleration_yaml
from policies.quota.amounts import ZERO, format_amount
from policies.quota.demand import Catalogue, pod_demand
from webhook.cluster.capacity import GPUNode
from webhook.cluster.nodes import CONDITION_PREFIX, is_hard_taint, is_permanent_taint, is_removal_taint
from webhook.cluster.objects import timestamp
from webhook.quota.counted_records import LONG_PENDING_SECONDS
from webhook.quota.documents import QuotaRecord
from webhook.tools.status.listed_capacity import gpu_amounts, pod_amounts
from webhook.tools.status.summaries import IdleOwner, QuotaSummary
from webhook.tools.why.explanation import Awaited, NodeFit, QuotaDemand, QuotaFit, Remedy

NO_OTHERS: Mapping[str, Fraction] = {}


def requested_gpus(pod: Pod, mapping: ResourceMapping) -> dict[str, Fraction]:
    """Return the GPU resources that the pod requests, by name."""
    return {resource.name: amount for resource, amount in gpu_amounts(pod, mapping).items() if amount}


def other_amounts(pod: Pod, scarce: Container[str]) -> dict[str, Fraction]:
    """Return what the pod requests to compare with nodes besides GPUs; `scarce`: what the scheduler finds too little of.

    Only the scheduler knows whether a node must have an extended resource: its extenders may give it.
    """
    return {name: amount for name, amount in pod_amounts(pod).items() if "/" not in name or name in scarce}


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

    startup_taints: the startupTaints of all NodePools of Karpenter, which go by themselves. others: what the pod requests of all
    resources, or of all but `requested`.
    """
    if pod.spec.node_name:
        nodes = [node for node in nodes if node.name == pod.spec.node_name]

    def fit(node: GPUNode) -> NodeFit:
        against = chain(
            _obstacles_of(pod, node, requested, startup_taints),
            _other_obstacles(pod, node, others, requested),
        )
        free, obstacles = node.free, [] if pod.spec.node_name else list(against)
        remedies = [obstacle.remedy for obstacle in obstacles]
        return NodeFit(
            name=node.name,
            kind=node.kind,
            free=None if free is None else {name: free.get(name, ZERO) for name in requested},
            allocatable={name: node.allocatable.get(name, ZERO) for name in requested},
            against=tuple(obstacle.text for obstacle in obstacles),
            remedy=", and ".join(dict.fromkeys(remedies)) if all(remedies) else "",
            way=Remedy.together(obstacle.way for obstacle in obstacles) if all(remedies) else Remedy(),
            number=node.number,
        )

    return tuple(sorted(map(fit, nodes), key=lambda node_fit: node_fit.order))


class Obstacle(NamedTuple):
    """Why a node cannot take a pod, as the predicate of a sentence, and what to write or wait for ("" for nothing)."""

    text: str
    remedy: str = ""
    way: Remedy = Remedy()


def _obstacles_of(
    pod: Pod, node: GPUNode, requested: dict[str, Fraction], startup_taints: Collection[Toleration]
) -> Iterator[Obstacle]:
    """Yield why the scheduler would not put the pod there: by GPUs, labels and taints only."""
    lacking = list(_gpu_obstacles(pod, node, requested))
    if any(node.allocatable.get(name, ZERO) < amount for name, amount in requested.items()):
        # Its allocatable amount is too small: list this first.
        yield from lacking
        lacking = []
    which = f"Node {node.name}" if node.name else "one of them"
    if not node.is_ready:
        yield Obstacle("is not Ready", f"wait until {which} is Ready", Remedy(awaits=(Awaited.READY,)))
    if not node.is_schedulable:
        command = f"kubectl uncordon {node.name}, if it should take pods again"
        remedy = command if node.name else "ask to uncordon one of them"
        yield Obstacle(
            "is cordoned", remedy, Remedy(contact_edits=(ContactEdit("Node", "spec.unschedulable"),))
        )
    yield from _taint_obstacles(pod, node, which, startup_taints)
    yield from _label_obstacles(pod, node)
    yield from lacking


def _taint_obstacles(
    pod: Pod, node: GPUNode, which: str, startup_taints: Collection[Toleration]
) -> Iterator[Obstacle]:
    for taint in filter(is_hard_taint, node.taints):
        # `is not Ready` and `is cordoned` are obstacles of their own.
        repeats_condition = not node.takes_pods and (taint.key or "").startswith(CONDITION_PREFIX)
        if repeats_condition or tolerated(taint, pod.spec.tolerations):
            continue
        amount_text = f"has the taint {toleration_text(taint)}"
        if is_permanent_taint(taint, startup_taints):
            remedy = f"if its pods belong there, add to spec.tolerations: {toleration_yaml(taint)}"
            way = Remedy(edits=(Edit("spec.tolerations[-]", toleration_for(taint)),))
            yield Obstacle(f"{amount_text}, which the pod does not tolerate", remedy, way)
        elif is_removal_taint(taint):
            remedy = "wait until there is another node"
            yield Obstacle(f"{amount_text}, for it will be removed", remedy, Remedy(awaits=(Awaited.NODE,)))
        else:
            remedy = f"wait until {which} has lost this taint"
            yield Obstacle(
                f"{amount_text}, which goes by itself", remedy, Remedy(awaits=(Awaited.TAINT_GONE,))
            )


def _label_obstacles(pod: Pod, node: GPUNode) -> Iterator[Obstacle]:
    selected = sorted(pod.node_selector.items())
    unmet = [key for key, value in selected if _is_label_known(key, node) and node.labels.get(key) != value]
    for key in unmet:
        label = f"the label {key}={node.labels[key]}" if key in node.labels else f"no label {key}"
        remedy = f"if the pod may run there, remove nodeSelector {' and '.join(unmet)}"
        amount_text = f"has {label}, and nodeSelector demands {pod.node_selector[key]}"
        yield Obstacle(amount_text, remedy, Remedy(edits=(Edit(f"spec.nodeSelector[{key}]"),)))
    terms = pod.required_terms
    if terms and not any(_is_term_met(term, node) for term in terms):
        remedy = "if the pod may run there, remove its required node affinity"
        way = Remedy(edits=(Edit(REQUIRED_AFFINITY),))
        yield Obstacle("does not match the required node affinity", remedy, way)


def _gpu_obstacles(pod: Pod, node: GPUNode, requested: Mapping[str, Fraction]) -> Iterator[Obstacle]:
    offered = {resource: number for resource, number in node.allocatable.items() if number}
    remedy = f"ask why the device plugin of {f'Node {node.name}' if node.name else 'these nodes'} offers none"
    way = Remedy(contact_edits=(ContactEdit("Node", "status.allocatable"),))
    for name, amount in requested.items():
        has = node.allocatable.get(name, ZERO)
        instead_text = ", but " + format_requests(offered) if offered and not has else ""
        for obstacle in _amount_obstacles(
            pod, node, name, amount, has, instead_text, next(iter(offered), "")
        ):
            if offered:
                yield obstacle
            elif len(requested) == 1:
                yield obstacle._replace(remedy=remedy, way=way)
            else:  # hardly any node has several kinds of GPUs
                yield Obstacle(obstacle.text)


def _other_obstacles(
    pod: Pod, node: GPUNode, others: Mapping[str, Fraction], gpus: Container[str]
) -> Iterator[Obstacle]:
    """Yield what the node has too little of besides GPUs. Every kubelet reports cpu and memory."""
    for name, amount in others.items() if node.room is not None else ():
        has = (node.room or {}).get(name)
        if name not in gpus and (has is not None or "/" in name or name.startswith("hugepages-")):
            yield from _amount_obstacles(pod, node, name, amount, has or ZERO)


def _amount_obstacles(
    pod: Pod,
    node: GPUNode,
    name: str,
    amount: Fraction,
    has: Fraction,
    offered_text: str = "",
    instead: str | None = None,
) -> Iterator[Obstacle]:
    """Yield that the node has too little, or too little is free. instead: what to request in its place; None to request none."""
    free = max(has - (node.used or {}).get(name, ZERO), ZERO)
    has_text, free_text, requested_text = (_amount_text(name, number) for number in (has, free, amount))
    if has < amount:
        edits = _request_edits(pod, name, has or instead)
        instead_remedy = f"remove {name} from its resources" if instead is None else f"request {instead}"
        remedy = f"request {has_text} or less of {name}" if has else instead_remedy
        amount_text = f"has {has_text} {name} in all{offered_text}, and the pod requests {requested_text}"
        yield Obstacle(amount_text, remedy if edits else "", Remedy(edits=edits))
    elif free < amount:
        remedy = f"wait until {requested_text} {'is' if amount == 1 else 'are'} free on one node"
        amount_text = f"has {free_text} of {has_text} {name} free, and the pod requests {requested_text}"
        yield Obstacle(amount_text, remedy, Remedy(awaits=(Awaited.ROOM,)))


def _amount_text(name: str, amount: Fraction) -> str:
    return format_amount(amount) if "/" in name else quantity_text(name, Quantity(int(amount * NANO)))


def _request_edits(pod: Pod, name: str, instead: Fraction | str | None) -> Edits:
    """Return the edits that request fewer of a resource, or one of another in its place, or none of it.

    Empty if each container needs more.
    """
    places = [place for place in pod.places if place.amount_paths(name)]
    paths = [path for place in places for path in place.amount_paths(name)]
    if instead is None:
        return tuple(map(Edit, paths))
    if isinstance(instead, str):
        if not instead or any(place.amount_paths(instead) for place in pod.places):
            return ()
        return (*map(Edit, paths), Edit(f"{places[0].path}.resources.limits[{instead}]", 1)) if places else ()
    share = instead / max(len(places), 1)
    if "/" in name:
        return tuple(Edit(path, int(share)) for path in paths) if int(share) else ()
    step = Fraction(1, 10) if name == "cpu" else Fraction(2**20)
    return tuple(Edit(path, _amount_text(name, share // step * step)) for path in paths)


def _is_label_known(key: str, node: GPUNode) -> bool:
    return node.known is None or key in node.known


def _is_term_met(term: NodeSelectorTerm, node: GPUNode) -> bool:
    """Whether a node matches the term, as far as its labels are known (component-helpers `scheduling/corev1/nodeaffinity`)."""
    labels = (
        (frozenset((node.labels[expression.key],)) if expression.key in node.labels else ABSENT, expression)
        for expression in term.match_expressions or ()
        if _is_label_known(expression.key, node)
    )
    by_name = (field for field in term.match_fields or () if field.key == NODE_NAME_FIELD and node.name)
    fields = ((frozenset((node.name,)), requirement) for requirement in by_name)
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
