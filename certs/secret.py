"""Encodes a RotationState as the data of a Secret. Controllers read all of it; servers get a second Secret without the CA keys.

    ca.crt             the CA bundle; the authority that issues serving certificates (leaves) comes first
    tls.crt, tls.key   the leaf and its key
    ca.key             the key of the issuing authority; only for controllers
    ca-next.key        the key of the next authority while its certificate is being published; only for controllers

Annotations hold the start of the present phase (`RotationState.since`), and a requested rotation. If the leaf is unreadable, the
controller issues a new one. An authority whose key is missing is lost: it cannot issue certificates.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from cryptography import x509

from certs.check import cas_in, certificates_in
from certs.issue import KeyPair
from certs.rotation import Renewal, RotationState

CA, CA_KEY, NEXT_CA_KEY = "ca.crt", "ca.key", "ca-next.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
DATA_KEYS = (CA, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY)
ROTATE = "gpu-admission.dev/rotate"
SINCE = "gpu-admission.dev/rotation-since"
ANNOTATIONS = (ROTATE, SINCE)


class DamagedError(Exception):
    """The Secret has no authority with a matching key. `authorities` are its readable CA certificates."""

    def __init__(self, problem: str, authorities: tuple[x509.Certificate, ...] = ()) -> None:
        super().__init__(problem)
        self.authorities = authorities


@dataclasses.dataclass(frozen=True, slots=True)
class SecretContent:
    """The DATA_KEYS and ANNOTATIONS of the Secret. We ignore all others."""

    data: Mapping[str, bytes] = dataclasses.field(repr=False)
    annotations: Mapping[str, str]


def encode(state: RotationState) -> SecretContent:
    data = {CA: state.bundle(), CA_KEY: state.authority.key_pem()}
    if state.upcoming:
        data[NEXT_CA_KEY] = state.upcoming.key_pem()
    if state.leaf:
        data |= {CERTIFICATE: state.leaf.certificate_pem(), KEY: state.leaf.key_pem()}
    since = state.since and state.since.isoformat()
    annotations = {ROTATE: state.requested and state.requested.value, SINCE: since}
    return SecretContent(data, {key: text for key, text in annotations.items() if text})


def for_servers(state: RotationState) -> SecretContent:
    """Return the data for servers: the leaf, its key, and the CA bundle that verifies the leaf."""
    data = encode(state).data
    return SecretContent({key: data[key] for key in (CA, CERTIFICATE, KEY) if key in data}, {})


def decode(content: SecretContent) -> RotationState:
    """Return the state in the Secret. Raises DamagedError if the Secret has no authority with a matching key."""
    data = content.data
    authorities = cas_in(data.get(CA, b""))
    if not authorities:
        raise DamagedError(f"{CA} must hold a certificate authority in PEM")
    authority = KeyPair.of(authorities, data.get(CA_KEY, b""))
    if authority is None:
        raise DamagedError(f"{CA_KEY} must be the key of an authority in {CA}", authorities)
    upcoming = KeyPair.of(authorities, data.get(NEXT_CA_KEY, b""))
    used = {authority.certificate} | ({upcoming.certificate} if upcoming else set())
    return RotationState(
        authority=authority,
        leaf=KeyPair.of(certificates_in(data.get(CERTIFICATE, b""))[:1], data.get(KEY, b"")),
        upcoming=upcoming,
        retired=tuple(certificate for certificate in authorities if certificate not in used),
        since=_time(content.annotations.get(SINCE, "")),
        requested=next((renewal for renewal in Renewal if renewal == content.annotations.get(ROTATE)), None),
    )


def _time(text: str) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None
