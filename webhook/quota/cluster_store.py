"""Ledgers in GPUQuotaLedger objects, in the namespace of the installation, swapped by resourceVersion.

Any number of threads and processes may write: the first write succeeds, the others read again. A namespace has no quota if it has
neither a ledger nor a GPUQuota. A GPUQuota without a ledger was never counted, and denies.
"""

import contextlib
from collections.abc import Iterator

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT
from policies.quota.quota_request import LedgerError
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient
from webhook.configuration.documents import GROUP
from webhook.quota import documents, ledger_objects
from webhook.quota.store import LedgerConflict, VersionedLedger

NO_LEDGER_OBJECT = ""
"""Version of a ledger that is not stored yet. Only controllers replace it, which creates the ledger object."""


class ClusterStore:
    """A `Store` on the API server. `installation` is the namespace of the ledgers."""

    reservations_limit = LIMIT

    def __init__(self, api: ApiClient, installation: str) -> None:
        self._api = api
        self._installation = installation

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Read from etcd: no cache serves a GET without a resourceVersion.

        The GPUQuota is read after the ledger. If neither is found, the namespace had no quota at the second read.
        """
        with _as_ledger_errors("read"):
            found = self._get(self._path(namespace), ledger_objects.PLURAL, seconds)
            if found is not None:
                return ledger_objects.decode_ledger_object(found)
        granted = self.granted(namespace, seconds)
        return None if granted is None else VersionedLedger(granted, NO_LEDGER_OBJECT)

    def granted(self, namespace: str, seconds: float) -> QuotaLedger | None:
        """Return the ledger that the GPUQuota grants, never counted. None without a GPUQuota."""
        with _as_ledger_errors("read"):
            found = self._get(documents.quota_path(namespace), documents.PLURAL, seconds)
            quota = None if found is None else documents.decode_quota(found)
        if quota is None:
            return None
        if quota.granted is None:
            raise LedgerError(quota.problem, transient=False)
        return quota.granted

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        body = ledger_objects.encode_ledger_object(namespace, before.version, ledger)
        with _as_ledger_errors("written"):
            if before.version == NO_LEDGER_OBJECT:
                written = self._api.post(
                    ledger_objects.ledger_objects_path(self._installation), body, timeout=seconds
                )
            else:
                written = self._api.put(self._path(namespace), body, timeout=seconds, accept=METADATA)
            identity = ledger_objects.decode_identity(written)
        stored = msgspec.structs.replace(ledger, ledger_uid=identity.uid)
        return VersionedLedger(stored, identity.resource_version)

    def delete(self, namespace: str, version: str, seconds: float) -> None:
        """Delete the ledger. The GPUQuota must have been looked for after it was read. Raises as `compare_and_swap` does."""
        with _as_ledger_errors("deleted"):
            self._api.delete(self._path(namespace), version=version, timeout=seconds)

    def discard(self, namespace: str, seconds: float) -> bool:
        """Delete an unreadable ledger if there is no GPUQuota; return whether it was deleted. Raises as `delete` does."""
        with _as_ledger_errors("read"):
            found = self._get(self._path(namespace), ledger_objects.PLURAL, seconds)
            if (
                found is None
                or self._get(documents.quota_path(namespace), documents.PLURAL, seconds) is not None
            ):
                return False
            version = ledger_objects.decode_identity(found).resource_version
        self.delete(namespace, version, seconds)
        return True

    def _path(self, namespace: str) -> str:
        return ledger_objects.ledger_objects_path(self._installation, namespace)

    def _get(self, path: str, plural: str, seconds: float) -> bytes | None:
        try:
            return self._api.get(path, timeout=seconds)
        except errors.NotFound as error:
            # An API server that has just started does not know the kind yet, and that must not mean "no quota". Of one object
            # it begins otherwise to say that it is not there.
            kind = f"{plural}.{GROUP}"
            if f'{kind} "' in str(error):
                return None
            problem = f"the API server does not know the kind {kind}: {error}"
            raise LedgerError(problem, transient=True) from None


@contextlib.contextmanager
def _as_ledger_errors(done: str) -> Iterator[None]:
    try:
        yield
    except (errors.Conflict, errors.AlreadyExists, errors.NotFound) as error:
        raise LedgerConflict(str(error)) from None
    except (ledger_objects.LedgerObjectError, msgspec.MsgspecError) as error:
        raise LedgerError(str(error), transient=False) from None
    except errors.ApiError as error:
        transient = isinstance(error, errors.Unreachable | errors.Unavailable)
        raise LedgerError(
            f"the ledger of the quota could not be {done}: {error}", transient=transient
        ) from None
