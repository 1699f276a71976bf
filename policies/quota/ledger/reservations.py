"""Reservations, and the one compact string that holds them in the ledger.

A reservation is demand promised to what the API server has not stored yet. Reservations of equal demand share one line, because a
thousand pods of one Job are a thousand equal demands:

    gpus=1 classes/nvidia-a100=1 resources/nvidia.com/gpu=1 | 5f0c…:pods/train-0 77ab…:pods/train-1
    gpus=2 @<basis> | 90aa…:resourceclaims/large
    classes/nvidia-a100=1 >4711 | 91d2…/c7e1…

A creation has the name of its object after the uid. `>version` is of changes of a stored object: the amount by which it grows,
and the resourceVersion that was reviewed. `@basis` is of what was charged under that basis, too, while the ledger moved to it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache

import msgspec

from policies.quota.amounts import Vector, VectorError, parse_vector, texts, total

LIMIT = 384 * 1024
"""Characters of the text: a creation takes 37 and those of `:pods/<name>`, so there is room for some 3,700 with names of 63, and
1,300 with the longest ones. Beyond it a ledger is full: it is written as a whole at every decision, and etcd takes 1.5 MiB."""

_ITEMS, _AND_IDS, _LINES = " ", " | ", "\n"
_NEWER_THAN, _CHARGED_BY, _NAMED = ">", "@", ":"


class ReservationsError(ValueError):
    """The text was not written by this module; the message says where."""


class Reservation(msgspec.Struct, frozen=True):
    """Demand reserved under an id: the uid of a new object, or `uid/request uid` for a change of a stored one.

    Of a change, `demand` holds only what grows, and `version` is the resourceVersion of the object as it was reviewed, on
    which alone the change can be stored; 0 where it is not known. Of a creation, `name` is that of the object (`pods/train-0`).

    `catalogue` is the basis (`catalogue.Basis`) to which the ledger was moving when it was reserved; `demand` is then by that
    basis too, key by key the larger amount. Empty where the ledger was not moving.
    """

    id: str
    demand: Vector
    version: int = 0
    name: str = ""
    catalogue: str = ""

    @property
    def is_change(self) -> bool:
        return "/" in self.id

    @property
    def object_uid(self) -> str:
        return self.id.partition("/")[0]


class Reservations:
    """The reservations in a ledger. Immutable: `plus` and `without` return others."""

    def __init__(self, entries: Mapping[str, "_Entry"]) -> None:
        self._entries = entries  # by id, in order of arrival

    @classmethod
    def of(cls, *reservations: Reservation) -> "Reservations":
        return cls({}).plus(reservations)

    @classmethod
    def parse(cls, text: str) -> "Reservations":
        """Read what `text` wrote. Raises ReservationsError: a ledger that cannot be read must not count as an empty one."""
        entries: dict[str, _Entry] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            head, separator, ids = line.partition(_AND_IDS)
            if not separator:
                raise ReservationsError(f"line {number} of the reservations has no ids")
            _read(head)
            for item in ids.split(_ITEMS):
                reservation_id, _, name = item.partition(_NAMED)
                if not reservation_id or reservation_id in entries:
                    problem = "has an id that is empty or a duplicate"
                    raise ReservationsError(f"line {number} of the reservations {problem}")
                entries[reservation_id] = _Entry(head, name)
        return cls(entries)

    @property
    def text(self) -> str:
        """All of it, as `parse` reads it."""
        lines: dict[str, list[str]] = {}
        for reservation_id, entry in self._entries.items():
            lines.setdefault(entry.head, []).append(_item(reservation_id, entry.name))
        return _LINES.join(f"{head}{_AND_IDS}{_ITEMS.join(items)}" for head, items in lines.items())

    @property
    def size(self) -> int:
        """Characters of the text, and one for the end of the last line."""
        items = sum(len(_item(key, entry.name)) + 1 for key, entry in self._entries.items())
        return items + sum(len(head) + len(_AND_IDS) for head in self._heads)

    def cost(self, reservation: Reservation) -> int:
        """Return how many characters it adds at most: reservations that come together may share a line."""
        head = _head(reservation)
        line = 0 if head in self._heads else len(head) + len(_AND_IDS)
        return len(_item(reservation.id, reservation.name)) + 1 + line

    @cached_property
    def _heads(self) -> Counter[str]:
        return Counter(entry.head for entry in self._entries.values())

    @property
    def demand(self) -> Vector:
        """What all of them hold together."""
        return total(
            {key: amount * count for key, amount in _read(head).demand.items()}
            for head, count in self._heads.items()
        )

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, reservation_id: object) -> bool:
        return reservation_id in self._entries

    def __iter__(self) -> Iterator[Reservation]:
        for reservation_id, entry in self._entries.items():
            head = _read(entry.head)
            yield Reservation(reservation_id, head.demand, head.version, entry.name, head.catalogue)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reservations) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(frozenset(self._entries))

    def __repr__(self) -> str:
        return f"Reservations({self.text!r})"

    def of_object(self, uid: str) -> tuple[str, ...]:
        """Return the ids of an object's creation and changes."""
        return tuple(each for each in self._entries if each.partition("/")[0] == uid)

    def plus(self, reservations: Iterable[Reservation]) -> "Reservations":
        """Return these and `reservations`; an id that is there stays what it is."""
        entries = dict(self._entries)
        for reservation in reservations:
            entries.setdefault(reservation.id, _Entry(_head(reservation), reservation.name))
        return Reservations(entries)

    def without(self, ids: Iterable[str]) -> "Reservations":
        """Return these but `ids`."""
        gone = frozenset(ids)
        return Reservations({key: entry for key, entry in self._entries.items() if key not in gone})


class _Entry(msgspec.Struct, frozen=True):
    """A reservation but its id: its line up to the ids, and the name of its object."""

    head: str
    name: str


class _Head(msgspec.Struct, frozen=True):
    """What a line says of all of its reservations; whoever reads it shares the vector and must not change it."""

    demand: Vector
    version: int
    catalogue: str


def _item(reservation_id: str, name: str) -> str:
    return f"{reservation_id}{_NAMED}{name}" if name else reservation_id


def _head(reservation: Reservation) -> str:
    items = [f"{key}={amount}" for key, amount in texts(reservation.demand).items()]
    if reservation.version:
        items.append(f"{_NEWER_THAN}{reservation.version}")
    if reservation.catalogue:
        items.append(f"{_CHARGED_BY}{reservation.catalogue}")
    return _ITEMS.join(items)


@lru_cache(maxsize=4096)
def _read(head: str) -> _Head:
    amounts, _, catalogue = head.partition(_ITEMS + _CHARGED_BY)
    amounts, marked, version = amounts.partition(_ITEMS + _NEWER_THAN)
    if marked and not (version.isascii() and version.isdigit()):
        raise ReservationsError(f"the reservations hold {head[:80]!r}: {version!r} is not a resourceVersion")
    pairs = (item.partition("=") for item in amounts.split(_ITEMS))
    try:
        demand = parse_vector({key: amount for key, _, amount in pairs})
    except VectorError as error:
        raise ReservationsError(f"the reservations hold {head[:80]!r}: {error}") from None
    return _Head(demand, int(version or 0), catalogue)
