"""A pod under mutation, and the JSON patch of its changes.

A `PodPatch` records the smallest RFC 6902 operations, creates missing parents, escapes keys (RFC 6901), and lets the next
rule see the pod as its predecessors left it. Nothing is ever replaced wholesale: another webhook may have added to the same
list a moment ago. Each verb is one `Change` with words for people.
"""

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from policies.pods.field_paths import Parts, json_pointer
from policies.pods.pod import (
    EMPTY_SPEC,
    Affinity,
    Container,
    ContainerPlace,
    EnvVar,
    Metadata,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    Probe,
    Resources,
    Toleration,
    View,
    Volume,
    VolumeMount,
)
from policies.pods.quantity import QuantityText
from policies.pods.tolerations import covers, describe_toleration

ResourceMap = Literal["limits", "requests"]

LAST = "-"
"""In a path: behind the last item of the list."""
_LISTS = {"containers": "containers", "initContainers": "init_containers"}
_NODE_AFFINITY = ("spec", "affinity", "node_affinity")
_EMPTY = {
    "spec": EMPTY_SPEC,
    "metadata": Metadata(),
    "resources": Resources(),
    "affinity": Affinity(),
    "node_affinity": NodeAffinity(),
}
"""What stands in for a missing parent, where that is neither a list nor a map."""


class Operation(msgspec.Struct, frozen=True):
    """One RFC 6902 operation; `value` is anything that msgspec encodes as JSON."""

    op: Literal["add", "replace"]
    path: str
    value: Any


class Change(msgspec.Struct, frozen=True):
    """What one verb did: `what` for people ("toleration nvidia.com/gpu:NoSchedule"), `operations` for the patch."""

    what: str
    operations: tuple[Operation, ...]


