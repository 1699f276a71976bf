"""Report what is written where nothing reads it: misspelt resources and annotations, and fields in the wrong place.

Reads:   names of resources of every container and of the pod as a whole, annotations and labels of `gpu-admission.dev/`; of a
         workload also its kind and API group, its own metadata, and the lists of containers outside its pod template.
Denies:  names of resources that mean GPUs and that the API server rejects (`gpu`, `NVIDIA.com/gpu`), and GPUs among the resources
         of the pod as a whole, where it takes nothing but cpu, memory and hugepages (validation of Kubernetes 1.37.2); claims
         without a name, as manifests for API servers before 1.31 have.
Warns:   of names that nearly equal one of the resource mapping (`nvidia.com/gpus`), and of names that no longer exist; of
         annotations that are misspelt, written as labels, on a Deployment instead of its pods, or on a pod that requests no GPU,
         or whose rule is off; of claims that no container uses, or that stand in two items; of a Job in API group apps; of a GPU
         pod that selects spot nodes, a grace period longer than their notice, what a training saves where it is lost with the
         node, and on AKS a missing toleration.

Runs before mutation, too: built-in validation comes right after it and rejects the same pods with worse sentences.
"""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from policies.finding import (
    Edit,
    Finding,
    Json,
    Reason,
    Severity,
    one_choice,
    separate_choices,
    truncate,
    warning,
)
from policies.gpus.mapping_spec import NVIDIA_GPU
from policies.gpus.near_names import INVALID_NAME_MESSAGE, INVALID_RESOURCE_NAME, UNKNOWN_RESOURCE_NAME
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods import annotations
from policies.pods.annotations import DOMAIN, INEFFECTIVE_ANNOTATION, RULE_BY_ANNOTATION
from policies.pods.field_paths import Parts, annotation_path, field_path, value_at
from policies.pods.names import is_resource_name
from policies.pods.pod import Container, ContainerPlace, Metadata, Named, Pod, ResourceList
from policies.pods.spot_nodes import LOST_WITH_NODE, SHORT_NOTICE, UNTOLERATED_SPOT, spot_findings
from policies.pods.workload import Workload
from policies.rule import Context, Rule, RuleOptions
from policies.rules.spot import may_serve

UNKNOWN_ANNOTATION = Reason(
    "UnknownAnnotation", "an annotation or label of gpu-admission.dev/ is not read", hides_others=True
)
MISPLACED_FIELD = Reason("MisplacedField", "a field is written where nothing reads it")

ID = "ineffective-fields"

OF_MODEL = "model-"
"""The start of the names of annotations about a model."""
READ_ANNOTATIONS = frozenset(
    value
    for value in vars(annotations).values()
    if isinstance(value, str) and value.startswith(DOMAIN) and value != DOMAIN
)
"""Every annotation that some rule reads."""
FOR_GPU_PODS = frozenset(
    key
    for key in READ_ANNOTATIONS
    if key in RULE_BY_ANNOTATION or key.startswith((annotations.GPU_CLASS, DOMAIN + OF_MODEL))
)
"""Annotations by whose value a rule places or changes a GPU pod."""
OWN_DOMAIN_START = "gpu-admission"
"""Prefixes of keys that may be misspelt annotations of gpu-admission."""
MAX_UNREAD = 10
"""Maximum of unknown annotations that are reported of one object. Finding the nearest known one takes 0.1 ms."""
LONGEST_NAME = 63
"""Characters of the name in a key that are compared: all that the API server allows."""

GROUPS = {
    "Pod": "",
    "PodTemplate": "",
    "ReplicationController": "",
    "DaemonSet": "apps",
    "Deployment": "apps",
    "ReplicaSet": "apps",
    "StatefulSet": "apps",
    "CronJob": "batch",
    "Job": "batch",
}
"""Kinds of Kubernetes that make pods, and their API group. Their pods do not get the annotations of the object's metadata."""
_POD_SPECS = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
"""Where the spec of their pods is, if not in spec.template."""
API_VERSIONS = {"": "v1", "apps": "apps/v1", "batch": "batch/v1"}
_REMOVED_GROUP = "extensions"
"""The API group in which no API server has had these kinds since Kubernetes 1.16."""

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_NOT_EXTENDED = re.compile(r"hugepages-|.*[{$]")
"""Huge pages, and names that a parameter fills in."""
_MEANS_A_GPU = re.compile(r"gpu|nvidia|cuda|[tn]pu|accelerator", re.IGNORECASE)
_AMOUNT_IN_NAME = re.compile(r"[=:]\s*([0-9]{1,4})$")
"""The amount in a name, which has none beside it: `nvidia.com/gpu=1`."""
_LISTS = ("containers", "initContainers")
MAX_MISPLACED = 8
"""Misplaced lists that are named: each is written as an edit, and one may contain the next one."""
_WITHOUT_FIELDS = frozenset({"metadata", "status"})
"""Maps of every object in which no author writes containers."""

