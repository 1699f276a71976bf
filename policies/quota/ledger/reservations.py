"""Reservations, and the one compact string that holds them in the ledger.

A reservation is demand promised to what the API server has not stored yet. Reservations of equal demand share one line, because a
thousand pods of one Job are a thousand equal demands:

    gpus=1 classes/nvidia-a100=1 resources/nvidia.com/gpu=1 | 5f0c… 77ab…
    classes/nvidia-a100=1 >4711 | 91d2…/c7e1…

`>version` marks changes of a stored object: the amount by which it grows, and the resourceVersion that was reviewed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from policies.quota.amounts import Vector, VectorError, parse_vector, texts, total

LIMIT = 128 * 1024
"""Characters of the text; some 3,400 creations of one kind at once. Beyond it a ledger is full: it is written as a whole at
every decision, and etcd takes 1.5 MiB."""

_ITEMS, _AND_IDS, _LINES = " ", " | ", "\n"
_NEWER_THAN = ">"


class ReservationsError(ValueError):
    """The text was not written by this module; the message says where."""


class Reservation(msgspec.Struct, frozen=True):
    """Demand reserved under an id: the uid of a new object, or `uid/request uid` for a change of a stored one.

    Of a change, `demand` holds only what grows, and `version` is the resourceVersion of the object as it was reviewed, on
    which alone the change can be stored; 0 where it is not known.
    """

    id: str
    demand: Vector
    version: int = 0

    @property
    def is_change(self) -> bool:
        return "/" in self.id

    @property
    def object_uid(self) -> str:
        return self.id.partition("/")[0]


class Reservations:
    """The reservations in a ledger. Immutable: `plus` and `without` return others."""

    def __init__(self, heads: Mapping[str, str]) -> None:
        self._heads = heads  # id → its line up to the ids; order of arrival

    @classmethod
    def of(cls, *reservations: Reservation) -> "Reservations":
        return cls({}).plus(reservations)

    @classmethod
    def parse(cls, text: str) -> "Reservations":
        """Read what `text` wrote. Raises ReservationsError: a ledger that cannot be read must not count as an empty one."""
        heads: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            head, separator, ids = line.partition(_AND_IDS)
            if not separator:
                raise ReservationsError(f"line {number} of the reservations has no ids")
            _read(head)
            for reservation_id in ids.split(_ITEMS):
                if not reservation_id or reservation_id in heads:
                    problem = "has an id that is empty or a duplicate"
                    raise ReservationsError(f"line {number} of the reservations {problem}")
                heads[reservation_id] = head
        return cls(heads)

    @property
    def text(self) -> str:
        """All of it, as `parse` reads it."""
        lines: dict[str, list[str]] = {}
        for reservation_id, head in self._heads.items():
            lines.setdefault(head, []).append(reservation_id)
        return _LINES.join(f"{head}{_AND_IDS}{_ITEMS.join(ids)}" for head, ids in lines.items())

    @property
    def size(self) -> int:
        """Characters of the text, and one for the end of the last line."""
        ids = sum(map(len, self._heads)) + len(self._heads)
        return ids + sum(len(head) + len(_AND_IDS) for head in set(self._heads.values()))

    def cost(self, reservation: Reservation) -> int:
        """Return how many characters it adds at most: reservations that come together may share a line."""
        head = _head(reservation)
        shared = head in self._heads.values()
        return len(reservation.id) + 1 + (0 if shared else len(head) + len(_AND_IDS))

    @property
    def demand(self) -> Vector:
        """What all of them hold together."""
        return total(
            {key: amount * count for key, amount in _read(head)[0].items()}
            for head, count in Counter(self._heads.values()).items()
        )

    def __len__(self) -> int:
        return len(self._heads)

    def __contains__(self, reservation_id: object) -> bool:
        return reservation_id in self._heads

    def __iter__(self) -> Iterator[Reservation]:
        return (Reservation(reservation_id, *_read(head)) for reservation_id, head in self._heads.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reservations) and self._heads == other._heads

    def __hash__(self) -> int:
        return hash(frozenset(self._heads))

    def __repr__(self) -> str:
        return f"Reservations({self.text!r})"

    def of_object(self, uid: str) -> tuple[str, ...]:
        """Return the ids of an object's creation and changes."""
        return tuple(each for each in self._heads if each.partition("/")[0] == uid)

    def plus(self, reservations: Iterable[Reservation]) -> "Reservations":
        """Return these and `reservations`; an id that is there stays what it is."""
        heads = dict(self._heads)
        for reservation in reservations:
            heads.setdefault(reservation.id, _head(reservation))
        return Reservations(heads)

    def without(self, ids: Iterable[str]) -> "Reservations":
        """Return these but `ids`."""
        gone = frozenset(ids)
        return Reservations({key: head for key, head in self._heads.items() if key not in gone})


def _head(reservation: Reservation) -> str:
    items = [f"{key}={amount}" for key, amount in texts(reservation.demand).items()]
    if reservation.version:
        items.append(f"{_NEWER_THAN}{reservation.version}")
    return _ITEMS.join(items)


@lru_cache(maxsize=4096)
def _read(head: str) -> tuple[Vector, int]:
    """Return demand and version of a line's head; callers share the vector and must not change it."""
    amounts, marked, version = head.partition(_ITEMS + _NEWER_THAN)
    if marked and not (version.isascii() and version.isdigit()):
        raise ReservationsError(f"the reservations hold {head[:80]!r}: {version!r} is not a resourceVersion")
    pairs = (item.partition("=") for item in amounts.split(_ITEMS))
    try:
        return parse_vector({key: amount for key, _, amount in pairs}), int(version or 0)
    except VectorError as error:
        raise ReservationsError(f"the reservations hold {head[:80]!r}: {error}") from None
