"""Let GPU pods, and only GPU pods, onto tainted GPU nodes.

Reads: requests for GPUs, existing tolerations, the GPU class to which the pod is pinned.
Adds:  a toleration for the taint whose key is the resource of the requested card, such as nvidia.com/gpu. A request for a
       slice, a share or a part of a card counts as one for the card. If a list below has a toleration with this key, that one
       is used instead. Then the tolerations that the policy lists, for all GPU pods and by vendor, and those of the class. A
       toleration that an existing one covers is not added.
Warns: about the template of a DaemonSet that lacks one of them: the DaemonSet gets no pod on a node with taints that the
       template does not tolerate. If the nodes are known, also about a pod that tolerates the taints of none of the nodes on
       which it could run. About a ResourceClaim, a template of claims and a pod with claims if each present device for a request
       has a taint that the request does not tolerate.

A pod gets nothing if it requests only DRA claims that are not known to be for GPUs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from policies.finding import Edit, Edits, Finding, Reason, as_plain_data, inline_yaml, one_choice, warning
from policies.gpus.cards import needed_on_node
from policies.gpus.claimed_devices import CLAIM, TEMPLATE, ClaimSpec
from policies.placement.availability import NO_NODE
from policies.placement.claim_classes import ClaimedClasses, requests_by_path
from policies.placement.class_options import class_matches
from policies.placement.given_tolerations import GPU_TOLERATION, given_tolerations
from policies.placement.nodes import NodeFacts, NodeState, largest_amount
from policies.placement.pinning import pinning
from policies.placement.possible_edits import ONLY_ONE, blocking_constraints, only_one_of
from policies.pods.limit_ranges import amounts_of_pod, effective_amounts, requested_amounts
from policies.pods.names import is_dns_subdomain
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod, Toleration
from policies.pods.quantity import QuantityError
from policies.pods.requests import ways_to_request
from policies.pods.tolerations import (
    covers,
    toleration_for,
    toleration_problems,
    toleration_text,
    toleration_yaml,
)
from policies.rule import Context, Phase, Rule, RuleOptions
from policies.rules.gpu_class import class_options, selects_unknown_class

MISSING_TOLERATION = Reason("MissingToleration", "a DaemonSet does not tolerate the taint of GPU nodes")
TAINTED_DEVICES = Reason(
    "TaintedDevices", "a ResourceClaim does not tolerate the taints of the devices that can serve it"
)

ID = GPU_TOLERATION
_warning = partial(warning, reason=NO_NODE, path="spec.tolerations")


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


def mutate(patch: PodPatch, options: GPUTolerationOptions, context: Context) -> Iterator[Finding]:
    pinned = pinning(patch.pod, context.classes)
    classes = context.classes.named(pinned.classes) if pinned else ()
    needed = given_tolerations(patch.pod, options, classes, context.resource_mapping, context.device_classes)
    existing = patch.pod.spec.tolerations or ()
    if context.made_by_daemonset and context.phase is Phase.TEMPLATE:
        missing = [each for each in needed if not any(covers(other, each) for other in existing)]
        if missing:
            yield _warning(
                reason=MISSING_TOLERATION,
                message="the DaemonSet controller makes no pod for a node whose taints the template does not tolerate",
                choices=one_choice(*(Edit("spec.tolerations[-]", toleration) for toleration in missing)),
                remedy=f"add {', '.join(inline_yaml(as_plain_data(each)) for each in missing)} to the template",
            )
        return
    for toleration in needed:
        patch.add_toleration(toleration)
    if needed:
        yield from _no_node_warnings(patch.pod, context)
    yield from _tainted_claim_warnings(patch.pod, context)


def _no_node_warnings(pod: Pod, context: Context) -> Iterator[Finding]:
    """Warn if no schedulable node that the pod selects has what it requests, or each has a taint that it does not tolerate."""
    nodes = context.nodes
    bypasses_scheduler = context.made_by_daemonset or context.is_update or pod.spec.node_name or pod.is_gated
    if nodes is None or bypasses_scheduler:
        return
    requested = needed_on_node(pod, context.resource_mapping)
    pinned, globs = pinning(pod, context.classes), class_options(context).autoscaled_classes
    classes = context.classes.named(pinned.classes) if pinned else context.classes
    if pinned and not all(map(class_options(context).allows, classes)):
        return  # gpu-class denies it, and another class has other nodes
    if not requested or (globs and any(class_matches(gpu_class, globs) for gpu_class in classes)):
        return
    gpus = sorted(requested)
    requested |= _other_requests(pod, nodes.existing_resources, context)
    states = nodes.states_for(pod, requested)
    if states is None or not requested.keys() <= nodes.existing_resources:
        return  # gpu-requests reports what no node has
    fitting = [state for state in states if state.has_amounts(requested)]
    untolerated = [state.untolerated_by(pod) for state in fitting]
    names = " and ".join(sorted(requested))
    if untolerated and all(untolerated):
        fewest = min(untolerated, key=len)
        missing = list(dict.fromkeys(map(toleration_for, fewest)))
        yield _warning(
            message=f"each node with {names} that the pod selects has a taint that it does not "
            f"tolerate, such as {toleration_text(fewest[0])}, so the pod stays pending",
            choices=one_choice(*(Edit("spec.tolerations[-]", toleration) for toleration in missing)),
            remedy=f"add {' and '.join(map(toleration_yaml, dict.fromkeys(fewest)))} if the pod may run there",
        )
    elif not fitting and any(requested.keys() <= state.resources for state in states):
        yield from _too_few_warning(pod, requested, states)
    elif len(requested) > 1 and not any(
        requested.keys() <= state.resources for of_labels in nodes.states.values() for state in of_labels
    ):
        only_one = only_one_of(pod, requested)
        selecting = {name: _selecting_edits(pod, {name: amount}, nodes) for name, amount in requested.items()}
        yield _warning(
            path="spec",
            message=f"no schedulable node has {names} together, so the pod stays pending",
            choices=tuple((*only_one[name], *selecting[name]) for name in gpus),
            remedy="" if any(selecting.values()) or len(gpus) == 1 else ONLY_ONE,
        )
    elif not fitting and pinned is None and pod.constrains_nodes and not selects_unknown_class(pod, context):
        ways = blocking_constraints(pod, requested, nodes)
        yield _warning(
            path="spec",
            message=f"no schedulable node that the pod selects has {names} now, so the pod stays pending",
            choices=tuple(tuple(edit for _, edit in way) for way in ways),
            remedy=f"remove {' or '.join(' and '.join(words for words, _ in way) for way in ways)}",
        )


def _other_requests(pod: Pod, existing: Collection[str], context: Context) -> dict[str, int]:
    """Return what the pod requests of other extended resources that some node has, such as network cards.

    What no node has may come from DRA, or from an extender of the scheduler.
    """
    written = {name for place in pod.places for name in effective_amounts(place.container, "requests")}
    names = [name for name in written if name in existing and context.resource_mapping.resource(name) is None]
    try:
        amounts = amounts_of_pod(pod, "requests") if names else {}
    except QuantityError:
        return {}
    return {name: amounts[name].value for name in sorted(names) if amounts[name].nano > 0}


def _tainted_claim_warnings(pod: Pod, context: Context) -> Iterator[Finding]:
    """Warn of claims that only tainted devices can serve."""
    for index, claim in enumerate(pod.spec.resource_claims or ()):
        if (taints := context.claim_taints.get(claim.name)) and not (pod.spec.node_name or context.is_update):
            kind = TEMPLATE if claim.resource_claim_template_name else CLAIM
            yield _tainted_devices_finding(
                f"spec.resourceClaims[{index}]",
                taints,
                "the pod stays",
                remedy=f"name a {kind} whose requests have tolerations {_tolerations_of(taints)} if the pod may use them",
            )


def check_claim(
    spec: ClaimSpec | None, path: str, _options: GPUTolerationOptions, context: Context
) -> Iterator[Finding]:
    """Warn of requests that only tainted devices can serve."""
    classes = ClaimedClasses(context.resource_mapping, context.classes, context.device_taints)
    for alternatives in requests_by_path(spec, path):
        if taints := classes.taints([request.query for _, request in alternatives]):
            at = f"{alternatives[0][0]}.tolerations"
            yield _tainted_devices_finding(
                at,
                taints,
                "its pods stay",
                choices=one_choice(*(Edit(f"{at}[-]", toleration_for(taint)) for taint in taints)),
                remedy=f"add {_tolerations_of(taints)} if pods may use them",
            )


def _tainted_devices_finding(path: str, taints: Sequence[Toleration], pods_stay: str, **ways: Any) -> Finding:
    message = "each device for it has a taint that it does not tolerate, such as "
    message += f"{toleration_text(taints[0])}, so {pods_stay} pending"
    return _warning(reason=TAINTED_DEVICES, path=path, message=message, **ways)


def _tolerations_of(taints: Sequence[Toleration]) -> str:
    return " and ".join(map(toleration_yaml, taints))


def _selecting_edits(pod: Pod, requested: Mapping[str, int], nodes: NodeFacts) -> Edits:
    """Return the edits that let a pod of this request select nodes that have it; empty if it selects some."""
    if any(state.has_amounts(requested) for state in nodes.states_for(pod, requested) or ()):
        return ()
    return tuple(edit for _, edit in blocking_constraints(pod, requested, nodes)[0])


def _too_few_warning(
    pod: Pod, requested: Mapping[str, int], states: Sequence[NodeState]
) -> Iterator[Finding]:
    """Warn if each node that the pod selects has less of a resource than the pod requests."""
    for name, amount in requested.items():
        most = largest_amount(states, name)
        if amount > most > 0:
            requests = requested_amounts(pod, name)
            paths = [place.amount_paths(name) for place, _ in requests]
            ways = list(ways_to_request(pod, amount - most, requests))
            is_of_several = any(len(way) > 1 for way in ways)
            yield _warning(
                path="spec" if is_of_several or not paths else paths[0][0],
                message=f"no node that the pod selects has {amount} {name}, so the pod stays pending",
                choices=tuple(
                    tuple(Edit(path, less) for index, less in way.items() for path in paths[index])
                    for way in ways
                ),
                is_example=len(requests) > 1,
                remedy=f"request {name}: {most} or less" if is_of_several else "",
            )
            return


RULE = Rule(
    id=ID,
    reasons=(NO_NODE, MISSING_TOLERATION, TAINTED_DEVICES),
    summary="GPU pods tolerate the taints of GPU nodes",
    options=GPUTolerationOptions,
    mutate=mutate,
    check_claim=check_claim,
    exported_without={"tolerations for devices by DRA": "CEL cannot look up the DeviceClasses of a claim"},
)
