"""Warns of GPUs in objects of unknown kinds, and of GPUs, annotations and fields in the wrong place of a pod."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any

import msgspec

from policies.finding import (
    ContactEdit,
    Edit,
    Finding,
    Json,
    Severity,
    short_path,
    together,
    truncate,
)
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path, path_parts, value_at
from policies.pods.limits import LONGEST_NAME
from policies.pods.pod import Container, Pod, PodSpec, ResourceList
from policies.quota.spec import resource_quota_findings
from policies.rules.ineffective_fields import GROUPS, MISPLACED_FIELD, READ
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from webhook.configuration.dynamic_resources import DRA_GROUP
from webhook.configuration.workload_kinds import PodForm, WorkloadKind, WorkloadKinds, steps
from webhook.workloads.counts import values
from webhook.workloads.gpu_amounts import Form, gpu_amounts
from webhook.workloads.places import PodPlace
from webhook.workloads.references import IN_ITS_PODS, unread

MAX_NAMED = 3
"""Paths of one object that a sentence names."""
MAX_MISPLACED = 10
"""Misplaced amounts that are reported of one object."""

_AMOUNT_MAPS = {("resources", "limits"), ("resources", "requests")}
_LISTS = ("containers", "ephemeralContainers", "initContainers")
_CONTAINERS = {(each,) for each in _LISTS}
_CHART_KINDS = frozenset({"Application", "ApplicationSet", "HelmRelease"})
"""Kinds of Argo CD and Flux that hold the values of a Helm chart."""
_OF_A_CLOUD = (
    ".cnrm.cloud.google.com",
    ".services.k8s.aws",
    ".azure.com",
    ".upbound.io",
    ".aws.crossplane.io",
    ".gcp.crossplane.io",
    ".azure.crossplane.io",
    "cluster.x-k8s.io",
    ".gardener.cloud",
)
"""Ends of API groups whose objects are machines and services of a cloud: Config Connector, ACK, Azure Service Operator,
Crossplane, Cluster API, Gardener. Their GPUs are those of nodes, or of no node of this cluster.
"""

_ONLY_OF_PODS = {each.encode_name for each in msgspec.structs.fields(PodSpec)} - {
    each.encode_name for each in msgspec.structs.fields(Container)
}
"""Fields of a pod that a container does not have."""
_ALIKE = 0.8
"""How much a kind must be like one that is known."""
_SHORTEST_WORD = 3

_warning = partial(Finding, severity=Severity.WARNING)
_misplaced = partial(
    _warning,
    rule=INEFFECTIVE_FIELDS,
    reason=MISPLACED_FIELD,
    message="must not stand here: kubectl refuses an unknown field, and other clients lose it",
)


def unread_gpus(
    group: str,
    kind: str,
    data: Any,
    pods: Sequence[tuple[PodPlace, Pod]],
    resource_mapping: ResourceMapping,
    kinds: WorkloadKinds,
) -> list[Finding]:
    """Return a warning of the GPUs in the object that are in none of its `pods`, or nothing.

    Kinds of Kubernetes (GROUPS) have rule ineffective-fields, which says more; claims, and their classes and devices, are read.
    """
    row = kinds.get((group, kind))
    # A quota object of another system requests no GPUs.
    is_other_quota = row is None and kind.endswith("Quota")
    is_read = GROUPS.get(kind) == group or group == DRA_GROUP or (row is not None and row.has_no_gpus)
    if is_read or is_other_quota or (row is None and group.endswith(_OF_A_CLOUD)):
        return []
    found = list(_unread(data, pods, resource_mapping, kinds, row))
    if not found:
        return []
    alike = {other.lower(): other for kind_group, other in (*kinds, ("", "Pod")) if kind_group == group}
    lowered = kind.lower()[:LONGEST_NAME]
    near = [] if row else get_close_matches(lowered, alike, n=1, cutoff=_ALIKE)
    # With a word more it is another kind: DynamoGraphDeploymentRequest.
    if near and not (lowered.startswith(near[0]) and len(lowered) - len(near[0]) >= _SHORTEST_WORD):
        message, meant = "no kind of this name is read, and the object contains GPU resources", alike[near[0]]
        remedy, choices = f"did you mean {meant}?", together(Edit("kind", meant))
        return [unread(path="kind", value=kind, message=message, choices=choices, remedy=remedy)]
    # Not `short_path`: this is what to write into workloadKinds.
    named = ", ".join(truncate(field_path(at)) for at in found[:MAX_NAMED])
    rest = len(found) - MAX_NAMED
    message = f"GPUs in {named}{f' and {rest} more' if rest > 0 else ''} are not read"
    warning = partial(unread, path=field_path(found[0]))
    if row is None and kind in _CHART_KINDS:
        return [warning(message=message, remedy="render the chart, and check what it makes")]
    if row is not None and any(found[0] == at for path in row.unread for at, _ in values(data, steps(path))):
        value = value_at(data, found[0])
        named = truncate(value) if isinstance(value, str) else short_path(field_path(found[0]))
        return [warning(message=IN_ITS_PODS(named))]
    # A text of lines may be an object itself, whose pods are not those of this one.
    is_text = "\n" in str(value_at(data, found[0]))
    forms = [each for each in row.pods if each.form is not PodForm.PATCH] if row and not is_text else []
    words = str(found[0][-1]).split(".")  # spark.executor.resource.gpu.amount is one of spec.executor
    nearest = max(
        forms,
        key=lambda form: (_shared_steps(steps(form.path), found[0]), steps(form.path)[-1] in words),
        default=None,
    )
    return [
        warning(
            message=message,
            remedy=f"write them into {nearest.path}" if nearest else "",
            ask_contact="to name their paths in workloadKinds of a GPUResourceMapping",
            contact_choices=((ContactEdit("GPUResourceMapping", "spec.workloadKinds"),),),
        )
    ]


def _unread(
    data: Any,
    pods: Sequence[tuple[PodPlace, Pod]],
    resource_mapping: ResourceMapping,
    kinds: WorkloadKinds,
    row: WorkloadKind | None,
) -> Iterator[Parts]:
    """Yield the paths of the GPUs in the object that no pod requests."""
    whole: set[Parts] = set()  # pods that the object has entirely
    read: set[Parts] = set()  # amounts, claims and quotas that are read
    containers: set[Parts] = set()
    for place, _ in pods:
        if () in place.origins:
            whole.add(place.at)  # of other amounts in it, the rules say that they are in the wrong place
            continue
        own = [
            ("spec", kind, index)
            for kind in _LISTS
            for index in range(len(place.data["spec"].get(kind) or ()))
        ]
        if isinstance(value_at(data, place.at), str):
            containers.add(place.at)
        containers |= {place.parts_in_object(at) for at in own}
        located = (place.path_of_edit(field_path((*at, "resources"))) for at in own)
        read |= {path_parts(path) for path in located if path}
        if claims := place.path_of_edit("spec.resourceClaims"):
            read.add(path_parts(claims))
        read |= {at for inner, at in place.origins.items() if inner[-2:-1] in {("limits",), ("requests",)}}
    for path in (*row.quotas, *row.repeats) if row else ():
        read |= {at for at, _ in values(data, steps(path))}
    requesting = [(place.at, resource_mapping.pod_requests_gpus(pod)) for place, pod in pods]
    lengths = sorted({len(each) for each in (*read, *containers)})
    yield from _without_amount(data, row.unread if row else (), requesting)
    for amount in gpu_amounts(data, resource_mapping, kinds, whole):
        # What a container runs may be a text that says anything.
        known = containers if amount.in_text else read
        at, is_name = amount.at, row is not None and amount.form is Form.NAME
        if is_name or any(at[:length] in known for length in lengths):
            continue
        if amount.form is Form.RESOURCE or not _repeats(at, requesting):
            yield at


def _without_amount(
    data: Any, paths: Iterable[str], requesting: Sequence[tuple[Parts, bool]]
) -> Iterator[Parts]:
    """Yield the paths of fields that ask for GPUs, unless a pod beside them requests these."""
    for at, value in chain.from_iterable(values(data, steps(path)) for path in paths):
        beside = [each for each in requesting if each[0] == at or each[0] != at[: len(each[0])]]
        if _may_have_gpus(value) and not _repeats(at, beside):
            yield at


def _may_have_gpus(value: Any) -> bool:
    """Whether a profile, a type of machine, a claim or a part is there, and not one of CPUs (KubeAI's `cpu:1`)."""
    return value not in ("", None) and not str(value)[:LONGEST_NAME].lower().startswith("cpu")


def _repeats(at: Parts, requesting: Iterable[tuple[Parts, bool]]) -> bool:
    """Whether one of the nearest pods requests GPUs, so that the amount at the path may be theirs: Ray's num-gpus.

    requesting: the paths of the pods, and whether they request GPUs.
    """
    shared = [(_shared_steps(place, at), requests) for place, requests in requesting]
    most = max((count for count, _ in shared), default=0)
    return any(count == most and requests for count, requests in shared)


def _shared_steps(path: Parts, other: Parts) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))


