"""What one run of `check` knows from its other manifests and from a cluster: labels, devices of DRA, LimitRanges, and schemas."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from typing import TypeVar

import msgspec

from policies.gpus.claimed_devices import ClaimName, RequestedDevices, claim_record
from policies.gpus.device_classes import ClusterDevices, decode_device_class
from policies.gpus.device_pools import DevicePools
from policies.gpus.refused_limit_ranges import refused_amounts
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.field_paths import path_parts, value_at
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import LimitRange, NamespaceLimits, decode_limit_range, namespace_limits
from policies.policy import Labels
from webhook.cluster.objects import decode_config_map
from webhook.configuration.documents import GROUP, RESOURCE_MAPPING, LocatedProblem
from webhook.configuration.dynamic_resources import CLAIM_PLURALS, DRA_GROUP
from webhook.configuration.loader import Configuration
from webhook.configuration.schema_paths import CUSTOM_RESOURCE, Schemas, kind_problems, schemas_of
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.evaluation.kinds import DISRUPTION_BUDGET, LIMIT_RANGE
from webhook.tools.check.checked_cluster import CheckedCluster
from webhook.tools.check.manifests import Manifest, whole_definition
from webhook.tools.check.placeholders import is_placeholder
from webhook.tools.check.run_quotas import read_manifest

NAME_LABEL = "kubernetes.io/metadata.name"
"""The API server gives it to every namespace."""

DEVICE_CLASS, RESOURCE_SLICE = (DRA_GROUP, "DeviceClass"), (DRA_GROUP, "ResourceSlice")

T = TypeVar("T")


def manifest_context(
    manifests: Sequence[Manifest],
) -> tuple[dict[str, Labels], dict[ClaimName, RequestedDevices | None]]:
    """Return the labels of namespaces, and the devices of claims and their templates, without objects that cannot be read."""
    labels = {each.name: _labels(each) for each in manifests if each.group_kind == ("", "Namespace")}
    claims = {
        ClaimName(kind, claim.namespace, claim.name): record.devices
        for kind in CLAIM_PLURALS
        for claim, record in _decoded(manifests, (DRA_GROUP, kind), partial(claim_record, kind))
    }
    return labels, claims


def _decoded(
    manifests: Iterable[Manifest], kind: tuple[str, str], decode: Callable[[bytes], T]
) -> Iterator[tuple[Manifest, T]]:
    """Yield the objects of a kind (API group, kind) that can be read."""
    for manifest in manifests:
        if manifest.group_kind == kind:
            with suppress(msgspec.ValidationError):
                yield manifest, decode(msgspec.json.encode(manifest.data))


def budgets_of(
    manifests: Iterable[Manifest], cluster: CheckedCluster | None
) -> Callable[[str], tuple[LabelSelector, ...] | None]:
    """Return a function: namespace → selectors of its PodDisruptionBudgets, among the manifests and in the cluster."""
    written: dict[str, list[LabelSelector]] = {}
    for manifest in manifests:
        if manifest.group_kind == DISRUPTION_BUDGET:
            with suppress(msgspec.ValidationError):
                selector = msgspec.convert(value_at(manifest.data, ("spec", "selector")), LabelSelector)
                written.setdefault(manifest.namespace, []).append(selector)

    def budgets(namespace: str) -> tuple[LabelSelector, ...] | None:
        stored = cluster.budgets(namespace) if cluster else ()
        return None if stored is None else (*written.get(namespace, ()), *stored)

    return budgets


def config_maps(manifests: Iterable[Manifest]) -> Callable[[str], dict[str, dict[str, str]]]:
    """Return a function: namespace → data of the ConfigMaps among the manifests, by name, without those with placeholders."""
    known: dict[str, dict[str, dict[str, str]]] = {}
    for manifest, config_map in _decoded(manifests, ("", "ConfigMap"), decode_config_map):
        data = config_map.data or {}
        if not any(map(is_placeholder, data.values())):
            known.setdefault(manifest.namespace, {})[manifest.name] = data
    return lambda namespace: known.get(namespace, {})


def applied_labels(stored: Labels, written: Labels) -> Labels:
    """Return the labels of a namespace once the manifests are applied."""
    return tuple(sorted({**dict(stored), **dict(written)}.items()))


def default_labels(namespace: str) -> Labels:
    """Return the labels of a namespace that neither manifests nor a cluster describe."""
    return ((NAME_LABEL, namespace),)


def devices_in(manifests: Sequence[Manifest], mapping: ResourceMapping) -> ClusterDevices:
    """Return the DeviceClasses among the manifests, by which devices are GPUs, and the kinds of devices in the ResourceSlices."""
    classes = tuple(read for _, read in _decoded(manifests, DEVICE_CLASS, decode_device_class))
    pools = DevicePools()
    for manifest, slice_ in _decoded(manifests, RESOURCE_SLICE, pools.reader.read):
        pools.put(manifest.name, None, slice_)
    pools.count(mapping)
    return ClusterDevices(classes, pools.inventory.device_kinds, pools.inventory.taints)


def limits_in(
    manifests: Iterable[Manifest], mapping: ResourceMapping, cluster: CheckedCluster | None
) -> Callable[[str], NamespaceLimits | None]:
    """Return a function: namespace → limits of its LimitRanges, of manifests and cluster; None if they may not be read."""
    written: dict[str, list[LimitRange]] = {}
    for manifest, limit_range in _decoded(manifests, LIMIT_RANGE, decode_limit_range):
        if not any(refused_amounts(limit_range, mapping)):
            written.setdefault(manifest.namespace, []).append(limit_range)

    @cache
    def limits_of(namespace: str) -> NamespaceLimits | None:
        stored = cluster.limit_ranges(namespace) if cluster else ()
        if stored is None:
            return None
        both = (*stored, *written.get(namespace, ()))
        return namespace_limits({each.name: each for each in both}.values())

    return limits_of


def _labels(manifest: Manifest) -> Labels:
    labels = (manifest.data.get("metadata") or {}).get("labels")
    written = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    return tuple(sorted({**written, NAME_LABEL: manifest.name}.items()))


def wrong_paths(
    manifests: Sequence[Manifest], configuration: Configuration, cluster: CheckedCluster | None
) -> Iterator[LocatedProblem]:
    """Yield the paths that no CustomResourceDefinition has: those of the manifests, or of the cluster for other kinds.

    Checked are the workload kinds of the configuration, and those of GPUResourceMappings among the manifests.
    """
    crds = (manifest for manifest in manifests if (manifest.api_version, manifest.kind) == CUSTOM_RESOURCE)
    definitions = {manifest.name: manifest for manifest in crds}

    def schemas(workload_kind: WorkloadKind) -> Schemas:
        if definition := definitions.get(workload_kind.definition):
            return schemas_of(whole_definition(definition))
        return cluster.schemas([workload_kind]) if cluster else {}

    def problems(kinds: Sequence[WorkloadKind]) -> Iterator[tuple[str, str]]:
        return kind_problems(
            kinds, dict(chain.from_iterable(schemas(workload_kind).items() for workload_kind in kinds))
        )

    for name, kinds in configuration.own_workload_kinds.items():
        for path, message in problems(kinds):
            yield LocatedProblem(configuration.places[RESOURCE_MAPPING, name], 0, "", path, message)
    for manifest in manifests:
        if manifest.group_kind == (GROUP, RESOURCE_MAPPING):
            for path, message in problems(read_manifest(manifest).workload_kinds.get(manifest.name, ())):
                line, column = manifest.position_of(path_parts(path))
                yield LocatedProblem(manifest.file, line, "", path, message, column)
