"""Warns of GPUs that no pod of an object requests: in objects of unknown kinds, and in fields that nothing reads."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any

from policies.finding import (
    ContactEdit,
    Edit,
    Finding,
    one_choice,
    short_path,
    truncate,
)
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import Parts, field_path, path_parts, value_at
from policies.pods.limits import LONGEST_NAME
from policies.pods.pod import Pod, ResourceList
from policies.quota.spec import resource_quota_findings
from policies.rules.ineffective_fields import GROUPS
from webhook.configuration.dynamic_resources import DRA_GROUP
from webhook.configuration.workload_kinds import PodForm, WorkloadKind, WorkloadKinds, steps
from webhook.workloads.counts import values
from webhook.workloads.gpu_amounts import Form, gpu_amounts
from webhook.workloads.misplaced import CONTAINER_LISTS, MAX_MISPLACED
from webhook.workloads.places import PodPlace
from webhook.workloads.references import GPUS_READ_IN_PODS, unread

MAX_NAMED = 3
"""Paths of one object that a sentence names."""

_CHART_KINDS = frozenset({"Application", "ApplicationSet", "HelmRelease"})
"""Kinds of Argo CD and Flux that hold the values of a Helm chart."""
_CLOUD_GROUPS = (
    ".cnrm.cloud.google.com",
    ".services.k8s.aws",
    ".azure.com",
    ".upbound.io",
    ".aws.crossplane.io",
    ".gcp.crossplane.io",
    ".azure.crossplane.io",
    "cluster.x-k8s.io",
    ".gardener.cloud",
    "cloud.google.com",
    "eks.amazonaws.com",
    "hive.openshift.io",
    "karpenter.azure.com",
    "karpenter.k8s.aws",
    "karpenter.k8s.gcp",
    "karpenter.sh",
    "kops.k8s.io",
    "eksctl.io",
)
"""Ends of API groups whose objects are machines and services of a cloud: Config Connector, ACK, Azure Service Operator,
Crossplane, Cluster API, Gardener, GKE's ComputeClass, EKS, Hive, Karpenter, kOps. Their GPUs are those of nodes, or of no node
of this cluster.
"""

_MIN_SIMILARITY = 0.8
"""How much a kind must be like one that is known."""
_SHORTEST_WORD = 3


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
    workload_kind = kinds.get((group, kind))
    # A quota object of another system requests no GPUs.
    is_of_others = kind.endswith("Quota") or group.endswith(_CLOUD_GROUPS)
    has_no_gpus = is_of_others if workload_kind is None else workload_kind.has_no_gpus
    if has_no_gpus or group in {GROUPS.get(kind), DRA_GROUP}:
        return []
    found = list(_unread_paths(data, pods, resource_mapping, kinds, workload_kind))
    if not found:
        return []
    alike = {other.lower(): other for kind_group, other in (*kinds, ("", "Pod")) if kind_group == group}
    lowered = kind.lower()[:LONGEST_NAME]
    near = [] if workload_kind else get_close_matches(lowered, alike, n=1, cutoff=_MIN_SIMILARITY)
    # With a word more it is another kind: DynamoGraphDeploymentRequest.
    if near and not (lowered.startswith(near[0]) and len(lowered) - len(near[0]) >= _SHORTEST_WORD):
        message, meant = "no kind of this name is read, and the object contains GPU resources", alike[near[0]]
        remedy, choices = f"did you mean {meant}?", one_choice(Edit("kind", meant))
        return [unread(path="kind", value=kind, message=message, choices=choices, remedy=remedy)]
    # Not `short_path`: this is what to write into workloadKinds.
    named = ", ".join(truncate(field_path(at)) for at in found[:MAX_NAMED])
    rest = len(found) - MAX_NAMED
    message = f"GPUs in {named}{f' and {rest} more' if rest > 0 else ''} are not read"
    of_first = partial(unread, path=field_path(found[0]))
    if workload_kind is None and kind in _CHART_KINDS:
        return [of_first(message=message, remedy="render the chart, and check what it makes")]
    if workload_kind is not None and any(
        found[0] == at for path in workload_kind.unread for at, _ in values(data, steps(path))
    ):
        value = value_at(data, found[0])
        named = truncate(value) if isinstance(value, str) else short_path(field_path(found[0]))
        return [of_first(message=GPUS_READ_IN_PODS(named))]
    # A text of lines may be an object itself, whose pods are not those of this one.
    is_text = "\n" in str(value_at(data, found[0]))
    forms = (
        [pod for pod in workload_kind.pods if pod.form is not PodForm.PATCH]
        if workload_kind and not is_text
        else []
    )
    words = str(found[0][-1]).split(".")  # spark.executor.resource.gpu.amount is one of spec.executor
    nearest = max(
        forms,
        key=lambda form: (_shared_steps(steps(form.path), found[0]), steps(form.path)[-1] in words),
        default=None,
    )
    return [
        of_first(
            message=message,
            remedy=f"write them into {nearest.path}" if nearest else "",
            ask_contact="to name their paths in workloadKinds of a GPUResourceMapping",
            contact_choices=((ContactEdit("GPUResourceMapping", "spec.workloadKinds"),),),
        )
    ]


def _unread_paths(
    data: Any,
    pods: Sequence[tuple[PodPlace, Pod]],
    resource_mapping: ResourceMapping,
    kinds: WorkloadKinds,
    workload_kind: WorkloadKind | None,
) -> Iterator[Parts]:
    """Yield the paths of the GPUs in the object that no pod requests."""
    full_pods: set[Parts] = set()  # pods that the object has entirely
    read_paths: set[Parts] = set()  # amounts, claims and quotas that are read
    containers: set[Parts] = set()
    for place, _ in pods:
        if () in place.origins:
            full_pods.add(place.at)  # of other amounts in it, the rules say that they are in the wrong place
            continue
        own = [
            ("spec", kind, index)
            for kind in CONTAINER_LISTS
            for index in range(len(place.data["spec"].get(kind) or ()))
        ]
        if isinstance(value_at(data, place.at), str):
            containers.add(place.at)
        containers |= {place.parts_in_object(at) for at in own}
        located = (place.path_of_edit(field_path((*at, "resources"))) for at in own)
        read_paths |= {path_parts(path) for path in located if path}
        if claims := place.path_of_edit("spec.resourceClaims"):
            read_paths.add(path_parts(claims))
        read_paths |= {
            at for inner, at in place.origins.items() if inner[-2:-1] in {("limits",), ("requests",)}
        }
    for path in (*workload_kind.quotas, *workload_kind.repeats) if workload_kind else ():
        read_paths |= {at for at, _ in values(data, steps(path))}
    requesting = [(place.at, resource_mapping.pod_requests_gpus(pod)) for place, pod in pods]
    lengths = sorted({len(each) for each in (*read_paths, *containers)})
    yield from _without_amount(data, workload_kind.unread if workload_kind else (), requesting)
    for amount in gpu_amounts(data, resource_mapping, kinds, full_pods):
        # What a container runs may be a text that says anything.
        known = containers if amount.in_text else read_paths
        at, is_name = amount.at, workload_kind is not None and amount.form is Form.NAME
        if is_name or any(at[:length] in known for length in lengths):
            continue
        if amount.form is Form.RESOURCE or not _may_repeat_request(at, requesting):
            yield at


def _without_amount(
    data: Any, paths: Iterable[str], requesting: Sequence[tuple[Parts, bool]]
) -> Iterator[Parts]:
    """Yield the paths of fields that ask for GPUs, unless a pod beside them requests these."""
    for at, value in chain.from_iterable(values(data, steps(path)) for path in paths):
        beside = [path for path in requesting if path[0] == at or path[0] != at[: len(path[0])]]
        if _may_have_gpus(value) and not _may_repeat_request(at, beside):
            yield at


def _may_have_gpus(value: Any) -> bool:
    """Whether a profile, a type of machine, a claim or a part is there, and not one of CPUs (KubeAI's `cpu:1`)."""
    return value not in ("", None) and not str(value)[:LONGEST_NAME].lower().startswith("cpu")


def _may_repeat_request(at: Parts, requesting: Iterable[tuple[Parts, bool]]) -> bool:
    """Whether one of the nearest pods requests GPUs, so that the amount at the path may be theirs: Ray's num-gpus.

    requesting: the paths of the pods, and whether they request GPUs.
    """
    shared = [(_shared_steps(place, at), requests) for place, requests in requesting]
    most = max((count for count, _ in shared), default=0)
    return any(count == most and requests for count, requests in shared)


def _shared_steps(path: Parts, other: Parts) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))


def quota_findings(
    workload_kind: WorkloadKind, data: Any, resource_mapping: ResourceMapping
) -> Iterator[Finding]:
    """Yield what is wrong with the ResourceQuotas that a controller makes of the object."""
    for at, hard in chain.from_iterable(values(data, steps(path)) for path in workload_kind.quotas):
        members = hard.items() if isinstance(hard, dict) else ()
        amounts: ResourceList = {key: each for key, each in members if isinstance(each, str | int | float)}
        hard_at = field_path(at)
        for finding in islice(resource_quota_findings(amounts, resource_mapping), MAX_MISPLACED):
            yield finding.located(partial(_in_object, hard_at))


def _in_object(hard_at: str, path: str) -> str:
    return hard_at + path.removeprefix("spec.hard")
