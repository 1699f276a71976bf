"""Catalogues of GPU classes that controllers publish for replicas with another configuration: a ConfigMap, one key per digest.

A ledger names its catalogue. A process with another catalogue reads it here: serve, and a controller that takes
over. A controller publishes a catalogue before it writes a ledger that names the digest, and later removes it.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from time import monotonic

import msgspec

from policies.quota.catalogue import (
    CatalogueError,
    CatalogueVersion,
    catalogue_digest,
    read_catalogue,
    write_catalogue,
)
from policies.quota.demand import Catalogue
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from webhook.cluster import errors
from webhook.cluster.api import MERGE_PATCH, ApiClient, api_path
from webhook.cluster.objects import CATALOGUES, decode_config_map

log = logging.getLogger("gpu_admission.quota")

REMEMBERED = 8
"""Maximum number of catalogues in memory beside our own. An upgrade has two. A built-in one takes 12 KB."""
RETRY_MISSING_SECONDS = 1.0
"""A missing catalogue is read again after this time. Otherwise each review of such a ledger would read the ConfigMap."""
KEEP_UNNAMED_SECONDS = 600.0
"""A catalogue that no ledger named for this time is removed. A controller that was about to name it has done so long before, or
lost the lead."""
ATTEMPTS = 5
_CALL_SECONDS = 5.0


class PublishedCatalogues:
    """The ConfigMap of one installation. Thread-safe; no lock is held during a call of the API server."""

    def __init__(self, api: ApiClient, namespace: str, own: Callable[[], Catalogue]) -> None:
        self._api = api
        self._path = api_path("/api/v1", "namespaces", namespace, "configmaps", CATALOGUES)
        self._own = own
        self._remembered: dict[str, Catalogue] = {}
        self._missed: dict[str, float] = {}
        self._published: frozenset[str] = frozenset()
        self._named_at: dict[str, float] = {}

    def named_by(self, ledger: QuotaLedger, seconds: float) -> Mapping[str, Catalogue]:
        """Return the published catalogues that the ledger names, by digest, without our own. Raises LedgerError."""
        digests = digests_of(ledger) - {catalogue_digest(self._own())}
        try:
            return {
                digest: catalogue
                for digest in digests
                if (catalogue := self.get(digest, seconds)) is not None
            }
        except errors.ApiError as error:
            message = f"the class catalogue of the quota could not be read: {error}"
            raise LedgerError(message, transient=True) from None

    def get(self, digest: str, seconds: float = _CALL_SECONDS) -> Catalogue | None:
        """Return a published catalogue, or None. Raises `errors.ApiError` if the API server cannot be reached."""
        if digest in self._remembered:
            return self._remembered[digest]
        if monotonic() - self._missed.get(digest, -RETRY_MISSING_SECONDS) < RETRY_MISSING_SECONDS:
            return None
        try:
            document = self._read(seconds)[1].get(digest)
            catalogue = None if document is None else read_catalogue(digest, document)
        except (errors.NotFound, errors.Forbidden, CatalogueError) as error:
            log.warning("ConfigMap %s: %s", CATALOGUES, error)
            catalogue = None
        if catalogue is None:
            self._missed = {**dict(list(self._missed.items())[1 - REMEMBERED :]), digest: monotonic()}
            return None
        latest = list(self._remembered.items())[1 - REMEMBERED :]
        self._remembered = {**dict(latest), digest: catalogue}
        return catalogue

    def publish(self, catalogue: Catalogue) -> bool:
        """Publish a catalogue; return whether it is published. Raises `errors.ApiError` if another attempt may succeed."""
        digest = catalogue_digest(catalogue)
        if digest in self._published:
            return True
        for _ in range(ATTEMPTS):
            try:
                version, data = self._read(_CALL_SECONDS)
                if digest not in data:
                    self._change(version, {digest: write_catalogue(catalogue)})
            except errors.Conflict:
                continue
            except (errors.Unreachable, errors.Unavailable):
                raise
            except errors.ApiError as error:
                log.warning("ConfigMap %s: catalogue %s cannot be published: %s", CATALOGUES, digest, error)
                return False
            self._published |= {digest}
            return True
        raise errors.Conflict(f"others kept writing to {CATALOGUES}")

    def prune(self, named: Collection[str]) -> None:
        """Remove catalogues that no ledger named for KEEP_UNNAMED_SECONDS. Raises `errors.ApiError`."""
        try:
            version, data = self._read(_CALL_SECONDS)
        except (errors.NotFound, errors.Forbidden):
            version, data = "", {}  # publish() reports it
        now = monotonic()
        self._published = frozenset(data)
        self._named_at = {each: now if each in named else self._named_at.get(each, now) for each in data}
        gone = [each for each, at in self._named_at.items() if now - at > KEEP_UNNAMED_SECONDS]
        if gone:
            self._change(version, dict.fromkeys(gone))
            self._published -= frozenset(gone)

    def forget(self) -> None:
        """Forget which catalogues are published or named: another process is now the leader, and removes catalogues."""
        self._published, self._named_at = frozenset(), {}

    def _read(self, seconds: float) -> tuple[str, dict[str, str]]:
        try:
            config_map = decode_config_map(self._api.get(self._path, timeout=seconds))
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the ConfigMap {CATALOGUES} cannot be read: {error}") from None
        return config_map.metadata.resource_version, config_map.data or {}

    def _change(self, version: str, data: Mapping[str, str | None]) -> None:
        body = msgspec.json.encode({"metadata": {"resourceVersion": version}, "data": data})
        self._api.patch(self._path, body, content_type=MERGE_PATCH, timeout=_CALL_SECONDS)


def digests_of(ledger: QuotaLedger) -> frozenset[str]:
    return frozenset(
        catalogue_version.digest
        for version in ledger.catalogue_versions
        if (catalogue_version := CatalogueVersion.parse(version))
    )
