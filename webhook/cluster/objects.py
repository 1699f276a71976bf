"""Metadata and timestamps of API objects, and the names of the objects of an installation."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from policies.pods.pod import Metadata

NAMESPACE = "gpu-admission"
SERVICE = "gpu-admission"
CANARY_NAMESPACE = "gpu-admission-canary"
WEBHOOK_CONFIGURATION = "zz-gpu-admission"
"""The name of both webhook configurations. API servers call mutating webhooks in the order of these names, so ours is last."""
WEBHOOK_CONFIGURATION_KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
CERTIFICATE_SECRET = "gpu-admission-certificates"  # noqa: S105 - its name
CA_SECRET = "gpu-admission-ca"  # noqa: S105 - its name
"""In the same namespace as the other Secret. Only controllers may read it."""
CATALOGUES_CONFIG_MAP = "gpu-admission-catalogues"
"""The ConfigMap in which controllers publish catalogues."""
BUDGETS_CONFIG_MAP = "gpu-admission-budgets"
"""The ConfigMap in which controllers note what is spent of the budgets of deleted GPUQuotas."""
CAPACITY_CONFIG_MAP = "gpu-admission-capacity"
"""The ConfigMap in which controllers publish what nodes have and what is free, for tenants."""
DEVICES = "gpu-admission-devices"
"""The ConfigMap in which controllers publish the kinds of DRA devices."""
WEBHOOK = "gpu-admission-webhook"
"""Deployment and ServiceAccount of `serve`."""
CONTROLLER = "gpu-admission-controller"
"""Deployment, ServiceAccount and Lease of `controller`."""
LABELS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/part-of": "gpu-admission"}
EXPORTED_LABELS = {**LABELS, "app.kubernetes.io/component": "admission-policies"}
"""On every object of `export`, so that all of them can be listed, pruned and deleted at once."""
EXPORTED_RULE_LABEL = "gpu-admission.dev/rule"
"""The label of such an object with the id of its rule."""


class InstallationNames(msgspec.Struct, frozen=True, kw_only=True):
    """Namespaces and names of the objects of one installation."""

    namespace: str = NAMESPACE
    canary_namespace: str = CANARY_NAMESPACE
    secret: str = CERTIFICATE_SECRET
    lease: str = CONTROLLER


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The metadata that we read of an object. A missing field is empty.

    Decoding all of them takes 3 µs longer than the three that a watch event needs. A pod takes some 50 µs.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    @property
    def sorted_labels(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((self.labels or {}).items()))


class PartialObject(msgspec.Struct, frozen=True):
    """An object of any kind. Subclasses add the fields that they read."""

    metadata: ObjectMeta


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class OwnedObject(msgspec.Struct, frozen=True):
    """An object of any kind, with the owners in its metadata."""

    metadata: Metadata = Metadata()


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)

TRUE, FALSE = "True", "False"
"""Status of a condition."""


class ServerVersion(msgspec.Struct, frozen=True, rename="camel"):
    """What an API server answers to `/version`; of another server it is msgspec.MsgspecError."""

    git_version: str


# Made once, as everywhere: msgspec crashes where threads use a type for the first time together.
_PARTIAL_OBJECT = msgspec.json.Decoder(PartialObject)
decode_config_map = msgspec.json.Decoder(ConfigMap).decode
decode_version = msgspec.json.Decoder(ServerVersion).decode
decode_owned = msgspec.json.Decoder(OwnedObject).decode


def decode_metadata(document: bytes | msgspec.Raw) -> ObjectMeta:
    """Return the metadata of an object in JSON. Raises msgspec.MsgspecError."""
    return _PARTIAL_OBJECT.decode(document).metadata


def fields_of(document: bytes | msgspec.Raw, *path: str) -> Mapping[str, msgspec.Raw]:
    """Return the fields of the object at the path in a document. Raises msgspec.ValidationError."""
    fields = _FIELDS.decode(document) or {}
    for step in path:
        fields = _FIELDS.decode(fields.get(step, b"null")) or {}
    return fields


def with_transition_time(condition: Condition, before: Condition | None, now: datetime) -> Condition:
    """Return the condition with the time of its last change of status. `before` is the one in the status."""
    at = before.last_transition_time if before and before.status == condition.status else timestamp(now)
    return msgspec.structs.replace(condition, last_transition_time=at)


def service_names(namespace: str) -> tuple[str, str]:
    """Return the DNS name by which API servers call our Service, and the shorter form that people use."""
    return f"{SERVICE}.{namespace}.svc", f"{SERVICE}.{namespace}"


def service_account(namespace: str, name: str) -> str:
    """Return the user name of a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"


def webhook_configuration_path(kind: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s/{WEBHOOK_CONFIGURATION}"


def timestamp(moment: datetime, precision: str = "seconds") -> str:
    """Return the time as in Kubernetes (RFC 3339, UTC). `precision` is for `datetime.isoformat`."""
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
