"""A store of ledgers, and the one in memory, for a webhook without a cluster.

A swap names the version on which it was decided, and fails if the stored version is another one. A changed or replaced spec makes
another version, too.
"""
# ruff: noqa: N818 - named for what happened, as the errors of the API are

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol

import msgspec

from policies.quota.amounts import ZERO
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team_ledgers import TeamLedgers
from webhook.configuration.loader import Configuration

RESERVATIONS_LIMIT = 16 * 1024 * 1024
"""Characters, in memory: some 150,000 pods. Every live pod stays a reservation there, and nothing is written to etcd."""


class VersionedLedger(msgspec.Struct, frozen=True):
    """A ledger as it was read. `version` is the store's own; equal versions are equal ledgers.

    `team_ledgers` are those of its team, in the same object. None if the ledger has an object of its own.
    """

    ledger: QuotaLedger
    version: str
    team_ledgers: TeamLedgers | None = None

    def of(self, namespace: str) -> "VersionedLedger | None":
        """Return the ledger of a namespace in the same object. None if that is not there."""
        if self.team_ledgers is None:
            return self
        ledger = self.team_ledgers.of(namespace)
        return VersionedLedger(ledger, self.version, self.team_ledgers) if ledger else None

    def with_ledger(self, namespace: str, ledger: QuotaLedger) -> "VersionedLedger":
        """Return this version with another ledger of the namespace, to be written."""
        if self.team_ledgers is None:
            return VersionedLedger(ledger, self.version)
        return VersionedLedger(ledger, self.version, self.team_ledgers.with_ledger(namespace, ledger))

    def reservation_limit(self, namespace: str, team_limit: int) -> int:
        """Return how many characters the reservations of a namespace may take, if those of the object may take `team_limit`."""
        ledgers = self.team_ledgers
        return team_limit if ledgers is None else ledgers.reservation_limit(namespace, team_limit)

    def reserves_more_than(self, known: "VersionedLedger") -> bool:
        """Whether a ledger in this object has a reservation that it lacks in `known`."""
        before = known.by_namespace
        pairs = ((before.get(namespace), ledger) for namespace, ledger in self.by_namespace.items())
        return any(
            old is not new and not {*(old.reservations.ids if old else ())}.issuperset(new.reservations.ids)
            for old, new in pairs
        )

    @property
    def by_namespace(self) -> Mapping[str, QuotaLedger]:
        """All ledgers in the object by namespace; the key is "" if the ledger has an object of its own."""
        return {"": self.ledger} if self.team_ledgers is None else self.team_ledgers.ledgers


class LedgerConflict(Exception):
    """The ledger has changed or gone since it was read: read it again and decide again."""


class Store(Protocol):
    """Ledgers by namespace. Any number of threads may call it. Seconds are how long an answer may take."""

    reservations_limit: int
    """Characters that the reservations of an object may take."""

    def object_name(self, namespace: str) -> str:
        """Return the name of the object in which the ledger of the namespace was last: its own, or that of its team."""

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Return the ledger at some moment of this call. None without a quota. Raises LedgerError."""

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        """Replace `before` by `ledger`. Raises LedgerError, and LedgerConflict if `before` is not the stored version.

        The other ledgers in the object become those of `before`.
        """


class MemoryStore:
    """The quotas of the configuration in force. No list is counted, and DELETE reviews free quota.

    A ledger starts at zero with the process: running pods do not count. An admitted pod that was never created counts until it is
    deleted or the process ends.
    """

    reservations_limit = RESERVATIONS_LIMIT

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration
        self._lock = threading.Lock()
        self._ledgers: dict[str, VersionedLedger] = {}
        self._versions = count()

    def object_name(self, namespace: str) -> str:
        return namespace

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:  # noqa: ARG002 - memory answers at once
        with self._lock:
            return self._current(namespace)

    def compare_and_swap(
        self,
        namespace: str,
        before: VersionedLedger,
        ledger: QuotaLedger,
        seconds: float,  # noqa: ARG002 - memory answers at once
    ) -> VersionedLedger:
        with self._lock:
            current = self._current(namespace)
            if current is None:
                raise LedgerConflict(f"namespace {namespace} has no GPUQuota any more")
            if current.version != before.version:
                raise LedgerConflict(f"version {before.version} has become {current.version}")
            return self._replace(namespace, ledger)

    def release(self, namespace: str, uid: str) -> None:
        """Remove the reservations of an object that is being deleted."""
        with self._lock:
            stored = self._ledgers.get(namespace)
            reserved = stored.ledger.reservations if stored else ()
            if stored and (ids := [each.id for each in reserved if each.object_uid == uid]):
                reservations = stored.ledger.reservations.without(ids)
                self._replace(namespace, msgspec.structs.replace(stored.ledger, reservations=reservations))

    def ledgers(self) -> dict[str, QuotaLedger]:
        """Return all ledgers by namespace, for metrics."""
        with self._lock:
            namespaces = tuple(self._configuration().quotas)
            by_namespace = ((namespace, self._current(namespace)) for namespace in namespaces)
            return {namespace: stored.ledger for namespace, stored in by_namespace if stored is not None}

    def _current(self, namespace: str) -> VersionedLedger | None:
        """Return the ledger under the spec in force. A changed spec makes another version."""
        configuration = self._configuration()
        spec = configuration.quotas.get(namespace)
        if spec is None:
            return None
        stored = self._ledgers.get(namespace)
        pods = spec.unclassified_pods
        version = CatalogueVersion(catalogue_digest(configuration), pods)
        initial = QuotaLedger(quota_uid=f"memory/{namespace}", generation=0, hard={}, unclassified_pods=pods)
        ledger = stored.ledger if stored else initial
        current = msgspec.structs.replace(
            ledger,
            hard=spec.amounts,
            unclassified_pods=pods,
            used={**dict.fromkeys(spec.amounts, ZERO), **(ledger.used or {})},
            class_catalogue=str(version),
        )
        if stored is not None and current == ledger:
            return stored
        return self._replace(namespace, msgspec.structs.replace(current, generation=ledger.generation + 1))

    def _replace(self, namespace: str, ledger: QuotaLedger) -> VersionedLedger:
        replaced = VersionedLedger(ledger, str(next(self._versions)))
        self._ledgers[namespace] = replaced
        return replaced