def quota_findings(row: WorkloadKind, data: Any, resource_mapping: ResourceMapping) -> Iterator[Finding]:
    """Yield what is wrong with the ResourceQuotas that a controller makes of the object."""
    for at, hard in chain.from_iterable(values(data, steps(path)) for path in row.quotas):
        members = hard.items() if isinstance(hard, dict) else ()
        amounts: ResourceList = {key: each for key, each in members if isinstance(each, str | int | float)}
        hard_at = field_path(at)
        for finding in islice(resource_quota_findings(amounts, resource_mapping), MAX_MISPLACED):
            yield finding.at(partial(_in_object, hard_at))


def _in_object(hard_at: str, path: str) -> str:
    return hard_at + path.removeprefix("spec.hard")


def misplaced_gpus(
    data: Any, pods: Collection[Parts], resource_mapping: ResourceMapping
) -> Iterator[Finding]:
    """Yield a warning for each GPU amount in a pod that is not in the resources of a container.

    `pods`: the paths of its pod templates, or `[()]`, the whole object, for kinds of Kubernetes.
    """
    for at in (amount.at for amount in islice(gpu_amounts(data, resource_mapping, {}), MAX_MISPLACED)):
        is_read = _is_of_container(at) or at[-2:-1] == ("overhead",)
        if is_read or resource_mapping.resource(str(at[-1])) is None:
            continue
        if any(at[: len(pod)] == pod for pod in pods):
            yield _misplaced(
                path=field_path(at),
                choices=together(*_into_limits(data, at)),
                remedy="write it into resources.limits of the container",
            )


