"""GPU classes on which a pod can run, by its node, its constraints or its device class."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

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
        because = f"its node is {' or '.join(sorted(names))}"
        return CandidateClasses(catalogue.named(names), True, because, is_bound)
    pinned = pinning(pod, catalogue)
    if pinned is None:
        return all_classes(catalogue, "it pins no GPU class", is_bound)
    because = " and ".join(pinned.because)
    if not pinned.classes:
        because += " contradict each other and leave no GPU class"
        return all_classes(catalogue, because, is_bound)
    return CandidateClasses(catalogue.named(pinned.classes), True, because, is_bound)


def all_classes(catalogue: ClassCatalogue, because: str, is_bound: bool = False) -> CandidateClasses:
    return CandidateClasses(tuple(catalogue), False, because, is_bound)


def classes_of_node(labels: Mapping[str, str], catalogue: ClassCatalogue) -> frozenset[str]:
    """Return the names of the classes of which the node may be; several where its labels name only the family.

    Labels that contradict each other leave every class that one of them names.
    """
    of_labels = (
        classes_of_label(key, labels[key], catalogue) for key in catalogue.label_keys & labels.keys()
    )
    named = [classes for classes in of_labels if classes] or [frozenset[str]()]
    return frozenset.intersection(*named) or frozenset.union(*named)


def for_resource(
    resource: GPUResource,
    candidates: CandidateClasses,
    catalogue: ClassCatalogue,
    resource_mapping: ResourceMapping,
) -> CandidateClasses:
    """Return the candidates narrowed to the classes that have the resource; unchanged where none is known to have it."""
    name, offering, classes = resource.name, resource.name, candidates.classes
    if name.startswith(IMPLICIT_DEVICE_CLASS):
        device_class = name.removeprefix(IMPLICIT_DEVICE_CLASS)
        of_it = catalogue.of_device_class(device_class)
        named = tuple(gpu_class for gpu_class in classes if gpu_class in of_it)
        if named:
            because = candidates.because if candidates.is_known else f"device class {device_class}"
            return CandidateClasses(named, True, because, candidates.is_bound)
        pattern = resource_mapping.device_class(device_class)
        offering = (pattern and pattern.resource) or name
    having = tuple(c for c in classes if name in c.equivalents or vendor(c.resource) == vendor(offering))
    profile = resource.profile
    if profile is not None:
        cut = tuple(c for c in having if name in c.equivalents or catalogue.mig_profile(c, profile))
        having = cut or having
    return replace(candidates, classes=having or classes)
