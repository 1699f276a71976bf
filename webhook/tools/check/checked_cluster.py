"""The cluster by whose facts `check` evaluates manifests."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from policies.gpus.claimed_devices import ClaimName, RequestedDevices
from policies.gpus.device_classes import NO_DEVICES, ClusterDevices, decode_device_class
from policies.placement.nodes import NodeFacts, NodeIndex
from policies.pods.label_selector import LabelSelector
from policies.policy import Labels
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.namespaces import NamespaceUnknown, read_budgets
from webhook.configuration.cluster_source import read_schemas
from webhook.configuration.dynamic_resources import DRA_GROUP, read_claims, served_resource
from webhook.configuration.loader import Configuration
from webhook.tools.status.kueue import QueueState, read_kueue_objects, read_queues
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import limits_state, quota_ledger_from_status
from webhook.tools.status.teams import read_teams
from webhook.tools.why.discovery import ServedKinds
from webhook.workloads.references import ObjectName


class CheckedCluster:
    """The facts by which the webhook of a cluster would evaluate manifests. What the caller may not read is not known.

    The use of a quota comes from its status, since tenants read no ledger. Each fact is read when an object first needs it.
    Raises `errors.ApiError` for everything but a lack of rights.
    """

    def __init__(self, api: ApiClient, config: Path | None) -> None:
        """`config`: documents in place of the cluster's."""
        self._api, self._config = api, config
        self._reader = Permitted(api)
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
        self.budgets = cache(self._budgets)
        self.stored = cache(self._stored)
        self.queues = cache(self._queues)
        self.kueue_objects = cache(partial(read_kueue_objects, api))
        self.note = self._notes.append
        self.referred = cache(self._referred)
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
        known = next(
            (read for of, read in self._configurations if of == devices), None
        )  # devices have no hash
        if known is not None:
            return known
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
        return figures_until(Permitted(self._api), InstallationNames(), datetime.now(UTC)) is None

    def _note_uncounted(self, namespace: str, team: str) -> None:
        note = f"GPU pods of namespace {namespace} are denied until {team_title(team)} is counted"
        self._notes.append(f"{note}: kubectl get cgpuq {team} says whether it is")

    def _queues(self, namespace: str) -> tuple[QueueState, ...] | None:
        """Return the LocalQueues of Kueue; None where it is not installed, or they may not be read."""
        before = len(self._reader.omitted)
        states = read_queues(self._reader, namespace, self.configuration().resource_mapping)
        return states if len(self._reader.omitted) == before else None

    def _budgets(self, namespace: str) -> tuple[LabelSelector, ...] | None:
        right = f"list poddisruptionbudgets.policy -n {namespace}"
        return self._reader.attempt(right, partial(read_budgets, self._api, namespace))

    @cached_property
    def _kinds(self) -> ServedKinds:
        return ServedKinds(self._api)

    def _stored(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object as the cluster has it; None where there is none, or it may not be read."""
        served = self._kinds.of_reference(f"{group}/v1" if group else "v1", kind)
        if served is None or not name:
            return None
        version = served.version
        return self._referred(ObjectName(group, version, kind, served.plural, namespace, name))

    def _referred(self, name: ObjectName) -> dict[str, Any] | None:
        """Return the object as the cluster has it; None where there is none, or it may not be read."""
        where = f" -n {name.namespace}" if name.namespace else ""
        right = f"get {f'{name.plural}.{name.group}'.rstrip('.')}{where}"
        try:
            stored = self._reader.get(right, name.path)
        except errors.NotFound:  # no object has such a name
            return None
        return None if stored is None else msgspec.json.decode(stored, type=dict[str, Any])
