"""Checks of the certificates of a cluster: the Secret, the caBundles, and what the Service serves."""

import datetime as dt
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cryptography import x509

from certs.acceptance import PEMPair
from certs.check import issued_by, problems
from certs.reconciler import StoredSecret
from certs.rotation import RotationState, pem
from certs.secret import CA, CERTIFICATE, KEY, DamagedError, authorities_of, decode
from webhook.certificates.objects import KINDS, ConfigurationSeen, SecretName, Target, hosts
from webhook.cluster.objects import WEBHOOK_CONFIGURATION

REPAIR = "run `gpu-admission controller --certificate-secret`, which repairs it within seconds; see its log"
OVERDUE = 0.8
"""Of a lifetime: renewal is due after two thirds, and a running controller does it at once."""
SECONDS = 3.0


class CertificateFinding(NamedTuple):
    """A problem, and how to fix it."""

    problem: str
    remedy: str


def examine(
    name: SecretName, stored: StoredSecret | None, seen: Iterable[ConfigurationSeen], now: dt.datetime
) -> list[CertificateFinding]:
    """Return the problems of Secret and configurations; without any, API servers accept the webhook."""
    seen = tuple(seen)
    found = [
        CertificateFinding(
            f"there is no {kind} {WEBHOOK_CONFIGURATION}",
            "apply the manifests: without it API servers do not call the webhook",
        )
        for kind in KINDS
        if kind not in {each.configuration.kind for each in seen}
    ]
    if stored is None:
        return [*found, CertificateFinding(f"there is no Secret {name}", REPAIR)]
    data = stored.content.data
    pair = PEMPair(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(CA, b""))
    faults = problems(pair.certificate, pair.key, pair.authorities, hosts(seen), now)
    found += [CertificateFinding(f"Secret {name}: {fault}", REPAIR) for fault in faults]
    try:
        state = decode(stored.content)
    except DamagedError as error:
        found.append(CertificateFinding(f"Secret {name}: {error}", REPAIR))
    else:
        found += _overdue(state, now)
    for each in seen:
        found += _bundle_findings(each, pair, now)
    return found


def examine_served(
    target: Target, address: str, bundles: Iterable[bytes], now: dt.datetime
) -> list[CertificateFinding]:
    """Check what is served by every caBundle, as an API server does. OSError: `address` cannot be reached."""
    certificate = served(target, address)
    server = f"the server behind {target.host} presents a certificate that"
    remedy = "it loads that of the Secret within seconds; see `/readyz` and the log of `serve`"
    found = [
        CertificateFinding(f"{server} a published caBundle does not verify", remedy)
        for bundle in set(bundles)
        if not issued_by(pem([certificate]), bundle, now)
    ]
    if certificate.not_valid_after_utc <= now:
        found.append(
            CertificateFinding(
                f"{server} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", remedy
            )
        )
    return found


def served(target: Target, address: str) -> x509.Certificate:
    """Return the certificate that is served at `address` for the target's host. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # It is checked afterwards, so that every problem is found.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((address, target.port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=target.host) as secured,
    ):
        return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")


def _overdue(state: RotationState, now: dt.datetime) -> Iterator[CertificateFinding]:
    named = [("the certificate authority", state.authority)]
    if state.leaf is not None:
        named.append(("the certificate", state.leaf))
    for what, pair in named:
        begin, end = pair.certificate.not_valid_before_utc, pair.certificate.not_valid_after_utc
        if begin + (end - begin) * OVERDUE <= now < end:
            yield CertificateFinding(
                f"{what} expires at {end:%Y-%m-%d %H:%M} UTC and was not renewed after two thirds of its lifetime",
                "run a controller with --certificate-secret; `gpu-admission certs rotate` requests a new one",
            )


def _bundle_findings(
    seen: ConfigurationSeen, pair: PEMPair, now: dt.datetime
) -> Iterator[CertificateFinding]:
    where = f"the {seen.configuration.kind} {WEBHOOK_CONFIGURATION}"
    for bundle in dict.fromkeys(seen.configuration.bundles):
        if not bundle:
            yield CertificateFinding(f"{where} has a webhook without caBundle", REPAIR)
        elif not authorities_of(bundle):
            yield CertificateFinding(f"{where} has an unreadable caBundle", REPAIR)
        elif not issued_by(pair.certificate, bundle, now):
            yield CertificateFinding(
                f"{where} has a caBundle that does not verify the certificate of the Secret", REPAIR
            )
        elif bundle != pair.authorities:
            yield CertificateFinding(f"{where} has a caBundle that is not the ca.crt of the Secret", REPAIR)
