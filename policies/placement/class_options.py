"""Options of rule gpu-class that other rules read, too, and which resources and nodes a class has.

The options say which classes a namespace may use, and which an autoscaler adds.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from policies.gpus.cards import vendor_domain
from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, Measure
from policies.gpus.resource_mapping import GPUResource
from policies.placement.nodes import (
    CHEAP_REQUIREMENTS,
    UNCONSTRAINED_POD,
    LabelRequirement,
    NodeFacts,
    takes_new_node,
)
from policies.pods.label_selector import meets
from policies.pods.pod import Pod

ANY = "*"


def class_matches(gpu_class: GPUClass, globs: Iterable[str]) -> bool:
    """Whether one of the globs matches the name of the class or of its family."""
    return any(fnmatchcase(gpu_class.name, glob) or fnmatchcase(gpu_class.family, glob) for glob in globs)


class ClassOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of rule gpu-class. If the rule is disabled, a pod's annotation has no effect."""

    allowed: tuple[str, ...] = (ANY,)
    default: str | None = None
    autoscaled_classes: tuple[str, ...] = ()
    """Globs of classes whose nodes an autoscaler creates on demand."""
    reads_annotation: bool = True

    @property
    def is_restricted(self) -> bool:
        return ANY not in self.allowed

    def allows(self, gpu_class: GPUClass) -> bool:
        return class_matches(gpu_class, self.allowed)

    def is_autoscaled(self, gpu_class: GPUClass) -> bool:
        return class_matches(gpu_class, self.autoscaled_classes)

    def may_have_nodes(self, gpu_class: GPUClass, nodes: NodeFacts | None, resource: str = "") -> bool:
        """Whether nodes with the resource have a label of the class or its family, or can be created; True if it is not known."""
        if nodes is None or self.is_autoscaled(gpu_class):
            return True
        return any(
            group.pool
            or not resource
            or not group.states
            or any(resource in state.resources for state in group.states)
            for label in gpu_class.node_labels
            for group in nodes.matching_groups(
                UNCONSTRAINED_POD, label.key, (*label.values, gpu_class.family)
            )
        )


def matches_new_node(pod: Pod, gpu_class: GPUClass) -> bool:
    """Whether the pod's nodeSelector and affinity match a new node of the class, which has all of its labels."""
    terms = pod.required_terms
    if not takes_new_node(pod):
        return False
    if sum(1 + len(term.match_expressions or ()) for term in terms) > CHEAP_REQUIREMENTS:
        return True
    selector = [(key, "In", frozenset((value,))) for key, value in pod.node_selector.items()]
    possible = {label.key: (*label.values, gpu_class.family) for label in gpu_class.node_labels}
    alternatives = [
        [(each.key, each.operator, frozenset(each.values or ())) for each in term.match_expressions or ()]
        for term in terms
        if not term.is_empty
    ]
    return any(
        all(_has_value([*selector, *term], key, values) for key, values in possible.items())
        for term in (alternatives if terms else [[]])
    )


def _has_value(requirements: Sequence[LabelRequirement], key: str, values: Iterable[str]) -> bool:
    """Whether one of the values of the label meets all requirements on it."""
    required = [(operator, wanted) for each, operator, wanted in requirements if each == key]
    return not required or any(
        all(meets(frozenset((value,)), operator, wanted) for operator, wanted in required) for value in values
    )


def has_resource(gpu_class: GPUClass, resource: GPUResource, gpu_classes: GPUClasses) -> bool:
    """Whether nodes of the class can have the resource, according to the GPUClasses."""
    if resource.measure is Measure.SLICES and resource.profile is not None:
        return gpu_classes.mig_profile(gpu_class, resource.profile) is not None
    if resource.measure is not Measure.DEVICES or resource.name.startswith(DEVICE_CLASS_PREFIX):
        # A GPUClass does not say which cards are shared, nor what a DeviceClass selects. Only the vendor is known.
        of_class, of_resource = vendor_domain(gpu_class.resource), vendor_domain(resource.name)
        return of_resource == of_class or all(
            vendor_domain(gpu_class.resource) != of_resource for gpu_class in gpu_classes
        )
    return resource.name == gpu_class.resource or resource.name in gpu_class.equivalents
