"""The installation that the checks examine. Each object is read once, and only a part of large objects is kept.

SelfSubjectAccessReviews and SubjectAccessReviews tell who may do what.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from policies.gpus.claims import ClaimName, DeviceClassNames, as_rules_see_it, requested_by
from policies.pods.pod import Pod, decode_pod
from policies.policy import EffectivePolicy
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.nodes import StoredNode, decode_node
from webhook.cluster.objects import (
    CANARY_NAMESPACE,
    CERTIFICATE_SECRET,
    CONTROLLER,
    NAMESPACE,
    WEBHOOK_CONFIGURATION,
    ObjectMeta,
    decode_metadata,
)
from webhook.configuration.cluster_source import read_chosen
from webhook.configuration.documents import LocatedProblem
from webhook.configuration.dynamic_resources import read_claims, read_device_classes
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

T = TypeVar("T")


class Unknown(Exception):  # noqa: N818 - an answer, not a failure
    """Something that cannot be determined; the message says why."""


class Right(msgspec.Struct, frozen=True):
    """A verb on a resource, such as `list` `nodes`, optionally in one namespace, and of one object."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """Return the right as `kubectl auth can-i` takes it."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        place = f" -n {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{f'/{self.name}' if self.name else ''}{place}"

    def attributes(self) -> dict[str, str]:
        resource, _, subresource = self.resource.partition("/")
        attributes = {**msgspec.structs.asdict(self), "resource": resource, "subresource": subresource}
        return {key: value for key, value in attributes.items() if value}


class Names(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = NAMESPACE
    canary_namespace: str = CANARY_NAMESPACE
    secret: str = CERTIFICATE_SECRET
    lease: str = CONTROLLER


class Documents(msgspec.Struct, frozen=True):
    """Where documents are from, the configuration in force, and the problems of the newest documents.

    `configuration` is None for a directory with a problem: what the webhook has in force cannot be known.
    """

    source: str
    configuration: Configuration | None
    problems: Sequence[LocatedProblem] = ()


class InstalledCluster:
    """One installation at one moment. All its readers raise `errors.ApiError` or `Unknown`."""

    def __init__(self, api: ApiClient, names: Names, *, config: Path | None, now: datetime) -> None:
        self.api = api
        self.names = names
        self.now = now
        self._config = config
        self._found: dict[object, Any] = {}

    def is_allowed(self, right: Right, account: str = "") -> bool:
        """Return whether the ServiceAccount of that name has the right; without one, whether the caller has it."""
        spec: dict[str, Any] = {"resourceAttributes": right.attributes()}
        kind = "SelfSubjectAccessReview"
        if account:
            kind, namespace = "SubjectAccessReview", self.names.namespace
            spec["user"] = f"system:serviceaccount:{namespace}:{account}"
            group = "system:serviceaccounts"
            spec["groups"] = [group, f"{group}:{namespace}", "system:authenticated"]
        if (key := (right, account)) not in self._found:
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
            answer = self.api.post(f"{AUTHORIZATION}/{kind.lower()}s", msgspec.json.encode(body))
            self._found[key] = msgspec.json.decode(answer)["status"]["allowed"]
        return bool(self._found[key])

    def get(self, *path: str) -> Any:
        """Return an object by the parts of its path (`api_path`); None if it, or its API, does not exist."""
        key = "/".join(path)
        if key not in self._found:
            try:
                self._found[key] = msgspec.json.decode(self.api.get(api_path(*path)))
            except errors.NotFound:
                self._found[key] = None
        return self._found[key]

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return a collection of small objects; empty if its API does not exist."""
        if path not in self._found:
            self._found[path] = self.listed(path, msgspec.json.decode)
        found: list[dict[str, Any]] = self._found[path]
        return found

    def listed(self, path: str, project: Callable[[msgspec.Raw], T | None]) -> list[T]:
        """Return what `project` keeps of a collection of large objects; empty if its API does not exist."""
        try:
            return self.api.list(path, project).items
        except errors.NotFound:
            return []

    def webhook_configuration(self, kind: str) -> Any:
        """Return our configuration of that kind, such as `mutatingwebhookconfigurations`; None if it does not exist."""
        return self.get(f"{ADMISSION}/{kind}/{WEBHOOK_CONFIGURATION}")

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """Return the webhooks of our configuration of that kind."""
        return list((self.webhook_configuration(kind) or {}).get("webhooks") or ())

    @cached_property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """Return the labels of all namespaces by name."""
        found = (each["metadata"] for each in self.items("/api/v1/namespaces"))
        return {metadata["name"]: metadata.get("labels") or {} for metadata in found}

    @cached_property
    def nodes(self) -> list[StoredNode]:
        return self.listed("/api/v1/nodes", decode_node)

    @cached_property
    def gpu_nodes(self) -> list[StoredNode]:
        """Return the nodes that have a resource which the resource mapping counts as GPU or part of one."""
        is_gpu = self.usable_configuration.resource_mapping.resource
        return [
            node
            for node in self.nodes
            if any(amount not in {"0", ""} and is_gpu(name) for name, amount in node.resources.items())
        ]

    @property
    def configuration(self) -> Configuration:
        """Return what is in force. Raises Unknown."""
        found = self.documents.configuration
        if found is None:
            raise Unknown("the configuration cannot be used: see check `documents`")
        return found

    @cached_property
    def usable_configuration(self) -> Configuration:
        """Return what is in force; the built-in configuration where that cannot be used."""
        return self.documents.configuration or load_directory(None)

    @cached_property
    def claims(self) -> dict[ClaimName, DeviceClassNames | None]:
        """Return the DeviceClasses that ResourceClaims and templates request; empty where the caller may not read them."""
        return read_claims(self.api)

    def is_gpu_pod(self, pod: Pod, namespace: str) -> bool:
        """Whether the pod requests a GPU, or devices of an unknown kind."""
        mapping = self.usable_configuration.resource_mapping
        if pod.spec.resource_claims:
            pod, _ = as_rules_see_it(pod, requested_by(pod, namespace, self.claims.get), mapping)
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
            chosen = read_chosen(self.api)
            return Documents("the cluster", chosen.configuration, chosen.problems)
        try:
            classes = read_device_classes(self.api)
            return Documents(str(self._config), load_directory(self._config, device_classes=classes))
        except ConfigurationError as error:
            return Documents(str(self._config), None, error.problems)

    def policy_of(self, namespace: str) -> EffectivePolicy:
        policies = self.configuration.policies
        if not policies.asks_labels(namespace):
            return policies.for_namespace(namespace)
        labels = self.namespaces.get(namespace, {})
        return policies.for_namespace(namespace, tuple(sorted(labels.items())))
