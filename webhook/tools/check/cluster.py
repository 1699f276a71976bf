"""What `check` reads of a cluster: by what its webhook would evaluate the manifests, as far as the caller may read it.

Usage of quotas is that of their status, since tenants read no ledger. Each fact is read once, when an object first needs it;
nothing is assumed in place of what may not be read.
"""

from collections.abc import Iterator, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.gpus.device_classes import DeviceClass, decode_device_class
from policies.placement.named_nodes import NodeIndex
from policies.placement.nodes import NodeFacts
from policies.policy import Labels
from policies.quota.quota_request import QuotaGrant
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.dynamic_resources import DRA_GROUP, read_claims, served_resource
from webhook.configuration.loader import Configuration
from webhook.serving.lookups import NamespaceUnknown
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import quota_status, stated_grant
from webhook.tools.status.report import QuotaState
from webhook.tools.why.discovery import ServedKinds


class CheckedCluster:
    """A cluster, while `check` runs. Raises `errors.ApiError` for everything but a lack of rights."""

    def __init__(self, api: ApiClient, config: Path | None) -> None:
        """`config`: documents in place of the cluster's."""
        self._api, self._config = api, config
        self._reader = Permitted(api)
        self._notes: list[str] = []
        self.unread_documents: Sequence[str] = ()
        """The missing rights, once the configuration was read."""
        self.configuration = cache(self._configuration)
        self.labels_of = cache(self._labels_of)
        self.quota = cache(self._quota)
        self.stored = cache(self._stored)
        self._claims = cache(self._read_claims)

    def notes(self) -> Iterator[str]:
        """Yield sentences about what the results lack."""
        if self._reader.omitted:
            yield f"you may not {', '.join(self._reader.omitted)}: what depends on it is not evaluated"
        if not self._reader.is_installed:
            yield "gpu-admission is not installed in this cluster: evaluated by the built-in defaults"
        yield from self._notes

    def _configuration(self, *, device_classes: tuple[DeviceClass, ...] = ()) -> Configuration:
        """Return the documents in force, with DeviceClasses that the manifests add. Raises ConfigurationError."""
        before = len(self._reader.omitted)
        found = self._reader.configuration(self._config, device_classes)
        self.unread_documents = self._reader.omitted[before:]
        return found

    @cached_property
    def nodes(self) -> tuple[NodeFacts | None, NodeIndex]:
        return self._reader.nodes(self.configuration())

    def _labels_of(self, namespace: str) -> Labels:
        """Return the labels of a namespace, none if it does not exist yet. Raises NamespaceUnknown without the right."""
        right = f"get namespaces/{namespace}"
        try:
            found = self._reader.attempt(right, partial(self._reader.labels_of, namespace))
        except errors.NotFound:
            self._notes.append(
                f"namespace {namespace} does not exist yet: its labels are those of the manifests"
            )
            return ()
        if found is None:
            raise NamespaceUnknown(
                f"the policy of namespace {namespace} depends on its labels: you may not {right}"
            )
        return found

    def claim(self, name: ClaimName) -> DeviceClassNames | None:
        return self._claims(name.namespace).get(name)

    def _read_claims(self, namespace: str) -> dict[ClaimName, DeviceClassNames | None]:
        resource = served_resource(self._api, "deviceclasses")
        if resource is not None:
            read = partial(self._api.list, resource.path(), decode_device_class)
            self._reader.attempt(f"list deviceclasses.{DRA_GROUP}", read)
        return read_claims(self._api, namespace, self._reader.omitted)

    def _quota(self, namespace: str) -> QuotaGrant | None:
        """Return what the GPUQuota grants, and what its status says is held."""
        record = self._reader.quota(namespace)
        granted = stated_grant(record) if record else None
        if record is None or granted is None:
            return None
        if quota_status(record, None).state is QuotaState.NOT_COUNTED:
            why = f"gpu-admission quota -n {namespace} says why it is not"
            self._notes.append(
                f"GPU pods of namespace {namespace} are denied until its GPUQuota is counted: {why}"
            )
        return granted

    @cached_property
    def _kinds(self) -> ServedKinds:
        return ServedKinds(self._api)

    def _stored(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object as the cluster has it; None where there is none, or it may not be read."""
        served = self._kinds.of_reference(f"{group}/v1" if group else "v1", kind)
        if served is None or not name:
            return None
        right = f"get {f'{served.plural}.{group}'.rstrip('.')} -n {namespace}"
        path = served.resource.path(namespace, name)
        try:
            found = self._reader.attempt(right, partial(self._api.get, path))
        except errors.NotFound:
            return None
        return None if found is None else msgspec.json.decode(found, type=dict[str, Any])
