"""
What the certificates of a cluster are at a moment, and the one step from there to the next.

Pure: what was observed and the clock are arguments. The rule behind every step: whatever leaf a server may still
present verifies by whatever caBundle an API server may still hold. An authority is therefore replaced with an overlap:

    STEADY      one authority, and a leaf of it
    PUBLISHING  a new authority stands beside it in the bundle, but not yet in every caBundle
    SETTLING    every caBundle was seen to carry both; API servers get `propagation` to take note of it
    RETIRING    the leaf is of the new authority; servers get `retirement` to load it, counted from the moment that every
                caBundle carried both; then the old authority is dropped: STEADY

A leaf of the same authority may be replaced at any time. What is seen missing in a caBundle begins the wait anew.
"""

import dataclasses
import datetime as dt
import enum
from collections.abc import Collection, Iterable

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from certs.check import carried_names, is_due, problems
from certs.issue import KeyPair, issue_authority, issue_server

COMMON_NAME = "gpu-admission"


class RotationPhase(enum.IntEnum):
    """Where a rotation of the authority stands; the number is that of the metric."""

    STEADY = 0
    PUBLISHING = 1
    SETTLING = 2
    RETIRING = 3


class Rotation(enum.StrEnum):
    """What can be asked for ahead of time."""

    LEAF = "leaf"
    CA = "ca"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """
    What leaves are issued for, how long certificates live, and how long each side of an overlap is waited for.

    `propagation` is for the API servers to hear of a change of their webhook configurations, `retirement` for the
    servers to load a new leaf: kubelet brings a mounted Secret up to date within two minutes.
    """

    names: tuple[str, ...]
    authority_lifetime: dt.timedelta = dt.timedelta(days=3650)
    leaf_lifetime: dt.timedelta = dt.timedelta(days=90)
    propagation: dt.timedelta = dt.timedelta(seconds=60)
    retirement: dt.timedelta = dt.timedelta(minutes=10)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    All that the Secret holds.

    `authority` issues leaves; `upcoming` will, once it is known everywhere; `retired` only vouches for what it has issued.
    `since` is when every caBundle was first seen to carry the present bundle, while a rotation is under way. `requested`
    is a rotation that somebody has asked for and that has not begun.
    """

    authority: KeyPair
    leaf: KeyPair | None
    upcoming: KeyPair | None = None
    retired: tuple[x509.Certificate, ...] = ()
    since: dt.datetime | None = None
    requested: Rotation | None = None

    @property
    def step(self) -> RotationPhase:
        if self.upcoming is not None:
            return RotationPhase.PUBLISHING if self.since is None else RotationPhase.SETTLING
        return RotationPhase.RETIRING if self.retired else RotationPhase.STEADY

    @property
    def authorities(self) -> tuple[x509.Certificate, ...]:
        """All that a caBundle must carry, the one that issues leaves first."""
        upcoming = (self.upcoming.certificate,) if self.upcoming else ()
        return (self.authority.certificate, *upcoming, *self.retired)

    def bundle(self) -> bytes:
        """Return the authorities in PEM, as they stand in a caBundle."""
        return pem(self.authorities)


def pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def found(terms: Terms, now: dt.datetime) -> State:
    """Begin with an authority of our own."""
    authority = _new_authority(terms, now)
    return State(authority=authority, leaf=_issue(authority, terms.names, terms, now))


def adopt(state: State, authorities: Collection[x509.Certificate], now: dt.datetime) -> State:
    """
    Retire those of the authorities that are valid and not known, too; the wait for it begins anew.

    Their keys are lost or none of ours, but servers may still have leaves of them.
    """
    unknown = tuple(
        dict.fromkeys(
            authority
            for authority in authorities
            if authority not in state.authorities and authority.not_valid_after_utc > now
        )
    )
    return dataclasses.replace(state, retired=state.retired + unknown, since=None) if unknown else state


def advance(state: State, published: Collection[bytes], now: dt.datetime, terms: Terms) -> State:
    """
    Do the next thing that is due, one only, since each must be stored before the next; the same state if nothing is.

    `published` is the caBundle of every webhook that there is.
    """
    if state.authority.certificate.not_valid_after_utc <= now:
        # Nobody accepts its leaves any more: there is nothing to overlap with.
        return found(terms, now) if state.upcoming is None else _switched(state, state.upcoming, terms, now)
    if _leaf_is_broken(state, now):
        # Servers could load nothing, however long that was: a wait for them begins with the new one.
        leaf = _issue(state.authority, terms.names, terms, now)
        return dataclasses.replace(state, leaf=leaf, since=None)
    moved = _rotated(state, published, now, terms)
    return _renewed(state, terms, now) if moved is state else moved


def left(state: State, terms: Terms, now: dt.datetime) -> dt.timedelta | None:
    """Return how long the present wait still takes; None if there is none, or what it waits for was not seen yet."""
    if state.since is None:
        return None
    return max(state.since + _wait(state, terms) - now, dt.timedelta(0))


def _rotated(state: State, published: Collection[bytes], now: dt.datetime, terms: Terms) -> State:
    """Begin a rotation of the authority that is due, or take the one under way a step further."""
    if state.step is RotationPhase.STEADY:
        if state.requested is not Rotation.CA and not is_due(state.authority.certificate, now):
            return state
        requested = None if state.requested is Rotation.CA else state.requested
        return dataclasses.replace(state, upcoming=_new_authority(terms, now), requested=requested)
    carried = all(bundle == state.bundle() for bundle in published)
    # A time yet to come was written by a clock that was wrong; it must not hold the rotation up.
    if carried != (state.since is not None) or (state.since is not None and state.since > now):
        return dataclasses.replace(state, since=now if carried else None)
    if state.since is None or now - state.since < _wait(state, terms):
        return state
    if state.upcoming is None:
        return dataclasses.replace(state, retired=(), since=None)
    return _switched(state, state.upcoming, terms, now)


def _wait(state: State, terms: Terms) -> dt.timedelta:
    return terms.retirement if state.upcoming is None else terms.propagation


def _switched(state: State, authority: KeyPair, terms: Terms, now: dt.datetime) -> State:
    return dataclasses.replace(
        state,
        authority=authority,
        leaf=_issue(authority, terms.names, terms, now),
        upcoming=None,
        retired=(state.authority.certificate, *state.retired),
        since=None,
    )


def _leaf_is_broken(state: State, now: dt.datetime) -> bool:
    if state.leaf is None:
        return True
    certificate, key = state.leaf.certificate_pem(), state.leaf.key_pem()
    return bool(problems(certificate, key, pem([state.authority.certificate]), (), now))


def _renewed(state: State, terms: Terms, now: dt.datetime) -> State:
    names = _names_to_issue(state, terms, now)
    if not names:
        return state
    requested = None if state.requested is Rotation.LEAF else state.requested
    return dataclasses.replace(state, leaf=_issue(state.authority, names, terms, now), requested=requested)


def _names_to_issue(state: State, terms: Terms, now: dt.datetime) -> tuple[str, ...]:
    """Return the names for a new leaf; none if the present one does."""
    if state.leaf is None or state.requested is Rotation.LEAF:
        return terms.names
    leaf, authority = state.leaf.certificate, state.authority.certificate
    # One that ends with its authority would be followed by one no longer.
    if is_due(leaf, now) and leaf.not_valid_after_utc < authority.not_valid_after_utc:
        return terms.names
    carried = carried_names(leaf)
    if set(terms.names) <= set(carried):
        return ()
    # Controllers of two versions that want different names must not take turns: until it is due, each adds its own.
    return (*terms.names, *(name for name in carried if name not in terms.names))


def _new_authority(terms: Terms, now: dt.datetime) -> KeyPair:
    # Authorities that stand side by side are told apart by name, by people and by who looks for an issuer.
    name = f"{COMMON_NAME} {now:%Y-%m-%dT%H:%M:%SZ}"
    return issue_authority(common_name=name, now=now, lifetime=terms.authority_lifetime)


def _issue(authority: KeyPair, names: Iterable[str], terms: Terms, now: dt.datetime) -> KeyPair:
    return issue_server(authority, names=names, now=now, lifetime=terms.leaf_lifetime)
