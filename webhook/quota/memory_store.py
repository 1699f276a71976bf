"""Rows in memory, for a webhook without a cluster: nothing is counted from lists, and DELETE reviews give back.

A row starts at zero with the process, so what runs already is not charged; and what was let in but never created stays
charged until it is deleted or the process ends. That is the price of having no API server to ask.
"""

import threading
from collections.abc import Callable

import msgspec

from policies.quota.amounts import NOTHING
from policies.quota.charge import catalogue_digest, counted_by
from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.configuration.loader import Configuration
from webhook.quota.store import Conflict, Gone, Versioned

ENTRIES_LIMIT = 8 * 1024 * 1024
"""Characters: every live pod stays an entry here, and nothing is ever written anywhere. Some 200,000 pods."""


class MemoryStore:
    """A `Store` whose quotas are those of the configuration in force. Its lock is held over no I/O."""

    entries_limit = ENTRIES_LIMIT

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration
        self._lock = threading.Lock()
        self._rows: dict[str, Versioned] = {}

    def read(self, namespace: str, seconds: float) -> Versioned | None:  # noqa: ARG002 - memory answers at once
        with self._lock:
            return self._current(namespace)

    def swap(self, namespace: str, before: Versioned, row: QuotaLedger, seconds: float) -> Versioned:  # noqa: ARG002
        with self._lock:
            current = self._current(namespace)
            if current is None:
                raise Gone(f"namespace {namespace} has no GPUQuota any more")
            if current.version != before.version:
                raise Conflict(f"version {before.version} has become {current.version}")
            return self._replace(namespace, row)

    def release(self, namespace: str, uid: str) -> None:
        """Give back what an object holds, and its changes: it is being deleted."""
        with self._lock:
            held = self._rows.get(namespace)
            if held is None:
                return
            ids = held.row.entries.of_object(uid)
            if ids:
                entries = held.row.entries.without(ids)
                self._replace(namespace, msgspec.structs.replace(held.row, entries=entries))

    def rows(self) -> dict[str, QuotaLedger]:
        """Return all rows by namespace, for metrics."""
        with self._lock:
            namespaces = tuple(self._configuration().quotas)
            found = ((namespace, self._current(namespace)) for namespace in namespaces)
            return {namespace: held.row for namespace, held in found if held is not None}

    def _current(self, namespace: str) -> Versioned | None:
        """Return the row under the spec in force; another spec makes it another version."""
        configuration = self._configuration()
        spec = configuration.quotas.get(namespace)
        if spec is None:
            return None
        held = self._rows.get(namespace)
        digest = catalogue_digest(configuration.classes, configuration.resource_mapping)
        hard, catalogue = spec.amounts, counted_by(digest, spec.unpinned)
        if held is None:
            row = QuotaLedger(quota_uid=f"memory/{namespace}", generation=0, hard={}, unpinned=spec.unpinned)
        else:
            row = held.row
            if (row.hard, row.unpinned, row.class_catalogue) == (hard, spec.unpinned, catalogue):
                return held
        return self._replace(
            namespace,
            msgspec.structs.replace(
                row,
                generation=row.generation + 1,
                observed_generation=row.generation + 1,
                hard=hard,
                unpinned=spec.unpinned,
                used={**dict.fromkeys(hard, NOTHING), **(row.used or {})},
                class_catalogue=catalogue,
            ),
        )

    def _replace(self, namespace: str, row: QuotaLedger) -> Versioned:
        held = self._rows.get(namespace)
        replaced = Versioned(row, str(int(held.version) + 1 if held else 1))
        self._rows[namespace] = replaced
        return replaced
