"""A list of functions that are called when something happens. The part in which it happens does not know the subscribers."""

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

log = logging.getLogger("gpu_admission.cluster")

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """Calls the subscribers one after another, in the order in which they subscribed. They must not block."""

    def __init__(self, name: str, *subscribers: Callable[P, object]) -> None:
        self._name, self._subscribers = name, list(subscribers)

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        self._subscribers.append(subscriber)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(*args, **kwargs)
            except Exception:  # a bug with one object must not hide the others, or stop other subscribers
                log.exception("%s: a change was not taken in", self._name)
