"""GPUQuotas as the controller keeps them: the row that its watch showed last. What is swapped is always read anew."""

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.spec import NAME
from webhook.cluster.informer import Resource
from webhook.quota.documents import GROUP, PLURAL, VERSION, DocumentError, decode_quota

QUOTAS = Resource(f"/apis/{GROUP}/{VERSION}", PLURAL)


class QuotaRecord(msgspec.Struct, frozen=True):
    """The quota of a namespace; `row` is None where it cannot be read, and `problem` says why."""

    uid: str
    namespace: str
    row: QuotaLedger | None = None
    problem: str = ""


class _Metadata(msgspec.Struct):
    name: str
    namespace: str
    uid: str


class _Object(msgspec.Struct):
    metadata: _Metadata


_OBJECT = msgspec.json.Decoder(_Object)


def quota_record(raw: msgspec.Raw) -> QuotaRecord | None:
    """Return the record of a GPUQuota in JSON, None for one of a name that means nothing."""
    metadata = _OBJECT.decode(raw).metadata
    if metadata.name != NAME:
        return None
    try:
        row = decode_quota(raw).versioned.ledger
    except DocumentError as error:
        return QuotaRecord(metadata.uid, metadata.namespace, problem=str(error))
    return QuotaRecord(metadata.uid, metadata.namespace, row)
