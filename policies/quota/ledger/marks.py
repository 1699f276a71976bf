"""Marks: the places in line of objects that never wait under our gate, and were denied because others wait.

The owner of a denied object creates it again, at an unknown time. So a mark in the ledger keeps a place in line for all objects
of one owner with the same demand. At its turn, the controller reserves its demand as for a pod (`<key>/lift`), and the next such
object takes the reservation over. Then the mark is removed, or once the owner has not tried again for too long.
"""

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from policies.quota.amounts import Vector, texts

MAX_MARKS = 16
"""Marks of one namespace. When one is removed, another owner can get one. Only the first in line makes others wait."""
SEEN_MS = 10_000
"""Minimum time between writes of a mark whose objects are denied."""
AGAIN_MS, LONGEST_MS = 60_000, 1_200_000
"""Bounds of how long a mark stays without another attempt: twice the time from the first attempt to the last. Controllers of
Kubernetes double their pauses between attempts, up to 1,000 s."""


class Mark(msgspec.Struct, frozen=True):
    """`since` is when the first of its objects was denied, and `seen` when the last one was, in ms since 1970."""

    demand: Vector
    since: int
    seen: int

    @property
    def size(self) -> int:
        """Characters in JSON, with its key."""
        return 96 + sum(len(key) + len(amount) + 6 for key, amount in texts(self.demand).items())

    def is_late(self, now: int) -> bool:
        """Whether its owner has not tried again for too long."""
        return now - self.seen > min(max(AGAIN_MS, 2 * (self.seen - self.since)), LONGEST_MS)


Marks = Mapping[str, Mark]


def mark_key(owner: str, demand: Vector) -> str:
    """Return the key of the mark of an owner and demand. It is used like the uid of a pod, and sorts after any uid."""
    text = f"{owner} {sorted(texts(demand).items())}"
    return f"mark-{sha256(text.encode()).hexdigest()[:16]}"


def marked(marks: Marks, key: str, demand: Vector, now: int, space: int) -> Marks:
    """Return the marks with this one. Unchanged if it was written lately, or does not fit `space` (in characters)."""
    mark = Mark(demand, marks[key].since if key in marks else now, now)
    has_room = len(marks) < MAX_MARKS and mark.size <= space
    is_written = now - marks[key].seen > SEEN_MS if key in marks else has_room
    return {**marks, key: mark} if is_written else marks
