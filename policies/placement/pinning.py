"""GPU classes to which a pod's nodeSelector and required node affinity pin it.

A label that no class lists pins nothing. If classes list their own names under a label key (`accelerator`), the key also takes
the name of a family and pins the family. A hostname, and a node name in `matchFields`, pin the classes of that node.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.placement.named_nodes import HOSTNAME, NO_NODES, NODE_NAME, NodeIndex, NodeReference
from policies.pods.annotations import GPU_CLASS, INJECTED, MODEL_FAMILY, MODEL_PARAMS
from policies.pods.label_selector import meets
from policies.pods.pod import NodeSelectorTerm, Pod

MOST_NODES = 64
"""Nodes that are looked up for one pod at most, and that the controller keeps with it. A pod that names more may run anywhere."""
TOO_MANY: NodeReference = (NODE_NAME, f"(one of more than {MOST_NODES})")
"""Stands for the nodes of a pod that names more than MOST_NODES. No node has this name."""


class Pinning(msgspec.Struct, frozen=True):
    """The names of the classes that the pod's constraints leave, sorted, and those constraints in words.

    Empty `classes`: the constraints contradict each other.
    """

    classes: tuple[str, ...]
    because: tuple[str, ...]
    is_injected: bool = False
    """Whether gpu-class added all of them, according to the pod's annotation."""


def pinning(pod: Pod, catalogue: ClassCatalogue, nodes: NodeIndex = NO_NODES) -> Pinning | None:
    """Return the classes to which the pod is pinned. None if nothing pins it."""
    if nodes is not NO_NODES:
        return _pinning(pod, catalogue, nodes)
    # Several rules need this, and the pod never changes: remember the result on it, with the catalogue.
    memory = pod.__dict__
    if memory.get("pinned_by") is not catalogue:
        memory["pinning"] = _pinning(pod, catalogue, NO_NODES)
        memory["pinned_by"] = catalogue
    found: Pinning | None = memory["pinning"]
    return found


def _pinning(pod: Pod, catalogue: ClassCatalogue, nodes: NodeIndex) -> Pinning | None:
    narrowed: list[frozenset[str]] = []
    because: list[str] = []
    injected: list[bool] = []
    note = pod.annotations.get(INJECTED, "")
    for key, value in sorted((pod.spec.node_selector or {}).items()):
        named = _of_label(key, value, catalogue, nodes)
        if named:
            narrowed.append(named)
            because.append(f"nodeSelector {key}={value}")
            injected.append(because[-1] in note)
    terms = required_terms(pod)
    # Terms are alternatives: if one of them pins nothing, every class is possible.
    alternatives = [_of_term(term, catalogue, nodes) for term in terms if not is_empty_term(term)]
    if terms and all(words for _, words in alternatives):
        narrowed.append(frozenset[str]().union(*(classes for classes, _ in alternatives)))
        because += (word for _, words in alternatives for word in words)
        injected.append(False)
    if not narrowed:
        return None
    is_injected = all(injected)
    if is_injected and GPU_CLASS not in pod.annotations:
        because[0] += f", by {_guess(pod)}"
    return Pinning(tuple(sorted(frozenset.intersection(*narrowed))), tuple(because), is_injected)


def _guess(pod: Pod) -> str:
    """Return, in words, the source of gpu-class's choice if no annotation names a class."""
    is_declared = MODEL_PARAMS in pod.annotations or MODEL_FAMILY in pod.annotations
    return "the declared model" if is_declared else "the policy's default"


