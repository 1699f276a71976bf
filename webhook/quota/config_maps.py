"""ConfigMaps by which the controllers of an installation tell all processes something: one key for each digest or namespace.

Catalogues of GPU classes are for processes with another configuration: serve, and a controller that takes over. A ledger names
its catalogue, and such a process reads it here. A controller publishes a catalogue before it writes a ledger that names the
digest, and later removes it.

Notes of budgets say what is spent of deleted GPUQuotas. A controller notes it before it deletes a ledger. When the namespace gets
a budget again, the sum goes on from there. So nobody gains anything by deleting a quota.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic

import msgspec
from msgspec.structs import replace

from policies.quota.budget import Spending
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
from webhook.cluster.objects import BUDGETS_CONFIG_MAP, CATALOGUES_CONFIG_MAP, decode_config_map

log = logging.getLogger("gpu_admission.quota")

MAX_REMEMBERED = 8
"""Maximum number of catalogues in memory beside our own. An upgrade has two. A built-in one takes 12 KB."""
RETRY_MISSING_SECONDS = 1.0
"""A missing catalogue is read again after this time. Otherwise each review of such a ledger would read the ConfigMap."""
KEEP_UNNAMED_SECONDS = 600.0
"""A catalogue that no ledger named for this time is removed. A controller that was about to name it has done so long before, or
lost the lead."""
ATTEMPTS = 5
CALL_SECONDS = 5.0
PASSING = errors.Conflict, errors.Unreachable, errors.Unavailable
"""After these, another attempt may succeed."""

_SPENDING = msgspec.json.Decoder(Spending)


class SharedConfigMap:
    """The ConfigMap of that name of one installation, changed by swap. Raises `errors.ApiError`. Thread-safe."""

    def __init__(self, api: ApiClient, namespace: str, name: str) -> None:
        self._api, self._name = api, name
        self._path = api_path("/api/v1", "namespaces", namespace, "configmaps", name)

    def read(self, seconds: float = CALL_SECONDS) -> tuple[str, dict[str, str]]:
        """Return the resourceVersion and the data."""
        try:
            config_map = decode_config_map(self._api.get(self._path, timeout=seconds))
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the ConfigMap {self._name} cannot be read: {error}") from None
        return config_map.metadata.resource_version, config_map.data or {}

    def change(self, version: str, changes: Mapping[str, str | None]) -> None:
        """Change these keys of that version; None removes one."""
        body = msgspec.json.encode({"metadata": {"resourceVersion": version}, "data": changes})
        self._api.patch(self._path, body, content_type=MERGE_PATCH, timeout=CALL_SECONDS)

    def update(self, changes_of: Callable[[dict[str, str]], Mapping[str, str | None]]) -> None:
        """Change what `changes_of` returns for the present data, nothing if that is empty; again if others write meanwhile."""
        for _ in range(ATTEMPTS):
            with suppress(errors.Conflict):
                version, data = self.read()
                if changes := changes_of(data):
                    self.change(version, changes)
                return
        raise errors.Conflict(f"others kept writing to {self._name}")


class PublishedCatalogues:
    """The catalogues of one installation. Thread-safe; no lock is held during a call of the API server."""

    def __init__(self, api: ApiClient, namespace: str, own: Callable[[], Catalogue]) -> None:
        self._config_map, self._own = SharedConfigMap(api, namespace, CATALOGUES_CONFIG_MAP), own
        self._remembered: dict[str, Catalogue] = {}
        self._missed_at: dict[str, float] = {}
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

    def get(self, digest: str, seconds: float = CALL_SECONDS) -> Catalogue | None:
        """Return a published catalogue, or None. Raises `errors.ApiError` if the API server cannot be reached."""
        if digest in self._remembered:
            return self._remembered[digest]
        if monotonic() - self._missed_at.get(digest, -RETRY_MISSING_SECONDS) < RETRY_MISSING_SECONDS:
            return None
        try:
            document = self._config_map.read(seconds)[1].get(digest)
            catalogue = None if document is None else read_catalogue(digest, document)
        except (errors.NotFound, errors.Forbidden, CatalogueError) as error:
            log.warning("ConfigMap %s: %s", CATALOGUES_CONFIG_MAP, error)
            catalogue = None
        if catalogue is None:
            self._missed_at = {
                **dict(list(self._missed_at.items())[1 - MAX_REMEMBERED :]),
                digest: monotonic(),
            }
            return None
        latest = list(self._remembered.items())[1 - MAX_REMEMBERED :]
        self._remembered = {**dict(latest), digest: catalogue}
        return catalogue

    def publish(self, catalogue: Catalogue) -> bool:
        """Publish a catalogue; return whether it is published. Raises `errors.ApiError` if another attempt may succeed."""
        digest = catalogue_digest(catalogue)
        if digest in self._published:
            return True
        try:
            self._config_map.update(
                lambda data: {} if digest in data else {digest: write_catalogue(catalogue)}
            )
        except PASSING:
            raise
        except errors.ApiError as error:
            log.warning(
                "ConfigMap %s: catalogue %s cannot be published: %s", CATALOGUES_CONFIG_MAP, digest, error
            )
            return False
        self._published |= {digest}
        return True

    def prune(self, named: Collection[str]) -> None:
        """Remove catalogues that no ledger named for KEEP_UNNAMED_SECONDS. Raises `errors.ApiError`."""
        try:
            version, data = self._config_map.read()
        except (errors.NotFound, errors.Forbidden):
            version, data = "", {}  # publish() reports it
        now = monotonic()
        self._published = frozenset(data)
        self._named_at = {each: now if each in named else self._named_at.get(each, now) for each in data}
        gone = [name for name, at in self._named_at.items() if now - at > KEEP_UNNAMED_SECONDS]
        if gone:
            self._config_map.change(version, dict.fromkeys(gone))
            self._published -= frozenset(gone)

    def forget(self) -> None:
        """Forget which catalogues are published or named: another process is now the leader, and removes catalogues."""
        self._published, self._named_at = frozenset(), {}


def digests_of(ledger: QuotaLedger) -> frozenset[str]:
    return frozenset(
        catalogue_version.digest
        for version in ledger.catalogue_versions
        if (catalogue_version := CatalogueVersion.parse(version))
    )


class BudgetNotes:
    """The notes of one installation. Thread-safe."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._config_map = SharedConfigMap(api, namespace, BUDGETS_CONFIG_MAP)

    def get(self, namespace: str) -> Spending | None:
        """Return the note about a namespace, or None. Raises `errors.ApiError` if another attempt may succeed."""
        try:
            return _decode_note(self._config_map.read()[1].get(namespace, ""))
        except (errors.NotFound, errors.Forbidden) as error:
            log.warning("%s: whether its budget was spent before cannot be read: %s", namespace, error)
            return None

    def put(self, namespace: str, spending: Spending) -> None:
        """Note it unless later counts are noted, and remove the notes of ended periods. Raises as `get` does.

        If it cannot be noted, it is lost: else a quota could not be deleted.
        """

        def changes_of(data: dict[str, str]) -> dict[str, str | None]:
            noted = _decode_note(data.get(namespace, ""))
            if noted is not None and noted.until >= spending.until:
                return {}
            ended = (key for key, text in data.items() if _has_ended(text, spending.until))
            return {**dict.fromkeys(ended), namespace: msgspec.json.encode(_without_zeros(spending)).decode()}

        try:
            self._config_map.update(changes_of)
        except PASSING:
            raise
        except errors.ApiError as error:
            log.error("%s: what is spent of its budget is lost: %s", namespace, error)  # noqa: TRY400


def _decode_note(text: str) -> Spending | None:
    try:
        return _SPENDING.decode(text)
    except msgspec.MsgspecError:
        return None


def _without_zeros(spending: Spending) -> Spending:
    """Return a shorter note: a ConfigMap takes 1 MiB."""
    return replace(
        spending,
        spent={key: amount for key, amount in spending.spent.items() if amount},
        unknown={key: amount for key, amount in spending.unknown.items() if amount},
    )


def _has_ended(text: str, now: int) -> bool:
    noted = _decode_note(text)
    return noted is None or noted.end <= now
