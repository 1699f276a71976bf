"""What one run of `check` knows: from a cluster, by whose facts it evaluates manifests, and from its other manifests."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from policies.gpus.claimed_devices import ClaimName, RequestedDevices, claim_request
from policies.gpus.device_classes import NO_DEVICES, ClusterDevices, decode_device_class
from policies.gpus.device_pools import DevicePools
from policies.gpus.invalid_limit_ranges import invalid_amounts
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeFacts, NodeIndex
from policies.pods.field_paths import path_parts, value_at
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import LimitRange, NamespaceLimits, decode_limit_range, namespace_limits
from policies.policy import Labels
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.namespaces import NamespaceUnknown, read_pdb_selectors
from webhook.cluster.objects import decode_config_map
from webhook.configuration.cluster_source import read_schemas
from webhook.configuration.documents import GROUP, RESOURCE_MAPPING, LocatedProblem
from webhook.configuration.dynamic_resources import CLAIM_PLURALS, DRA_GROUP, read_claims, served_resource
from webhook.configuration.loader import Configuration
from webhook.configuration.schema_paths import CRD_TYPE, Schemas, kind_problems, schemas_of
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.evaluation.kinds import LIMIT_RANGE, PDB
from webhook.tools.check.manifests import Manifest, decode_own_object, full_crd
from webhook.tools.check.placeholders import is_placeholder
from webhook.tools.status.kueue import QueueState, read_kueue_objects, read_queues
from webhook.tools.status.quotas import limits_state, quota_ledger_from_status
from webhook.tools.status.teams import read_teams
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.why.discovery import ServedKinds
from webhook.workloads.references import ObjectReference


class CheckedCluster:
    """The facts by which the webhook of a cluster would evaluate manifests. What the caller may not read is not known.

    The use of a quota comes from its status, since tenants read no ledger. Each fact is read when an object first needs it.
    Raises `errors.ApiError` for everything but a lack of rights.
    """

    def __init__(self, api: ApiClient, config: Path | None) -> None:
        """`config`: documents in place of the cluster's."""
        self._api, self._config = api, config
        self._reader = TolerantReader(api)
        self._notes: list[str] = []
        self.limit_ranges = self._reader.limit_ranges
        self.schemas = partial(read_schemas, api)
        self.unread_documents: Sequence[str] = ()
        """The missing rights, once the configuration was read."""
        self._configurations: list[tuple[ClusterDevices, Configuration]] = []
        self.labels_of = cache(self._labels_of)
        self.quota = cache(self._quota)
        self.teams = cache(lambda: read_teams(self._reader) or ())
        self.note_uncounted = cache(self._note_uncounted)
        self.pdb_selectors = cache(self._pdb_selectors)
        self.stored = cache(self._stored)
        self.queues = cache(self._queues)
        self.kueue_objects = cache(partial(read_kueue_objects, api))
        self.note = self._notes.append
        self.find_object = cache(self._referred)
        self._claims = cache(self._read_claims)

    @property
    def missing_rights(self) -> Sequence[str]:
        return self._reader.omitted

    def notes(self) -> Iterator[str]:
        """Yield sentences about what the results lack, for other reasons than missing rights."""
        if not self._reader.is_installed:
            yield "gpu-admission is not installed in this cluster: evaluated by the built-in defaults"
        if self._reader.nodes_from:
            yield self._reader.nodes_from
        yield from self._notes

    def configuration(self, *, devices: ClusterDevices = NO_DEVICES) -> Configuration:
        """Return the documents in force, with the devices that the manifests add. Raises ConfigurationError."""
        loaded = next(
            (read for key, read in self._configurations if key == devices), None
        )  # devices have no hash
        if loaded is not None:
            return loaded
        before = len(self._reader.omitted)
        configuration = self._reader.configuration(self._config, devices)
        self.unread_documents = self._reader.omitted[before:]
        self._configurations.append((devices, configuration))
        return configuration

    @cached_property
    def nodes(self) -> tuple[NodeFacts | None, NodeIndex]:
        return self._reader.nodes(self.configuration(), datetime.now(UTC))

    def _labels_of(self, namespace: str) -> Labels:
        """Return the labels of a namespace, none if it does not exist yet. Raises NamespaceUnknown without the right."""
        try:
            labels = self._reader.namespace_labels(namespace)
        except errors.NotFound:
            note = f"namespace {namespace} does not exist yet: its labels are those of the manifests"
            self._notes.append(note)
            return ()
        if labels is None:
            why = f"depends on its labels: you may not get namespaces/{namespace}"
            raise NamespaceUnknown(f"the policy of namespace {namespace} {why}")
        return labels

    def claim(self, name: ClaimName) -> RequestedDevices | None:
        return self._claims(name.namespace).get(name)

    def _read_claims(self, namespace: str) -> dict[ClaimName, RequestedDevices | None]:
        resource = served_resource(self._api, "deviceclasses")
        if resource is not None:
            read = partial(self._api.list, resource.path(), decode_device_class)
            self._reader.attempt(f"list deviceclasses.{DRA_GROUP}", read)
        return read_claims(self._api, namespace, self._reader.omitted)

    def _quota(self, namespace: str) -> QuotaLedger | None:
        """Return what the GPUQuota grants, and what its status says is held."""
        record = self._reader.quota(namespace)
        ledger = quota_ledger_from_status(record, datetime.now(UTC)) if record else None
        if record is None or ledger is None:
            return None
        if limits_state(record)[0].denies:
            note = f"GPU pods of namespace {namespace} are denied until its GPUQuota is counted"
            self._notes.append(f"{note}: gpu-admission quota -n {namespace} says why it is not")
        return ledger

    @cached_property
    def has_controller(self) -> bool:
        # Only with a cluster: they load what checks certificates.
        from webhook.cluster.objects import InstallationNames  # noqa: PLC0415
        from webhook.tools.status.freshness import figures_until  # noqa: PLC0415

        # Few tenants may read the Lease, and the notes are about what is not evaluated.
        return figures_until(TolerantReader(self._api), InstallationNames(), datetime.now(UTC)) is None

    def _note_uncounted(self, namespace: str, team: str) -> None:
        note = f"GPU pods of namespace {namespace} are denied until {team_title(team)} is counted"
        self._notes.append(f"{note}: kubectl get cgpuq {team} says whether it is")

    def _queues(self, namespace: str) -> tuple[QueueState, ...] | None:
        """Return the LocalQueues of Kueue; None where it is not installed, or they may not be read."""
        before = len(self._reader.omitted)
        states = read_queues(self._reader, namespace, self.configuration().resource_mapping)
        return states if len(self._reader.omitted) == before else None

    def _pdb_selectors(self, namespace: str) -> tuple[LabelSelector, ...] | None:
        right = f"list poddisruptionbudgets.policy -n {namespace}"
        return self._reader.attempt(right, partial(read_pdb_selectors, self._api, namespace))

    @cached_property
    def _kinds(self) -> ServedKinds:
        return ServedKinds(self._api)

    def _stored(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object as the cluster has it; None where there is none, or it may not be read."""
        served = self._kinds.of_reference(f"{group}/v1" if group else "v1", kind)
        if served is None or not name:
            return None
        version = served.version
        return self._referred(ObjectReference(group, version, kind, served.plural, namespace, name))

    def _referred(self, name: ObjectReference) -> dict[str, Any] | None:
        """Return the object as the cluster has it; None where there is none, or it may not be read."""
        where = f" -n {name.namespace}" if name.namespace else ""
        right = f"get {f'{name.plural}.{name.group}'.rstrip('.')}{where}"
        try:
            stored = self._reader.get(right, name.path)
        except errors.NotFound:  # no object has such a name
            return None
        return None if stored is None else msgspec.json.decode(stored, type=dict[str, Any])


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
        for claim, record in _decoded(manifests, (DRA_GROUP, kind), partial(claim_request, kind))
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


def pdb_selectors_of(
    manifests: Iterable[Manifest], cluster: CheckedCluster | None
) -> Callable[[str], tuple[LabelSelector, ...] | None]:
    """Return a function: namespace → selectors of its PodDisruptionBudgets, among the manifests and in the cluster."""
    written: dict[str, list[LabelSelector]] = {}
    for manifest in manifests:
        if manifest.group_kind == PDB:
            with suppress(msgspec.ValidationError):
                selector = msgspec.convert(value_at(manifest.data, ("spec", "selector")), LabelSelector)
                written.setdefault(manifest.namespace, []).append(selector)

    def selectors_of(namespace: str) -> tuple[LabelSelector, ...] | None:
        stored = cluster.pdb_selectors(namespace) if cluster else ()
        return None if stored is None else (*written.get(namespace, ()), *stored)

    return selectors_of


def config_maps(manifests: Iterable[Manifest]) -> Callable[[str], dict[str, dict[str, str]]]:
    """Return a function: namespace → data of the ConfigMaps among the manifests, by name, without those with placeholders."""
    by_namespace: dict[str, dict[str, dict[str, str]]] = {}
    for manifest, config_map in _decoded(manifests, ("", "ConfigMap"), decode_config_map):
        data = config_map.data or {}
        if not any(map(is_placeholder, data.values())):
            by_namespace.setdefault(manifest.namespace, {})[manifest.name] = data
    return lambda namespace: by_namespace.get(namespace, {})


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
    pools.refresh(mapping)
    return ClusterDevices(classes, pools.inventory.device_types, pools.inventory.taints)


def limits_in(
    manifests: Iterable[Manifest], mapping: ResourceMapping, cluster: CheckedCluster | None
) -> Callable[[str], NamespaceLimits | None]:
    """Return a function: namespace → limits of its LimitRanges, of manifests and cluster; None if they may not be read."""
    written: dict[str, list[LimitRange]] = {}
    for manifest, limit_range in _decoded(manifests, LIMIT_RANGE, decode_limit_range):
        if not any(invalid_amounts(limit_range, mapping)):
            written.setdefault(manifest.namespace, []).append(limit_range)

    @cache
    def limits_of(namespace: str) -> NamespaceLimits | None:
        stored = cluster.limit_ranges(namespace) if cluster else ()
        if stored is None:
            return None
        both = (*stored, *written.get(namespace, ()))
        return namespace_limits({limits.name: limits for limits in both}.values())

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
    crds = (manifest for manifest in manifests if (manifest.api_version, manifest.kind) == CRD_TYPE)
    definitions = {manifest.name: manifest for manifest in crds}

    def schemas(workload_kind: WorkloadKind) -> Schemas:
        if definition := definitions.get(workload_kind.crd_name):
            return schemas_of(full_crd(definition))
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
            for path, message in problems(decode_own_object(manifest).workload_kinds.get(manifest.name, ())):
                line, column = manifest.position_of(path_parts(path))
                yield LocatedProblem(manifest.file, line, "", path, message, column)
