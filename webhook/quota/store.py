"""The two methods of a store of ledgers.

A swap names the version on which it was decided, and fails if the stored version is another one. A changed or replaced spec makes
another version, too.
"""
# ruff: noqa: N818 - named for what happened, as the errors of the API are

from typing import Protocol

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger


class VersionedLedger(msgspec.Struct, frozen=True):
    """A ledger as it was read. `version` is the store's own; equal versions are equal ledgers."""

    ledger: QuotaLedger
    version: str


class LedgerConflict(Exception):
    """The ledger has changed or gone since it was read: read it again and decide again."""


class Store(Protocol):
    """Ledgers by namespace. Any number of threads may call it. Seconds are how long an answer may take."""

    reservations_limit: int
    """Characters that the reservations of a ledger may take."""

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        """Return the ledger at some moment of this call. None without a quota. Raises LedgerError."""
        ...

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        """Replace `before` by `ledger`. Raises LedgerError, and LedgerConflict if `before` is not the stored ledger."""
        ...