_misplaced = partial(warning, reason=MISPLACED_FIELD)


def check(pod: Pod, _options: RuleOptions, context: Context) -> Iterator[Finding]:
    mapping = context.resource_mapping
    for place in pod.places:
        for kind, name in _resource_names(place.container.limits, place.container.requests):
            yield from _resource_finding(place, kind, name, context)
    pod_level = Container(resources=pod.spec.resources)
    for kind, name in _resource_names(pod_level.limits, pod_level.requests):
        if mapping.resource(name) or mapping.suggested_name(name) or _MEANS_A_GPU.search(name):
            removed = [Edit(f"spec.resources.{kind}[{name}]") for kind in ("limits", "requests")]
            amount = {**pod_level.requests, **pod_level.limits}[name]
            added = (Edit(f"{place.path}.resources.limits[{name}]", amount) for place in pod.apps)
            yield _misplaced(
                severity=Severity.DENIAL,
                path=f"spec.resources.{kind}[{name}]",
                message="must not be a resource of the pod as a whole: only cpu, memory and hugepages can be",
                choices=tuple((*removed, edit) for edit in added),
                remedy="write it into resources.limits of the container that uses it",
            )
    yield from _claim_findings(pod)
    if pod.metadata is not None:
        yield from _metadata_findings(pod.metadata)
    if context.surely_requests_gpus(pod):
        yield from spot_findings(pod, is_training=context.owner.completes or not may_serve(pod))
        yield from _of_disabled_rules(pod, context)
    elif not context.resource_mapping.pod_requests_gpus(pod):
        yield from _without_gpus(pod, context)
        labels = (pod.metadata and pod.metadata.labels) or {}
        fraction_keys = (
            key.key for key in context.resource_mapping.fraction_annotations if key.key in labels
        )
        yield from (_label_finding(key, labels[key], key, ()) for key in fraction_keys)


def _claim_findings(pod: Pod) -> Iterator[Finding]:
    """Yield claims without a name, claims in two items, and claims that no container uses.

    The scheduler allocates a claim that no container uses, and the kubelet skips it (`prepareResources`).
    """
    claims = pod.spec.resource_claims or ()
    resources = (place.container.resources for place in pod.places)
    used = {claim.name for one in resources if one is not None for claim in one.claims or ()}
    for index, claim in enumerate(claims):
        path, name = f"spec.resourceClaims[{index}]", claim.resource_claim_name
        if not (name or claim.resource_claim_template_name):
            yield _misplaced(
                severity=Severity.DENIAL,
                path=path,
                message="must have resourceClaimName or resourceClaimTemplateName, and not below source since Kubernetes 1.31",
            )
        if name and any(claim.resource_claim_name == name for claim in claims[:index]):
            yield _misplaced(
                path=f"{path}.resourceClaimName",
                value=name,
                message="must not be in two items: the scheduler cannot reserve a claim twice for a pod, which stays pending",
                remedy="use the name of one item in all containers",
            )
        if claim.name not in used:
            using = (Edit(f"{place.path}.resources.claims[-]", Named(claim.name)) for place in pod.apps)
            yield _misplaced(
                path=f"{path}.name",
                value=claim.name,
                message="must be in resources.claims of a container: its devices are allocated, and no container gets them",
                choices=separate_choices(*using),
            )


def _without_gpus(pod: Pod, context: Context) -> Iterator[Finding]:
    """Warn of annotations for GPU pods on a pod that requests none, unless a resource is misspelt."""
    names = [
        name
        for place in pod.places
        for _, name in _resource_names(place.container.limits, place.container.requests)
    ]
    if any(context.resource_mapping.suggested_name(name) or _MEANS_A_GPU.search(name) for name in names):
        return
    requested = [Edit(f"{place.path}.resources.limits[{NVIDIA_GPU}]", 1) for place in pod.apps[:1]]
    for key in islice((key for key in pod.annotations if key in FOR_GPU_PODS), MAX_UNREAD):
        yield warning(
            reason=INEFFECTIVE_ANNOTATION,
            path=annotation_path(key),
            value=pod.annotations[key],
            message="has no effect: the pod requests no GPU",
            choices=(*((edit,) for edit in requested), (Edit(annotation_path(key)),)),
            remedy=f"request a GPU in resources.limits, such as {NVIDIA_GPU}: 1, or remove it",
        )


def _of_disabled_rules(pod: Pod, context: Context) -> Iterator[Finding]:
    for key, value in pod.annotations.items():
        rule = RULE_BY_ANNOTATION.get(key)
        if rule is not None and context.options_of(rule) is None:
            yield warning(
                reason=INEFFECTIVE_ANNOTATION,
                path=annotation_path(key),
                value=value,
                message=f"has no effect: rule {rule} is off in namespace {context.namespace}",
            )


