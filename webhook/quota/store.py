"""Where rows are kept: two methods, so that every store holds to one protocol and one contract test suite.

A row is swapped, never written: the swap names the version on which it was decided, and fails if that is not the current one
any more. A changed or replaced spec is another version, too.
"""
# ruff: noqa: N818 - named for what happened, as the errors of the API are

from typing import Protocol

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger


class Versioned(msgspec.Struct, frozen=True):
    """A row as it was read. `version` is the store's own; equal versions are equal rows."""

    row: QuotaLedger
    version: str


class Conflict(Exception):
    """The row has changed since it was read: read it again and decide again."""


class Gone(Exception):
    """The namespace has no quota any more, or another object."""


class LedgerError(Exception):
    """The row could not be read or written; the message says why, for the author of a pod.

    Of a write it is not known whether it happened. `transient` tells whether to try again.
    """

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class Store(Protocol):
    """Rows by namespace. Any number of threads may call it. Seconds are how long an answer may take."""

    @property
    def entries_limit(self) -> int:
        """Characters that a row's entries may take."""
        ...

    def read(self, namespace: str, seconds: float) -> Versioned | None:
        """Return the row as it is at some moment of this call, None if the namespace has no quota then.

        Raises LedgerError.
        """
        ...

    def swap(self, namespace: str, before: Versioned, row: QuotaLedger, seconds: float) -> Versioned:
        """Replace the row `before` by `row`, of which the store keeps all but the spec.

        Raises Conflict or Gone if `before` is not the row any more, LedgerError.
        """
        ...
