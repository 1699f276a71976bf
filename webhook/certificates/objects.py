"""The Secret and the two webhook configurations, read and written through the API server.

Everything else in these objects is left as it is: the Secret is merged into, the configurations are patched at the caBundles,
both only at the version that was read. No other configuration is ever asked for.
"""

import threading
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from certs.reconciler import Configuration, RacedError, Stored
from certs.secret import ANNOTATIONS, DATA_KEYS, Content
from webhook.cluster import errors
from webhook.cluster.api import JSON_PATCH, MERGE_PATCH, ApiClient
from webhook.cluster.informer import Informer, Resource, WatchTimings

CONFIGURATION = "zz-gpu-admission"
KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
SECRET = "gpu-admission-certificates"  # noqa: S105 - its name
LABELS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/part-of": "gpu-admission"}

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_SECONDS = 5.0


class SecretName(NamedTuple):
    """Where the Secret is."""

    namespace: str
    name: str

    @classmethod
    def of(cls, text: str, namespace: str) -> Self:
        """Read `[NAMESPACE/]NAME`; `namespace` is for those who leave it out."""
        before, slash, name = text.rpartition("/")
        return cls(before if slash else namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def resource(self) -> Resource:
        return Resource(
            f"/api/v1/namespaces/{self.namespace}", "secrets", field_selector=f"metadata.name={self.name}"
        )

    @property
    def path(self) -> str:
        return f"{self.resource.path()}/{self.name}"


def configuration_resources() -> list[Resource]:
    return [
        Resource(_ADMISSION, plural, field_selector=f"metadata.name={CONFIGURATION}")
        for plural in KINDS.values()
    ]


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Secret(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


class _Service(msgspec.Struct):
    namespace: str
    name: str
    port: int | None = None


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: str | None = None
    service: _Service | None = None
    url: str | None = None


class _Webhook(msgspec.Struct, rename="camel"):
    client_config: _ClientConfig


class _Configuration(msgspec.Struct):
    metadata: _Metadata
    webhooks: list[_Webhook] | None = None


class Target(NamedTuple):
    """Where API servers call: the host name that they ask for, and the Service behind it, if there is one."""

    host: str
    service: str = ""
    namespace: str = ""
    port: int = 443


class ConfigurationSeen(NamedTuple):
    """A configuration as it was read, and where its webhooks are."""

    configuration: Configuration
    targets: tuple[Target, ...]


_SECRET = msgspec.json.Decoder(_Secret)
_CONFIGURATION = msgspec.json.Decoder(_Configuration)


class ClusterSecret:
    """The Secret. Raises `errors.ApiError` for what is no race."""

    def __init__(self, api: ApiClient, name: SecretName) -> None:
        self._api = api
        self.name = name

    def read(self) -> Stored | None:
        try:
            secret = _SECRET.decode(self._api.get(self.name.path, timeout=_SECONDS))
        except errors.NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the Secret {self.name} cannot be read: {error}") from None
        data = {key: _bytes(text) for key, text in (secret.data or {}).items() if key in DATA_KEYS}
        annotations = {
            key: text for key, text in (secret.metadata.annotations or {}).items() if key in ANNOTATIONS
        }
        return Stored(secret.metadata.resource_version, Content(data, annotations))

    def create(self, content: Content) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {
                "name": self.name.name,
                "namespace": self.name.namespace,
                "labels": LABELS,
                "annotations": dict(content.annotations),
            },
            "data": {key: _text(value) for key, value in content.data.items()},
        }
        try:
            self._api.post(self.name.resource.path(), msgspec.json.encode(body), timeout=_SECONDS)
        except errors.AlreadyExists as error:
            raise RacedError(str(error)) from None

    def replace(self, stored: Stored, content: Content) -> None:
        data = {key: _text(content.data[key]) if key in content.data else None for key in DATA_KEYS}
        self._merge(
            stored.version, {"data": data}, {key: content.annotations.get(key) for key in ANNOTATIONS}
        )

    def annotate(self, stored: Stored, annotations: dict[str, str]) -> None:
        """Change these annotations only."""
        self._merge(stored.version, {}, annotations)

    def _merge(self, version: str, change: dict[str, Any], annotations: dict[str, Any]) -> None:
        body = {**change, "metadata": {"resourceVersion": version, "annotations": annotations}}
        try:
            self._api.patch(
                self.name.path, msgspec.json.encode(body), content_type=MERGE_PATCH, timeout=_SECONDS
            )
        except (errors.Conflict, errors.NotFound) as error:
            raise RacedError(str(error)) from None


class ClusterConfigurations:
    """Both configurations named `zz-gpu-admission`. Raises `errors.ApiError` for what is no race."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def read(self) -> list[Configuration]:
        return [seen.configuration for seen in self.seen()]

    def seen(self) -> list[ConfigurationSeen]:
        """Return those that exist."""
        return [found for kind in KINDS if (found := self._seen(kind)) is not None]

    def _seen(self, kind: str) -> ConfigurationSeen | None:
        try:
            read = _CONFIGURATION.decode(self._api.get(_path(kind), timeout=_SECONDS))
        except errors.NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the {kind} {CONFIGURATION} cannot be read: {error}") from None
        clients = [webhook.client_config for webhook in read.webhooks or ()]
        bundles = tuple(_bytes(client.ca_bundle or "") for client in clients)
        targets = tuple(dict.fromkeys(_target(client) for client in clients))
        return ConfigurationSeen(Configuration(kind, read.metadata.resource_version, bundles), targets)

    def publish(self, configuration: Configuration, bundle: bytes) -> None:
        # The version in the patch makes a change by somebody else in between a conflict: indices stay true.
        operations: list[dict[str, Any]] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": configuration.version}
        ]
        operations += [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": _text(bundle)}
            for index, present in enumerate(configuration.bundles)
            if present != bundle
        ]
        body = msgspec.json.encode(operations)
        try:
            self._api.patch(_path(configuration.kind), body, content_type=JSON_PATCH, timeout=_SECONDS)
        except (errors.Conflict, errors.NotFound) as error:
            raise RacedError(str(error)) from None


def hosts(seen: Iterable[ConfigurationSeen]) -> tuple[str, ...]:
    """Return the names that API servers ask for."""
    return tuple(dict.fromkeys(target.host for each in seen for target in each.targets))


def _path(kind: str) -> str:
    return f"{_ADMISSION}/{KINDS[kind]}/{CONFIGURATION}"


def _target(client: _ClientConfig) -> Target:
    service = client.service
    if service is not None:
        host = f"{service.name}.{service.namespace}.svc"
        return Target(host, service.name, service.namespace, service.port or 443)
    url = urlsplit(client.url or "")
    return Target(url.hostname or "", port=url.port or 443)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return b""


def _text(content: bytes) -> str:
    return b64encode(content).decode()


TIMINGS = WatchTimings(pause_most=5.0)
"""A watch that was lost is taken up again within seconds; there are two or three of them."""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Version


_OBJECT = msgspec.json.Decoder(_Object)


class ChangeSignal:
    """Watches what the resources select; `wait` returns after a change, when it is time for the next look, or to stop."""

    def __init__(self, api: ApiClient, resources: Iterable[Resource]) -> None:
        self._rung = threading.Event()
        self._mirrors = [
            Informer(api, each, _version, lambda _before, _after: self._rung.set(), timings=TIMINGS)
            for each in resources
        ]

    def start(self, stopping: threading.Event) -> None:
        for mirror in self._mirrors:
            name = f"watch-{mirror.resource.plural}"
            threading.Thread(target=mirror.run, args=(stopping,), name=name, daemon=True).start()
        threading.Thread(target=self._stop, args=(stopping,), name="bell", daemon=True).start()

    def wait(self, seconds: float) -> None:
        self._rung.wait(seconds)
        self._rung.clear()

    def _stop(self, stopping: threading.Event) -> None:
        stopping.wait()
        self._rung.set()


def _version(raw: msgspec.Raw) -> _Version:
    return _OBJECT.decode(raw).metadata
