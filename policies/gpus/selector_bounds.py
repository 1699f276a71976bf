"""How many CEL selectors of claims one review evaluates. Tenants write them, and a pod may name hundreds of claims."""

from collections.abc import Iterable

from policies.gpus.device_kinds import DeviceKinds

MAX_SELECTOR_TEXT, MAX_EVALUATIONS = 1024, 1600
"""Characters of the different selectors, and their number times the kinds of devices."""


class SelectorBounds:
    """The selectors that one review evaluates. It decides without the others, so they leave every kind of device possible."""

    def __init__(self, kinds: DeviceKinds) -> None:
        self._number = len(kinds.kinds)
        self._included = frozenset[str]()

    def include(self, expressions: Iterable[str]) -> bool:
        """Include the selectors of one claim. False, and none of them, if they exceed the bounds with those before."""
        every = self._included.union(expressions)
        if sum(map(len, every)) > MAX_SELECTOR_TEXT or len(every) * self._number > MAX_EVALUATIONS:
            return False
        self._included = every
        return True
