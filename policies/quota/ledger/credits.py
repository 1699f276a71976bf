"""Credits and marks: which pods go first in line, and places in line of objects that never wait under our gate.

Credits: when a pod ends, one pod of the same owner that needs no more quota goes first in line. They are stored in the ledger, so
the next leader knows which were used. The count that removes an ended pod from `used` adds its end to a credit: counts are
fenced, so exactly one count does. The write that holds quota for the replacement removes the end.

Marks: an object was denied because others wait, and its owner creates it again, at an unknown time. So a mark in the ledger keeps
a place in line for all objects of one owner with the same demand. At its turn, the controller reserves its demand as for a pod
(`<key>/lift`), and the next such object takes the reservation over. Then the mark is removed, or once the owner has not tried
again for too long.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from fractions import Fraction
from hashlib import sha256
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import Amounts, amount_texts, positive_difference
from policies.quota.waiting import Waiter, creation_timestamp

MAX_CHARACTERS = 64 * 1024
"""Maximum characters of the credits in one object. Each of its ledgers has an equal part."""
MIN_PARTS = 16
"""A ledger has at most a 16th, also if the object has fewer ledgers: some 280 ends."""
REPLACED_MS = 60_000
"""A pod goes first in line if it was created at most this long after the pod that it replaces ended."""

HOLDER_DIGITS, UID_DIGITS = 4, 12
"""Lengths in an `owner_key`. A prefix of the digest of a uid is enough, because nobody can choose a uid."""


class Credit(msgspec.Struct, frozen=True, array_like=True):
    """When pods of one owner and demand ended, in ms since 1970, oldest first. `owner` is an `owner_key`."""

    owner: str
    demand: Amounts
    ended: tuple[int, ...]

    @property
    def holder(self) -> str:
        """The `holder_key` of its owner."""
        return self.owner[:HOLDER_DIGITS]

    @property
    def size(self) -> int:
        """Characters in JSON."""
        demand = sum(len(key) + len(amount) + 6 for key, amount in amount_texts(self.demand).items())
        return 16 + len(self.owner) + demand + sum(len(str(at)) + 1 for at in self.ended)


Credits = tuple[Credit, ...]


def owner_key(holder: str, uid: str) -> str:
    """Return the key of an object that is named `Job/train`. Its uid has to be read, unless the `holder_key` differs."""
    return holder_key(holder) + sha256(uid.encode()).hexdigest()[:UID_DIGITS]


def holder_key(holder: str) -> str:
    return sha256(holder.encode()).hexdigest()[:HOLDER_DIGITS]


def credited(known: Credits, added: Iterable[Credit], ledgers: int) -> Credits:
    """Return the credits with `added`, for an object with this number of ledgers. Beyond the space, the oldest ends go."""
    all_of = {_kind(credit): replace(credit, ended=()) for credit in (*known, *added)}
    ends = sorted(((at, credit) for credit in (*known, *added) for at in credit.ended), key=itemgetter(0))
    space = MAX_CHARACTERS // max(MIN_PARTS, ledgers)
    stay: dict[_Kind, list[int]] = {kind: [] for kind in all_of}
    for at, credit in reversed(ends):
        kind = _kind(credit)
        space -= len(str(at)) + 1 + (0 if stay[kind] else all_of[kind].size)
        if space < 0:
            break
        stay[kind].append(at)
    return _with_ends(all_of.values(), stay)


class Matching(msgspec.Struct, frozen=True):
    """By uid, the ended pod that lets a pod go first. `stay` are the credits without ends that are too old."""

    stay: Credits = ()
    ends: Mapping[str, tuple[Credit, int]] = {}

    def left(self, started: Iterable[str]) -> Credits:
        """Return the credits without the ends that these pods, which have started, used."""
        used = [self.ends[uid] for uid in started if uid in self.ends]
        ended = {_kind(credit): list(credit.ended) for credit in self.stay}
        for credit, at in used:
            ended[_kind(credit)].remove(at)
        return _with_ends(self.stay, ended) if used else self.stay


def match(known: Credits, waiters: Iterable[Waiter], now: int) -> Matching:
    """Match each end with a pod of its owner, the oldest pods first. An end without a pod is removed after REPLACED_MS."""
    free = {_kind(credit): list(credit.ended) for credit in known}
    by_owner: dict[str, list[Credit]] = {}
    for each in known:
        by_owner.setdefault(each.owner, []).append(each)
    fitting: dict[tuple[str, int], list[Credit]] = {}
    ends: dict[str, tuple[Credit, int]] = {}
    owned = (pod for pod in waiters if pod.owner in by_owner)
    for pod in sorted(owned, key=lambda waiter: (waiter.since, waiter.uid)):
        kind = pod.owner, id(pod.demand)  # equal pods share their demand
        if kind not in fitting:
            fits = [each for each in by_owner[pod.owner] if not positive_difference(pod.demand, each.demand)]
            fitting[kind] = sorted(fits, key=lambda credit: credit.demand != pod.demand)
        for credit in fitting[kind]:
            left = free[_kind(credit)]
            if (number := bisect_left(left, pod.since, key=_last_replacement)) < len(left):
                ends[pod.uid] = credit, left.pop(number)
                break
    stay = {kind: [at for at in left if abs(now - at) <= REPLACED_MS] for kind, left in free.items()}
    for credit, at in ends.values():
        stay[_kind(credit)].append(at)
    return Matching(_with_ends(known, stay), ends)


_Kind = tuple[str, frozenset[tuple[str, Fraction]]]


def _kind(credit: Credit) -> _Kind:
    return credit.owner, frozenset(credit.demand.items())


def _with_ends(known: Iterable[Credit], ended: Mapping[_Kind, Iterable[int]]) -> Credits:
    those = (replace(credit, ended=tuple(sorted(ended[_kind(credit)]))) for credit in known)
    return tuple(credit for credit in those if credit.ended)


def _last_replacement(at: int) -> str:
    return creation_timestamp(at + REPLACED_MS)


MAX_MARKS = 16
"""Marks of one namespace. When one is removed, another owner can get one. Only the first in line makes others wait."""
SEEN_MS = 10_000
"""Minimum time between writes of a mark whose objects are denied."""
AGAIN_MS, LONGEST_MS = 60_000, 1_200_000
"""Bounds of how long a mark stays without another attempt: twice the time from the first attempt to the last. Controllers of
Kubernetes double their pauses between attempts, up to 1,000 s."""


class Mark(msgspec.Struct, frozen=True):
    """`since` is when the first of its objects was denied, and `seen` when the last one was, in ms since 1970."""

    demand: Amounts
    since: int
    seen: int

    @property
    def size(self) -> int:
        """Characters in JSON, with its key."""
        return 96 + sum(len(key) + len(amount) + 6 for key, amount in amount_texts(self.demand).items())

    def is_late(self, now: int) -> bool:
        """Whether its owner has not tried again for too long."""
        return now - self.seen > min(max(AGAIN_MS, 2 * (self.seen - self.since)), LONGEST_MS)


Marks = Mapping[str, Mark]


def mark_key(owner: str, demand: Amounts) -> str:
    """Return the key of the mark of an owner and demand. It is used like the uid of a pod, and sorts after any uid."""
    text = f"{owner} {sorted(amount_texts(demand).items())}"
    return f"mark-{sha256(text.encode()).hexdigest()[:16]}"


def with_mark(marks: Marks, key: str, demand: Amounts, now: int, space: int) -> Marks:
    """Return the marks with this one. Unchanged if it was written lately, or does not fit `space` (in characters)."""
    mark = Mark(demand, marks[key].since if key in marks else now, now)
    has_room = len(marks) < MAX_MARKS and mark.size <= space
    is_written = now - marks[key].seen > SEEN_MS if key in marks else has_room
    return {**marks, key: mark} if is_written else marks
