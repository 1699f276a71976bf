"""Ledgers in the status of the GPUQuota `default` of each namespace, swapped by resourceVersion.

Made for many threads and processes: whoever writes first wins, everybody else reads again.
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import msgspec

from policies.quota.charge_request import LedgerError
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT
from webhook.cluster import errors
from webhook.cluster.api import JSON, METADATA
from webhook.quota import documents, status_ledger
from webhook.quota.store import LedgerConflict, QuotaGone, VersionedLedger

_NAMED = f'{documents.PLURAL}.{documents.GROUP} "'
"""How the API server begins to say that one object is not there, as against the whole kind."""


class Api(Protocol):
    """The two calls that a ledger needs, of `webhook.cluster.api.ApiClient`."""

    def get(self, path: str, *, timeout: float | None = None) -> bytes: ...

    def put(self, path: str, body: bytes, *, timeout: float | None = None, accept: str = JSON) -> bytes: ...


class ClusterStore:
    """A `Store` on the API server. `installation` is the namespace of gpu-admission."""

    reservations_limit = LIMIT

    def __init__(self, api: Api, installation: str) -> None:
        self._api = api
        self._installation = installation

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Read from etcd itself: a GET without a resourceVersion is never served from a cache."""
        try:
            with _as_ledger_errors("read", errors.NotFound):
                found = self._api.get(documents.quota_path(namespace), timeout=seconds)
                return status_ledger.decode_ledger(found)
        except errors.NotFound as error:
            # An API server that has just started does not know the kind yet, and that must not mean "no quota".
            if _NAMED in str(error):
                return None
            problem = f"the API server does not know the kind {documents.PLURAL}.{documents.GROUP}: {error}"
            raise LedgerError(problem, transient=True) from None

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        """Write all of the status. The spec that is stored then is that of `before`: any other one has another version."""
        path = documents.quota_path(namespace, "status")
        body = status_ledger.encode_ledger(namespace, before, ledger)
        try:
            with _as_ledger_errors("written", errors.Conflict, errors.NotFound):
                written = self._api.put(path, body, timeout=seconds, accept=METADATA)
                version = status_ledger.decode_version(written)
        except errors.Conflict as error:
            raise LedgerConflict(str(error)) from None
        except errors.NotFound as error:
            raise QuotaGone(str(error)) from None
        old = before.ledger
        now = msgspec.structs.replace(
            ledger,
            quota_uid=old.quota_uid,
            generation=old.generation,
            hard=old.hard,
            unpinned=old.unpinned,
        )
        return VersionedLedger(now, version)


@contextlib.contextmanager
def _as_ledger_errors(done: str, *but: type[errors.ApiError]) -> Iterator[None]:
    try:
        yield
    except but:
        raise
    except documents.DocumentError as error:
        raise LedgerError(str(error), transient=False) from None
    except errors.ApiError as error:
        transient = isinstance(error, errors.Unreachable | errors.Unavailable)
        raise LedgerError(f"the GPUQuota could not be {done}: {error}", transient=transient) from None
