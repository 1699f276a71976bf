"""Reads, writes and watches the two Secrets and the two webhook configurations.

A write replaces only the version that was read, and changes nothing else in the object: a merge patch of a Secret, a JSON patch
of the caBundles.
"""

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from certs.reconciler import RacedError, StoredSecret, WebhookConfiguration
from certs.secret import ANNOTATIONS, DATA_KEYS, SecretContent
from webhook.cluster import errors
from webhook.cluster.api import JSON_PATCH, MERGE_PATCH, ApiClient, api_path
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer, Resource, WatchTimings
from webhook.cluster.objects import (
    CA_SECRET,
    LABELS,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_CONFIGURATION_KINDS,
    PartialObject,
    decode_metadata,
    webhook_configuration_path,
)

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_SECONDS = 5.0
_TIMINGS = WatchTimings(pause_most=5.0)
"""A lost watch is resumed within seconds; there are three."""


class SecretName(NamedTuple):
    namespace: str
    name: str

    @classmethod
    def of(cls, text: str, namespace: str) -> Self:
        """Parse `[NAMESPACE/]NAME`; `namespace` is the default."""
        before, slash, name = text.rpartition("/")
        return cls(before if slash else namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ca_secret(self) -> Self:
        return self._replace(name=CA_SECRET)

    @property
    def resource(self) -> Resource:
        selector = f"metadata.name={self.name}"
        return Resource(api_path("/api/v1", "namespaces", self.namespace), "secrets", field_selector=selector)

    @property
    def path(self) -> str:
        return self.resource.path(CLUSTER, self.name)


class _Secret(PartialObject, frozen=True):
    data: dict[str, bytes] | None = None


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: bytes = b""
    service: dict[str, Any] | None = None
    url: str | None = None


class _Webhook(msgspec.Struct, rename="camel"):
    client_config: _ClientConfig


class _Configuration(PartialObject, frozen=True):
    webhooks: list[_Webhook] | None = None


class ClusterSecret:
    """One Secret. Raises `errors.ApiError` for everything but a race."""

    def __init__(self, api: ApiClient, name: SecretName) -> None:
        self._api = api
        self.name = name

    def read(self) -> StoredSecret | None:
        try:
            secret = msgspec.json.decode(self._api.get(self.name.path, timeout=_SECONDS), type=_Secret)
        except errors.NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the Secret {self.name} cannot be read: {error}") from None
        stored, noted = secret.data or {}, secret.metadata.annotations or {}
        data = {key: stored[key] for key in DATA_KEYS if key in stored}
        annotations = {key: noted[key] for key in ANNOTATIONS if key in noted}
        return StoredSecret(secret.metadata.resource_version, SecretContent(data, annotations))

    def create(self, content: SecretContent) -> None:
        metadata = {**self.name._asdict(), "labels": LABELS, "annotations": dict(content.annotations)}
        secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata}
        body = msgspec.json.encode({**secret, "data": dict(content.data)})
        try:
            self._api.post(self.name.resource.path(), body, timeout=_SECONDS)
        except errors.AlreadyExists as error:
            raise RacedError(str(error)) from None

    def replace(self, stored: StoredSecret, content: SecretContent) -> None:
        annotations = {key: content.annotations.get(key) for key in ANNOTATIONS}
        self.annotate(stored, annotations, data={key: content.data.get(key) for key in DATA_KEYS})

    def annotate(self, stored: StoredSecret, annotations: Mapping[str, str | None], **change: Any) -> None:
        """Change these annotations, and the fields in `change`."""
        metadata = {"resourceVersion": stored.resource_version, "annotations": annotations}
        body = msgspec.json.encode({"metadata": metadata, **change})
        try:
            self._api.patch(self.name.path, body, content_type=MERGE_PATCH, timeout=_SECONDS)
        except (errors.Conflict, errors.NotFound) as error:
            raise RacedError(str(error)) from None


class ClusterConfigurations:
    """Both configurations named `zz-gpu-admission`. Raises `errors.ApiError` for everything but a race."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def read(self) -> list[WebhookConfiguration]:
        return [
            configuration
            for kind in WEBHOOK_CONFIGURATION_KINDS
            if (configuration := self._read(kind)) is not None
        ]

    def _read(self, kind: str) -> WebhookConfiguration | None:
        try:
            answer = self._api.get(webhook_configuration_path(kind), timeout=_SECONDS)
            read = msgspec.json.decode(answer, type=_Configuration)
        except errors.NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the {kind} {WEBHOOK_CONFIGURATION} cannot be read: {error}") from None
        clients = [webhook.client_config for webhook in read.webhooks or ()]
        bundles = tuple(client.ca_bundle for client in clients)
        hosts = tuple(dict.fromkeys(_host(client) for client in clients))
        return WebhookConfiguration(kind, read.metadata.resource_version, bundles, hosts)

    def publish(self, configuration: WebhookConfiguration, bundle: bytes) -> None:
        # The version in the patch makes a change in between a conflict, so that the indices are right.
        version = {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": configuration.resource_version,
        }
        changes = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index, published in enumerate(configuration.bundles)
            if published != bundle
        ]
        body = msgspec.json.encode([version, *changes])
        try:
            path = webhook_configuration_path(configuration.kind)
            self._api.patch(path, body, content_type=JSON_PATCH, timeout=_SECONDS)
        except (errors.Conflict, errors.NotFound) as error:
            raise RacedError(str(error)) from None


class ChangeSignal:
    """Watches Secrets and both configurations; `wait` returns after a change, or after its timeout."""

    def __init__(self, api: ApiClient, *secrets: SecretName) -> None:
        self._changed = threading.Event()
        kinds = [
            Resource(_ADMISSION, f"{kind.lower()}s", field_selector=f"metadata.name={WEBHOOK_CONFIGURATION}")
            for kind in WEBHOOK_CONFIGURATION_KINDS
        ]
        self._informers = [
            Informer(
                api, resource, decode_metadata, lambda _before, _after: self._changed.set(), timings=_TIMINGS
            )
            for resource in (*(secret.resource for secret in secrets), *kinds)
        ]

    def start(self, stopping: threading.Event) -> None:
        for informer in self._informers:
            informer.start(stopping)

    def wait(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()


def _host(client: _ClientConfig) -> str:
    service = client.service
    if service:
        return f"{service['name']}.{service['namespace']}.svc"
    return urlsplit(client.url or "").hostname or ""
