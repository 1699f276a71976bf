"""GPUQuota objects of the API server: the spec that decides, and the status that the controller writes for people.

No decision depends on the status: that is what the ledger of the namespace is for.
"""

from collections.abc import Mapping

import msgspec

from policies.quota.amounts import Vector, parse_vector, texts
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.spec import NAME, QuotaSpec
from webhook.cluster.api import api_path
from webhook.cluster.objects import Condition

GROUP = "gpu-admission.dev"
VERSION = "v1alpha1"
PLURAL = "gpuquotas"
KIND = "GPUQuota"


class DocumentError(ValueError):
    """The object is not one that could be used; the message says where."""


def quota_path(namespace: str, *rest: str) -> str:
    """Return where the API server has the quota of a namespace, or the subresource of it."""
    return api_path(f"/apis/{GROUP}/{VERSION}", "namespaces", namespace, PLURAL, NAME, *rest)


class QuotaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What people see of a ledger, as it was at most some seconds ago.

    `hard` is what was in force, `used` is None before it was counted; both, and `reserved`, show `gpus` and what `hard` names.
    """

    hard: Vector = {}
    used: Vector | None = None
    reserved: Vector = {}
    holders: Mapping[str, tuple[Holder, ...]] = {}
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of a type, None where there is none yet."""
        return next((each for each in self.conditions if each.type == kind), None)


class QuotaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A GPUQuota as it was read; `spec` is None where that cannot be read, and `problem` says why.

    `version` is the resourceVersion. A status that cannot be read is that of a new quota: the controller writes it again.
    `has_ledger`: an earlier version left its ledger in the status, and nobody has written over it.
    """

    namespace: str
    uid: str
    version: str
    generation: int = 0
    spec: QuotaSpec | None = None
    status: QuotaStatus = QuotaStatus()
    has_ledger: bool = False
    problem: str = ""

    @property
    def hard(self) -> Vector:
        """What is in force as far as the status says it, else what the spec grants."""
        if self.status.hard or self.spec is None:
            return self.status.hard
        return self.spec.amounts

    @property
    def is_pending(self) -> bool:
        """Whether the spec is another one than the status says to be in force."""
        return bool(self.status.hard) and self.status.observed_generation < self.generation


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str
    generation: int = 0


class _Status(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The status on the wire."""

    hard: dict[str, str] = {}
    used: dict[str, str] | None = None
    reserved: dict[str, str] = {}
    holders: Mapping[str, tuple[Holder, ...]] = {}
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class _FormerStatus(msgspec.Struct, frozen=True):
    """Only a status that is the ledger itself has these."""

    revisions: msgspec.Raw = msgspec.Raw(b"")


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_OBJECT = msgspec.json.Decoder(_Object)
_SPEC = msgspec.json.Decoder(QuotaSpec)
_STATUS = msgspec.json.Decoder(_Status)
_FORMER_STATUS = msgspec.json.Decoder(_FormerStatus)


def decode_quota(document: bytes | msgspec.Raw) -> QuotaRecord | None:
    """Return the quota in JSON, None where its name has no meaning. Raises msgspec.ValidationError if it is not an object."""
    read = _OBJECT.decode(document)
    metadata = read.metadata
    if metadata.name != NAME:
        return None
    spec, problem = None, ""
    try:
        spec = _SPEC.decode(read.spec)
        spec.amounts  # noqa: B018 - raises
    except ValueError as error:  # of msgspec and amounts alike
        spec, problem = None, f"the GPUQuota cannot be read: {error}"
    return QuotaRecord(
        namespace=metadata.namespace,
        uid=metadata.uid,
        version=metadata.resource_version,
        generation=metadata.generation,
        spec=spec,
        status=_decode_status(read.status),
        has_ledger=has_ledger(read.status),
        problem=problem,
    )


def has_ledger(status: msgspec.Raw) -> bool:
    """Whether an earlier version left its ledger in this status. Raises msgspec.ValidationError if it is not an object."""
    return bool(_FORMER_STATUS.decode(status).revisions)


def _decode_status(raw: msgspec.Raw) -> QuotaStatus:
    try:
        status = _STATUS.decode(raw)
        return QuotaStatus(
            hard=parse_vector(status.hard),
            used=None if status.used is None else parse_vector(status.used),
            reserved=parse_vector(status.reserved),
            holders=status.holders,
            conditions=status.conditions,
            observed_generation=status.observed_generation,
        )
    except ValueError:
        return QuotaStatus()


def encode_status(record: QuotaRecord, status: QuotaStatus) -> bytes:
    """Return the body that replaces the status of that very version of the object; the spec stays as it is stored."""
    metadata = {
        "name": NAME,
        "namespace": record.namespace,
        "uid": record.uid,
        "resourceVersion": record.version,
    }
    written = _Status(
        hard=texts(status.hard),
        used=None if status.used is None else texts(status.used),
        reserved=texts(status.reserved),
        holders=status.holders,
        conditions=status.conditions,
        observed_generation=status.observed_generation,
    )
    return msgspec.json.encode(
        {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": written}
    )
