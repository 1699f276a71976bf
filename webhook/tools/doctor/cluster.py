"""What the checks look at, each thing read once. Only what a check asks for is read, and little of large objects is kept."""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from policies.policy import EffectivePolicy
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.cluster_source import read_chosen
from webhook.configuration.documents import Document, LocatedProblem
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory, load_with_origins
from webhook.tools.doctor.rights import Rights

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATION = "zz-gpu-admission"

T = TypeVar("T")


class Unknown(Exception):  # noqa: N818 - an answer, not a failure
    """Something cannot be known; the message says why."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation is called."""

    namespace: str = "gpu-admission"
    service: str = "gpu-admission"
    canary_namespace: str = "gpu-admission-canary"
    secret: str = "gpu-admission-certificates"  # noqa: S105 - its name
    lease: str = "gpu-admission-controller"

    @property
    def server_name(self) -> str:
        """Return the name by which the API server calls the webhook; the certificate must carry it."""
        return f"{self.service}.{self.namespace}.svc"


class Node(msgspec.Struct, frozen=True):
    """A node: how many it can give out of each extended resource, and by what pods find and are kept from it."""

    name: str
    labels: dict[str, str]
    taints: tuple[Toleration, ...]
    resources: dict[str, str]


class _Metadata(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None


class _NodeSpec(msgspec.Struct):
    taints: tuple[Toleration, ...] | None = None


class _NodeStatus(msgspec.Struct):
    allocatable: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force, the documents that it is made of besides the built-in ones, and what is wrong with the newest.

    `configuration` is None where nothing tells what is in force: a directory with a mistake in it.
    """

    configuration: Configuration | None
    own: tuple[Document, ...] = ()
    problems: tuple[str, ...] = ()
    source: str


class Cluster:
    """One installation at one moment. Reading raises `errors.ApiError`, or `Unknown`."""

    def __init__(self, api: ApiClient, names: Names, *, config: Path | None, now: datetime) -> None:
        self.api = api
        self.names = names
        self.now = now
        self.rights = Rights(api)
        self._config = config
        self._found: dict[str, Any] = {}

    def get(self, path: str) -> Any:
        """Return an object, None if there is none (or no such API)."""
        if path not in self._found:
            try:
                self._found[path] = msgspec.json.decode(self.api.get(path))
            except errors.NotFound:
                self._found[path] = None
        return self._found[path]

    def items(self, path: str, *, accept: str = "application/json") -> list[dict[str, Any]]:
        """Return a collection of small objects; empty if there is no such API."""
        key = f"{path} {accept}"
        if key not in self._found:
            try:
                self._found[key] = self.api.list(path, _decoded, accept=accept).items
            except errors.NotFound:
                self._found[key] = []
        found: list[dict[str, Any]] = self._found[key]
        return found

    def listed(self, path: str, project: Callable[[msgspec.Raw], T | None]) -> list[T]:
        """Return what `project` keeps of a collection of large objects; empty if there is no such API."""
        try:
            return self.api.list(path, project).items
        except errors.NotFound:
            return []

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """Return the webhooks of our configuration of that kind, such as `mutatingwebhookconfigurations`."""
        document = self.get(f"{ADMISSION}/{kind}/{CONFIGURATION}")
        return list((document or {}).get("webhooks") or ())

    @cached_property
    def nodes(self) -> list[Node]:
        return self.listed("/api/v1/nodes", _node)

    @cached_property
    def gpu_nodes(self) -> list[Node]:
        """Return the nodes that have what the resource mapping calls a GPU, or a part of one."""
        resource_mapping = self.resource_mapping
        return [
            node
            for node in self.nodes
            if any(
                amount not in {"0", ""} and resource_mapping.resource(name)
                for name, amount in node.resources.items()
            )
        ]

    @property
    def configuration(self) -> Configuration:
        """Return what is in force. Raises Unknown where nothing tells."""
        found = self.documents.configuration
        if found is None:
            raise Unknown("the configuration cannot be used: see check `documents`")
        return found

    @cached_property
    def resource_mapping(self) -> ResourceMapping:
        """Return the words for GPUs: the built-in ones where nothing tells others."""
        return (self.documents.configuration or load_directory(None)).resource_mapping

    @cached_property
    def documents(self) -> Documents:
        if self._config is not None:
            return _loaded(self._config)
        chosen = read_chosen(self.api)
        return Documents(
            configuration=chosen.configuration,
            own=chosen.documents,
            problems=_told(chosen.problems),
            source="the cluster",
        )

    def policy_of(self, namespace: str) -> EffectivePolicy:
        """Return what holds in the namespace."""
        policies = self.configuration.policies
        if not policies.asks_labels(namespace):
            return policies.for_namespace(namespace)
        labels = {
            each["metadata"]["name"]: each["metadata"].get("labels") or {}
            for each in self.items("/api/v1/namespaces")
        }
        return policies.for_namespace(namespace, tuple(sorted(labels.get(namespace, {}).items())))


def _loaded(directory: Path) -> Documents:
    try:
        configuration, origins = load_with_origins(directory)
    except ConfigurationError as error:
        return Documents(configuration=None, problems=_told(error.problems), source=str(directory))
    return Documents(configuration=configuration, own=origins.documents, source=str(directory))


def _told(problems: Iterable[LocatedProblem]) -> tuple[str, ...]:
    return tuple(str(problem) for problem in problems)


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(raw)
    return document


def _node(raw: msgspec.Raw) -> Node:
    node = msgspec.json.decode(raw, type=_Node)
    amounts = node.status.allocatable or node.status.capacity or {}
    return Node(
        node.metadata.name,
        node.metadata.labels or {},
        node.spec.taints or (),
        {name: str(amount) for name, amount in amounts.items() if "/" in name},
    )
