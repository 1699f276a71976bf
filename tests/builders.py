"""One minimal valid object of each kind, tweaked by keyword: JSON values until `view` makes a Pod of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import jsonpatch
import msgspec

from policies.gpus.classes import GPUClass, GPUClasses, HostShare, MigProfile, NodeLabel
from policies.gpus.mapping_spec import AnnotationKey, Measure, ResourceMappingSpec, ResourcePattern
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod, Toleration, decode_pod
from policies.pods.workload import Workload, WorkloadPods
from policies.quota.amounts import Amounts, total
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, StoredObject
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.rule import Context, Phase
from webhook.configuration.loader import load_objects
from webhook.workloads.places import serve_config, workload_pods

JSON = dict[str, Any]


def uid(label: str) -> str:
    """Return a uid as the API server gives them, the same for the same label."""
    return str(uuid5(NAMESPACE_OID, label))


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
T4_TAINT = Toleration(key="accelerator", operator="Equal", value="t4", effect="NoSchedule")


def gpu_class(name: str, family: str, memory_gib: int, **tweaks: Any) -> GPUClass:
    """Return a class whose nodes carry its name as the label `accelerator`, with 12 CPUs and 120Gi for each card."""
    fields = {
        "node_labels": (NodeLabel(key="accelerator", values=(name,)),),
        "per_gpu": HostShare(cpu="12", memory="120Gi"),
    }
    return GPUClass(name=name, family=family, memory_gib=memory_gib, **{**fields, **tweaks})


CLASSES = GPUClasses(
    (
        gpu_class("nvidia-t4", "nvidia-t4", 16, tolerations=(T4_TAINT,)),
        gpu_class(
            "nvidia-a100-40gb",
            "nvidia-a100",
            40,
            mig_profiles={
                "1g.5gb": MigProfile(sevenths=1, memory_gib=5, per_gpu=7),
                "1g.5gb+me": MigProfile(sevenths=1, memory_gib=5, per_gpu=1),
                "3g.20gb": MigProfile(sevenths=3, memory_gib=20, per_gpu=2),
            },
        ),
        gpu_class(
            "nvidia-a100-80gb",
            "nvidia-a100",
            80,
            mig_profiles={
                "1g.10gb": MigProfile(sevenths=1, memory_gib=10, per_gpu=7),
                "1g.20gb": MigProfile(sevenths=1, memory_gib=20, per_gpu=4),
                "3g.40gb": MigProfile(sevenths=3, memory_gib=40, per_gpu=2),
                "7g.80gb": MigProfile(sevenths=7, memory_gib=80, per_gpu=1),
            },
        ),
        gpu_class("amd-mi300x", "amd-mi300x", 192, resource="amd.com/gpu"),
    )
)

RESOURCE_MAPPING = ResourceMapping(
    (
        ResourceMappingSpec(
            resources=(
                ResourcePattern(pattern="nvidia.com/gpu", measure=Measure.DEVICES),
                ResourcePattern(pattern="nvidia.com/gpu.shared", measure=Measure.SHARES),
                ResourcePattern(pattern="nvidia.com/mig-*.shared", measure=Measure.SHARES),
                ResourcePattern(pattern="nvidia.com/mig-*", measure=Measure.SLICES),
                ResourcePattern(pattern="nvidia.com/gpumem", measure=Measure.MEMORY_MIB),
                ResourcePattern(
                    pattern="nvidia.com/gpucores", measure=Measure.CORE_PERCENT, resource="nvidia.com/gpu"
                ),
                ResourcePattern(pattern="amd.com/gpu", measure=Measure.DEVICES),
                ResourcePattern(pattern="aws.amazon.com/neuroncore", measure=Measure.CORES),
                ResourcePattern(pattern="volcano.sh/vgpu-number", measure=Measure.SHARES),
            ),
            fraction_annotations=(
                AnnotationKey(key="gpu-fraction", measure=Measure.FRACTION),
                AnnotationKey(key="gpu-memory", measure=Measure.MEMORY_MIB),
            ),
            fraction_schedulers=("kai-scheduler",),
        ),
    )
)

NOW = datetime(2026, 11, 21, 10, 42, tzinfo=UTC)


def context(phase: Phase = Phase.VALIDATE, **tweaks: Any) -> Context:
    """Return what a rule may look at besides the pod: four classes, a small resource mapping, no LimitRange."""
    fields = {"namespace": "ml-training", "now": NOW, "resource_mapping": RESOURCE_MAPPING}
    fields["limit_ranges"] = NamespaceLimits()
    return Context(phase=phase, **{**fields, "classes": CLASSES, **tweaks})


def container(name: str = "main", **tweaks: Any) -> JSON:
    return {"name": name, "image": "registry.example/image:1", **tweaks}


def gpu_container(
    quantity: Any = "1", name: str = "main", resource: str = "nvidia.com/gpu", **tweaks: Any
) -> JSON:
    """Return a container that asks for a GPU the way people write it: a limit and nothing else."""
    return container(name, **{"resources": {"limits": {resource: quantity}}, **tweaks})


def pod(*containers: JSON, annotations: dict[str, str] | None = None, **spec: Any) -> JSON:
    """Return a Pod of the containers (without any: one that asks for no GPU) and the other fields of a spec."""
    metadata: JSON = {"name": "trainer", "namespace": "ml-training"}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers or (container(),)), **spec},
    }


def node_affinity(*terms: JSON | Sequence[tuple[str, ...]]) -> JSON:
    """Return the affinity to nodes that match one of the terms; a list has the requirements of one: key, operator, values."""
    alternatives = [
        each if isinstance(each, dict) else {"matchExpressions": list(map(_requirement, each))}
        for each in terms
    ]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": alternatives}}}


def _requirement(parts: tuple[str, ...]) -> JSON:
    key, operator, *values = parts
    return {"key": key, "operator": operator, **({"values": values} if values else {})}


def manifest(api_version: str, kind: str, name: str, spec: JSON, **metadata: Any) -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def deployment(name: str, *containers: JSON, replicas: int = 1, namespace: str = "", **metadata: Any) -> JSON:
    """Return a Deployment; `metadata` is that of its pods."""
    template = {"metadata": {"labels": {"app": name}, **metadata}, "spec": {"containers": list(containers)}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return manifest("apps/v1", "Deployment", name, spec, **({"namespace": namespace} if namespace else {}))


def view(document: JSON) -> Pod:
    """Return the document as the rules see it, decoded from its JSON bytes as in a review."""
    return decode_pod(msgspec.json.encode(document))


def operations(draft: PodPatch) -> list[JSON]:
    """Return the draft's patch as it goes over the wire."""
    return [
        msgspec.json.decode(msgspec.json.encode(operation))
        for change in draft.changes
        for operation in change.operations
    ]


