"""Checks of a server certificate, its key and its authorities, with a message for every problem.

Takes PEM from files and Secrets: unreadable content is a message too, not an exception.
"""

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.issue import general_name

# As cert-manager: a third of the lifetime remains to notice a failure and to repair it.
_RENEW_AFTER = 2 / 3

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
    found = [f"{what}: must be a certificate in PEM" for what, present in loaded.items() if not present]
    if not chain:
        return [*found, *_key_problems(key, None)]
    leaf = chain[0]
    found += _key_problems(key, leaf)
    found += _validity_problems(leaf, "certificate", now)
    found += _name_problems(leaf, names)
    found += _usage_problems(leaf)
    if authorities:
        found += _issuer_problems(leaf, authorities, now)
    return found


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
    return now >= begin + (end - begin) * _RENEW_AFTER


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in PEM; an empty list if one of them is unreadable, as for API servers."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    """Return its extension of this kind; None if it has no such extension, or they cannot be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


def _key_problems(pem: bytes, leaf: x509.Certificate | None) -> Iterator[str]:
    try:
        public_key = load_pem_private_key(pem, password=None).public_key()
    except (ValueError, TypeError):  # TypeError: it is encrypted
        yield "key: must be an unencrypted private key in PEM"
        return
    if leaf and public_key != leaf.public_key():
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
    issuers = [each for each in authorities if is_authority(each) and _issued(leaf, each)]
    if not issuers:
        yield "certificate: must be issued by the authority"
    elif all(list(_validity_problems(issuer, "authority", now)) for issuer in issuers):
        yield from _validity_problems(issuers[0], "authority", now)


def is_authority(certificate: x509.Certificate) -> bool:
    constraints = extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def _issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
