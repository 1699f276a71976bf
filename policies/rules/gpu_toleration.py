"""Let GPU pods, and only GPU pods, onto tainted GPU nodes.

Reads: requests for GPUs, existing tolerations, the GPU class to which the pod is pinned.
Adds:  a toleration for the taint whose key is the resource of the requested card, such as nvidia.com/gpu. A request for a
       slice, a share or a part of a card counts as one for the card. If a list below has a toleration with this key, that one
       is used instead. Then the tolerations that the policy lists, for all GPU pods and by vendor, and those of the class. A
       toleration that an existing one covers is not added.
Warns: about the template of a DaemonSet that lacks one of them: the DaemonSet gets no pod on a node with taints that the
       template does not tolerate. If the nodes are known, also about a pod that tolerates the taints of none of the nodes on
       which it could run.

A pod gets nothing if it requests only DRA claims that are not known to be for GPUs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil

from policies.finding import Edit, Finding, Reason, Severity, either, flow, plain, together
from policies.gpus.cards import gpu_requests, vendor
from policies.placement.availability import NO_NODE
from policies.placement.class_choice import REQUIRED_AFFINITY, class_matches
from policies.placement.named_nodes import NodeState
from policies.placement.pinning import pinning
from policies.pods.names import is_dns_subdomain
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod, Toleration
from policies.pods.quantity import QuantityError
from policies.pods.tolerations import (
    covers,
    describe_toleration,
    tolerates,
    toleration_of,
    toleration_problems,
)
from policies.rule import Context, Phase, Rule, RuleOptions
from policies.rules.gpu_class import class_use

MISSING_TOLERATION = Reason("MissingToleration", "a DaemonSet does not tolerate the taint of GPU nodes")

ID = "gpu-toleration"
_warning = partial(Finding, reason=NO_NODE, severity=Severity.WARNING, path="spec.tolerations")


class GPUTolerationOptions(RuleOptions, frozen=True):
    """Tolerations besides the one for the key of the resource. The keys of `byVendor` are domains of resources."""

    tolerations: tuple[Toleration, ...] = ()
    by_vendor: Mapping[str, tuple[Toleration, ...]] = {}

    @property
    def listed(self) -> Iterator[Toleration]:
        yield from self.tolerations
        for tolerations in self.by_vendor.values():
            yield from tolerations

    def problems(self) -> Iterator[tuple[str, str]]:
        lists = {"tolerations": self.tolerations}
        for domain, tolerations in self.by_vendor.items():
            path = f"byVendor[{domain}]"
            lists[path] = tolerations
            if not is_dns_subdomain(domain):
                yield path, "must be named as the domain of its resources, such as nvidia.com"
        for path, tolerations in lists.items():
            for index, toleration in enumerate(tolerations):
                yield from toleration_problems(toleration, f"{path}[{index}]", key_is_required=True)


def resource_taint(key: str) -> Toleration:
    """Return the toleration for the taint that nodes with the resource `key` have by convention.

    The admission plugin ExtendedResourceToleration of Kubernetes adds the same one. GKE sets such taints for nvidia.com/gpu and
    google.com/tpu; guides of other clouds and vendors follow the convention.
    """
    return Toleration(key=key, operator="Exists", effect="NoSchedule")


def mutate(patch: PodPatch, options: GPUTolerationOptions, context: Context) -> Iterator[Finding]:
    needed = _needed_tolerations(patch.pod, options, context)
    existing = patch.pod.spec.tolerations or ()
    if context.made_by_daemonset and context.phase is Phase.TEMPLATE:
        missing = [each for each in needed if not any(covers(other, each) for other in existing)]
        if missing:
            yield _warning(
                reason=MISSING_TOLERATION,
                message="the DaemonSet controller makes no pod for a node whose taints the template does not tolerate",
                choices=together(*(Edit("spec.tolerations[-]", each) for each in missing)),
                remedy=f"add {', '.join(map(describe_toleration, missing))} to the template",
            )
        return
    for toleration in needed:
        patch.add_toleration(toleration)
    if needed:
        yield from _no_node(patch.pod, context)


def _no_node(pod: Pod, context: Context) -> Iterator[Finding]:
    """Warn if no schedulable node that the pod selects has what it requests, or each has a taint that it does not tolerate."""
    nodes = context.nodes
    is_placed = context.made_by_daemonset or context.is_update or pod.spec.node_name or pod.is_gated
    if nodes is None or is_placed:
        return
    try:
        totals = gpu_requests(pod, context.resource_mapping)
    except QuantityError:
        return  # gpu-requests denies the pod
    requested = {each.name: ceil(amount) for each, amount in totals.items() if each.measure.is_count}
    pinned, globs = pinning(pod, context.classes), class_use(context).autoscaled_classes
    classes = context.classes.named(pinned.classes) if pinned else context.classes
    if not requested or (globs and any(class_matches(gpu_class, globs) for gpu_class in classes)):
        return
    selected = nodes.states_for(pod)
    if selected is None or not requested.keys() <= nodes.resources:
        return  # gpu-requests reports what no node has
    states = list(selected)
    fitting = [state for state in states if state.has(requested)]
    tolerations = pod.spec.tolerations or ()
    untolerated = [
        [each for each in state.taints if not any(tolerates(t, each) for t in tolerations)]
        for state in fitting
    ]
    names = " and ".join(sorted(requested))
    if untolerated and all(untolerated):
        fewest = min(untolerated, key=len)
        missing = tuple(map(toleration_of, fewest))
        yield _warning(
            message=f"each node with {names} that the pod selects has a taint that it does not "
            f"tolerate, such as {describe_toleration(fewest[0])}, so the pod stays pending",
            choices=together(*(Edit("spec.tolerations[-]", each) for each in missing)),
            remedy=f"add {' and '.join(flow(plain(each)) for each in missing)} if the pod may run there",
        )
    elif not fitting and any(requested.keys() <= state.resources for state in states):
        yield from _too_few(pod, requested, states, context)
    elif not fitting and pinned is None and pod.constrains_nodes:  # else gpu-class says it of the class
        selectors = (Edit(f"spec.nodeSelector[{key}]") for key in pod.node_selector)
        terms = (Edit(REQUIRED_AFFINITY),) if pod.required_terms else ()
        yield _warning(
            path="spec",
            message=f"no schedulable node that the pod selects has {names} now, so the pod stays pending",
            choices=either(*selectors, *terms),
            remedy="remove a constraint that keeps it from the nodes that have it",
        )


def _too_few(
    pod: Pod, requested: Mapping[str, int], states: Sequence[NodeState], context: Context
) -> Iterator[Finding]:
    """Warn if each node that the pod selects has less of a resource than the pod requests."""
    for name, amount in requested.items():
        most = max((dict(state.amounts).get(name, 0) for state in states), default=0)
        if amount > most > 0:
            places = [
                each.place for each in context.resource_mapping.requests(pod) if each.resource.name == name
            ]
            edits = [Edit(path, most) for place in places for path in place.amount_paths(name)]
            yield _warning(
                path=edits[0].path if edits else "spec",
                message=f"no node that the pod selects has {amount} {name}, so the pod stays pending",
                choices=together(*edits) if len(places) == 1 else (),
            )
            return


def _needed_tolerations(pod: Pod, options: GPUTolerationOptions, context: Context) -> list[Toleration]:
    """Return the tolerations that the pod should have. Empty if it requests no GPU."""
    mapping, classes = context.resource_mapping, context.classes
    requested = [request.resource.name for request in mapping.requests(pod)]
    fraction = mapping.pod_fraction(pod)
    if not requested and fraction is None and not context.claimed:
        return []
    taint_keys = [mapping.whole_card(name) for name in requested]
    taint_keys += [fraction[0].resource] if fraction else []
    taint_keys += [found.resource for name in context.claimed if (found := mapping.device_class(name))]
    keys = dict.fromkeys(key for key in taint_keys if key is not None)
    listed = list(options.tolerations)
    if options.by_vendor:
        for domain in dict.fromkeys(map(vendor, keys)):
            listed += options.by_vendor.get(domain, ())
    pinned = pinning(pod, classes)
    for gpu_class in classes.named(pinned.classes) if pinned else ():
        listed += gpu_class.tolerations
    listed_keys = {each.key for each in listed}
    return [*(resource_taint(key) for key in keys if key not in listed_keys), *listed]


RULE = Rule(
    id=ID,
    reasons=(NO_NODE, MISSING_TOLERATION),
    summary="GPU pods tolerate the taints of GPU nodes",
    options=GPUTolerationOptions,
    mutate=mutate,
)