def apply(document: JSON, draft: PodPatch) -> JSON:
    """Return the document with the draft's patch applied, by a JSON patch library that is not ours."""
    patched: JSON = jsonpatch.apply_patch(document, operations(draft))
    return patched


def workload(document: JSON) -> Workload:
    """Return the object as `check_workload` sees it, its pods as they are written."""
    group, kind = document["apiVersion"].rpartition("/")[0], document["kind"]
    data, pods = workload_pods(load_objects([]).workload_kinds, group, kind, msgspec.json.encode(document))
    found = tuple(
        WorkloadPods(place.path, pod, place.count, pod, owner=place.owner, located=place.path_in_object)
        for place, pod in pods
    )
    config = serve_config(group, kind, data)
    return Workload(group, kind, "ml-training", data, found, serve_config=config)


def used_by(objects: Mapping[str, StoredObject]) -> Amounts:
    return total(stored.demand for stored in objects.values() if not stored.terminal)


def listing(
    objects: Mapping[str, StoredObject], revisions: Revisions | None = None, **fields: Any
) -> Listing:
    """Return what lists showed that had these objects and no others."""
    return Listing(used=used_by(objects), objects=objects, revisions=revisions or Revisions(), **fields)


def quota_ledger(*reservations: Reservation, **fields: Any) -> QuotaLedger:
    """Return the ledger of a quota that grants nothing and was never counted, with these reservations and fields."""
    spec = {"quota_uid": "q", "generation": 1, "hard": {}, "unclassified_pods": UnclassifiedPods.TOTAL_ONLY}
    return QuotaLedger(**{**spec, "reservations": Reservations.of(*reservations), **fields})
