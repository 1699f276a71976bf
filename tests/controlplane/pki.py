"""A throw-away certificate authority: enough TLS for processes on loopback, nothing to outlive a test run."""

import datetime as dt
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=7)  # longer than any `run` left open over a weekend


class Authority:
    """Signs certificates with a P-256 key of its own; good enough for OpenSSL's X.509 strict mode."""

    def __init__(self, name: str, *, lifetime: dt.timedelta = LIFETIME) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._builder(self._name, self._key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        *,
        names: Sequence[str],
        addresses: Sequence[str] = (),
        uris: Sequence[str] = (),
        client: bool | None = False,
        lifetime: dt.timedelta = LIFETIME,
    ) -> bytes:
        """Return a certificate for these DNS names, IP addresses and URIs, and its key, in one PEM text.

        The first name is the common name as well. It is a server's, or a client's, or says nothing of its usage (None);
        `lifetime` counts from now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = [
            *(x509.DNSName(name) for name in names),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
            *(x509.UniformResourceIdentifier(uri) for uri in uris),
        ]
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        usages = [] if client is None else [x509.ExtendedKeyUsage([usage])]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = (
            self._builder(subject, key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(issuer, critical=False)
        )
        for each in usages:
            builder = builder.add_extension(each, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM) + _pem(key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: dt.timedelta
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        end = now + lifetime
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - dt.timedelta(minutes=5))
            .not_valid_after(end)
        )


def signing_key() -> bytes:
    """Return a private key in PEM for service account tokens; Kubernetes derives the public one from it."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