def required_terms(pod: Pod) -> tuple[NodeSelectorTerm, ...]:
    """Return the alternatives of the required node affinity. Empty if it requires nothing."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()


def named_nodes(pod: Pod) -> frozenset[NodeReference]:
    """Return the nodes that the pod names by `nodeName`, or else by its nodeSelector and required affinity.

    Return TOO_MANY if these are more than MOST_NODES.
    """
    if pod.spec.node_name:
        return frozenset({(NODE_NAME, pod.spec.node_name)})
    selected = (pod.spec.node_selector or {}).get(HOSTNAME)
    required = (each for term in required_terms(pod) for each in _required_nodes(term))
    found = frozenset({*(((HOSTNAME, selected),) if selected else ()), *required})
    return found if len(found) <= MOST_NODES else frozenset({TOO_MANY})


def _required_nodes(term: NodeSelectorTerm) -> Iterator[NodeReference]:
    for key, requirements in ((HOSTNAME, term.match_expressions), (NODE_NAME, term.match_fields)):
        for requirement in requirements or ():
            if requirement.key == key and requirement.operator == "In":
                yield from ((key, value) for value in requirement.values or ())


def classes_of_node(labels: Mapping[str, str], catalogue: ClassCatalogue) -> frozenset[str]:
    """Return the names of the node's possible classes; several if its labels name only the family.

    If the labels contradict each other, return every class that one of them names.
    """
    of_labels = (
        classes_of_label(key, labels[key], catalogue) for key in catalogue.label_keys & labels.keys()
    )
    named = [classes for classes in of_labels if classes] or [frozenset[str]()]
    return frozenset.intersection(*named) or frozenset.union(*named)


def _of_label(key: str, value: str, catalogue: ClassCatalogue, nodes: NodeIndex) -> frozenset[str]:
    named = classes_of_label(key, value, catalogue)
    return _of_nodes(key, value, catalogue, nodes) if key == HOSTNAME and not named else named


def _of_nodes(key: str, value: str, catalogue: ClassCatalogue, nodes: NodeIndex) -> frozenset[str]:
    """Return the classes of the nodes with this name. Empty if one of these nodes may be of any class."""
    each = [classes_of_node(dict(labels), catalogue) for labels in nodes.find((key, value))]
    return frozenset[str]().union(*each) if all(each) else frozenset()


def admits(pod: Pod, key: str, values: Sequence[str]) -> bool:
    """Whether the pod's requirements on label `key` accept one of the values."""
    selected = (pod.spec.node_selector or {}).get(key)
    left = [value for value in values if selected is None or value == selected]
    terms = required_terms(pod)
    return any(not terms or any(_accepts(term, key, value) for term in terms) for value in left)


def is_narrowed_to(pod: Pod, key: str, values: Sequence[str]) -> bool:
    """Whether the pod already requires that label `key` has one of the values."""
    selected = (pod.spec.node_selector or {}).get(key)
    terms = [term for term in required_terms(pod) if not is_empty_term(term)]
    return selected in values or (bool(terms) and all(_demands(term, key, values) for term in terms))


def _demands(term: NodeSelectorTerm, key: str, values: Sequence[str]) -> bool:
    return any(
        requirement.key == key
        and requirement.operator == "In"
        and set(requirement.values or ()) <= set(values)
        for requirement in term.match_expressions or ()
    )


def _accepts(term: NodeSelectorTerm, key: str, value: str) -> bool:
    requirements = term.match_expressions or ()
    return not is_empty_term(term) and all(
        meets(frozenset((value,)), each.operator, frozenset(each.values or ()))
        for each in requirements
        if each.key == key
    )


def is_empty_term(term: NodeSelectorTerm) -> bool:
    """Whether the term matches no node."""
    # "A null or empty node selector term matches no objects" (k8s.io/api core/v1 NodeSelectorTerm).
    return not term.match_expressions and not term.match_fields


def classes_of_label(key: str, value: str, catalogue: ClassCatalogue) -> frozenset[str]:
    """Return the names of the classes whose nodes carry this label; a family's name stands for its classes."""
    named = catalogue.matching_label(key, value)
    if not named and key in catalogue.label_keys:
        # A family's name is a value only under a key where classes list their own names.
        named = tuple(c for c in catalogue.family(value) if c in catalogue.matching_label(key, c.name))
    return frozenset(gpu_class.name for gpu_class in named)


def _of_term(
    term: NodeSelectorTerm, catalogue: ClassCatalogue, nodes: NodeIndex
) -> tuple[frozenset[str], list[str]]:
    """Return the classes that the term leaves, and the requirements that narrow them, in words. No words: it pins nothing."""
    narrowed: list[frozenset[str]] = []
    because: list[str] = []
    for classes_of, requirements in ((_of_label, term.match_expressions), (_of_nodes, term.match_fields)):
        for requirement in requirements or ():
            key, values = requirement.key, requirement.values or ()
            if requirement.operator == "In":
                each = [classes_of(key, value, catalogue, nodes) for value in values]
                # Unknown nodes may carry a value that no class lists: then the requirement pins no class.
                if each and all(each):
                    narrowed.append(frozenset.union(*each))
                    because.append(f"node affinity {key} in ({', '.join(values)})")
    return frozenset.intersection(*narrowed) if narrowed else frozenset(), because
