"""The injected fields of a pod: the pod as its author submitted it, and updates that lack them.

The annotation `injected` lists changes as text (`policies.pods.patch.change_text`). A field that such a text describes counts as
injected. Fields that plugins of the API server added before the webhook are not in it (tolerations of unreachable nodes, the
token volume). Anyone can write the annotation, so it alone must never admit or inject anything.

Most of a pod's spec is immutable. So the API server rejects an update by a manifest without the injected fields: a second
`kubectl apply`, `kubectl diff`, server-side apply, `kubectl replace`. Its own plugins that add tolerations
(DefaultTolerationSeconds, ExtendedResourceToleration) complete updates for the same reason. A restored field gets its stored
value and place. List items are compared as the API server compares them: an update that the API server accepts stays unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import Finding, Reason, warning
from policies.pods.annotations import DISRUPTION_ANNOTATIONS, INJECTED
from policies.pods.field_paths import Parts, field_path, json_pointer, value_at
from policies.pods.patch import Added, Change, Operation, change_text
from policies.pods.pod import Container, Pod, View

INJECTION_MISSING = Reason("InjectionMissing", "an injected field is missing from the final pod")
INJECTION_KEPT = Reason("InjectionKept", "an injected field keeps its value in an update")
WOULD_INJECT = Reason("WouldInject", "a rule that is not enforced would change the pod")
INJECTION_REASONS = (INJECTION_MISSING, INJECTION_KEPT, WOULD_INJECT)
"""Reasons of every rule that mutates."""

ChangeTexts = AbstractSet[str]
"""Changes as text: `toleration nvidia.com/gpu:NoSchedule`."""
DescribedFields = Iterator[tuple[Parts, str]]
"""Fields of a pod: the path of each, and the text of the change that would have injected it."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TERMS = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def as_submitted(pod: Pod, *, author_set_node: bool = False, injected: ChangeTexts | None = None) -> Pod:
    """Return the pod as submitted, without uid and status, and with nodeName only if `author_set_node`.

    An annotation with the name of a resource is a scheduler's, which writes the assigned devices there.
    Remove the fields that match one of the changes `injected` (None: those of the pod's annotation). Also remove raised values (a
    delay or grace period), because the original value is not known.
    """
    written = {INJECTED, *chain.from_iterable(place.container.limits for place in pod.places)}
    metadata = pod.metadata and replace(
        pod.metadata,
        uid=None,
        resource_version=None,
        annotations={key: value for key, value in pod.annotations.items() if key not in written} or None,
    )
    spec = replace(pod.spec, ephemeral_containers=None)
    if not author_set_node:
        spec = replace(spec, node_name=None)
    submitted = Pod(metadata=metadata, given_spec=spec)
    for path, _ in reversed(find_injected(pod, injected_changes(pod) if injected is None else injected)):
        submitted = _without_path(submitted, path) or Pod()
    return submitted


def author_wrote_node_name(document: bytes) -> bool:
    """Whether the pod, in JSON, was created with its nodeName.

    managedFields list a field under each author that wrote it. A scheduler writes nodeName by a Binding, which managedFields do
    not list (`BindingREST.assignPod`, pkg/registry/core/pod/storage, v1.37). Without managedFields, the scheduler is assumed.
    """
    metadata = _MEMBERS.decode(document).get("metadata", b"{}")
    return b'"f:nodeName"' in bytes(_MEMBERS.decode(metadata).get("managedFields", b""))


def injected_changes(pod: Pod) -> ChangeTexts:
    """Return the changes in the annotation, which has lines of `rule: change, change`."""
    lines = pod.annotations.get(INJECTED, "").split("\n")
    return frozenset(what for line in lines for what in line.partition(": ")[2].split(", ") if what)


def find_injected(pod: Pod, changes: ChangeTexts) -> list[tuple[Parts, str]]:
    """Return the paths of the fields that match one of the changes, in order, each with the change.

    If several items of a list match, only the last one counts, because rules append.
    """
    if not changes:
        return []
    paths = {(what, path[:-1]): path for path, what in _injectable_fields(pod) if what in changes}
    return sorted((path, what) for (what, _), path in paths.items())


def _injectable_fields(pod: Pod) -> DescribedFields:
    """Yield every field of the pod that a rule could have injected."""
    for path, what in _injectable_spec_fields(pod):
        yield ("spec", *path), what
    for key in DISRUPTION_ANNOTATIONS:
        if key in pod.annotations:
            yield ("metadata", "annotations", key), f"annotation {key}"


def _injectable_spec_fields(pod: Pod) -> DescribedFields:
    spec = pod.spec
    yield from _items(
        {"tolerations": spec.tolerations, "volumes": spec.volumes, "initContainers": spec.init_containers}
    )
    for key, value in pod.node_selector.items():
        yield ("nodeSelector", key), change_text(value, f"nodeSelector {key}")
    for at, term in enumerate(pod.required_terms):
        for index, requirement in enumerate(term.match_expressions or ()):
            yield (*_TERMS, at, "matchExpressions", index), change_text(requirement)
    if (seconds := spec.termination_grace_period_seconds) is not None:
        yield ("terminationGracePeriodSeconds",), change_text(seconds, "terminationGracePeriodSeconds")
    if (deadline := spec.active_deadline_seconds) is not None:
        yield ("activeDeadlineSeconds",), f"activeDeadlineSeconds={deadline}"
    for place in pod.places:
        for path, what in _injectable_container_fields(place.container):
            yield (place.list_name, place.index, *path), f"{place.container.name}: {what}"


