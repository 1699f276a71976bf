"""A pod under mutation, and the JSON patch of its changes.

A `PodPatch` records the smallest RFC 6902 operations. It creates missing parents and escapes keys (RFC 6901). Each rule sees the
changes of the rules before it. A `PodPatch` only adds, so that the patch shows just what is new.
`webhook.evaluation.queue_gate` replaces.
"""

from functools import cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from policies.pods.field_paths import APPENDED, Parts, json_pointer
from policies.pods.pod import (
    EMPTY_SPEC,
    Affinity,
    Container,
    ContainerPlace,
    EnvVar,
    Metadata,
    Named,
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
from policies.pods.tolerations import covers, toleration_text

ResourceMap = Literal["limits", "requests"]
PlainValue = QuantityText
"""A quantity, a number of seconds, or the value of a label."""
Added = Toleration | NodeSelectorRequirement | Volume | Container | EnvVar | VolumeMount | Probe | PlainValue

_LISTS = {"containers": "containers", "initContainers": "init_containers"}
_NODE_AFFINITY = ("spec", "affinity", "node_affinity")
_EMPTY_PARENTS = {
    "spec": EMPTY_SPEC,
    "metadata": Metadata(),
    "resources": Resources(),
    "affinity": Affinity(),
    "node_affinity": NodeAffinity(),
}
"""The values of missing parents that are neither lists nor maps."""


class Operation(msgspec.Struct, frozen=True):
    """One RFC 6902 operation. msgspec encodes `value` as JSON."""

    op: Literal["add", "replace"]
    path: str
    value: Any


class Change(msgspec.Struct, frozen=True):
    """One change of a rule: `what` in words ("toleration nvidia.com/gpu:NoSchedule"), and its operations."""

    what: str
    operations: tuple[Operation, ...]
    rule: str = ""
    """The id of the rule that made the change. The evaluation fills it in."""
    short: str = ""
    """`what` for people, if that is too long to read."""

    @property
    def brief(self) -> str:
        return self.short or self.what


class PodPatch:
    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.changes: list[Change] = []

    # ---- pod level

    def add_toleration(self, toleration: Toleration) -> None:
        """Add the toleration, unless one that is there covers it."""
        if any(covers(present, toleration) for present in self.pod.spec.tolerations or ()):
            return
        self._add(change_text(toleration), toleration, ("spec", "tolerations", APPENDED))

    def set_node_selector(self, key: str, value: str) -> None:
        self._add(change_text(value, f"nodeSelector {key}"), value, ("spec", "node_selector", key))

    def require_node_affinity(self, requirement: NodeSelectorRequirement, values: str = "") -> None:
        """Add `requirement` to the pod's required node affinity. `values` stands for its values in `short`, if these are many.

        Terms are alternatives, so the requirement is added to each of them. An empty term matches no node and stays empty.
        """
        what, terms = change_text(requirement), self.pod.required_terms
        short = f"node affinity {requirement.key} {requirement.operator} {values}" if values else ""
        if terms:
            base = (*_NODE_AFFINITY, "required", "node_selector_terms")
            paths = [
                (*base, index, "match_expressions", APPENDED)
                for index, term in enumerate(terms)
                if not term.is_empty
            ]
            self._add(what, requirement, *paths, short=short)
        else:
            only = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(requirement,)),))
            self._add(what, only, (*_NODE_AFFINITY, "required"), short=short)

    def add_volume(self, volume: Volume) -> None:
        self._add(change_text(volume), volume, ("spec", "volumes", APPENDED))

    def add_init_container(self, container: Container, index: int) -> None:
        """Insert `container` before the init container at `index`, or at the end if there is none."""
        at = index if index < len(self.pod.spec.init_containers or ()) else APPENDED
        self._add(change_text(container), container, ("spec", "init_containers", at))

    def set_annotation(self, key: str, value: str) -> None:
        self._add(f"annotation {key}", value, ("metadata", "annotations", key))

    def add_scheduling_gate(self, name: str) -> None:
        self._add(f"schedulingGate {name}", Named(name=name), ("spec", "scheduling_gates", APPENDED))

    def set_termination_grace_period(self, seconds: int) -> None:
        what = change_text(seconds, "terminationGracePeriodSeconds")
        self._add(what, seconds, ("spec", "termination_grace_period_seconds"))

    def set_active_deadline(self, seconds: int) -> None:
        what = change_text(seconds, "activeDeadlineSeconds")
        self._add(what, seconds, ("spec", "active_deadline_seconds"))

    # ---- container level

    def set_resource(
        self, place: ContainerPlace, kind: ResourceMap, name: str, quantity: QuantityText
    ) -> None:
        self._add_to(place, change_text(quantity, f"{kind} {name}"), quantity, "resources", kind, name)

    def add_env(self, place: ContainerPlace, name: str, value: str) -> None:
        variable = EnvVar(name=name, value=value)
        self._add_to(place, change_text(variable), variable, "env", APPENDED)

    def add_volume_mount(self, place: ContainerPlace, mount: VolumeMount) -> None:
        self._add_to(place, change_text(mount), mount, "volume_mounts", APPENDED)

    def set_initial_delay(self, place: ContainerPlace, seconds: int) -> None:
        if place.container.readiness_probe is None:
            raise ValueError(f"{place.path} has no readinessProbe")
        what = change_text(seconds, "readinessProbe.initialDelaySeconds")
        self._add_to(place, what, seconds, "readiness_probe", "initial_delay_seconds")

    def set_startup_probe(self, place: ContainerPlace, probe: Probe) -> None:
        self._add_to(place, change_text(probe), probe, "startup_probe")

    # ---- bookkeeping

    def _add_to(self, place: ContainerPlace, what: str, value: Any, *path: str | int) -> None:
        path = ("spec", _LISTS[place.list_name], place.index, *path)
        self._add(f"{place.container.name}: {what}", value, path)

    def _add(self, what: str, value: Any, *paths: Parts, short: str = "") -> None:
        operations = []
        for path in paths:
            self.pod, operation = _with_value(self.pod, path, value)
            operations.append(operation)
        self.changes.append(Change(what, tuple(operations), short=short))


