"""Whether a server may present a certificate that it was offered; pure.

A pair with a problem never replaces a pair without one. While API servers accept the pair in use, another takes over only when
they will accept it too: every published caBundle verifies it, long enough for all API servers to have loaded the bundle.
So a Secret that was replaced out of order fails no call.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from cryptography import x509

from certs.check import issued_by, problems
from certs.rotation import pem
from certs.secret import authorities_of

PROPAGATION = dt.timedelta(seconds=5)
"""How long an authority may take from a caBundle to every API server; their watches take milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class PEMPair:
    """A server certificate, its key and its authorities, in PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    authorities: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedBundles:
    """Every caBundle once, and the host names that API servers call.

    `carried` are the authorities in all of the bundles, and since when that was seen.
    """

    bundles: frozenset[bytes]
    names: tuple[str, ...]
    carried: Mapping[x509.Certificate, dt.datetime]

    def verifies(self, certificate: bytes, now: dt.datetime) -> bool:
        return all(issued_by(certificate, bundle, now) for bundle in self.bundles)


def observe(
    before: PublishedBundles | None, bundles: frozenset[bytes], names: tuple[str, ...], now: dt.datetime
) -> PublishedBundles:
    """Return what is published now; `before` is the result of the last call."""
    common = set.intersection(*(set(authorities_of(bundle)) for bundle in bundles)) if bundles else set()
    since = before.carried if before else {}
    return PublishedBundles(bundles, names, {authority: since.get(authority, now) for authority in common})


def objections(
    offered: PEMPair, held: PEMPair | None, published: PublishedBundles | None, now: dt.datetime
) -> list[str]:
    """Return why `offered` must not replace `held` now. `held` is None at the start, `published` while it is unknown."""
    names = published.names if published else ()
    faults = problems(offered.certificate, offered.key, offered.authorities, names, now)
    if faults or held is None or published is None or not published.bundles:
        return faults
    held_faults = problems(held.certificate, held.key, held.authorities, names, now)
    if held_faults or not published.verifies(held.certificate, now):
        return []
    if not published.verifies(offered.certificate, now):
        return ["certificate: the published caBundle does not verify it yet"]
    known = [at for each, at in published.carried.items() if issued_by(offered.certificate, pem([each]), now)]
    if not known or now - min(known) < PROPAGATION:
        return ["certificate: its authority was published only a moment ago"]
    return []
