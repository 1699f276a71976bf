"""
Whether a server may present a certificate that it was handed; pure.

A pair with a fault never replaces one without. And while the pair in use is one that the API servers accept, another is
presented only when they will accept that, too: when every published caBundle verifies it, and has done so long enough for all
of them to have heard. So a Secret that was replaced out of turn costs no call.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from cryptography import x509

from certs.check import issued_by, problems
from certs.rotation import pem
from certs.secret import authorities_of

SETTLE = dt.timedelta(seconds=5)
"""How long an authority may take from a caBundle to every API server; their watches take milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A server certificate, its key and the authorities that it came with, in PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    authorities: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """
    Every caBundle that there is, each once, and the host names that API servers ask for.

    `carried` are the authorities that stand in all of them, and since when that was seen.
    """

    bundles: frozenset[bytes]
    names: tuple[str, ...]
    carried: Mapping[x509.Certificate, dt.datetime]

    def verifies(self, certificate: bytes, now: dt.datetime) -> bool:
        return all(issued_by(certificate, bundle, now) for bundle in self.bundles)


def observe(
    before: Published | None, bundles: frozenset[bytes], names: tuple[str, ...], now: dt.datetime
) -> Published:
    """Return what is published now, knowing what was before."""
    common = set.intersection(*(set(authorities_of(bundle)) for bundle in bundles)) if bundles else set()
    since = before.carried if before else {}
    return Published(bundles, names, {authority: since.get(authority, now) for authority in common})


def objections(offered: Pair, held: Pair | None, published: Published | None, now: dt.datetime) -> list[str]:
    """Return why `offered` must not take the place of `held` now; None for what is not known or not there."""
    names = published.names if published else ()
    faults = problems(offered.certificate, offered.key, offered.authorities, names, now)
    if faults or held is None or published is None or not published.bundles:
        return faults
    held_is_good = published.verifies(held.certificate, now) and not problems(
        held.certificate, held.key, held.authorities, names, now
    )
    if not held_is_good:
        return []
    if not published.verifies(offered.certificate, now):
        return ["certificate: the published caBundle does not verify it yet"]
    known = [at for each, at in published.carried.items() if issued_by(offered.certificate, pem([each]), now)]
    if not known or now - min(known) < SETTLE:
        return ["certificate: its authority was published only a moment ago"]
    return []
