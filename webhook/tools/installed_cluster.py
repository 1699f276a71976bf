"""One installation, as `doctor` and other tools read it: each object once, and of large objects only the needed part."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from policies.gpus.claimed_devices import (
    ClaimName,
    RequestedDevices,
    devices_by_claim,
    without_other_claims,
)
from policies.pods.limit_ranges import NamespaceLimits, decode_limit_range, limits_by_namespace
from policies.pods.pod import Pod, decode_pod
from policies.policy import EffectivePolicy
from policies.quota.team_spec import Teams
from policies.registry import QUOTA_RULE
from policies.rule import Mode
from webhook.cluster import errors, objects
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.nodes import StoredNode, decode_node
from webhook.cluster.objects import InstallationNames, ObjectMeta, decode_metadata
from webhook.configuration.cluster_source import read_documents_in_force
from webhook.configuration.documents import LocatedProblem
from webhook.configuration.dynamic_resources import read_claims, read_cluster_devices
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory
from webhook.quota.documents import QUOTAS, QuotaRecord, decode_quota
from webhook.quota.team_documents import TeamRecord, decode_team, team_path

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

T = TypeVar("T")


class NoResult(Exception):  # noqa: N818 - a result of a check
    """A check has no result. The message says why."""


class Permission(msgspec.Struct, frozen=True):
    """A verb on a resource, such as `list` `nodes`, optionally in one namespace, and for one object."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """Return the permission as arguments of `kubectl auth can-i`."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" -n {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{f'/{self.name}' if self.name else ''}{where}"

    def attributes(self) -> dict[str, str]:
        resource, _, subresource = self.resource.partition("/")
        attributes = {**msgspec.structs.asdict(self), "resource": resource, "subresource": subresource}
        return {key: value for key, value in attributes.items() if value}


class Documents(msgspec.Struct, frozen=True):
    """The source of the documents, the configuration in force, and the problems of the newest documents.

    `configuration` is None if a directory has a problem: the configuration that the webhook still uses is then unknown.
    """

    source: str
    configuration: Configuration | None
    problems: Sequence[LocatedProblem] = ()


class InstalledCluster:
    """One installation at one moment. All methods that read may raise `errors.ApiError` or `NoResult`."""

    def __init__(
        self, api: ApiClient, names: InstallationNames, *, config: Path | None, now: datetime
    ) -> None:
        self.api = api
        self.names = names
        self.now = now
        self._config = config
        self.is_allowed = cache(self._is_allowed)
        self.get = cache(self._get)
        self.items = cache(self._items)

    def _is_allowed(self, permission: Permission, account: str = "") -> bool:
        """Return whether a ServiceAccount has the permission. Without `account`, whether the caller has it."""
        spec: dict[str, Any] = {"resourceAttributes": permission.attributes()}
        kind = "SelfSubjectAccessReview"
        if account:
            kind, namespace = "SubjectAccessReview", self.names.namespace
            spec["user"] = f"system:serviceaccount:{namespace}:{account}"
            group = "system:serviceaccounts"
            spec["groups"] = [group, f"{group}:{namespace}", "system:authenticated"]
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = self.api.post(f"{AUTHORIZATION}/{kind.lower()}s", msgspec.json.encode(body))
        return bool(msgspec.json.decode(answer)["status"]["allowed"])

    def _get(self, *path: str) -> Any:
        """Return the object at this path (`api_path`). None if the object, or its API, does not exist."""
        try:
            return msgspec.json.decode(self.api.get(api_path(*path)))
        except errors.NotFound:
            return None

    def _items(self, path: str) -> list[dict[str, Any]]:
        """Return the objects of a collection as JSON. Empty if its API does not exist."""
        return self.decoded(path, msgspec.json.decode)

    def decoded(self, path: str, decode: Callable[[msgspec.Raw], T | None]) -> list[T]:
        """Return the objects of a collection, those that `decode` keeps. Empty if its API does not exist."""
        try:
            return self.api.list(path, decode).items
        except errors.NotFound:
            return []

    def webhook_configuration(self, kind: str) -> Any:
        """Return our object of this resource, such as `mutatingwebhookconfigurations`. None if it does not exist."""
        return self.get(f"{ADMISSION}/{kind}/{objects.WEBHOOK_CONFIGURATION}")

    def webhooks(self, kind: str) -> list[dict[str, Any]]:
        """Return the list `webhooks` of our object of this resource."""
        return list((self.webhook_configuration(kind) or {}).get("webhooks") or ())

    @property
    def lease(self) -> Any:
        """The Lease of the controller. None if it does not exist."""
        names = self.names
        return self.get("/apis/coordination.k8s.io/v1", "namespaces", names.namespace, "leases", names.lease)

    @cached_property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """Return the labels of all namespaces by name."""
        every_metadata = (item["metadata"] for item in self.items("/api/v1/namespaces"))
        return {metadata["name"]: metadata.get("labels") or {} for metadata in every_metadata}

    @cached_property
    def teams(self) -> list[TeamRecord]:
        return self.decoded(team_path(), decode_team)

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """Return the namespaces of each team, by its name."""
        teams = Teams(team.match for team in self.teams)
        members: dict[str, list[str]] = defaultdict(list)
        for namespace, labels in self.namespaces.items() if self.teams else ():
            if (team := teams.of(namespace, labels)) is not None:
                members[team.name].append(namespace)
        return members

    @cached_property
    def quotas(self) -> list[QuotaRecord]:
        return self.decoded(QUOTAS.path(), decode_quota)

    @cached_property
    def nodes(self) -> list[StoredNode]:
        return self.decoded("/api/v1/nodes", decode_node)

    @cached_property
    def gpu_nodes(self) -> list[StoredNode]:
        """Return the nodes with a resource that is a GPU, or a part of one, in the resource mapping."""
        is_gpu = self.usable_configuration.resource_mapping.resource
        return [
            node
            for node in self.nodes
            if any(amount not in {"0", ""} and is_gpu(name) for name, amount in node.resources.items())
        ]

    @property
    def configuration(self) -> Configuration:
        """Return the configuration in force. Raises Unknown."""
        configuration = self.documents.configuration
        if configuration is None:
            raise NoResult("the configuration cannot be used: see check `documents`")
        return configuration

    @cached_property
    def usable_configuration(self) -> Configuration:
        """Return the configuration in force, or else the built-in one."""
        return self.documents.configuration or load_directory(None)

    @cached_property
    def claims(self) -> dict[ClaimName, RequestedDevices | None]:
        """Return the DeviceClasses that ResourceClaims and templates request. Empty if the caller may not read them."""
        return read_claims(self.api)

    @cached_property
    def limits(self) -> dict[str, NamespaceLimits]:
        return limits_by_namespace(self.decoded("/api/v1/limitranges", decode_limit_range))

    def is_gpu_pod(self, pod: Pod, namespace: str) -> bool:
        """Whether the pod requests a GPU, or devices that may be GPUs."""
        mapping = self.usable_configuration.resource_mapping
        if pod.spec.resource_claims:
            pod = without_other_claims(pod, devices_by_claim(pod, namespace, self.claims.get), mapping)
        return mapping.pod_requests_gpus(pod)

    def gpu_pods(self, path: str, **query: str) -> list[ObjectMeta]:
        """Return the metadata of the pods at this path that request GPUs and have not ended."""

        def read(raw: msgspec.Raw) -> ObjectMeta | None:
            pod, metadata = decode_pod(raw), decode_metadata(raw)
            return None if pod.is_terminal or not self.is_gpu_pod(pod, metadata.namespace) else metadata

        return self.api.list(path, read, query=query).items

    @cached_property
    def documents(self) -> Documents:
        if self._config is None:
            chosen = read_documents_in_force(self.api, self.names.namespace)
            return Documents("the cluster", chosen.configuration, chosen.problems)
        try:
            devices = read_cluster_devices(self.api, self.names.namespace)
            return Documents(str(self._config), load_directory(self._config, devices=devices))
        except ConfigurationError as error:
            return Documents(str(self._config), None, error.problems)

    def policy_of(self, namespace: str) -> EffectivePolicy:
        policies = self.configuration.policies
        labels = self.namespaces.get(namespace, {}) if policies.depends_on_labels(namespace) else {}
        return policies.for_namespace(namespace, tuple(sorted(labels.items())))

    def lets_wait(self, namespace: str) -> bool:
        """Whether pods that exceed the quota of the namespace wait in line."""
        in_force = self.policy_of(namespace).in_force(QUOTA_RULE.id, self.now)
        return in_force is not None and in_force[1] is Mode.ENFORCE and in_force[0].options.queues_pods
