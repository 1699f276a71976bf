"""Checks of a server certificate, its key and its authorities, and whether a candidate may replace it. No I/O, no clock.

Takes PEM from files and Secrets: unreadable content is a message too, not an exception.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.issue import general_name, has_key, private_key_in

# As cert-manager: a third of the lifetime remains to notice a failure and to repair it.
_DUE_SHARE = 2 / 3
PROPAGATION = dt.timedelta(seconds=5)
"""Time within which every API server loads a changed caBundle. Their watches take milliseconds."""

E = TypeVar("E", bound=x509.ExtensionType)


def problems(
    certificate: bytes, key: bytes, authority: bytes, names: Iterable[str], now: dt.datetime
) -> list[str]:
    """Return every reason why a server must not use this pair now.

    All in PEM: the server certificate first in `certificate`, one or more authorities in `authority`. The
    certificate must have each of `names`, DNS names or IP addresses, literally (no wildcards).
    """
    chain, authorities = certificates_in(certificate), certificates_in(authority)
    loaded = {"authority": authorities, "certificate": chain}
    reasons = [f"{what}: must be a certificate in PEM" for what, is_parsed in loaded.items() if not is_parsed]
    if not chain:
        return [*reasons, *_key_problems(key, None)]
    leaf = chain[0]
    reasons += _key_problems(key, leaf)
    reasons += _validity_problems(leaf, "certificate", now)
    reasons += _name_problems(leaf, names)
    reasons += _usage_problems(leaf)
    if authorities:
        reasons += _issuer_problems(leaf, authorities, now)
    return reasons


def expires_at(certificate: bytes) -> dt.datetime:
    """Return when the first certificate in PEM expires, UTC. ValueError: there is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def issued_by(certificate: bytes, authorities: bytes, now: dt.datetime) -> bool:
    """Whether one of the authorities in PEM, valid now, issued the first certificate. False if either is not PEM."""
    chain = certificates_in(certificate)
    return bool(chain) and not list(_issuer_problems(chain[0], certificates_in(authorities), now))


def carried_names(certificate: x509.Certificate) -> list[str]:
    names = extension(certificate, x509.SubjectAlternativeName) or ()
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def is_due(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Whether two thirds of its lifetime are over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * _DUE_SHARE


def certificates_in(bundle: bytes) -> list[x509.Certificate]:
    """Return the certificates in PEM; an empty list if one of them is unreadable, as for API servers."""
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def cas_in(bundle: bytes) -> tuple[x509.Certificate, ...]:
    """Return the distinct CA certificates of a PEM bundle; empty if one certificate is unreadable."""
    return tuple(dict.fromkeys(filter(is_ca, certificates_in(bundle))))


def pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    """Return its extension of this kind; None if it has no such extension, or they cannot be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


def _key_problems(key: bytes, leaf: x509.Certificate | None) -> Iterator[str]:
    private_key = private_key_in(key)
    if private_key is None:
        yield "key: must be an unencrypted private key in PEM"
    elif leaf and not has_key(leaf, private_key):
        yield "key: must be the key of the certificate"


def _validity_problems(certificate: x509.Certificate, what: str, now: dt.datetime) -> Iterator[str]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        yield f"{what}: is not valid before {begin:%Y-%m-%d %H:%M} UTC"
    if now >= end:
        yield f"{what}: expired at {end:%Y-%m-%d %H:%M} UTC"


def _name_problems(leaf: x509.Certificate, names: Iterable[str]) -> Iterator[str]:
    carried = set(extension(leaf, x509.SubjectAlternativeName) or ())
    for name in names:
        if general_name(name) not in carried:
            yield f"certificate: does not carry the name {name}"


def _usage_problems(leaf: x509.Certificate) -> Iterator[str]:
    usages = extension(leaf, x509.ExtendedKeyUsage)  # without it, for every use
    if usages is not None and ExtendedKeyUsageOID.SERVER_AUTH not in usages:
        yield "certificate: extendedKeyUsage must include serverAuth"


def _issuer_problems(
    leaf: x509.Certificate, authorities: list[x509.Certificate], now: dt.datetime
) -> Iterator[str]:
    issuers = [authority for authority in authorities if is_ca(authority) and _is_issuer(leaf, authority)]
    if not issuers:
        yield "certificate: must be issued by the authority"
    elif all(list(_validity_problems(issuer, "authority", now)) for issuer in issuers):
        yield from _validity_problems(issuers[0], "authority", now)


def is_ca(certificate: x509.Certificate) -> bool:
    constraints = extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def _is_issuer(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


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
    common = set.intersection(*(set(cas_in(bundle)) for bundle in bundles)) if bundles else set()
    since = before.common_since if before else {}
    return PublishedBundles(bundles, names, {authority: since.get(authority, now) for authority in common})


def rejection_reasons(
    candidate: PEMPair, current: PEMPair | None, published: PublishedBundles | None, now: dt.datetime
) -> list[str]:
    """Return why `candidate` must not replace `current` now; empty if it may.

    An invalid candidate never replaces a valid certificate. While API servers accept the current one, a candidate replaces it
    only if every published caBundle has verified it for long enough that all API servers have loaded that. So no call fails
    if the Secret changes before the caBundle does. `current` is None at the start, `published` while it is unknown.
    """
    names = published.names if published else ()
    reasons = problems(candidate.certificate, candidate.key, candidate.authorities, names, now)
    if reasons or current is None or published is None or not published.bundles:
        return reasons
    current_problems = problems(current.certificate, current.key, current.authorities, names, now)
    if current_problems or not published.verifies(current.certificate, now):
        return []
    if not published.verifies(candidate.certificate, now):
        return ["certificate: the published caBundle does not verify it yet"]
    since = [
        at
        for certificate, at in published.common_since.items()
        if issued_by(candidate.certificate, pem([certificate]), now)
    ]
    if not since or now - min(since) < PROPAGATION:
        return [f"certificate: not every caBundle has had its authority for {PROPAGATION.seconds} s yet"]
    return []
