"""The catalogue: one document with all that demand depends on besides pods, nodes and quotas, and its digest.

The digest is that of the document's text, which omits defaults. So releases with different fields compute the same digest, unless
a class uses a field that one of them does not know.
"""

from hashlib import sha256

import msgspec

from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.mapping_spec import DerivedMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.demand import Catalogue, UnclassifiedPods

_DIGITS = 8
"""Hex digits of each of the two parts of a digest. Every ledger and many reservations contain it, so it is short."""


class CatalogueError(ValueError):
    """The document does not match the digest, or has a field that this release does not know."""


class PublishedCatalogue(msgspec.Struct, frozen=True):
    """A catalogue that was read from its document. It implements `Catalogue`."""

    classes: GPUClasses
    resource_mapping: ResourceMapping


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    classes: msgspec.Raw
    resource_mappings: msgspec.Raw

    @property
    def digest(self) -> str:
        parts = (sha256(part).hexdigest()[:_DIGITS] for part in (self.classes, self.resource_mappings))
        return "".join(parts)


class CatalogueVersion(msgspec.Struct, frozen=True):
    """What the demand of a pod was computed with: the digest of a catalogue, and `unclassified_pods` of the quota."""

    digest: str
    unclassified_pods: UnclassifiedPods

    @classmethod
    def parse(cls, text: str) -> "CatalogueVersion | None":
        """Read what `str` wrote. None if this release does not know it."""
        digest, _, unclassified_pods = text.partition("/")
        known = next((value for value in UnclassifiedPods if value.value == unclassified_pods), None)
        return cls(digest, known) if known else None

    def __str__(self) -> str:
        return f"{self.digest}/{self.unclassified_pods.value}"


def catalogue_digest(catalogue: Catalogue) -> str:
    """Return the digest of the catalogue: 16 hex digits."""
    return f"{catalogue.classes.digest[:_DIGITS]}{catalogue.resource_mapping.digest[:_DIGITS]}"


_DOCUMENT = msgspec.json.Decoder(_Document)
_CLASSES = msgspec.json.Decoder(tuple[GPUClass, ...])
_MAPPINGS = msgspec.json.Decoder(tuple[DerivedMappingSpec, ...])


def write_catalogue(catalogue: Catalogue) -> str:
    classes, mappings = catalogue.classes.document, catalogue.resource_mapping.document
    return msgspec.json.encode(_Document(msgspec.Raw(classes), msgspec.Raw(mappings))).decode()


def read_catalogue(digest: str, document: str) -> PublishedCatalogue:
    """Return the catalogue of that digest. Raises CatalogueError."""
    try:
        read = _DOCUMENT.decode(document)
        if read.digest != digest:
            raise CatalogueError(f"catalogue {digest} has the content of {read.digest}")
        classes = _CLASSES.decode(read.classes)
        mappings = _MAPPINGS.decode(read.resource_mappings)
    except msgspec.MsgspecError as error:
        raise CatalogueError(f"catalogue {digest} cannot be read: {error}") from None
    return PublishedCatalogue(GPUClasses(classes), ResourceMapping(mappings))
