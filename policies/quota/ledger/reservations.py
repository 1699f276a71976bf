"""Reservations, and the compact text that stores them in the ledger.

A reservation is the demand of an admitted object that the API server has not stored yet. Reservations of equal demand share a
line, because a thousand pods of one Job have equal demand:

    gpus=1 classes/nvidia-a100=1 resources/nvidia.com/gpu=1 | 5f0c…:pods/train-0 77ab…:pods/train-1
    gpus=2 @<catalogue version> | 90aa…:resourceclaims/large
    classes/nvidia-a100=1 >4711 | 91d2…/c7e1…
    waiting | 3c55…:pods/train-2
    gpus=1 | a1b2…/lift
    gpus=1 | c3d4…/keep/e5f6…

A creation has the name of its object after the uid. A line with `>version` has updates of a stored object: its amounts are the
growth, and `version` is the reviewed resourceVersion. `@` marks demand that was also computed under that catalogue version, to
which the ledger was moving.

A line `waiting` has creations under our scheduling gate, which demand nothing. An id with `/lift` is a reservation that the
controller makes for a stored pod that waits. When it removes the gate, the request uid follows: `a1b2…/lift/c7e1…`.
An id with `/keep` is what an object keeps for the pod that replaces an ended one; the uid of the object follows.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec

from policies.quota.amounts import (
    Amounts,
    amount_texts,
    maximum,
    parse_amounts,
    positive_difference,
    total_of_shared,
)

LIMIT = 384 * 1024
"""Maximum characters of the text. A creation takes 37, plus `:pods/<name>`: some 3,700 fit with names of 63 characters,
1,300 with the longest names, and only 140 that each name 32 resources of their own. Every decision writes the whole ledger, and
etcd takes 1.5 MiB."""

NAME_PARTS = 24
"""Creations of one name take at most this part of LIMIT, 16 KiB: some 150 of equal demand. At most one of them is stored, so only
a client that keeps creating an existing name makes more."""

UNREADABLE = "unreadable "
"""Prefix of an unreadable line in `Reservations.ids`. Other ids have no spaces."""

_ITEMS, _AND_IDS, _LINES = " ", " | ", "\n"
_NEWER_THAN, _COUNTED_BY, _NAMED = ">", "@", ":"
_WAITING = "waiting"
_LIFT, _KEEP = "/lift", "/keep/"
_LONGEST_REMEMBERED = 256
"""Maximum characters of a head that `_remembered` keeps. A head of 30 keys takes 10 KiB, so all 2,048 take 20 MiB."""


class Reservation(msgspec.Struct, frozen=True):
    """Demand reserved under an id: the uid of a new object, or `uid/request uid` for an update of a stored object.

    A creation without demand is a pod that will wait. `uid/lift` is held for a stored pod that waits, and
    `uid/lift/request uid` for the removal of its gate.

    For an update, `demand` is only the growth. `version` is the reviewed resourceVersion, 0 if not known; the update can only be
    stored on it. For a creation, `name` is the kind and name of the object (`pods/train-0`).

    `catalogue` is the `CatalogueVersion` to which the ledger was moving at the time, or empty. Then each key of `demand`
    is the larger amount of both catalogue versions.
    """

    id: str
    demand: Amounts
    version: int = 0
    name: str = ""
    catalogue: str = ""

    @property
    def is_change(self) -> bool:
        return "/" in self.id

    @property
    def is_lift(self) -> bool:
        """Whether it is for a waiting pod, and no removal of the gate was admitted."""
        return self.id.endswith(_LIFT)

    @property
    def is_begun_lift(self) -> bool:
        """Whether the removal of the gate was admitted."""
        return f"{_LIFT}/" in self.id

    @property
    def is_keep(self) -> bool:
        """Whether it is kept for the replacement of an ended pod."""
        return _KEEP in self.id

    @property
    def keeper_uid(self) -> str:
        """The uid of the object that keeps it."""
        return self.id.rpartition("/")[2]

    @property
    def object_uid(self) -> str:
        return self.id.partition("/")[0]

    def check(self) -> None:
        """Raise ValueError if its line could not be read again."""
        text = Reservations.of(self).text
        if list(Reservations.parse(text)) != [self]:
            raise ValueError(f"no reservation can be written as {text[:80]!r}")


class Reservations(msgspec.Struct, frozen=True, dict=True):
    """The reservations in a ledger, by id, in order of arrival.

    `unreadable` keeps the unreadable lines unchanged, because they may reserve anything.
    """

    _entries: "Mapping[str, _Entry]"
    unreadable: tuple[str, ...] = ()

    @classmethod
    def of(cls, *reservations: Reservation) -> "Reservations":
        return cls({}).plus(reservations)

    @classmethod
    def parse(cls, text: str) -> "Reservations":
        """Read what `text` wrote. Keep an unreadable line, because it must not count as nothing."""
        entries: dict[str, _Entry] = {}
        unreadable = []
        for line in text.split(_LINES) if text else ():
            parsed = _parsed_line(line)
            if parsed and entries.keys().isdisjoint(parsed):
                entries.update(parsed)
            else:
                unreadable.append(line)
        return cls(entries, tuple(unreadable))

    @property
    def text(self) -> str:
        lines: dict[str, list[str]] = {}
        for reservation_id, entry in self._entries.items():
            lines.setdefault(entry.head.text, []).append(_id_text(reservation_id, entry.name))
        readable = (f"{head}{_AND_IDS}{_ITEMS.join(items)}" for head, items in lines.items())
        return _LINES.join((*readable, *self.unreadable))

    @cached_property
    def size(self) -> int:
        """Characters of the text, with a final newline."""
        items = sum(
            len(key) + len(name) + (2 if name else 1) for key, (_, name) in self._entries.items()
        )  # with a colon before a name
        heads = sum(len(head) + len(_AND_IDS) for head in self._heads)
        return items + heads + sum(len(line) + 1 for line in self.unreadable)

    @cached_property
    def lifts_size(self) -> int:
        """Characters of the ids of reservations for waiting pods, also after the removal of the gate was admitted."""
        return sum(len(key) + 1 for key in self._entries if _LIFT in key)

    def added_size(self, reservation: Reservation) -> int:
        """Return how many characters the reservation adds at most. It may share a line with others."""
        head = _head(reservation).text
        line = 0 if head in self._heads else len(head) + len(_AND_IDS)
        return len(_id_text(reservation.id, reservation.name)) + 1 + line

    def size_of(self, name: str) -> int:
        """Return how many characters the creations of that name take, as if they shared no lines with others."""
        return Reservations({key: entry for key, entry in self._entries.items() if entry.name == name}).size

    def held(self, stored: Mapping[str, Amounts]) -> Amounts:
        """Return the total of the reserved amounts.

        Only one object of a name exists at a time. So creations of one name reserve the maximum of each key, less what the stored
        object of that name uses already (`stored`, by name).
        """
        demands = [entry.head.demand for entry in self._entries.values() if not entry.name]
        for name, largest in self._largest.items():
            demands.append(positive_difference(largest, stored[name]) if name in stored else largest)
        return total_of_shared(demands)

    @cached_property
    def joining(self) -> dict[str, str]:
        """The names of creations under our scheduling gate, by id: at most one of each name is stored."""
        return {key: entry.name or key for key, entry in self._entries.items() if not entry.head.demand}

    @cached_property
    def lifts(self) -> dict[str, Reservation]:
        """The reservations for waiting pods, by uid, also after the removal of the gate was admitted."""
        return {each.object_uid: each for each in self if each.is_lift or each.is_begun_lift}

    @cached_property
    def keeps(self) -> tuple[Reservation, ...]:
        """What objects keep for pods that replace ended ones."""
        return tuple(reservation for reservation in self if reservation.is_keep)

    def largest(self, name: str) -> Amounts:
        """Return the largest amount of each key among creations of that name."""
        return self._largest.get(name, {})

    @cached_property
    def _largest(self) -> dict[str, Amounts]:
        largest: dict[str, Amounts] = {}
        for entry in self._entries.values():
            if entry.name:
                before = largest.setdefault(entry.name, entry.head.demand)
                if before is not entry.head.demand:
                    largest[entry.name] = maximum((before, entry.head.demand))
        return largest

    @cached_property
    def _heads(self) -> "dict[str, _Head]":
        return {entry.head.text: entry.head for entry in self._entries.values()}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, reservation_id: object) -> bool:
        return reservation_id in self._entries

    def __iter__(self) -> Iterator[Reservation]:
        for reservation_id, (head, name) in self._entries.items():
            yield Reservation(reservation_id, head.demand, head.version, name, head.catalogue)

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, and each unreadable line with the prefix UNREADABLE."""
        return (*self._entries, *(UNREADABLE + line for line in self.unreadable))

    @property
    def expiring_ids(self) -> tuple[str, ...]:
        """All `ids` except those that only the controller writes and removes: for waiting pods, and for replacements."""
        return tuple(
            reservation
            for reservation in self.ids
            if reservation.startswith(UNREADABLE) or not (reservation.endswith(_LIFT) or _KEEP in reservation)
        )

    def plus(self, reservations: Iterable[Reservation]) -> "Reservations":
        """Return these and `reservations`. An existing id keeps its reservation."""
        entries, heads = dict(self._entries), dict(self._heads)
        for reservation in reservations:
            head = _head(reservation)
            entries.setdefault(reservation.id, _Entry(heads.setdefault(head.text, head), reservation.name))
        return Reservations(entries, self.unreadable)

    def without(self, ids: Iterable[str]) -> "Reservations":
        gone = frozenset(ids)
        entries = {key: entry for key, entry in self._entries.items() if key not in gone}
        return Reservations(entries, tuple(line for line in self.unreadable if UNREADABLE + line not in gone))


