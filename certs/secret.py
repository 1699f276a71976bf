"""The encoding of a RotationState in a Secret for controllers, and of the part that servers get in another Secret.

    ca.crt       the bundle, the authority that issues leaves first
    tls.crt, tls.key   the leaf
    ca.key       the key of the authority; not for servers
    ca-next.key  while a new authority is being published: the key of that one; not for servers

Annotations hold the start of the present wait and a requested rotation. An unreadable leaf is issued again; an
authority without its key is lost.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from cryptography import x509

from certs.check import certificates_in, is_authority
from certs.issue import KeyPair
from certs.rotation import Rotation, RotationState

CA, CA_KEY, NEXT_CA_KEY = "ca.crt", "ca.key", "ca-next.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
DATA_KEYS = (CA, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY)
ROTATE = "gpu-admission.dev/rotate"
SINCE = "gpu-admission.dev/rotation-since"
ANNOTATIONS = (ROTATE, SINCE)


class DamagedError(Exception):
    """The Secret has no authority with its key; `authorities` are the certificates that can still be read."""

    def __init__(self, problem: str, authorities: tuple[x509.Certificate, ...] = ()) -> None:
        super().__init__(problem)
        self.authorities = authorities


@dataclasses.dataclass(frozen=True, slots=True)
class SecretContent:
    """The keys and annotations of the Secret that are named above; others are not ours."""

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
    """Return what servers need: the leaf, and the bundle to check it with."""
    data = encode(state).data
    return SecretContent({key: data[key] for key in (CA, CERTIFICATE, KEY) if key in data}, {})


def decode(content: SecretContent) -> RotationState:
    """Return the state in the Secret. DamagedError: it has no authority with its key."""
    data = content.data
    authorities = authorities_of(data.get(CA, b""))
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
        since=_moment(content.annotations.get(SINCE, "")),
        requested=next((each for each in Rotation if each == content.annotations.get(ROTATE)), None),
    )


def authorities_of(bundle: bytes) -> tuple[x509.Certificate, ...]:
    """Return the authorities in PEM, each once; empty if one certificate is unreadable."""
    return tuple(dict.fromkeys(filter(is_authority, certificates_in(bundle))))


def _moment(text: str) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