def misplaced_fields(data: Any, places: Iterable[PodPlace], *, is_built_in: bool) -> Iterator[Finding]:
    """Yield a warning for each annotation outside the annotations of a pod, and for each field of the pod in a container.

    is_built_in: whether the kind is one of Kubernetes, which has none of them above its pods either.
    """
    for place in places:
        spec, annotations = (
            place.parts_in_object(("spec",)),
            place.parts_in_object(("metadata", "annotations")),
        )
        if spec[-1:] != ("spec",):  # a predictor of KServe has fields of its own
            continue
        targets = [
            *(
                (at, (*annotations, at[-1]))
                for at in _our_keys(data, spec, 0 if is_built_in else len(place.at))
            ),
            *((at, (*spec, at[-1])) for at in _in_containers(value_at(data, spec), spec)),
        ]
        for at, target in islice(targets, MAX_MISPLACED):
            moved = Json(msgspec.json.encode(value_at(data, at)).decode())
            is_free = value_at(data, target) is None
            yield _misplaced(
                path=field_path(at),
                choices=together(Edit(field_path(at)), Edit(field_path(target), moved)) if is_free else (),
                remedy=f"write it into {field_path(target[:-1])}",
            )


def _our_keys(data: Any, spec: Parts, start: int) -> Iterator[Parts]:
    """Yield the paths of our annotations that stand outside `metadata.annotations`, on the path to a pod."""
    on_the_way = (spec[:length] for length in range(start, len(spec) + 1))
    for at in (each for way in on_the_way for each in (way, (*way, "metadata"))):
        holder = value_at(data, at)
        for key, value in holder.items() if isinstance(holder, dict) else ():
            if key in READ:
                yield (*at, key)
            is_read = key == "nodeSelector" or (at[-1:] == ("metadata",) and key in {"annotations", "labels"})
            if (
                isinstance(value, dict)
                and not is_read
                and key != "metadata"
                and (*at, key) != spec[: len(at) + 1]
            ):
                yield from ((*at, key, each) for each in value if each in READ)


def _in_containers(pod: Any, spec: Parts) -> Iterator[Parts]:
    for kind in _LISTS:
        containers = value_at(pod, (kind,))
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            fields = container if isinstance(container, dict) else ()
            yield from ((*spec, kind, index, field) for field in fields if field in _ONLY_OF_PODS)


def _is_of_container(at: Parts) -> bool:
    return at[-3:-1] in _AMOUNT_MAPS and at[-5:-4] in _CONTAINERS


def _into_limits(data: Any, at: Parts) -> tuple[Edit, ...]:
    """Return the edits that move an amount from a container, or its resources, into the limits."""
    for length in (len(at) - 2, len(at) - 3):
        container, below = at[:length], at[length:-1]
        if container[-2:-1] in _CONTAINERS and below in {("resources",), ("limits",), ("requests",)}:
            limits = (*container, "resources", "limits", at[-1])
            if value_at(data, limits) is None:
                return Edit(field_path(at)), Edit(field_path(limits), value_at(data, at))
    return ()
