"""
Whether a server may present a certificate that it was handed; pure.

A pair with a fault never replaces one without. And while the pair in use is one that the API servers accept, another is
presented only when they will accept that, too: when every published caBundle verifies it, and has done so long enough for all
of them to have heard. So a Secret that was replaced out of turn costs no call.
"""

import dataclasses
import datetime as dt
from collections.abc import Collection

from certs.check import issued_by, problems

SETTLE = dt.timedelta(seconds=5)
"""How long a changed caBundle may take to reach every API server; their watches take milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A server certificate, its key and the authorities that it came with, in PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    authorities: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """Every caBundle that there is, each once, the host names that API servers ask for, and when that last changed."""

    bundles: frozenset[bytes]
    names: tuple[str, ...]
    changed: dt.datetime

    def verifies(self, certificate: bytes, now: dt.datetime) -> bool:
        return all(issued_by(certificate, bundle, now) for bundle in self.bundles)


def objections(offered: Pair, held: Pair | None, published: Published | None, now: dt.datetime) -> list[str]:
    """Return why `offered` must not take the place of `held` now; None for what is not known or not there."""
    names: Collection[str] = published.names if published else ()
    faults = problems(offered.certificate, offered.key, offered.authorities, names, now)
    if faults or held is None or published is None:
        return faults
    held_is_good = published.verifies(held.certificate, now) and not problems(
        held.certificate, held.key, held.authorities, names, now
    )
    if not held_is_good:
        return []
    if not published.verifies(offered.certificate, now):
        return ["certificate: the published caBundle does not verify it yet"]
    if now - published.changed < SETTLE and held.authorities != offered.authorities:
        return ["certificate: the caBundle that verifies it was published only a moment ago"]
    return []
