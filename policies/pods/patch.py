"""A pod under mutation, and the JSON patch of its changes.

A `PodPatch` records the smallest RFC 6902 operations, creates missing parents, escapes keys (RFC 6901), and lets the next
rule see the pod as its predecessors left it. Nothing is ever replaced wholesale: another webhook may have added to the same
list a moment ago. Each verb is one `Change` with words for people.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from policies.pods.field_paths import json_pointer
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
    PodSpec,
    Probe,
    QuantityText,
    Resources,
    Toleration,
    View,
    Volume,
    VolumeMount,
)
from policies.pods.tolerations import describe_toleration

T = TypeVar("T")
V = TypeVar("V", bound=View)
ResourceMap = Literal["limits", "requests"]
ProbeName = Literal["readinessProbe", "livenessProbe", "startupProbe"]


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
        self._append_to_spec(f"toleration {describe_toleration(toleration)}", "tolerations", toleration)

    def set_node_selector(self, key: str, value: str) -> None:
        existing = self.pod.body.node_selector
        self._record(f"nodeSelector {key}={value}", _put(existing, key, value, "spec", "nodeSelector"))
        self._set_spec(replace(self.pod.body, node_selector={**(existing or {}), key: value}))

    def require_node_affinity(self, requirement: NodeSelectorRequirement) -> None:
        """Demand `requirement` of the node, in addition to whatever the pod requires already.

        The terms of a required affinity are alternatives, so the requirement is added to each of them, but not to an
        empty one: that matches no node, and would with the requirement.
        """
        spec = self.pod.body
        node_affinity = spec.affinity.node_affinity if spec.affinity else None
        terms = (
            node_affinity.required.node_selector_terms if node_affinity and node_affinity.required else None
        ) or ()
        new_terms = tuple(
            replace(term, match_expressions=(*(term.match_expressions or ()), requirement))
            if term.match_expressions or term.match_fields
            else term
            for term in terms
        ) or (NodeSelectorTerm(match_expressions=(requirement,)),)
        required = NodeSelector(node_selector_terms=new_terms)
        affinity = replace(
            spec.affinity or Affinity(),
            node_affinity=replace(node_affinity or NodeAffinity(), required=required),
        )
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        base = ("spec", "affinity", "nodeAffinity", key)
        operations: tuple[Operation, ...]
        if terms:
            operations = tuple(
                operation
                for index, term in enumerate(terms)
                if term.match_expressions or term.match_fields
                for operation in _append(
                    term.match_expressions, requirement, *base, "nodeSelectorTerms", index, "matchExpressions"
                )
            )
        elif node_affinity is not None:
            operations = (Operation("add", json_pointer(*base), required),)
        elif spec.affinity is not None:
            operations = (
                Operation("add", json_pointer("spec", "affinity", "nodeAffinity"), {key: required}),
            )
        else:
            operations = (
                Operation("add", json_pointer("spec", "affinity"), {"nodeAffinity": {key: required}}),
            )
        values = ",".join(requirement.values or ())
        self._record(f"node affinity {requirement.key} {requirement.operator} {values}".rstrip(), operations)
        self._set_spec(replace(spec, affinity=affinity))

    def add_volume(self, volume: Volume) -> None:
        self._append_to_spec(f"volume {volume.name}", "volumes", volume)

    def add_init_container(self, container: Container, index: int) -> None:
        """Insert `container` before the init container that stands at `index` now (at the end if there is none)."""
        existing = self.pod.body.init_containers
        operations: tuple[Operation, ...]
        if existing and index < len(existing):
            operations = (Operation("add", json_pointer("spec", "initContainers", index), container),)
        else:
            operations = _append(existing, container, "spec", "initContainers")
        self._record(f"initContainer {container.name}", operations)
        containers = list(existing or ())
        containers.insert(index, container)
        self._set_spec(replace(self.pod.body, init_containers=tuple(containers)))

    def set_annotation(self, key: str, value: str) -> None:
        metadata = self.pod.metadata
        operations: tuple[Operation, ...]
        if metadata is None:
            operations = (Operation("add", "/metadata", {"annotations": {key: value}}),)
        else:
            operations = _put(metadata.annotations, key, value, "metadata", "annotations")
        self._record(f"annotation {key}", operations)
        metadata = metadata or Metadata()
        new_metadata = replace(metadata, annotations={**(metadata.annotations or {}), key: value})
        self.pod = replace(self.pod, metadata=new_metadata)

    # ---- container level

    def set_resource(
        self, place: ContainerPlace, kind: ResourceMap, name: str, quantity: QuantityText
    ) -> None:
        place = self._as_it_is(place)
        resources = place.container.resources
        base = _container_parts(place)
        existing = (resources.limits if kind == "limits" else resources.requests) if resources else None
        operations: tuple[Operation, ...]
        if resources is None:
            operations = (Operation("add", json_pointer(*base, "resources"), {kind: {name: quantity}}),)
        else:
            operations = _put(existing, name, quantity, *base, "resources", kind)
        self._record(f"{place.container.name}: {kind} {name}={quantity}", operations)
        new_resources = replace(resources or Resources(), **{kind: {**(existing or {}), name: quantity}})
        self._set_container(place, replace(place.container, resources=new_resources))

    def add_env(self, place: ContainerPlace, name: str, value: str) -> None:
        self._append_to_container(place, f"env {name}={value}", "env", EnvVar(name=name, value=value))

    def add_volume_mount(self, place: ContainerPlace, mount: VolumeMount) -> None:
        self._append_to_container(place, f"volumeMount {mount.mount_path}", "volumeMounts", mount)

    def set_initial_delay(self, place: ContainerPlace, seconds: int) -> None:
        """Set readinessProbe.initialDelaySeconds of a container that has a readiness probe."""
        place = self._as_it_is(place)
        probe = place.container.readiness_probe
        if probe is None:
            raise ValueError(f"{place.path} has no readinessProbe")
        path = json_pointer(*_container_parts(place), "readinessProbe", "initialDelaySeconds")
        self._record(
            f"{place.container.name}: readinessProbe.initialDelaySeconds={seconds}",
            (Operation("add", path, seconds),),  # RFC 6902 `add` replaces a member that exists
        )
        new_probe = replace(probe, initial_delay_seconds=seconds)
        self._set_container(place, replace(place.container, readiness_probe=new_probe))

    def set_startup_probe(self, place: ContainerPlace, probe: Probe) -> None:
        place = self._as_it_is(place)
        path = json_pointer(*_container_parts(place), "startupProbe")
        seconds = (probe.period_seconds or 10) * (probe.failure_threshold or 3)
        self._record(
            f"{place.container.name}: startupProbe for {seconds} s", (Operation("add", path, probe),)
        )
        self._set_container(place, replace(place.container, startup_probe=probe))

    # ---- bookkeeping

    def _record(self, what: str, operations: tuple[Operation, ...]) -> None:
        if self.pod.spec is None and operations[0].path.startswith("/spec/"):
            operations = (Operation("add", "/spec", {}), *operations)
        self.changes.append(Change(what, operations))

    def _append_to_spec(self, what: str, field: str, item: View) -> None:
        self._record(what, _append(getattr(self.pod.body, field), item, "spec", field))
        self._set_spec(_appended(self.pod.body, field, item))

    def _append_to_container(self, place: ContainerPlace, what: str, member: str, item: View) -> None:
        place = self._as_it_is(place)
        field = "volume_mounts" if member == "volumeMounts" else member
        operations = _append(getattr(place.container, field), item, *_container_parts(place), member)
        self._record(f"{place.container.name}: {what}", operations)
        self._set_container(place, _appended(place.container, field, item))

    def _set_spec(self, spec: PodSpec) -> None:
        self.pod = replace(self.pod, spec=spec)

    def _as_it_is(self, place: ContainerPlace) -> ContainerPlace:
        """Return the place with the container as earlier verbs left it: a rule looks once and may change several things."""
        spec = self.pod.body
        containers = spec.containers if place.list_name == "containers" else spec.init_containers
        return replace(place, container=(containers or ())[place.index])

    def _set_container(self, place: ContainerPlace, container: Container) -> None:
        spec = self.pod.spec or EMPTY_SPEC
        if place.list_name == "containers":
            self._set_spec(replace(spec, containers=_with(spec.containers or (), place.index, container)))
        else:
            self._set_spec(
                replace(spec, init_containers=_with(spec.init_containers or (), place.index, container))
            )


def _container_parts(place: ContainerPlace) -> tuple[str | int, ...]:
    return ("spec", place.list_name, place.index)


def _with(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _appended(view: V, field: str, item: View) -> V:
    return replace(view, **{field: (*(getattr(view, field) or ()), item)})


def _append(existing: tuple[Any, ...] | None, item: Any, *parts: str | int) -> tuple[Operation, ...]:
    # `add …/-` fails where the list is missing or null , so there the list itself is added.
    if existing is None:
        return (Operation("add", json_pointer(*parts), [item]),)
    return (Operation("add", json_pointer(*parts, "-"), item),)


def _put(existing: dict[str, Any] | None, key: str, value: Any, *parts: str | int) -> tuple[Operation, ...]:
    if existing is None:
        return (Operation("add", json_pointer(*parts), {key: value}),)
    return (Operation("add", json_pointer(*parts, key), value),)
