"""Objects that keep quota for the pods that replace their ended ones, and for how long each of them did so."""

import msgspec
from msgspec.structs import replace

KEPT_MS, WITHIN_MS = 60_000, 600_000
"""An object keeps quota for KEPT_MS at most in any WITHIN_MS, so also for KEPT_MS at most after the last of its pods ended."""
_MINUTE = 60_000


class Keeper(msgspec.Struct, frozen=True, array_like=True):
    """An object that keeps quota. `through`: the kind of the controllers of its pods, its own if it has them itself.

    Without that, it keeps nothing. `spent`: for how long it kept quota, in ms by minute since 1970, up to `at`, also in ms
    since 1970.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    through: str = ""
    at: int = 0
    spent: tuple[tuple[int, int], ...] = ()

    def counted(self, now: int, *, keeps: bool) -> "Keeper":
        """Return it at this moment, if it kept quota since `at` or not."""
        spent = {minute: ms for minute, ms in self.spent if minute * _MINUTE > now - WITHIN_MS - _MINUTE}
        if keeps and now > self.at:
            spent[now // _MINUTE] = spent.get(now // _MINUTE, 0) + now - self.at
        return replace(self, at=now, spent=tuple(spent.items()))

    @property
    def largest_size(self) -> int:
        """Characters in JSON once it kept quota in each minute that counts."""
        return self.size + 20 * (2 + WITHIN_MS // _MINUTE - len(self.spent))

    @property
    def size(self) -> int:
        """Characters in JSON."""
        texts = self.api_version, self.kind, self.name, self.uid, self.through
        return 40 + sum(map(len, texts)) + 20 * len(self.spent)

    @property
    def left_ms(self) -> int:
        return KEPT_MS - sum(ms for _, ms in self.spent)
