"""Which GPU classes a pod can land on, read from its nodeSelector and required node affinity.

Only what narrows the choice counts: a label that no class carries says nothing about classes. The label key under which
classes list their own names (`accelerator`) also takes a family name, which pins the family.
"""

import msgspec

from policies.classes import ClassCatalogue
from policies.pod import NodeSelectorTerm, Pod


class Pinning(msgspec.Struct, frozen=True):
    """The classes left by the pod's own constraints (names, sorted), and the words that show which constraints those are.

    Empty `classes` means that the constraints contradict each other.
    """

    classes: tuple[str, ...]
    because: tuple[str, ...]


def pinning(pod: Pod, catalogue: ClassCatalogue) -> Pinning | None:
    """Return the classes to which the pod pins itself, None where it pins none."""
    spec = pod.body
    left: frozenset[str] | None = None
    because: list[str] = []
    for key, value in sorted((spec.node_selector or {}).items()):
        named = classes_of_label(key, value, catalogue)
        if named:
            left = named if left is None else left & named
            because.append(f"nodeSelector {key}={value}")
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity and affinity.required and affinity.required.node_selector_terms:
        named, words = _of_terms(affinity.required.node_selector_terms, catalogue)
        if named is not None:
            left = named if left is None else left & named
            because.extend(words)
    return None if left is None else Pinning(tuple(sorted(left)), tuple(because))


def classes_of_label(key: str, value: str, catalogue: ClassCatalogue) -> frozenset[str]:
    """Return the names of the classes whose nodes carry this label; a family's name stands for its classes."""
    named = catalogue.matching_label(key, value)
    if not named and key in catalogue.label_keys:
        # Only under a key where classes go by their own names is the family's name a value, too.
        named = tuple(c for c in catalogue.family(value) if c in catalogue.matching_label(key, c.name))
    return frozenset(gpu_class.name for gpu_class in named)


def _of_terms(
    terms: tuple[NodeSelectorTerm, ...], catalogue: ClassCatalogue
) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    # Terms are alternatives: one that pins nothing leaves every class open.
    union: frozenset[str] = frozenset()
    because: list[str] = []
    for term in terms:
        narrowed, words = _of_term(term, catalogue)
        if narrowed is None:
            return None, ()
        union |= narrowed
        because.extend(words)
    return union, tuple(because)


def _of_term(term: NodeSelectorTerm, catalogue: ClassCatalogue) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    left: frozenset[str] | None = None
    because: list[str] = []
    for requirement in term.match_expressions or ():
        if requirement.operator != "In" or requirement.key not in catalogue.label_keys:
            continue
        each = [classes_of_label(requirement.key, value, catalogue) for value in requirement.values or ()]
        # A value that no class carries may be on nodes we know nothing of: then the requirement does not pin a class.
        if each and all(each):
            named = frozenset[str]().union(*each)
            left = named if left is None else left & named
            because.append(f"node affinity {requirement.key} in ({', '.join(requirement.values or ())})")
    return left, tuple(because)
