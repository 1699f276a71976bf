"""GPUQuotaLedger objects, one for each namespace, in the namespace of the installation: decoded and encoded.

The only field is the ledger as JSON text. So a write is cheap for the API server: it validates no schema and compares no managed
fields. An unreadable ledger raises `LedgerObjectError`, because it must not count as an empty one.
"""

from collections.abc import Mapping

import msgspec

from policies.quota.amounts import parse_vector, texts
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservations
from policies.quota.waiting import MAX_WAITING
from webhook.cluster.api import Identified, Identity, api_path
from webhook.configuration.documents import API_VERSION
from webhook.quota.store import VersionedLedger

PLURAL = "gpuquotaledgers"
KIND = "GPUQuotaLedger"


class LedgerObjectError(ValueError):
    """The ledger object cannot be read. The message says where."""


class _Ledger(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The text of a ledger. Revisions are text, as everywhere in Kubernetes."""

    quota_uid: str
    generation: int
    hard: dict[str, str]
    unclassified_pods: UnclassifiedPods
    max_waiting: int = MAX_WAITING
    waiting: int = 0
    used: dict[str, str] | None = None
    stored_names: dict[str, dict[str, str]] = {}
    reservations: str = ""
    revisions: dict[str, str] = {}
    class_catalogue: str | None = None
    next_catalogue: str | None = None
    holders: Mapping[str, tuple[Holder, ...]] = {}


class _Object(Identified, frozen=True):
    """`ledger` is empty in the answer to a write, which has only the metadata."""

    ledger: str = ""


_OBJECT = msgspec.json.Decoder(_Object)
_LEDGER = msgspec.json.Decoder(_Ledger)
msgspec.convert({}, Revisions)  # msgspec crashes where threads use a type for the first time together
_ENCODER = msgspec.json.Encoder()

LONGEST_BODY = 1024 * 1024
"""Bytes of a body with holders at most. etcd takes requests of 1.5 MiB (`--max-request-bytes`), and a ledger that
cannot be written never frees quota."""


def ledger_objects_path(installation: str, *namespace: str) -> str:
    """Return where the API server has the ledgers of an installation, or the one of `namespace`."""
    return api_path(f"/apis/{API_VERSION}", "namespaces", installation, PLURAL, *namespace)


def decode_ledger_object(document: bytes | msgspec.Raw) -> VersionedLedger:
    """Return the ledger of an object in JSON. Raises LedgerObjectError."""
    try:
        read = _OBJECT.decode(document)
        metadata, written = read.metadata, _LEDGER.decode(read.ledger)
        ledger = QuotaLedger(
            ledger_uid=metadata.uid,
            quota_uid=written.quota_uid,
            generation=written.generation,
            hard=parse_vector(written.hard),
            unclassified_pods=written.unclassified_pods,
            max_waiting=written.max_waiting,
            waiting=written.waiting,
            used=None if written.used is None else parse_vector(written.used),
            stored_names={name: parse_vector(stored) for name, stored in written.stored_names.items()},
            reservations=Reservations.parse(written.reservations),
            revisions=msgspec.convert(written.revisions, Revisions, strict=False),
            class_catalogue=written.class_catalogue,
            next_catalogue=written.next_catalogue,
            holders=written.holders,
        )
    except ValueError as error:  # of msgspec, amounts and numbers
        raise LedgerObjectError(f"the {KIND} cannot be read: {error}") from None
    return VersionedLedger(ledger, metadata.resource_version)


def decode_identity(document: bytes | msgspec.Raw) -> Identity:
    """Return the identity of a ledger object. Raises LedgerObjectError."""
    try:
        return _OBJECT.decode(document).metadata
    except ValueError as error:
        raise LedgerObjectError(f"the {KIND} cannot be read: {error}") from None


def encode_ledger_object(namespace: str, version: str, ledger: QuotaLedger) -> bytes:
    """Return the body that replaces this version of the ledger; one without a version creates it.

    Beyond LONGEST_BODY it goes without holders.
    """
    written = _Ledger(
        quota_uid=ledger.quota_uid,
        generation=ledger.generation,
        hard=texts(ledger.hard),
        unclassified_pods=ledger.unclassified_pods,
        max_waiting=ledger.max_waiting,
        waiting=ledger.waiting,
        used=None if ledger.used is None else texts(ledger.used),
        stored_names={name: texts(stored) for name, stored in ledger.stored_names.items()},
        reservations=ledger.reservations.text,
        revisions={key: str(each) for key, each in msgspec.to_builtins(ledger.revisions).items()},
        class_catalogue=ledger.class_catalogue,
        next_catalogue=ledger.next_catalogue,
        holders=ledger.holders,
    )
    # An empty entry removes the managed fields. If an object has none, the API server tracks none until it is applied
    # (`skipNonAppliedManager` in `k8s.io/apimachinery/pkg/util/managedfields/internal`): a write takes 1.7 ms, not 2.2.
    metadata = {"name": namespace, "managedFields": [{}]} | ({"resourceVersion": version} if version else {})
    text = _ENCODER.encode(written).decode()
    body = _ENCODER.encode({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "ledger": text})
    if len(body) > LONGEST_BODY and ledger.holders:
        return encode_ledger_object(namespace, version, msgspec.structs.replace(ledger, holders={}))
    return body
