"""
Checks of a server certificate, its key and its authorities, with a message for every problem.

Takes PEM from files and Secrets: unreadable content is a message too, not an exception.
"""

import datetime as dt
from collections.abc import Iterable, Iterator

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.issue import general_name

# As cert-manager: a third of the lifetime remains to notice a failure and to repair it.
_RENEW_AFTER = 2 / 3


def problems(
    certificate: bytes, key: bytes, authority: bytes, names: Iterable[str], now: dt.datetime
) -> list[str]:
    """
    Return every reason why a server must not use this pair now.

    All in PEM: the server certificate first in `certificate`, one or more authorities in `authority`. The
    certificate must have each of `names`, DNS names or IP addresses, literally (no wildcards).
    """
    found: list[str] = []
    authorities = _load(authority, "authority", found)
    chain = _load(certificate, "certificate", found)
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
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        known = x509.load_pem_x509_certificates(authorities)
    except ValueError:
        return False
    return not list(_issuer_problems(leaf, known, now))


def carried_names(certificate: x509.Certificate) -> list[str]:
    """Return its DNS names and IP addresses."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def is_due(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Whether two thirds of its lifetime are over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * _RENEW_AFTER


def _load(pem: bytes, what: str, found: list[str]) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        found.append(f"{what}: must be a certificate in PEM")
        return []


def _key_problems(pem: bytes, leaf: x509.Certificate | None) -> Iterator[str]:
    try:
        public_key = load_pem_private_key(pem, password=None).public_key()
    except (ValueError, TypeError):  # TypeError: it is encrypted
        yield "key: must be an unencrypted private key in PEM"
        return
    if leaf and _encoded(public_key) != _encoded(leaf.public_key()):
        yield "key: must be the key of the certificate"


def _encoded(public_key: PublicKeyTypes) -> bytes:
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _validity_problems(certificate: x509.Certificate, what: str, now: dt.datetime) -> Iterator[str]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        yield f"{what}: is not valid before {begin:%Y-%m-%d %H:%M} UTC"
    if now >= end:
        yield f"{what}: expired at {end:%Y-%m-%d %H:%M} UTC"


def _name_problems(leaf: x509.Certificate, names: Iterable[str]) -> Iterator[str]:
    try:
        carried = set(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        carried = set()
    for name in names:
        if general_name(name) not in carried:
            yield f"certificate: does not carry the name {name}"


def _usage_problems(leaf: x509.Certificate) -> Iterator[str]:
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # without the extension, for every use
    if ExtendedKeyUsageOID.SERVER_AUTH not in usages:
        yield "certificate: extendedKeyUsage must include serverAuth"


def _issuer_problems(
    leaf: x509.Certificate, authorities: list[x509.Certificate], now: dt.datetime
) -> Iterator[str]:
    issuers = [authority for authority in authorities if _issued(leaf, authority)]
    if not issuers:
        yield "certificate: must be issued by the authority"
    elif all(list(_validity_problems(issuer, "authority", now)) for issuer in issuers):
        yield from _validity_problems(issuers[0], "authority", now)


def _issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return constraints.ca
