"""Turns in which serve replicas write the row of a busy namespace, so that few of their swaps fail.

Replicas see each other only in the row, which names those that wrote lately. Once two of them wrote at the same time, each
waits for its own turn: the clock is divided into turns of one length, and the names in their order have one after the other.
What comes meanwhile is gathered, and decided with one write. In its turn a replica reads the row once, and then only writes.

These are hints, and nothing safe depends on them: every write is a swap. Clocks that differ by more than a turn cost conflicts,
as no turns at all would; a replica that has died costs its turns until others have written REMEMBERED_WRITES times.
"""

import math
import time
from collections.abc import Callable

import msgspec

from policies.quota.ledger.quota_ledger import COUNTED_SECONDS, SHORTEST_TURN, QuotaLedger

LONGEST_TURN = 256
"""Milliseconds. The first of the names decides how long turns are, for all must mean the same."""

LONG, SHORT = 0.8, 0.35
"""Parts of a turn that a read and a write may take: longer, and they run into the next one; shorter, and others wait in vain."""

NEWEST = 0.2
"""What the newest of the durations counts in their average."""

BEGINS_WITHIN = 0.6
"""The part of a turn in which to begin, so that it ends in time."""

REMEMBERED_WRITES = 32
"""How many writes back a writer has a turn."""

GATHERING = 0.003
"""Seconds for which requests are gathered after some came together: eight clients then cost 13 % fewer writes."""

CONTENDED_SECONDS = 5.0
"""How long writes come in turns after two met. To find out that they need not costs a conflict."""

RIVAL_SECONDS = 1.0
"""How long the row is read before it is written, after another replica has written it."""


class Turns:
    """The turns of this replica in one namespace. Not for several threads at once."""

    def __init__(
        self, name: str, clock: Callable[[], float], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._name = name
        self._clock = clock
        self._wall_clock = wall_clock
        self._writers: dict[str, int] = {}
        self._milliseconds = SHORTEST_TURN
        self._contended_until = self._rival_until = self._written_at = -math.inf
        self._has_read = False  # in this attempt
        self._came_together = False
        self._begun = self._taken = 0.0
        self._turn_read: tuple[int, int] | None = None

    def seconds_ahead(self) -> float:
        """Return how long to gather: until our turn where replicas met lately, else no longer than the last requests suggest."""
        names = sorted({*self._writers, self._name})
        if not self._is_contended or len(names) == 1:
            return GATHERING if self._came_together else 0.0
        turn = self._milliseconds / 1000
        passed = (self._wall_clock() - names.index(self._name) * turn) % (len(names) * turn)
        return 0.0 if passed < BEGINS_WITHIN * turn else len(names) * turn - passed

    def begin(self) -> bool:
        """Begin an attempt; return whether it must read the row, as others have probably written it since we did."""
        self._has_read = False
        if self._is_contended:
            return self._turn != self._turn_read
        # Later the controller has counted what we wrote, and the row is another one.
        now = self._clock()
        return now < self._rival_until or now > self._written_at + COUNTED_SECONDS

    def read(self, ledger: QuotaLedger, begun: float) -> None:
        """Note what the row says of others. `begun`: when the reading of it began."""
        self._writers = dict(ledger.writers)
        self._milliseconds = min(max(ledger.turn_milliseconds, SHORTEST_TURN), LONGEST_TURN)
        self._has_read, self._begun, self._turn_read = True, begun, self._turn
        if self._writers and max(self._writers, key=self._writers.__getitem__) != self._name:
            self._rival_until = self._clock() + RIVAL_SECONDS

    def signed(self, ledger: QuotaLedger) -> QuotaLedger:
        """Return the ledger with our name, and how long turns are from now on, to be written."""
        number = max(ledger.writers.values(), default=0) + 1
        recent = {
            name: written for name, written in ledger.writers.items() if number - written < REMEMBERED_WRITES
        }
        writers = {**recent, self._name: number}
        return msgspec.structs.replace(ledger, writers=writers, turn_milliseconds=self._length)

    def written(self, ledger: QuotaLedger, requests: int) -> None:
        """Note that the swap to this ledger succeeded, and how long it took together with the reading.

        Several requests were gathered: so turns go on as long as another replica writes.
        """
        self._writers, self._milliseconds = dict(ledger.writers), ledger.turn_milliseconds
        self._written_at = now = self._clock()
        self._came_together = requests > 1
        if requests > 1 and self._is_contended and now < self._rival_until:
            self._contended_until = now + CONTENDED_SECONDS
        if self._has_read:
            taken = min((self._written_at - self._begun) * 1000, LONGEST_TURN)
            self._taken += NEWEST * (taken - self._taken)

    def conflicted(self) -> None:
        """Note that the swap failed. After a read another one was made at the same time; else others just wrote since."""
        self._turn_read = None
        if self._has_read:
            self._contended_until = self._clock() + CONTENDED_SECONDS

    @property
    def _is_contended(self) -> bool:
        return self._clock() < self._contended_until

    @property
    def _length(self) -> int:
        if not self._is_contended or self._name > min(self._writers, default=""):
            return self._milliseconds
        if self._taken > LONG * self._milliseconds:
            return min(2 * self._milliseconds, LONGEST_TURN)
        return (
            max(self._milliseconds // 2, SHORTEST_TURN)
            if self._taken < SHORT * self._milliseconds
            else self._milliseconds
        )

    @property
    def _turn(self) -> tuple[int, int]:
        return self._milliseconds, int(self._wall_clock() * 1000 // self._milliseconds)
