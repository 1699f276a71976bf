"""The epoch: one object, by which a replica knows that no quota appeared where it found none.

Before a controller counts a new ledger, it raises the epoch for the namespace, by compare-and-swap, and then waits for
NO_QUOTA_SECONDS (`EpochRaiser`). Each replica reads the object more often than that (`NoQuota`). Versions are resourceVersions,
which never go back, also if the object is deleted and created again.
"""

import contextlib
from collections.abc import Collection, Mapping

import msgspec

from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient, Identified
from webhook.quota.ledger_objects import EPOCH_OBJECT, encode_object, ledger_objects_path

CALL_SECONDS = 5.0
ATTEMPTS = 10
NAMED = 256
"""Namespaces that the object names: those for which the epoch was raised last. For the others, the newest of theirs counts."""


class Epoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """By namespace, the version that was replaced when the epoch was raised for it last.

    `version` is that of the object itself, 0 if there is none.
    """

    namespaces: Mapping[str, int] = {}
    others: int = 0
    version: int = 0

    def replaced_for(self, namespace: str) -> int:
        return self.namespaces.get(namespace, self.others)

    def raised(self, namespaces: Collection[str]) -> "Epoch":
        """Return what replaces this version."""
        every = {**self.namespaces, **dict.fromkeys(namespaces, self.version)}
        by_age = sorted(every, key=every.__getitem__)
        dropped, kept = by_age[:-NAMED], by_age[-NAMED:]
        return Epoch(
            {each: every[each] for each in kept}, max([self.others, *(every[each] for each in dropped)])
        )


class _Object(Identified, frozen=True):
    ledger: str


_OBJECT, _EPOCH = msgspec.json.Decoder(_Object), msgspec.json.Decoder(Epoch)


class EpochObject:
    """The object in the namespace of the installation, beside the ledgers. For any number of threads."""

    def __init__(self, api: ApiClient, installation: str) -> None:
        self._api, self._collection = api, ledger_objects_path(installation)
        self._path = ledger_objects_path(installation, EPOCH_OBJECT)

    def read(self, seconds: float = CALL_SECONDS) -> Epoch:
        """Read it from etcd: no cache serves a GET without a resourceVersion. Raises `errors.ApiError`."""
        try:
            found = _OBJECT.decode(self._api.get(self._path, timeout=seconds))
        except errors.NotFound:
            return Epoch()
        version = int(found.metadata.resource_version)
        try:
            return msgspec.structs.replace(_EPOCH.decode(found.ledger), version=version)
        except msgspec.MsgspecError:
            return Epoch(others=version, version=version)  # raised for all: nobody believes anything

    def swap(self, namespaces: Collection[str]) -> None:
        """Raise the epoch for these namespaces. Without any, only create a missing object. Raises `errors.ApiError`."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(errors.Conflict, errors.AlreadyExists, errors.NotFound):
                before = self.read()
                if before.version == 0:  # a version that it replaces is needed first
                    body = encode_object(EPOCH_OBJECT, "", Epoch())
                    self._api.post(self._collection, body, timeout=CALL_SECONDS)
                    continue
                if namespaces:
                    body = encode_object(EPOCH_OBJECT, str(before.version), before.raised(namespaces))
                    self._api.put(self._path, body, timeout=CALL_SECONDS, accept=METADATA)
                return
        raise errors.Conflict(f"others kept writing to {EPOCH_OBJECT}")
