"""What is wrong with the certificates of a cluster, every finding with what to do about it."""

import datetime as dt
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cryptography import x509

from certs.acceptance import Pair
from certs.check import issued_by, problems
from certs.reconciler import Stored
from certs.rotation import State, pem
from certs.secret import CA, CERTIFICATE, KEY, DamagedError, authorities_of, decode
from webhook.certificates.objects import CONFIGURATION, KINDS, ConfigurationSeen, SecretName, Target, hosts

REPAIR = (
    "a running `gpu-admission controller --certificate-secret` repairs it within seconds; look at its log"
)
OVERDUE = 0.8
"""Of a life: renewal is due after two thirds, and a controller that runs does it at once."""
SECONDS = 3.0


class Finding(NamedTuple):
    """What is wrong, and what mends it."""

    problem: str
    remedy: str


def examine(
    name: SecretName, stored: Stored | None, seen: Iterable[ConfigurationSeen], now: dt.datetime
) -> list[Finding]:
    """Return all that is wrong with Secret and configurations; they suffice for API servers to accept us if nothing is."""
    seen = tuple(seen)
    found = [
        Finding(
            f"there is no {kind} {CONFIGURATION}", "apply the manifests: API servers do not call the webhook"
        )
        for kind in KINDS
        if kind not in {each.configuration.kind for each in seen}
    ]
    if stored is None:
        return [*found, Finding(f"there is no Secret {name}", REPAIR)]
    data = stored.content.data
    pair = Pair(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(CA, b""))
    faults = problems(pair.certificate, pair.key, pair.authorities, hosts(seen), now)
    found += [Finding(f"Secret {name}: {fault}", REPAIR) for fault in faults]
    try:
        state = decode(stored.content)
    except DamagedError as error:
        found.append(Finding(f"Secret {name}: {error}", REPAIR))
    else:
        found += _overdue(state, now)
    for each in seen:
        found += _bundle_findings(each, pair, now)
    return found


def examine_served(target: Target, address: str, bundles: Iterable[bytes], now: dt.datetime) -> list[Finding]:
    """Shake hands as an API server does, by every caBundle. OSError: there is no connection at `address`."""
    certificate = served(target, address)
    shown = f"the server behind {target.host} presents a certificate that"
    remedy = "it loads the Secret's within seconds; look at `/readyz` and the log of `serve`"
    found = [
        Finding(f"{shown} a published caBundle does not verify", remedy)
        for bundle in set(bundles)
        if not issued_by(pem([certificate]), bundle, now)
    ]
    if certificate.not_valid_after_utc <= now:
        found.append(
            Finding(f"{shown} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", remedy)
        )
    return found


def served(target: Target, address: str) -> x509.Certificate:
    """Return the certificate that is presented at `address` to who asks for the target's host. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # It is looked at afterwards, so that all that is wrong with it can be told.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((address, target.port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=target.host) as spoken,
    ):
        return x509.load_der_x509_certificate(spoken.getpeercert(binary_form=True) or b"")


def _overdue(state: State, now: dt.datetime) -> Iterator[Finding]:
    named = [("the certificate authority", state.authority)]
    if state.leaf is not None:
        named.append(("the certificate", state.leaf))
    for what, pair in named:
        begin, end = pair.certificate.not_valid_before_utc, pair.certificate.not_valid_after_utc
        if begin + (end - begin) * OVERDUE <= now < end:
            yield Finding(
                f"{what} expires at {end:%Y-%m-%d %H:%M} UTC and was not renewed after two thirds of its life",
                "is a controller running that keeps it? `gpu-admission certs rotate` asks for a new one",
            )


def _bundle_findings(seen: ConfigurationSeen, pair: Pair, now: dt.datetime) -> Iterator[Finding]:
    where = f"the {seen.configuration.kind} {CONFIGURATION}"
    for bundle in dict.fromkeys(seen.configuration.bundles):
        if not bundle:
            yield Finding(f"{where} has a webhook without caBundle", REPAIR)
        elif not authorities_of(bundle):
            yield Finding(f"{where} has a caBundle that cannot be read", REPAIR)
        elif not issued_by(pair.certificate, bundle, now):
            yield Finding(
                f"{where} has a caBundle that does not verify the certificate of the Secret", REPAIR
            )
        elif bundle != pair.authorities:
            yield Finding(f"{where} has a caBundle that is not the ca.crt of the Secret", REPAIR)
