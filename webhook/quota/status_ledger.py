"""The ledger in the status of a GPUQuota, where versions before the rows had it: JSON to ledger, ledger to JSON.

A status that cannot be read raises `DocumentError`: it must not count as an empty one.
"""

from collections.abc import Mapping

import msgspec

from policies.quota.amounts import parse_vector, texts
from policies.quota.ledger.quota_ledger import Condition, Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservations
from policies.quota.spec import NAME, QuotaSpec
from webhook.quota.documents import GROUP, KIND, VERSION, DocumentError
from webhook.quota.store import VersionedLedger


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str
    generation: int = 0


class _Status(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The status on the wire. Revisions are text there, as everywhere in Kubernetes."""

    used: dict[str, str] | None = None
    reserved: dict[str, str] | None = None
    stored_names: dict[str, dict[str, str]] = {}
    reservations: str = ""
    revisions: dict[str, str] = {}
    class_catalogue: str | None = None
    next_catalogue: str | None = None
    observed_generation: int = 0
    holders: Mapping[str, tuple[Holder, ...]] = {}
    conditions: tuple[Condition, ...] = ()


class _Identity(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _Object(_Identity, frozen=True):
    spec: QuotaSpec
    status: _Status = _Status()


_OBJECT = msgspec.json.Decoder(_Object)
_IDENTITY = msgspec.json.Decoder(_Identity)


def decode_ledger(document: bytes | msgspec.Raw) -> VersionedLedger:
    """Return the ledger of a GPUQuota in JSON. Raises DocumentError."""
    try:
        read = _OBJECT.decode(document)
        spec, status, metadata = read.spec, read.status, read.metadata
        ledger = QuotaLedger(
            quota_uid=metadata.uid,
            generation=metadata.generation,
            hard=spec.amounts,
            unpinned=spec.unpinned,
            used=None if status.used is None else parse_vector(status.used),
            stored_names={name: parse_vector(stored) for name, stored in status.stored_names.items()},
            reservations=Reservations.parse(status.reservations),
            revisions=msgspec.convert(status.revisions, Revisions, strict=False),
            class_catalogue=status.class_catalogue,
            next_catalogue=status.next_catalogue,
            observed_generation=status.observed_generation,
            holders=status.holders,
            conditions=status.conditions,
        )
    except ValueError as error:  # of msgspec, amounts and numbers alike
        raise DocumentError(f"the GPUQuota cannot be read: {error}") from None
    return VersionedLedger(ledger, metadata.resource_version)


def decode_version(document: bytes) -> str:
    """Return the resourceVersion of a quota, of which no more than the metadata need be there. Raises DocumentError."""
    try:
        return _IDENTITY.decode(document).metadata.resource_version
    except ValueError as error:
        raise DocumentError(f"the GPUQuota cannot be read: {error}") from None


def encode_ledger(namespace: str, before: VersionedLedger, ledger: QuotaLedger) -> bytes:
    """Return the body that replaces the status of the object `before`, and of no other version of it."""
    status = _Status(
        used=None if ledger.used is None else texts(ledger.used),
        reserved=texts(ledger.reserved_shown),
        stored_names={name: texts(stored) for name, stored in ledger.stored_names.items()},
        reservations=ledger.reservations.text,
        revisions={key: str(each) for key, each in msgspec.to_builtins(ledger.revisions).items()},
        class_catalogue=ledger.class_catalogue,
        next_catalogue=ledger.next_catalogue,
        observed_generation=ledger.observed_generation,
        holders=ledger.holders,
        conditions=ledger.conditions,
    )
    # No spec: a write to the status leaves everything else as it is stored.
    metadata = {
        "name": NAME,
        "namespace": namespace,
        "uid": ledger.quota_uid,
        "resourceVersion": before.version,
    }
    return msgspec.json.encode(
        {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": status}
    )
