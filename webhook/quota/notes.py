"""Notes of denials in a row, from which a controller makes Events: left by swap, best effort, never while a review waits.

They take room that reservations share, so they are bounded, as often as a controller fails to take them out.
"""

import random
from collections.abc import Iterable, Sequence
from time import monotonic, sleep

from msgspec.structs import replace

from policies.finding import truncate
from policies.quota.charge_request import LedgerError
from policies.quota.ledger.quota_ledger import DenialNote
from webhook.cluster.events import LONGEST_MESSAGE
from webhook.quota.store import LedgerConflict, QuotaGone, Store

MOST_NOTES, MOST_CHARACTERS = 20, 8_192
"""In one ledger, and of their messages together: a write of a ledger of 4 KiB takes the API server some 2 ms. What exceeds them
is in the log of the replica and in the audit log."""
ATTEMPTS, PAUSE_SECONDS = 5, 0.1
"""Swaps that are tried where others write at the same time, with jittered pauses of at most so long."""


def leave_notes(
    store: Store, namespace: str, quota_uid: str, notes: Sequence[DenialNote], *, seconds: float
) -> None:
    """Add notes to the ledger of a namespace within so many seconds, where its quota is still that one. Raises LedgerError."""
    deadline = monotonic() + seconds
    for _ in range(ATTEMPTS):
        before = store.read(namespace, _seconds_until(deadline))
        if before is None or not before.version or before.ledger.quota_uid != quota_uid:
            return
        ledger = replace(before.ledger, denials=together(before.ledger.denials, notes))
        try:
            store.compare_and_swap(namespace, before, ledger, _seconds_until(deadline))
        except QuotaGone:
            return
        except LedgerConflict:
            sleep(random.uniform(0.0, PAUSE_SECONDS))  # noqa: S311 - jitter
        else:
            return
    raise LedgerError(f"{ATTEMPTS} times somebody else wrote first", transient=True)


def together(stored: Iterable[DenialNote], new: Iterable[DenialNote]) -> tuple[DenialNote, ...]:
    """Return all notes, those of one owner and reason as one, as far as there is room; the older come first."""
    found: dict[tuple[str, str], DenialNote] = {}
    for note in (*stored, *(replace(each, message=truncate(each.message, LONGEST_MESSAGE)) for each in new)):
        key = note.owner, note.reason
        former = found.get(key)
        if former is None:
            found[key] = note
        else:
            first, last = min(former.first, note.first), max(former.last, note.last)
            found[key] = replace(note, count=former.count + note.count, first=first, last=last)
    kept, room = [], MOST_CHARACTERS
    for note in list(found.values())[:MOST_NOTES]:
        room -= len(note.owner) + len(note.message)
        if room < 0:
            break
        kept.append(note)
    return tuple(kept)


def _seconds_until(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise LedgerError("no time was left", transient=True)
    return left