def check_workload(workload: Workload, _options: RuleOptions, context: Context) -> Iterator[Finding]:
    group = GROUPS.get(workload.kind)
    if workload.pods or group is not None:
        yield from _metadata_findings(workload.metadata)
    if group is None:
        return
    served = API_VERSIONS[group]
    written = workload.data.get("apiVersion") or API_VERSIONS.get(workload.group, _REMOVED_GROUP)
    if written == served:
        yield from _misplaced_annotations(workload, context.resource_mapping)
        yield from misplaced_containers(workload.kind, workload.data)
    elif workload.group in {*API_VERSIONS, _REMOVED_GROUP}:
        message, choices = f"has no kind {workload.kind}", one_choice(Edit("apiVersion", served))
        yield _misplaced(path="apiVersion", value=written, message=message, choices=choices)


def _resource_names(limits: ResourceList, requests: ResourceList) -> Iterator[tuple[str, str]]:
    """Yield each resource name once with its map, except Kubernetes' own names."""
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            is_repeated = kind == "requests" and name in limits
            if name not in _STANDARD and not is_repeated and not _NOT_EXTENDED.match(name):
                yield kind, name


def _resource_finding(place: ContainerPlace, kind: str, name: str, context: Context) -> Iterator[Finding]:
    meant = context.resource_mapping.suggested_name(name)
    is_refused = not is_resource_name(name) or name.startswith("requests.")
    is_there = context.nodes is not None and name in context.nodes.existing_resources
    if is_there or (meant is None and not (is_refused and _MEANS_A_GPU.search(name))):
        return
    if is_refused:
        reason, severity = INVALID_RESOURCE_NAME, Severity.DENIAL
        message = INVALID_NAME_MESSAGE
    else:
        reason, severity = UNKNOWN_RESOURCE_NAME, Severity.WARNING
        message = (
            "no device plugin that is known has this resource: the pod stays pending unless a node has it"
        )
    is_free = meant not in place.container.limits and meant not in place.container.requests
    remedy = f"did you mean {meant}?" if meant else "write the whole name, such as nvidia.com/gpu"
    yield Finding(
        reason=reason,
        severity=severity,
        path=f"{place.path}.resources.{kind}[{truncate(name)}]",
        container=place.container.name,
        message=message,
        choices=one_choice(*_renaming_edits(place, name, (meant or NVIDIA_GPU) if is_free else "")),
        is_example=meant is None,
        remedy=remedy if is_free else "",
    )


def _renaming_edits(place: ContainerPlace, name: str, meant: str) -> tuple[Edit, ...]:
    """Return the edits that give the amounts of one resource to another. Without another one, they are removed."""
    container = place.container
    in_name = _AMOUNT_IN_NAME.search(name)
    amounts = (
        int(in_name[1]) if in_name and not resources[name] else resources[name]
        for resources in (container.limits, container.requests)
        if name in resources
    )
    added = map(Edit, place.amount_paths(name, meant), amounts) if meant else ()
    return (*map(Edit, place.amount_paths(name)), *added)


def _metadata_findings(metadata: Metadata) -> Iterator[Finding]:
    """Yield annotations that are unknown, and labels that should be annotations."""
    annotations = metadata.annotations or {}
    unread = ((key, value) for key, value in annotations.items() if _is_unread(key))
    for key, value in islice(unread, MAX_UNREAD):
        meant = _nearest_annotation(key)
        yield warning(
            reason=UNKNOWN_ANNOTATION,
            path=annotation_path(truncate(key)),
            message="no rule reads an annotation of this name",
            choices=one_choice(*_moving_edits(annotation_path(key), meant or "", value, annotations)),
            remedy=f"did you mean {meant}?" if meant and meant not in annotations else "remove it",
        )
    labels = ((key, value) for key, value in (metadata.labels or {}).items() if key.startswith(DOMAIN))
    for key, value in islice(labels, MAX_UNREAD):
        yield _label_finding(key, value, _nearest_annotation(key) or "", annotations)


def _label_finding(key: str, value: str, meant: str, annotations: Collection[str]) -> Finding:
    """Return a warning of a label that should be the annotation `meant`; "" if it should be none."""
    is_moved = meant and meant not in annotations
    return warning(
        reason=UNKNOWN_ANNOTATION,
        path=f"metadata.labels[{truncate(key)}]",
        message="has no effect as a label",
        choices=one_choice(*_moving_edits(f"metadata.labels[{key}]", meant, value, annotations)),
        remedy=f"write it as annotation {meant}" if is_moved else "remove it",
    )


def _moving_edits(path: str, annotation: str, value: str, existing: Collection[str]) -> tuple[Edit, ...]:
    """Return the edits that move the value at the path to the annotation. If that is `existing`, the value is removed."""
    is_moved = annotation and annotation not in existing
    return (Edit(path), *((Edit(annotation_path(annotation), value),) if is_moved else ()))


