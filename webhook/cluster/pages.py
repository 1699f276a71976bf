"""The pages of a LIST: of whole objects in JSON, and of identities alone, which are read again and again.

Identities come in protobuf, in three quarters of the bytes of JSON and half of the API server's time. They are taken from
metadata, of which it sends all, managedFields included (`AsPartialObjectMetadata` in `k8s.io/apimachinery/pkg/api/meta`); its
tables without objects have neither uid nor resourceVersion.
"""

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import msgspec

from webhook.cluster.nesting import decoded

IDENTITIES = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)
"""Accept header, for a server that has no protobuf too."""

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    """Part of a collection at a revision, and the token by which the list goes on, empty at its end."""

    revision: str
    continue_token: str
    items: list[T]


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """Which object, in which version."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


class _Object(msgspec.Struct):
    metadata: Identity


class _Objects(msgspec.Struct):
    metadata: _Metadata
    items: list[_Object] | None = None


_PAGE = msgspec.json.Decoder(_Page)
_OBJECTS = msgspec.json.Decoder(_Objects)


def page_of_objects(document: bytes) -> Page[msgspec.Raw]:
    """Return a page in JSON. Raises msgspec.MsgspecError."""
    page = decoded(_PAGE.decode, document)
    return Page(page.metadata.resource_version, page.metadata.continue_token, page.items or [])


def page_of_identities(document: bytes) -> Page[Identity]:
    """Return a page of metadata, in protobuf or JSON. Raises msgspec.MsgspecError or ValueError."""
    if document.startswith(_MAGIC):
        return _identities(document)
    page = decoded(_OBJECTS.decode, document)
    items = [each.metadata for each in page.items or ()]
    return Page(page.metadata.resource_version, page.metadata.continue_token, items)


# The numbers of the fields: generated.proto of k8s.io/apimachinery, in pkg/runtime and pkg/apis/meta/v1.

_MAGIC = b"k8s\0"
_UNKNOWN_RAW = 2
_LIST_METADATA, _LIST_ITEMS = 1, 2
_LIST_REVISION, _LIST_CONTINUE = 2, 3
_OBJECT_METADATA = 1
_NAME, _NAMESPACE, _UID, _REVISION = 1, 3, 5, 6

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def _identities(document: bytes) -> Page[Identity]:
    revision = continue_token = ""
    items = []
    try:
        start, end = _only(_UNKNOWN_RAW, document, len(_MAGIC), len(document))
        for number, begin, until in _fields(document, start, end):
            if number == _LIST_METADATA:
                found = _texts(document, begin, until, last=_LIST_CONTINUE)
                revision, continue_token = found.get(_LIST_REVISION, ""), found.get(_LIST_CONTINUE, "")
            elif number == _LIST_ITEMS:
                found = _texts(document, *_only(_OBJECT_METADATA, document, begin, until), last=_REVISION)
                items.append(Identity(found[_NAME], found[_UID], found[_REVISION], found.get(_NAMESPACE, "")))
    except (IndexError, KeyError) as error:
        raise ValueError(f"a list in protobuf cannot be read: {error!r}") from None
    return Page(revision, continue_token, items)


def _only(number: int, document: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the first field of this number begins and ends."""
    for found, begin, until in _fields(document, at, end):
        if found == number:
            return begin, until
    raise KeyError(number)


def _texts(document: bytes, at: int, end: int, *, last: int) -> dict[int, str]:
    """Return the texts by their number, up to the last one that is wanted: fields are in the order of their numbers."""
    found = {}
    for number, begin, until in _fields(document, at, end):
        if number > last:
            break
        found[number] = document[begin:until].decode()
    return found


def _fields(document: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield of each field with a length its number, and where it begins and ends (https://protobuf.dev/programming-guides/encoding/)."""
    while at < end:
        tag, at = _varint(document, at)
        kind = tag & 7
        if kind == _BYTES:
            length, at = _varint(document, at)
            until = at + length
            if until > end:
                raise IndexError(until)
            yield tag >> 3, at, until
            at = until
        elif kind == _VARINT:
            _, at = _varint(document, at)
        elif kind in {_EIGHT_BYTES, _FOUR_BYTES}:
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise KeyError(kind)


def _varint(document: bytes, at: int) -> tuple[int, int]:
    """Return the number there, and where it ends."""
    value, shift = 0, 0
    while (byte := document[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | byte << shift, at + 1
