"""Kinds of GPUs that hardly any node offers together: whole cards, slices and shares, and GPUs of two vendors."""

from collections.abc import Collection, Iterable, Iterator

from policies.finding import Edit, Edits, Finding, warning
from policies.gpus.cards import domain
from policies.gpus.mapping_spec import IMPLICIT_DEVICE_CLASS, Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.placement.availability import NO_NODE, Availability
from policies.pods.pod import Pod

ONLY_ONE = "request only one of them, or each in a pod of its own"
_APART = frozenset({Measure.DEVICES, Measure.SHARES, Measure.SLICES})
"""What a node offers its cards as: one of them, and of one vendor."""


def seldom_together(
    availability: Availability, requested: Iterable[GPUResource], mapping: ResourceMapping
) -> Iterator[Finding]:
    """Warn of an unpinned pod that requests several of them. Where the nodes are known, rule gpu-toleration knows better."""
    if availability.knows_nodes or availability.pinned:
        return
    kinds = {
        each.name: (domain(each.name), each.measure)
        for each in requested
        if each.measure in _APART
        and not (each.name.startswith(IMPLICIT_DEVICE_CLASS) or mapping.misspelt(each.name))
    }
    if len(set(kinds.values())) > 1:
        names = " and ".join(sorted(kinds))
        yield warning(
            reason=NO_NODE,
            path="spec",
            message=f"the pod stays pending unless a node has {names} together, which few have",
            choices=tuple(only_one_of(availability.pod, kinds).values()),
            remedy=ONLY_ONE,
        )


def only_one_of(pod: Pod, names: Collection[str]) -> dict[str, Edits]:
    """Return, for each of the resources, the edits that remove the others."""
    ordered = sorted(names)
    return {
        name: tuple(map(Edit, pod.amount_paths([each for each in ordered if each != name])))
        for name in ordered
    }
