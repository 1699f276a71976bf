"""The store of ledgers in the namespace of the installation: GPUQuotaLedger objects, read and swapped at the API server."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import LIMIT
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.quota_request import LedgerError
from policies.quota.team_spec import TeamMatch
from webhook.cluster import errors
from webhook.cluster.api import METADATA, ApiClient, Identity, api_path
from webhook.configuration.documents import GROUP
from webhook.quota import documents, team_documents
from webhook.quota.ledger_objects import (
    EPOCH_OBJECT,
    NO_LEDGER_OBJECT,
    PLURAL,
    LedgerObjectError,
    TeamObjects,
    VersionedTeamLedgers,
    decode_identity,
    decode_ledger_object,
    encode_epoch,
    encode_ledger_object,
    ledger_objects_path,
    ledger_without_quota,
    team_name,
    team_object_name,
)
from webhook.quota.store import LedgerConflict, VersionedLedger

T = TypeVar("T")

NAMES_REMEMBERED = 4096
"""Maximum number of namespaces whose ledger object a process remembers. Without that it takes two reads to find."""
CALL_SECONDS = 10.0
"""Timeout of one read or write of a ledger, a GPUQuota or a ClusterGPUQuota by the controller."""


class ClusterStore:
    """The ledgers in the namespace `installation`, swapped by resourceVersion: of several writers the first succeeds.

    Without ledger and GPUQuota, a namespace has no quota. A GPUQuota without a ledger was never counted, and denies.
    """

    reservations_limit = LIMIT

    def __init__(
        self,
        api: ApiClient,
        installation: str,
        team_of: Callable[[str, float], TeamMatch | None] = lambda _namespace, _seconds: None,
        teams: TeamObjects | None = None,
    ) -> None:
        """`team_of` returns the team of a namespace that has no ledger, within a timeout (`TeamLookup.of`)."""
        self._api, self._installation, self._team_of = api, installation, team_of
        self._teams = teams or TeamObjects()
        self._object_names: dict[str, str] = {}

    def object_name(self, namespace: str) -> str:
        return self._object_names.get(namespace, namespace)

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Read from etcd: no cache serves a GET without a resourceVersion.

        The GPUQuota is read after the ledger, and then the team of the namespace, from a list that is at most LISTED_SECONDS old.
        Without any of them, the namespace had no quota then. Raises a transient LedgerError while the ledger is moving.
        """
        if (object_name := self._object_names.get(namespace)) is not None and (
            in_team := self._in_team(namespace, object_name, seconds)
        ):
            return in_team
        own = self.read_own(namespace, seconds)
        if own is not None and own.ledger.moved_to:
            if (in_team := self._in_team(namespace, own.ledger.moved_to, seconds)) is None:
                raise LedgerError(
                    f"the ledger of {namespace} is moving into or out of a team", transient=True
                )
            if len(self._object_names) >= NAMES_REMEMBERED:
                self._object_names.clear()
            self._object_names[namespace] = own.ledger.moved_to
            return in_team
        self._object_names.pop(namespace, None)
        if own is not None:
            return own
        desired = self.read_desired(namespace, seconds)
        if desired is None and self._team_of(namespace, seconds) is not None:
            desired = ledger_without_quota()
        return None if desired is None else VersionedLedger(desired, NO_LEDGER_OBJECT)

    def read_own(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Read the object of the namespace. None without one. Raises LedgerError."""
        return self._find(self._path(namespace), PLURAL, decode_ledger_object, seconds)

    def read_team(self, name: str, seconds: float) -> VersionedTeamLedgers | None:
        """Read the object of the team of that name. None without one. Raises LedgerError."""
        return self._find(self._path(team_object_name(name)), PLURAL, self._teams.decode, seconds)

    def _in_team(self, namespace: str, object_name: str, seconds: float) -> VersionedLedger | None:
        team = self.read_team(team_name(object_name), seconds)
        return team.of(namespace) if team else None

    def read_desired(self, namespace: str, seconds: float) -> QuotaLedger | None:
        """Return the GPUQuota as a ledger that was never counted. None without a GPUQuota."""
        path = documents.quota_path(namespace)
        quota = self._find(path, documents.PLURAL, documents.decode_quota, seconds)
        if quota is not None and quota.desired is None:
            raise LedgerError(quota.problem, transient=False)
        return quota.desired if quota else None

    def has_team(self, namespace: str, seconds: float) -> bool:
        """Whether the namespace exists and belongs to a team, read now. A deleted one has no pods left. Raises LedgerError."""
        with _as_ledger_errors("read"):
            try:
                self._api.get(api_path("/api/v1", "namespaces", namespace), timeout=seconds)
            except errors.NotFound:
                return False
        return self._team_of(namespace, seconds) is not None

    def read_desired_team(self, name: str, seconds: float) -> Team | None:
        """Return the spec of a ClusterGPUQuota. None without one, also while the API server does not serve the kind."""
        path = team_documents.team_path(name)
        with _as_ledger_errors("read"), contextlib.suppress(errors.NotFound):
            record = team_documents.decode_team(self._api.get(path, timeout=seconds))
            if record.team is None:
                raise LedgerError(record.problem, transient=False)
            return record.team
        return None

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        if before.team_ledgers is not None:
            after = before.with_ledger(namespace, ledger).team_ledgers or before.team_ledgers
            written_team = self.swap_team(before.version, after, seconds)
            return VersionedLedger(after.of(namespace) or ledger, written_team.version, after)
        body = encode_ledger_object(namespace, before.version, ledger)
        identity = self._swap(namespace, before.version, body, seconds)
        return VersionedLedger(replace(ledger, ledger_uid=identity.uid), identity.resource_version)

    def swap_team(self, version: str, team_ledgers: TeamLedgers, seconds: float) -> VersionedTeamLedgers:
        """Replace this version of a team's object, or create it. Raises as `compare_and_swap` does."""
        name, body = team_object_name(team_ledgers.team.name), self._teams.encode(version, team_ledgers)
        identity = self._swap(name, version, body, seconds)
        return VersionedTeamLedgers(team_ledgers, identity.resource_version)

    def _swap(self, name: str, version: str, body: bytes, seconds: float) -> Identity:
        with _as_ledger_errors("written"):
            if version == NO_LEDGER_OBJECT:
                written = self._api.post(ledger_objects_path(self._installation), body, timeout=seconds)
            else:
                written = self._api.put(self._path(name), body, timeout=seconds, accept=METADATA)
            return decode_identity(written)

    def epoch(self, seconds: float) -> int:
        """Return the version of the epoch (`no_quota.py`), 0 if it was never raised. Raises LedgerError."""
        identity = self._find(self._path(EPOCH_OBJECT), PLURAL, decode_identity, seconds)
        return int(identity.resource_version) if identity else 0

    def raise_epoch(self, seconds: float) -> None:
        """Raise the epoch: a resourceVersion never comes again. Raises as `compare_and_swap` does."""
        version = str(self.epoch(seconds) or NO_LEDGER_OBJECT)
        self._swap(EPOCH_OBJECT, version, encode_epoch(version), seconds)

    def delete(self, namespace: str, version: str, seconds: float) -> None:
        """Delete the ledger. The GPUQuota must have been looked for after it was read. Raises as `compare_and_swap` does."""
        with _as_ledger_errors("deleted"):
            self._api.delete(self._path(namespace), version=version, timeout=seconds)

    def discard(self, namespace: str, seconds: float) -> bool:
        """Delete an unreadable ledger without GPUQuota and team; return whether it was deleted. Raises as `delete` does."""
        identity = self._find(self._path(namespace), PLURAL, decode_identity, seconds)
        if identity is None:
            return False
        quota = self._find(documents.quota_path(namespace), documents.PLURAL, bytes, seconds)
        if quota is not None or self.has_team(namespace, seconds):
            return False
        self.delete(namespace, identity.resource_version, seconds)
        return True

    def _path(self, namespace: str) -> str:
        return ledger_objects_path(self._installation, namespace)

    def _find(self, path: str, plural: str, decode: Callable[[bytes], T | None], seconds: float) -> T | None:
        """Return an object, None without one. Raises LedgerError."""
        with _as_ledger_errors("read"):
            try:
                return decode(self._api.get(path, timeout=seconds))
            except errors.NotFound as error:
                # A missing kind must not mean "no quota". Only for a missing object does the message have `gpuquotas.… "NAME"`.
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
    except LedgerObjectError as error:
        raise LedgerError(str(error), transient=False) from None
    except msgspec.MsgspecError:
        raise LedgerError(errors.UNREADABLE, transient=False) from None
    except errors.ApiError as error:
        transient = isinstance(error, errors.Unreachable | errors.Unavailable)
        problem = f"the ledger of the quota could not be {done}: {error}"
        raise LedgerError(problem, transient=transient) from None
