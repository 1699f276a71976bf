"""In which order threads take locks. Two orders of the same two locks can deadlock two threads."""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

_PRODUCT = str(Path(__file__).parents[1] / "webhook") + "/"
_ANY_COLLECTION = ("webhook/cluster/collection.py", "webhook/cluster/informer.py")
"""A lock that these make is named after the code that makes the informer."""


class Orders:
    """`after`: by lock, those that were taken while it was held. A lock is named after the line that makes it."""

    def __init__(self) -> None:
        self.after: defaultdict[str, set[str]] = defaultdict(set)
        self.held = threading.local()

    def circles(self) -> list[str]:
        return sorted(name for name in self.after if name in self._reached(name))

    def _reached(self, name: str) -> set[str]:
        reached, rest = set[str](), [name]
        while rest:
            following = self.after.get(rest.pop(), set()) - reached
            reached |= following
            rest += following
        return reached


class _Lock:
    """A lock that notes what its thread holds already."""

    def __init__(self, lock: Any, name: str, orders: Orders) -> None:
        self._lock, self._name, self._orders = lock, name, orders
        for each in ("_release_save", "_acquire_restore", "_is_owned"):  # of an RLock, for a Condition
            if hasattr(lock, each):
                setattr(self, each, getattr(lock, each))

    def acquire(self, *args: Any, **options: Any) -> bool:
        is_taken: bool = self._lock.acquire(*args, **options)
        if is_taken:
            held = self._orders.held.__dict__.setdefault("locks", [])
            for each in held if self not in held else ():
                if each._name != self._name:
                    self._orders.after[each._name].add(self._name)
            held.append(self)
        return is_taken

    def release(self) -> None:
        self._lock.release()
        self._orders.held.locks.remove(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def no_circle() -> Iterator[None]:
    """Assert at the end that all locks which `webhook` made meanwhile were taken in one order."""
    orders = Orders()

    def watched(make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            name = _maker(sys._getframe(1))
            return _Lock(make(), name, orders) if name else make()

        return made

    with (
        patch.object(threading, "Lock", watched(threading.Lock)),
        patch.object(threading, "RLock", watched(threading.RLock)),
    ):
        yield
    circles = orders.circles()
    assert not circles, circles


def _maker(frame: FrameType | None) -> str:
    """Return the line of `webhook` that makes a lock, "" if other code does."""
    name = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PRODUCT):
            name = f"{file.removeprefix(_PRODUCT)}:{frame.f_lineno}"
        if not file.endswith(("threading.py", *_ANY_COLLECTION)):
            break
        frame = frame.f_back
    return name
