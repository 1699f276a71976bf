"""GPUPolicy, GPUClass and GPUResourceMapping objects of the API server: JSON to what is kept of them, and back to a status."""

from collections.abc import Callable
from typing import Any

import msgspec

from policies.quota.ledger.quota_ledger import Condition
from webhook.cluster.informer import CLUSTER, Resource
from webhook.cluster.objects import PartialObject
from webhook.configuration.documents import CLASS, GROUP, POLICY, RESOURCE_MAPPING, VERSION, Document

PREFIX = f"/apis/{GROUP}/{VERSION}"
PLURALS = {POLICY: "gpupolicies", CLASS: "gpuclasses", RESOURCE_MAPPING: "gpuresourcemappings"}
RESOURCES = {kind: Resource(PREFIX, plural) for kind, plural in PLURALS.items()}


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What we write back: how the document stands, and the spec of it that is in force."""

    observed_generation: int = 0
    accepted: dict[str, Any] | None = None
    conditions: tuple[Condition, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """A document as the API server has it."""

    uid: str
    generation: int
    document: Document
    status: Status = Status()
    namespace: str = CLUSTER

    @property
    def accepted(self) -> Document | None:
        """The document with the spec that was in force last, None if none was."""
        spec = self.status.accepted
        return None if spec is None else msgspec.structs.replace(self.document, spec=spec)


class _Object(PartialObject, frozen=True):
    spec: dict[str, Any]
    status: msgspec.Raw = msgspec.Raw(b"{}")


_OBJECT = msgspec.json.Decoder(_Object)
_STATUS = msgspec.json.Decoder(Status)


def reader(kind: str) -> Callable[[msgspec.Raw], Record]:
    """Return what makes a record of an object of that kind in JSON."""

    def read(raw: msgspec.Raw) -> Record:
        seen = _OBJECT.decode(raw)
        document = Document(kind, seen.metadata.name, seen.spec)
        return Record(seen.metadata.uid, seen.metadata.generation, document, _status(seen.status))

    return read


def _status(raw: msgspec.Raw) -> Status:
    try:
        return _STATUS.decode(raw)
    except msgspec.MsgspecError:  # somebody else wrote it; the next report replaces it
        return Status()


def path_of(document: Document) -> str:
    """Return where the API server has it."""
    return f"{RESOURCES[document.kind].path()}/{document.name}"
