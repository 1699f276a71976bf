"""Decides whether a server may replace its serving certificate by a candidate. No I/O, no clock.

An invalid candidate never replaces a valid certificate. While API servers accept the current certificate, a candidate replaces it
only if they accept the candidate, too: every published caBundle verifies it, and has done so for long enough that all API servers
have loaded the caBundle. So no call fails if the Secret changes before the caBundle does.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from cryptography import x509

from certs.check import issued_by, problems
from certs.rotation import pem
from certs.secret import authorities_of

PROPAGATION = dt.timedelta(seconds=5)
"""Time within which every API server loads a changed caBundle. Their watches take milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class PEMPair:
    """A serving certificate, its key and the CA certificates that verify it, in PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    authorities: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedBundles:
    """The distinct caBundles of all webhooks, and the host names that API servers call.

    `common_since` has each CA certificate that is in every caBundle, and the time when this was first observed.
    """

    bundles: frozenset[bytes]
    names: tuple[str, ...]
    common_since: Mapping[x509.Certificate, dt.datetime]

    def verifies(self, certificate: bytes, now: dt.datetime) -> bool:
        return all(issued_by(certificate, bundle, now) for bundle in self.bundles)


def observe(
    before: PublishedBundles | None, bundles: frozenset[bytes], names: tuple[str, ...], now: dt.datetime
) -> PublishedBundles:
    """Return the published caBundles. `before` is the result of the previous call."""
    common = set.intersection(*(set(authorities_of(bundle)) for bundle in bundles)) if bundles else set()
    since = before.common_since if before else {}
    return PublishedBundles(bundles, names, {authority: since.get(authority, now) for authority in common})


def rejection_reasons(
    candidate: PEMPair, current: PEMPair | None, published: PublishedBundles | None, now: dt.datetime
) -> list[str]:
    """Return why `candidate` must not replace `current` now; empty if it may.

    `current` is None at the start. `published` is None while the caBundles are unknown.
    """
    names = published.names if published else ()
    found = problems(candidate.certificate, candidate.key, candidate.authorities, names, now)
    if found or current is None or published is None or not published.bundles:
        return found
    current_problems = problems(current.certificate, current.key, current.authorities, names, now)
    if current_problems or not published.verifies(current.certificate, now):
        return []
    if not published.verifies(candidate.certificate, now):
        return ["certificate: the published caBundle does not verify it yet"]
    since = [
        at
        for each, at in published.common_since.items()
        if issued_by(candidate.certificate, pem([each]), now)
    ]
    if not since or now - min(since) < PROPAGATION:
        return [f"certificate: not every caBundle has had its authority for {PROPAGATION.seconds} s yet"]
    return []
