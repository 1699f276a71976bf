"""Marks: the places in line of objects that never wait under our gate, and were denied because others wait.

Its owner makes such an object again, and nobody knows when. So a mark in the ledger has a place in line for all objects of one
owner with the same demand. Once it is its turn, the controller holds its demand as for a pod (`<key>/lift`), and the next such
object takes that over. The mark goes with it, or once the owner stays away.
"""

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from policies.quota.amounts import Vector, texts

MAX_MARKS = 16
"""Of one namespace. When one goes, another owner gets one. Only the first in line closes anything, and it is of one namespace."""
SEEN_MS = 10_000
"""A mark is written so often at most while its objects are denied."""
AGAIN_MS, LONGEST_MS = 60_000, 1_200_000
"""How long a mark stays without another attempt. Controllers of Kubernetes double their pauses, to 1,000 s at most. So it stays
twice as long as they have tried, within these bounds."""


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
        """Whether its owner has stayed away for too long."""
        return now - self.seen > min(max(AGAIN_MS, 2 * (self.seen - self.since)), LONGEST_MS)


Marks = Mapping[str, Mark]


def mark_key(owner: str, demand: Vector) -> str:
    """Return the key of the mark of an owner and demand. It stands where a pod has its uid, and sorts after any."""
    text = f"{owner} {sorted(texts(demand).items())}"
    return f"mark-{sha256(text.encode()).hexdigest()[:16]}"


def marked(marks: Marks, key: str, demand: Vector, now: int, space: int) -> Marks:
    """Return the marks with this one, if there is room for it in so many characters, and it is news."""
    mark = Mark(demand, marks[key].since if key in marks else now, now)
    is_kept = (
        now - marks[key].seen <= SEEN_MS if key in marks else len(marks) >= MAX_MARKS or mark.size > space
    )
    return marks if is_kept else {**marks, key: mark}