def _is_unread(key: str) -> bool:
    """Whether the key has our domain, or nearly ours, and is not an annotation that is read."""
    if not key.startswith(OWN_DOMAIN_START):
        return False
    return key not in READ_ANNOTATIONS and (
        key.startswith(DOMAIN) or DOMAIN + _name_of_key(key) in READ_ANNOTATIONS
    )


def _name_of_key(key: str) -> str:
    return key.partition("/")[2]


def _nearest_annotation(key: str) -> str | None:
    """Return the annotation nearest to the key. None if no annotation is near."""
    written = _name_of_key(key)[:LONGEST_NAME]
    start = OF_MODEL if written.startswith(OF_MODEL) else ""
    rest = written.removeprefix(start)
    names = {
        each.removeprefix(start) for each in map(_name_of_key, READ_ANNOTATIONS) if each.startswith(start)
    }
    # The size of a model is not its head size.
    near = get_close_matches(
        rest, sorted(name for name in names if not (start and name.endswith(f"-{rest}")))
    )
    return DOMAIN + start + near[0] if near else None


def _misplaced_annotations(workload: Workload, mapping: ResourceMapping) -> Iterator[Finding]:
    places = [pods.path for pods in workload.pods]
    annotations, read = workload.metadata.annotations or {}, READ_ANNOTATIONS
    if not any(mapping.pod_requests_gpus(pods.pod) for pods in workload.pods):
        read = READ_ANNOTATIONS.union(annotation.key for annotation in mapping.fraction_annotations)
    written = (key for key in annotations if key in read)
    for key in written if places else ():
        if not all(key in pods.pod.annotations for pods in workload.pods):
            yield warning(
                reason=INEFFECTIVE_ANNOTATION,
                path=annotation_path(key),
                message=f"has no effect here: the pods of a {workload.kind} do not get its annotations",
                choices=one_choice(
                    Edit(annotation_path(key)),
                    *(Edit(f"{place}.{annotation_path(key)}", annotations[key]) for place in places),
                ),
                remedy=f"write it into {places[0]}.metadata.annotations",
            )


def misplaced_containers(kind: str, data: Any) -> Iterator[Finding]:
    """Warn of lists of containers that are not those of the pods of this kind, and of an object without any.

    `kind`: one of Kubernetes, which knows no such fields.
    """
    steps = _POD_SPECS.get(kind, ("spec", "template", "spec"))
    outside = (path for path in _lists_of_containers(data) if path[:-1] != steps)
    misplaced = [*islice(outside, MAX_MISPLACED)]
    # Above the pod spec only the list is misplaced, elsewhere all that stands beside it, too.
    fields = dict.fromkeys(path if path[:-1] == steps[: len(path) - 1] else path[:-1] for path in misplaced)
    for field in fields:
        is_above = field in misplaced
        target = (*steps, field[-1]) if is_above else steps
        moved = Edit(field_path(target), Json(msgspec.json.encode(value_at(data, field)).decode()))
        is_free = not value_at(data, target)
        yield _misplaced(
            path=field_path(field),
            message=f"is not a field of a {kind}: the API server rejects or drops it",
            choices=one_choice(Edit(field_path(field)), moved) if is_free else (),
            remedy=f"write {'it' if is_above else 'its fields'} into {field_path(steps)}",
        )
    if not misplaced and not value_at(data, (*steps, _LISTS[0])):
        message = f"must list containers: the API server rejects a {kind} without them"
        yield _misplaced(path=field_path((*steps, _LISTS[0])), message=message)


def _lists_of_containers(data: Any) -> Iterator[Parts]:
    """Yield the paths of lists of containers that are not inside other lists, without recursion: the author chooses the depth."""
    stack: list[tuple[Parts, Any]] = [((), data)]
    while stack:
        path, value = stack.pop()
        for key, member in value.items():
            if key in _LISTS and member:
                yield (*path, key)
            elif isinstance(member, dict) and key not in _WITHOUT_FIELDS:
                stack.append(((*path, key), member))


RULE = Rule(
    id=ID,
    reasons=(
        INEFFECTIVE_ANNOTATION,
        UNKNOWN_ANNOTATION,
        INVALID_RESOURCE_NAME,
        UNKNOWN_RESOURCE_NAME,
        MISPLACED_FIELD,
        UNTOLERATED_SPOT,
        SHORT_NOTICE,
        LOST_WITH_NODE,
    ),
    summary="resources, annotations and fields are written where something reads them",
    check=check,
    check_workload=check_workload,
    check_before_mutation=True,
    metadata_keys=(f"{OWN_DOMAIN_START}*",),
    not_exported="the API server itself rejects what this rule denies, with a less clear message; the rest is advice",
)