def lift_id(uid: str, request_uid: str = "") -> str:
    """Return the id of the reservation for a waiting pod; with `request_uid`, for the removal of its gate."""
    return f"{uid}{_LIFT}/{request_uid}" if request_uid else f"{uid}{_LIFT}"


def keep_id(uid: str, keeper_uid: str) -> str:
    """Return the id of what an object keeps for the replacement of an ended pod."""
    return f"{uid}{_KEEP}{keeper_uid}"


class _Head(msgspec.Struct, frozen=True):
    """The common part of a line's reservations, and its text before the ids. All of them share the vector."""

    text: str
    demand: Amounts
    version: int
    catalogue: str


class _Entry(NamedTuple):
    head: _Head
    name: str


def _id_text(reservation_id: str, name: str) -> str:
    return f"{reservation_id}{_NAMED}{name}" if name else reservation_id


def _head(reservation: Reservation) -> _Head:
    items = [f"{key}={amount}" for key, amount in amount_texts(reservation.demand).items()] or [_WAITING]
    if reservation.version:
        items.append(f"{_NEWER_THAN}{reservation.version}")
    if reservation.catalogue:
        items.append(f"{_COUNTED_BY}{reservation.catalogue}")
    return _Head(_ITEMS.join(items), reservation.demand, reservation.version, reservation.catalogue)


