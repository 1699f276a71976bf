"""Issue a certificate authority and server certificates.

ECDSA on P-256: a handshake costs a fraction of one with RSA. The clock is an argument. kube-apiserver checks subject
alternative names only; the common name is for people.
"""

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Iterable
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks differ: a certificate must be valid at once for an API server whose clock is behind.
BACKDATED = dt.timedelta(hours=1)

# The longest common name that X.520 allows.
_COMMON_NAME_LENGTH = 64

_UNUSABLE = (ValueError, TypeError, UnsupportedAlgorithm)
"""Raised of a key that is damaged, encrypted, or of an unknown curve."""


def private_key_in(key_pem: bytes) -> PrivateKeyTypes | None:
    """Return the key in PEM. None if it cannot be used."""
    try:
        return serialization.load_pem_private_key(key_pem, password=None)
    except _UNUSABLE:
        return None


def has_key(certificate: x509.Certificate, key: PrivateKeyTypes) -> bool:
    """Whether the certificate is of this key. A public key of an unknown curve is unreadable, and matches none."""
    try:
        return certificate.public_key() == key.public_key()
    except _UNUSABLE:
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key. Pairs are equal if their certificates are: a key equals only itself."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = dataclasses.field(repr=False, compare=False)

    @classmethod
    def of(cls, certificates: Iterable[x509.Certificate], key_pem: bytes) -> Self | None:
        """Pair the key in PEM with its certificate; None if that is missing, or the key cannot be used."""
        key = private_key_in(key_pem)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            return None
        return next((cls(each, key) for each in certificates if has_key(each, key)), None)

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """Return unencrypted PKCS #8: store it with restricted permissions."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def issue_ca(*, common_name: str, now: dt.datetime, lifetime: dt.timedelta) -> KeyPair:
    """Make a self-signed authority for server certificates, not for further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(common_name), key, now, lifetime, path_length=0)
    return KeyPair(builder.issuer_name(_name(common_name)).sign(key, hashes.SHA256()), key)


def issue_server(
    authority: KeyPair, *, names: Iterable[str], now: dt.datetime, lifetime: dt.timedelta
) -> KeyPair:
    """Make a server certificate, which never outlives the authority. Raises ValueError without a name, or if that has expired."""
    names = list(dict.fromkeys(names))
    if not names:
        raise ValueError("a server certificate needs at least one name")
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    lifetime = min(lifetime, issuer.not_valid_after_utc - now)
    subject = _name(next((name for name in names if len(name) <= _COMMON_NAME_LENGTH), "webhook"))
    certificate = (
        _builder(subject, key, now, lifetime, path_length=None)
        .issuer_name(issuer.subject)
        .add_extension(x509.SubjectAlternativeName([general_name(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return KeyPair(certificate, key)


def general_name(name: str) -> x509.GeneralName:
    """Return `name` as certificates have it: an IP address if it parses as one, else a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    lifetime: dt.timedelta,
    *,
    path_length: int | None,
) -> x509.CertificateBuilder:
    """Begin a certificate; `path_length` is that of an authority, None for a server."""
    is_ca = path_length is not None
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    if lifetime <= dt.timedelta(0):
        raise ValueError("a certificate needs a lifetime; has the authority expired?")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
