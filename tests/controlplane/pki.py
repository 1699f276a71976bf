"""A throw-away certificate authority: enough TLS for processes on loopback, nothing to outlive a test run."""

import datetime as dt
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.issue import issue_ca

LIFETIME = dt.timedelta(days=7)  # longer than any `run` left open over a weekend


class Authority:
    """Signs certificates with a key of its own; good enough for OpenSSL's X.509 strict mode."""

    def __init__(self, name: str, *, lifetime: dt.timedelta = LIFETIME) -> None:
        begun = dt.datetime.now(dt.UTC) - LIFETIME  # so that one that has expired can be issued
        self._pair = issue_ca(common_name=name, now=begun, lifetime=LIFETIME + lifetime)
        self.certificate = self._pair.certificate_pem()

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
        alternatives = [
            *(x509.DNSName(name) for name in names),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
            *(x509.UniformResourceIdentifier(uri) for uri in uris),
        ]
        now = dt.datetime.now(dt.UTC)
        end = now + lifetime
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._pair.key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]))
            .issuer_name(self._pair.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - dt.timedelta(minutes=5))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(issuer, critical=False)
        )
        if client is not None:
            usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        certificate = builder.sign(self._pair.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM) + _pem(key)


def signing_key() -> bytes:
    """Return a private key in PEM for service account tokens; Kubernetes derives the public one from it."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