class PodPatch:
    """A pod and the changes made to it so far. `fork` gives a patch for trying changes."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.changes: list[Change] = []

    def fork(self) -> "PodPatch":
        return PodPatch(self.pod)

    # ---- pod level

    def add_toleration(self, toleration: Toleration) -> None:
        """Add the toleration, unless one that is there covers it."""
        if any(covers(each, toleration) for each in self.pod.spec.tolerations or ()):
            return
        self._add(toleration_words(toleration), toleration, ("spec", "tolerations", LAST))

    def set_node_selector(self, key: str, value: str) -> None:
        self._add(node_selector_words(key, value), value, ("spec", "node_selector", key))

    def require_node_affinity(self, requirement: NodeSelectorRequirement) -> None:
        """Add `requirement` to the pod's required node affinity.

        Terms are alternatives, so the requirement is added to each of them. An empty term matches no node and stays empty.
        """
        affinity = self.pod.spec.affinity and self.pod.spec.affinity.node_affinity
        terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
        what = node_affinity_words(requirement)
        if terms:
            base = (*_NODE_AFFINITY, "required", "node_selector_terms")
            kept = [at for at, term in enumerate(terms) if term.match_expressions or term.match_fields]
            paths = [(*base, index, "match_expressions", LAST) for index in kept]
            self._add(what, requirement, *paths)
        else:
            only = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(requirement,)),))
            self._add(what, only, (*_NODE_AFFINITY, "required"))

    def add_volume(self, volume: Volume) -> None:
        self._add(volume_words(volume), volume, ("spec", "volumes", LAST))

    def add_init_container(self, container: Container, index: int) -> None:
        """Insert `container` before the init container that stands at `index` now (at the end if there is none)."""
        at = index if index < len(self.pod.spec.init_containers or ()) else LAST
        self._add(init_container_words(container), container, ("spec", "init_containers", at))

    def set_annotation(self, key: str, value: str) -> None:
        self._add(f"annotation {key}", value, ("metadata", "annotations", key))

    def set_termination_grace_period(self, seconds: int) -> None:
        path = ("spec", "termination_grace_period_seconds")
        self._add(grace_period_words(seconds), seconds, path)

    # ---- container level

    def set_resource(
        self, place: ContainerPlace, kind: ResourceMap, name: str, quantity: QuantityText
    ) -> None:
        self._add_to(place, resource_words(kind, name, quantity), quantity, "resources", kind, name)

    def add_env(self, place: ContainerPlace, name: str, value: str) -> None:
        variable = EnvVar(name=name, value=value)
        self._add_to(place, env_words(variable), variable, "env", LAST)

    def add_volume_mount(self, place: ContainerPlace, mount: VolumeMount) -> None:
        self._add_to(place, volume_mount_words(mount), mount, "volume_mounts", LAST)

    def set_initial_delay(self, place: ContainerPlace, seconds: int) -> None:
        """Set readinessProbe.initialDelaySeconds of a container that has a readiness probe."""
        if place.container.readiness_probe is None:
            raise ValueError(f"{place.path} has no readinessProbe")
        self._add_to(place, initial_delay_words(seconds), seconds, "readiness_probe", "initial_delay_seconds")

    def set_startup_probe(self, place: ContainerPlace, probe: Probe) -> None:
        self._add_to(place, startup_probe_words(probe), probe, "startup_probe")

    # ---- bookkeeping

    def _add_to(self, place: ContainerPlace, what: str, value: Any, *path: str | int) -> None:
        what = container_words(place.container, what)
        self._add(what, value, ("spec", _LISTS[place.list_name], place.index, *path))

    def _add(self, what: str, value: Any, *paths: Parts) -> None:
        operations = []
        for path in paths:
            self.pod, operation = _added(self.pod, path, value)
            operations.append(operation)
        self.changes.append(Change(what, tuple(operations)))


# ---- the words for people, by which `policies.pods.submission` finds the changes again


def toleration_words(toleration: Toleration) -> str:
    return f"toleration {describe_toleration(toleration)}"


def node_selector_words(key: str, value: str) -> str:
    return f"nodeSelector {key}={value}"


def node_affinity_words(requirement: NodeSelectorRequirement) -> str:
    values = ",".join(requirement.values or ())
    return f"node affinity {requirement.key} {requirement.operator} {values}".rstrip()


def volume_words(volume: Volume) -> str:
    return f"volume {volume.name}"


def init_container_words(container: Container) -> str:
    return f"initContainer {container.name}"


def grace_period_words(seconds: int) -> str:
    return f"terminationGracePeriodSeconds={seconds}"


def container_words(container: Container, what: str) -> str:
    """Return the words for a change of a container."""
    return f"{container.name}: {what}"


def resource_words(kind: str, name: str, quantity: QuantityText) -> str:
    return f"{kind} {name}={quantity}"


def env_words(variable: EnvVar) -> str:
    return f"env {variable.name}={variable.value}"


def volume_mount_words(mount: VolumeMount) -> str:
    return f"volumeMount {mount.mount_path}"


def initial_delay_words(seconds: int) -> str:
    return f"readinessProbe.initialDelaySeconds={seconds}"


def startup_probe_words(probe: Probe) -> str:
    return f"startupProbe for {(probe.period_seconds or 10) * (probe.failure_threshold or 3)} s"


def _added(node: Any, path: Parts, value: Any, at: Parts = ()) -> tuple[Any, Operation]:
    """Return the node, which stands at `at`, with the value at the path below it, and the operation that puts it there.

    RFC 6902 `add` inserts into a list, and replaces a member that exists. It fails where a parent is missing or null, so there
    the outermost missing parent is added. Paths are of attributes, `at` is of JSON members.
    """
    if not path:
        return value, Operation("add", json_pointer(*at), value)
    part, rest = path[0], path[1:]
    if isinstance(node, View):
        field = "given_spec" if part == "spec" else str(part)
        child = getattr(node, field)
        at = (*at, node.__struct_encode_fields__[node.__struct_fields__.index(field)])
        if child is None and rest:
            child, _ = _added(_EMPTY.get(str(part), () if rest[0] == LAST else {}), rest, value)
            operation = Operation("add", json_pointer(*at), child)
        else:
            child, operation = _added(child, rest, value, at)
        return replace(node, **{field: child}), operation
    child, operation = _added(node[part] if rest else None, rest, value, (*at, part))
    if isinstance(node, dict):
        return {**node, part: child}, operation
    index = len(node) if part == LAST else int(part)
    return (*node[:index], child, *node[index + bool(rest) :]), operation
