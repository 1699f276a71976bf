"""Which GPU nodes a pod fits on, and what is against the others, for `why`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction

from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.named_nodes import NODE_NAME, NodeIndex
from policies.placement.pinning import candidate_classes
from policies.pods.label_selector import ABSENT, meets
from policies.pods.pod import NodeSelectorTerm, Pod, Toleration
from policies.pods.tolerations import describe_toleration, tolerates, toleration_of
from policies.quota.amounts import NOTHING, format_amount
from policies.quota.demand import Catalogue
from webhook.cluster.capacity import GPUNode
from webhook.cluster.taints import OF_CONDITIONS, is_going, is_hard, is_lasting
from webhook.tools.status.capacity import gpu_amounts
from webhook.tools.why.explanation import NodeFit


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
) -> tuple[NodeFit, ...]:
    """Return whether the pod fits on each node, or on the node that it is bound to; nodes with the fewest obstacles first.

    startup_taints: of all node pools.
    """
    if pod.spec.node_name:
        nodes = [node for node in nodes if node.name == pod.spec.node_name]
    fits = (_node_fit(pod, node, requested, startup_taints) for node in nodes)
    return tuple(sorted(fits, key=lambda each: each.order))


def _node_fit(
    pod: Pod, node: GPUNode, requested: dict[str, Fraction], startup_taints: Collection[Toleration]
) -> NodeFit:
    is_bound, free = bool(pod.spec.node_name), node.free
    obstacles = [] if is_bound else list(_obstacles(pod, node, requested, startup_taints))
    remedies = [remedy for _, remedy in obstacles]
    return NodeFit(
        name=node.name,
        kind=node.kind,
        free=None if free is None else {name: free.get(name, NOTHING) for name in requested},
        allocatable={name: node.allocatable.get(name, NOTHING) for name in requested},
        against=tuple(text for text, _ in obstacles),
        remedy=", and ".join(dict.fromkeys(remedies)) if all(remedies) else "",
        number=node.number,
    )


Obstacle = tuple[str, str]
"""The predicate of a sentence about a node that cannot take a pod, and what to write or wait for ("" for nothing)."""


def _obstacles(
    pod: Pod, node: GPUNode, requested: dict[str, Fraction], startup_taints: Collection[Toleration]
) -> Iterator[Obstacle]:
    """Yield why the scheduler would not put the pod there: by GPUs, labels and taints only."""
    lacking = dict(_lacking(node, requested))
    if any(node.allocatable.get(name, NOTHING) < amount for name, amount in requested.items()):
        # Its allocatable amount is too small: list this first.
        yield from lacking.items()
        lacking = {}
    if not node.is_ready:
        yield "is not Ready", "wait until it is Ready"
    if not node.is_schedulable:
        remedy = f"kubectl uncordon {node.name}, if it should take pods again" if node.name else ""
        yield "is cordoned", remedy
    yield from _taints(pod, node, startup_taints)
    yield from _labels(pod, node)
    yield from lacking.items()


def _taints(pod: Pod, node: GPUNode, startup_taints: Collection[Toleration]) -> Iterator[Obstacle]:
    which = f"Node {node.name}" if node.name else "one of them"
    for taint in filter(is_hard, node.taints):
        is_said = not node.takes_pods and (taint.key or "").startswith(OF_CONDITIONS)
        if is_said or any(tolerates(each, taint) for each in pod.spec.tolerations or ()):
            continue
        text = f"has the taint {describe_toleration(taint)}"
        if is_lasting(taint, startup_taints):
            remedy = f"if its pods belong there, add to spec.tolerations: {toleration_of(taint)}"
            yield f"{text}, which the pod does not tolerate", remedy
        elif is_going(taint):
            yield f"{text}, for it will be removed", "wait until there is another node"
        else:
            yield f"{text}, which goes by itself", f"wait until {which} has lost this taint"


def _labels(pod: Pod, node: GPUNode) -> Iterator[Obstacle]:
    selected = sorted(pod.node_selector.items())
    unmet = [key for key, value in selected if _is_known(key, node) and node.labels.get(key) != value]
    for key in unmet:
        label = f"the label {key}={node.labels[key]}" if key in node.labels else f"no label {key}"
        remedy = f"if the pod may run there, remove nodeSelector {' and '.join(unmet)}"
        yield f"has {label}, and nodeSelector demands {pod.node_selector[key]}", remedy
    terms = pod.required_terms
    if terms and not any(_is_met(term, node) for term in terms):
        remedy = "if the pod may run there, remove its required node affinity"
        yield "does not match the required node affinity", remedy


def _lacking(node: GPUNode, requested: dict[str, Fraction]) -> Iterator[Obstacle]:
    for name, amount in requested.items():
        has = node.allocatable.get(name, NOTHING)
        free = has if node.free is None else node.free.get(name, NOTHING)
        demanded = f"the pod requests {format_amount(amount)}"
        if has < amount:
            offered = {each: there for each, there in node.allocatable.items() if there}
            instead = ", but " + format_requests(offered) if offered and not has else ""
            fewer = f"{format_amount(has)} or fewer of {name}" if has else " or ".join(offered)
            remedy = f"request {fewer}" if fewer else ""
            yield f"has {format_amount(has)} {name} in all{instead}, and {demanded}", remedy
        elif free < amount:
            left = f"{format_amount(free)} of {format_amount(has)} {name}"
            yield (
                f"has {left} free, and {demanded}",
                f"wait until {format_amount(amount)} {'is' if amount == 1 else 'are'} free on one node",
            )


def _is_known(key: str, node: GPUNode) -> bool:
    return node.known is None or key in node.known


def _is_met(term: NodeSelectorTerm, node: GPUNode) -> bool:
    """Whether a node matches one of the alternatives (`k8s.io/component-helpers` `scheduling/corev1/nodeaffinity`)."""
    labels = (
        (frozenset((node.labels[each.key],)) if each.key in node.labels else ABSENT, each)
        for each in term.match_expressions or ()
        if _is_known(each.key, node)
    )
    by_name = (each for each in term.match_fields or () if each.key == NODE_NAME and node.name)
    fields = ((frozenset((node.name,)), each) for each in by_name)
    return not term.is_empty and all(
        meets(offered, each.operator, frozenset(each.values or ())) for offered, each in (*labels, *fields)
    )
