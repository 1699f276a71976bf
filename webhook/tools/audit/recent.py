"""A map of bounded size, for what may be looked up again while a log is read as a stream."""

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps the newest entries; `forgotten` is called with the value of one that had to make room."""

    def __init__(self, most: int, forgotten: Callable[[V], object] = lambda _: None) -> None:
        self._most = most
        self._forgotten = forgotten
        self._entries: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        if len(self._entries) > self._most:
            self._forgotten(self._entries.pop(next(iter(self._entries))))

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def pop(self, key: K) -> V | None:
        return self._entries.pop(key, None)

    def values(self) -> Iterator[V]:
        return iter(self._entries.values())

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
