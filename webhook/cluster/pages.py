"""The pages of a LIST: of whole objects, or only of their identities.

For identities the API server sends all metadata, managedFields included (`AsPartialObjectMetadata` in
`k8s.io/apimachinery/pkg/api/meta`). Its tables without objects have neither uid nor resourceVersion.
"""

from typing import Generic, TypeVar

import msgspec

from webhook.cluster.nesting import decoded

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that say which object it is, and in which version."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class Identified(msgspec.Struct, frozen=True):
    metadata: Identity


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")
    """The token by which the list continues, empty on the last page."""


class Page(msgspec.Struct, Generic[T]):
    """Part of a collection at a revision."""

    metadata: ListMeta
    items: list[T] | None = None


_OBJECTS = msgspec.json.Decoder(Page[msgspec.Raw])
_IDENTITIES = msgspec.json.Decoder(Page[Identified])


def page_of_objects(document: bytes) -> Page[msgspec.Raw]:
    """Read a page in JSON. Raises msgspec.MsgspecError."""
    return decoded(_OBJECTS.decode, document)


def page_of_identities(document: bytes) -> Page[Identified]:
    """Read a page of metadata in JSON. Raises msgspec.MsgspecError."""
    return decoded(_IDENTITIES.decode, document)