def _parsed_line(line: str) -> dict[str, _Entry]:
    """Return the reservations of a line by id. Empty if it cannot be read."""
    text, _, ids = line.partition(_AND_IDS)
    head = _remembered(text) if len(text) <= _LONGEST_REMEMBERED else _parsed_head(text)
    if head is None or not (ids.isascii() and ids.isprintable()):
        return {}
    # Neither a uid nor a name in Kubernetes has a colon or a space.
    items = [item.partition(_NAMED) for item in ids.split(_ITEMS)]
    entries = {key: _Entry(head, name) for key, colon, name in items if key and bool(name) == bool(colon)}
    return entries if len(entries) == len(items) else {}


def _parsed_head(text: str) -> _Head | None:
    amounts, _, catalogue = text.partition(_ITEMS + _COUNTED_BY)
    amounts, marked, version = amounts.partition(_ITEMS + _NEWER_THAN)
    if marked and not (version.isascii() and version.isdigit()):
        return None
    if amounts == _WAITING:
        return _Head(text, {}, int(version or 0), catalogue)
    pairs = [item.partition("=") for item in amounts.split(_ITEMS)]
    try:
        demand = parse_amounts({key: amount for key, _, amount in pairs})
    except ValueError:
        return None
    return _Head(text, demand, int(version or 0), catalogue) if len(demand) == len(pairs) else None


_remembered = lru_cache(maxsize=2048)(_parsed_head)