def _injectable_container_fields(container: Container) -> DescribedFields:
    yield from _items({"env": container.env, "volumeMounts": container.volume_mounts})
    for kind, amounts in (("limits", container.limits), ("requests", container.requests)):
        for name, amount in amounts.items():
            yield ("resources", kind, name), change_text(amount, f"{kind} {name}")
    if container.startup_probe is not None:
        yield ("startupProbe",), change_text(container.startup_probe)
    if (readiness := container.readiness_probe) is not None and readiness.initial_delay_seconds:
        path = "readinessProbe", "initialDelaySeconds"
        yield path, change_text(readiness.initial_delay_seconds, ".".join(path))


def _items(lists: Mapping[str, Iterable[Added] | None]) -> DescribedFields:
    for name, items in lists.items():
        for at, item in enumerate(items or ()):
            yield (name, at), change_text(item)


def _without_path(node: Any, path: Parts) -> Any:
    """Return the node without the value at the path, and without parents that become empty. None if the node is empty."""
    part, rest = path[0], path[1:]
    if isinstance(node, View):
        field = node.__struct_fields__[node.__struct_encode_fields__.index(str(part))]
        left = replace(node, **{field: _without_path(getattr(node, field), rest) if rest else None})
        return None if left == type(node)() else left
    child = _without_path(node[part], rest) if rest else None
    if isinstance(node, dict):
        without_part = {key: value for key, value in node.items() if key != part}
        return (without_part if child is None else {**node, part: child}) or None
    index = int(part)
    return (*node[:index], *(() if child is None else (child,)), *node[index + 1 :]) or None


JSON = Any

_IDENTITY: Mapping[str | int, tuple[str, ...]] = {
    "tolerations": ("key", "operator", "value", "effect"),  # tolerationSeconds may change
    "matchExpressions": ("key", "operator", "values"),
    "volumes": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
}
"""Fields that identify an item of a list."""
_RAISED = frozenset({"initialDelaySeconds", "terminationGracePeriodSeconds"})
"""Values of the author that rules only raise."""


class Restored(msgspec.Struct, frozen=True):
    """The restored changes, and warnings about values of the update that were overwritten.

    `note`: the change that adds the annotation `injected`, if the update lacks it.
    """

    changes: tuple[Change, ...] = ()
    note: Change | None = None
    warnings: tuple[Finding, ...] = ()


def restore(stored: Pod, before: bytes, after: bytes, wanted: Mapping[str, str]) -> Restored:
    """Restore fields of the `stored` pod (JSON `before`) in the update (JSON `after`).

    wanted: the changes that may be restored, in the words of `policies.pods.patch`, each with its rule.
    """
    injected = find_injected(stored, wanted.keys())
    if not injected:
        return Restored()
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    changes: list[Change] = []
    warnings: list[Finding] = []
    for path, what in injected:
        sent_path = _sent_path(path, old, new)
        if sent_path is None:
            continue
        value, sent = value_at(old, path), value_at(new, sent_path)
        if _is_present(sent_path, value, new):
            continue
        changes.append(Change(what, (_insert(new, sent_path, value),), wanted[what]))
        if sent_path[-1] in _RAISED and sent is not None:
            # The author may have set it before, and not lowered it in this update.
            message = f"stays {value}: it was raised when the pod was created, and cannot be changed since"
            kept = partial(warning, reason=INJECTION_KEPT, message=message)
            warnings.append(kept(rule=wanted[what], path=field_path(sent_path), value=str(sent)))
    note = stored.annotations.get(INJECTED)
    at = ("metadata", "annotations", INJECTED)
    is_lost = bool(changes) and note is not None and value_at(new, at) is None
    restored_note = Change(f"annotation {INJECTED}", (_insert(new, at, note),)) if is_lost else None
    return Restored(tuple(changes), restored_note, tuple(warnings))


def _sent_path(path: Parts, old: JSON, new: JSON) -> Parts | None:
    """Return the path in the new pod. Containers are found by name. None if the container is missing."""
    _, part, *rest = path
    is_container_itself = len(rest) == 1  # an injected init container, with only its index
    if part not in {"containers", "initContainers"} or is_container_itself:
        return path
    name = value_at(old, (*path[:3], "name"))
    containers = value_at(new, path[:2]) or []
    index = next((i for i, container in enumerate(containers) if container.get("name") == name), None)
    return None if index is None else (*path[:2], index, *path[3:])


def _is_present(path: Parts, value: JSON, new: JSON) -> bool:
    if isinstance(path[-1], int):
        fields = _IDENTITY[path[-2]]
        same = [value.get(field) for field in fields]
        items = value_at(new, path[:-1]) or ()
        return any([item.get(field) for field in fields] == same for item in items)
    sent = value_at(new, path)
    return sent is not None and (path[-1] not in _RAISED or sent >= value)


def _insert(node: JSON, path: Parts, value: JSON) -> Operation:
    """Put the value at the path below the node, with missing parents. Return the JSON Patch operation."""
    depth = 0
    while depth < len(path) - 1 and (child := value_at(node, (path[depth],))) is not None:
        node, depth = child, depth + 1
    last = path[depth]
    for part in reversed(path[depth + 1 :]):
        value = [value] if isinstance(part, int) else {part: value}
    if isinstance(node, list):
        last = min(int(last), len(node))
        node.insert(last, value)
    else:
        node[last] = value
    # A copy, because later changes may go into the value.
    return Operation("add", json_pointer(*path[:depth], last), deepcopy(value))
