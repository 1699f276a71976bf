"""The pages of a LIST: of whole objects, and of identities alone, which are read again and again.

Identities are taken from metadata, of which an API server sends all, managedFields included (`AsPartialObjectMetadata` in
`k8s.io/apimachinery/pkg/api/meta`); its tables without objects have neither uid nor resourceVersion.
"""

from typing import Generic, NamedTuple, TypeVar

import msgspec

from webhook.cluster.nesting import decoded

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
    """Return a page of metadata in JSON. Raises msgspec.MsgspecError."""
    page = decoded(_OBJECTS.decode, document)
    items = [each.metadata for each in page.items or ()]
    return Page(page.metadata.resource_version, page.metadata.continue_token, items)