def change_text(added: Added, name: str = "") -> str:
    """Return a change in words, by which `policies.pods.injected` finds it again.

    `name`: of the field or the member of a map, if `added` is a plain value.
    """
    match added:  # the most frequent types first
        case EnvVar():
            text = f"env {added.name}={added.value}"
        case VolumeMount():
            text = f"volumeMount {added.mount_path}"
        case Toleration():
            text = f"toleration {toleration_text(added)}"
        case NodeSelectorRequirement():
            text = f"node affinity {added.key} {added.operator} {','.join(added.values or ())}".rstrip()
        case Volume():
            text = f"volume {added.name}"
        case Container():
            text = f"initContainer {added.name}"
        case Probe():
            text = f"startupProbe for {(added.period_seconds or 10) * (added.failure_threshold or 3)} s"
        case _:
            text = f"{name}={added}"
    return text


@cache
def _field_names(view: type[View], part: str) -> tuple[str, str]:
    """Return the attribute of a part of a path, and its member in JSON."""
    field = "given_spec" if part == "spec" else part  # Pod.spec is a property, which is never None
    return field, view.__struct_encode_fields__[view.__struct_fields__.index(field)]


def _with_value(node: Any, path: Parts, value: Any, at: Parts = ()) -> tuple[Any, Operation]:
    """Return the node with the value at the path below it, and the operation that adds the value.

    RFC 6902 `add` inserts into a list, and replaces an existing member. It fails if a parent is missing or null, so the operation
    adds the outermost missing parent. `path` has attributes; `at` has JSON members and leads to the node.
    """
    if not path:
        return value, Operation("add", json_pointer(*at), value)
    part, rest = path[0], path[1:]
    if isinstance(node, View):
        field, member = _field_names(type(node), str(part))
        child = getattr(node, field)
        at = (*at, member)
        if child is None and rest:
            child, _ = _with_value(
                _EMPTY_PARENTS.get(str(part), () if rest[0] == APPENDED else {}), rest, value
            )
            operation = Operation("add", json_pointer(*at), child)
        else:
            child, operation = _with_value(child, rest, value, at)
        return replace(node, **{field: child}), operation
    child, operation = _with_value(node[part] if rest else None, rest, value, (*at, part))
    if isinstance(node, dict):
        return {**node, part: child}, operation
    index = len(node) if part == APPENDED else int(part)
    # A changed item is replaced; a new one goes before the item at the index.
    next_index = index + 1 if rest else index
    return (*node[:index], child, *node[next_index:]), operation
