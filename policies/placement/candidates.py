"""GPU classes on which a pod can run, by its node, its constraints or its device class."""

from collections.abc import Iterable, Mapping

import msgspec

from policies.gpus.cards import vendor
from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.resource_mapping import IMPLICIT_DEVICE_CLASS, GPUResource, ResourceMapping
from policies.placement.pinning import classes_of_label, pinning
from policies.pods.pod import Pod


class CandidateClasses(msgspec.Struct, frozen=True):
    """The classes that are left. Not `is_known`: nothing narrows them but what is asked for, `because` says why."""

    classes: tuple[GPUClass, ...]
    is_known: bool
    because: str
    is_bound: bool = False
    """A node is found already, so nothing more will be known."""


def candidate_classes(
    pod: Pod, catalogue: ClassCatalogue, node_labels: Mapping[str, str] | None
) -> CandidateClasses:
    """Return where the pod can run: the class of its node, if that is known, else the classes to which it pins itself."""
    is_bound = node_labels is not None
    names = classes_of_node(node_labels or {}, catalogue)
    if names:
        return CandidateClasses(
            _named(names, catalogue), True, f"its node is {' or '.join(sorted(names))}", is_bound
        )
    pinned = pinning(pod, catalogue)
    if pinned is None:
        return all_classes(catalogue, "it pins no GPU class", is_bound)
    if not pinned.classes:
        return all_classes(
            catalogue,
            f"{' and '.join(pinned.because)} contradict each other and leave no GPU class",
            is_bound,
        )
    return CandidateClasses(_named(pinned.classes, catalogue), True, " and ".join(pinned.because), is_bound)


def all_classes(catalogue: ClassCatalogue, because: str, is_bound: bool = False) -> CandidateClasses:
    return CandidateClasses(tuple(catalogue), False, because, is_bound)


def classes_of_node(labels: Mapping[str, str], catalogue: ClassCatalogue) -> frozenset[str]:
    """Return the names of the classes of which the node may be; several where its labels name only the family.

    Labels that contradict each other leave every class that one of them names.
    """
    named = [
        classes
        for key in catalogue.label_keys & labels.keys()
        if (classes := classes_of_label(key, labels[key], catalogue))
    ]
    if not named:
        return frozenset()
    return frozenset.intersection(*named) or frozenset.union(*named)


def for_resource(
    resource: GPUResource,
    candidates: CandidateClasses,
    catalogue: ClassCatalogue,
    resource_mapping: ResourceMapping,
) -> CandidateClasses:
    """Return the candidates narrowed to the classes that have the resource; unchanged where none is known to have it."""
    offering = resource.name
    if resource.name.startswith(IMPLICIT_DEVICE_CLASS):
        device_class = resource.name.removeprefix(IMPLICIT_DEVICE_CLASS)
        of_it = catalogue.of_device_class(device_class)
        named = tuple(gpu_class for gpu_class in candidates.classes if gpu_class in of_it)
        if named:
            because = candidates.because if candidates.is_known else f"device class {device_class}"
            return CandidateClasses(named, True, because, candidates.is_bound)
        pattern = resource_mapping.device_class(device_class)
        offering = (pattern and pattern.resource) or resource.name
    having = tuple(
        gpu_class
        for gpu_class in candidates.classes
        if resource.name in gpu_class.equivalents or vendor(gpu_class.resource) == vendor(offering)
    )
    if resource.profile is not None:
        cut = tuple(
            gpu_class
            for gpu_class in having
            if resource.name in gpu_class.equivalents or catalogue.mig_profile(gpu_class, resource.profile)
        )
        having = cut or having
    return CandidateClasses(
        having or candidates.classes, candidates.is_known, candidates.because, candidates.is_bound
    )


def _named(names: Iterable[str], catalogue: ClassCatalogue) -> tuple[GPUClass, ...]:
    wanted = frozenset(names)
    return tuple(gpu_class for gpu_class in catalogue if gpu_class.name in wanted)
