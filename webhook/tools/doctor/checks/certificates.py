"""The certificate: whether what the API server trusts (caBundle) vouches for what is served, by name and for long enough.

What is served is asked for by a TLS handshake with the Service's address. Where that cannot be reached from here, the Secret
that the certificate is kept in stands in for it, and the result says so.
"""

import base64
import binascii
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.check import issued_by, problems
from certs.rotation import pem
from webhook.certificates.examination import OVERDUE, REPAIR, SECONDS, served
from webhook.certificates.objects import Target
from webhook.tools.doctor.check import Check, Finding, NotChecked, Note, Severity, Told
from webhook.tools.doctor.checks.configurations import KINDS, PORT, READS, place
from webhook.tools.doctor.cluster import Cluster

ROTATE = "see why it was not renewed: the log of the controller; then gpu-admission certs rotate"

NO_HOST_NAME = 62
"""X509_V_ERR_HOSTNAME_MISMATCH of OpenSSL."""
EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""


class Bundle(msgspec.Struct, frozen=True):
    """A caBundle that can be read, and the first entry that has it."""

    where: str
    pem: bytes
    authorities: tuple[x509.Certificate, ...]


def _present(cluster: Cluster) -> Iterator[Told]:
    for kind in KINDS:
        for entry in cluster.entries(kind):
            where = place(kind, entry["name"])
            found = _bundle(where, entry)
            if isinstance(found, Finding):
                yield found


def _bundle(where: str, entry: dict[str, Any]) -> Bundle | Finding:
    text = (entry.get("clientConfig") or {}).get("caBundle")
    if not text:
        return Finding(
            id="ca-bundle-missing",
            object=where,
            message="has no caBundle, so the API server trusts no certificate of ours",
            remedy=REPAIR,
        )
    try:
        pem = base64.b64decode(text, validate=True)
        authorities = tuple(x509.load_pem_x509_certificates(pem))
    except (binascii.Error, ValueError):
        return Finding(
            id="ca-bundle-unreadable",
            object=where,
            message="has a caBundle that is no certificate in PEM",
            remedy=REPAIR,
        )
    return Bundle(where, pem, authorities)


def _bundles(cluster: Cluster) -> list[Bundle]:
    found: dict[bytes, Bundle] = {}
    for kind in KINDS:
        for entry in cluster.entries(kind):
            bundle = _bundle(place(kind, entry["name"]), entry)
            if isinstance(bundle, Bundle):
                found.setdefault(bundle.pem, bundle)
    return list(found.values())


def _served(cluster: Cluster) -> Iterator[Told]:
    bundles = _bundles(cluster)
    if not bundles:
        yield NotChecked("no entry has a caBundle to check with")
        return
    address = _address(cluster)
    leaf = _leaf(cluster, address)
    if leaf is None:
        yield from _by_secret(cluster, bundles, address)
        return
    for bundle in bundles:
        yield from _handshake(cluster, address, bundle)
    yield from _lifetimes(f"certificate served at {address}:{PORT}", leaf, bundles, cluster.now)


def _address(cluster: Cluster) -> str:
    names = cluster.names
    service = cluster.get(f"/api/v1/namespaces/{names.namespace}/services/{names.service}")
    address = ((service or {}).get("spec") or {}).get("clusterIP") or ""
    return "" if address == "None" else str(address)


def _leaf(cluster: Cluster, address: str) -> x509.Certificate | None:
    """Return the certificate that is served there, None if nothing is reached."""
    try:
        return served(Target(cluster.names.server_name, port=PORT), address) if address else None
    except OSError:
        return None


def _handshake(cluster: Cluster, address: str, bundle: Bundle) -> Iterator[Told]:
    """Connect as the API server does, trusting nothing but the bundle."""
    name = cluster.names.server_name
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # stricter than Go
    context.load_verify_locations(cadata=bundle.pem.decode("ascii", "replace"))
    try:
        with (
            socket.create_connection((address, PORT), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=name),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        yield _unverified(bundle, name, error)
    except OSError as error:
        yield NotChecked(f"{address}:{PORT} did not answer a second time: {error}")


def _unverified(bundle: Bundle, name: str, error: ssl.SSLCertVerificationError) -> Finding:
    if error.verify_code == NO_HOST_NAME:
        return _wrong_name(bundle.where, name)
    if error.verify_code == EXPIRED:
        return Finding(
            id="certificate-expired",
            object=bundle.where,
            message="what is served, or its authority, has expired: every call fails",
            remedy=ROTATE,
        )
    return Finding(
        id="ca-bundle-does-not-verify",
        object=bundle.where,
        message=f"its caBundle does not vouch for the certificate that is served ({error.verify_message})",
        remedy=f"{REPAIR}; gpu-admission certs check tells more",
    )


def _wrong_name(where: str, name: str) -> Finding:
    return Finding(
        id="certificate-name",
        object=where,
        message=f"the certificate that is served does not carry the name {name}, by which the API server calls",
        remedy=f"issue it for {name}: --certificate-name {name} of the controller, or the dnsNames of cert-manager",
    )


def _by_secret(cluster: Cluster, bundles: list[Bundle], address: str) -> Iterator[Told]:
    names = cluster.names
    path = f"/api/v1/namespaces/{names.namespace}/secrets/{names.secret}"
    reached = f"{address}:{PORT} is not reached from here" if address else "the Service has no address"
    secret = cluster.get(path)
    if secret is None:
        yield NotChecked(f"{reached}, and there is no Secret {names.namespace}/{names.secret}")
        return
    yield Note(f"the certificate is that of Secret {names.namespace}/{names.secret}: {reached}")
    data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
    certificate, key = data.get("tls.crt", b""), data.get("tls.key", b"")
    for bundle in bundles:
        for problem in problems(certificate, key, bundle.pem, [names.server_name], cluster.now):
            if "does not carry the name" in problem:
                yield _wrong_name(bundle.where, names.server_name)
            else:
                yield Finding(
                    id="certificate-unusable",
                    object=f"Secret/{names.secret} in {names.namespace}",
                    message=f"holds what cannot be served: {problem}",
                    remedy=f"{REPAIR}; gpu-admission certs check tells more",
                )
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return
    yield from _lifetimes(f"Secret/{names.secret} in {names.namespace}", leaf, bundles, cluster.now)


def _lifetimes(where: str, leaf: x509.Certificate, bundles: list[Bundle], now: datetime) -> Iterator[Finding]:
    if _is_late(leaf, now):
        yield _ends(where, "certificate-expires-soon", "the certificate", leaf)
    issuers = {
        authority.public_bytes(Encoding.DER): (bundle.where, authority)
        for bundle in bundles
        for authority in bundle.authorities
        if issued_by(pem([leaf]), pem([authority]), now)
    }
    for place_of_it, authority in issuers.values():
        if _is_late(authority, now):
            yield _ends(place_of_it, "authority-expires-soon", "the authority in its caBundle", authority)


def _is_late(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * OVERDUE <= now < end


def _ends(where: str, identity: str, what: str, certificate: x509.Certificate) -> Finding:
    return Finding(
        id=identity,
        severity=Severity.WARNING,
        object=where,
        message=f"{what} ends on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC and was not renewed",
        remedy=ROTATE,
    )


CHECKS = (
    Check(id="ca-bundle", title="Every entry has a caBundle that can be read", reads=READS, run=_present),
    Check(
        id="certificate",
        title="The caBundle vouches for what is served, by name and for long enough",
        reads=READS,
        run=_served,
    ),
)
