"""The state machine of a rotation of certificates. Pure: observations and the clock are arguments.

Invariant: any leaf that a server may still present verifies by any caBundle that an API server may still use. So an authority is
replaced with an overlap, in which the bundle has both. The bundle is what every caBundle should have: one that differs restarts a
wait, and so does a Secret of the servers that lacks the leaf. A leaf of the same authority may be replaced at any time.
"""

import dataclasses
import datetime as dt
import enum
from collections.abc import Collection, Iterable

from cryptography import x509

from certs.check import carried_names, is_due, pem, problems
from certs.issue import KeyPair, issue_ca, issue_server

COMMON_NAME = "gpu-admission"


class RotationPhase(enum.IntEnum):
    """The phase of a rotation of the authority; the number is that of the metric."""

    STEADY = 0
    """One authority, and a leaf of it."""
    PUBLISHING = 1
    """The bundle has a new authority, too. Some caBundles lack it."""
    PROPAGATING = 2
    """Every caBundle has both; API servers get `propagation` to load it."""
    RETIRING = 3
    """The leaf is of the new authority. Servers get `retirement` to load it, and then the old authority is dropped."""


class Renewal(enum.StrEnum):
    """A renewal that can be requested ahead of time."""

    LEAF = "leaf"
    CA = "ca"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RotationSettings:
    """The names of leaves, the lifetimes of certificates, and how long each phase of a rotation waits.

    `propagation` is for the API servers to load changed webhook configurations, `retirement` for the servers to load a
    new leaf: kubelet updates a mounted Secret within two minutes.
    """

    names: tuple[str, ...]
    ca_lifetime: dt.timedelta = dt.timedelta(days=3650)
    leaf_lifetime: dt.timedelta = dt.timedelta(days=90)
    propagation: dt.timedelta = dt.timedelta(seconds=60)
    retirement: dt.timedelta = dt.timedelta(minutes=10)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RotationState:
    """Everything that the controller's replicas share.

    `authority` issues leaves; `upcoming` will, once every API server has it; `retired` only verify leaves issued before.
    `since` is when every caBundle was first seen with the present bundle, and the Secret of the servers with the leaf, during a
    rotation. `requested` is a renewal that was requested and has not begun.
    """

    authority: KeyPair
    leaf: KeyPair | None
    upcoming: KeyPair | None = None
    retired: tuple[x509.Certificate, ...] = ()
    since: dt.datetime | None = None
    requested: Renewal | None = None

    @property
    def phase(self) -> RotationPhase:
        if self.upcoming is not None:
            return RotationPhase.PUBLISHING if self.since is None else RotationPhase.PROPAGATING
        return RotationPhase.RETIRING if self.retired else RotationPhase.STEADY

    @property
    def authorities(self) -> tuple[x509.Certificate, ...]:
        """All authorities that a caBundle must have, the one that issues leaves first."""
        upcoming = (self.upcoming.certificate,) if self.upcoming else ()
        return (self.authority.certificate, *upcoming, *self.retired)

    def bundle(self) -> bytes:
        """Return the authorities in PEM, as in a caBundle."""
        return pem(self.authorities)


def new_state(settings: RotationSettings, now: dt.datetime) -> RotationState:
    authority = _new_ca(settings, now)
    return RotationState(authority=authority, leaf=_issue(authority, settings.names, settings, now))


def adopt(state: RotationState, authorities: Collection[x509.Certificate], now: dt.datetime) -> RotationState:
    """Add the valid and unknown authorities as `retired`, because servers may still have their leaves. That restarts the wait."""
    valid = [authority for authority in authorities if authority.not_valid_after_utc > now]
    unknown = [certificate for certificate in dict.fromkeys(valid) if certificate not in state.authorities]
    return dataclasses.replace(state, retired=(*state.retired, *unknown), since=None) if unknown else state


def advance(
    state: RotationState,
    ca_bundles: Collection[bytes],
    now: dt.datetime,
    settings: RotationSettings,
    *,
    serving_secret_is_current: bool,
) -> RotationState:
    """Return the state after the next step, the same state if no step is due. Store each state before the next step.

    `ca_bundles` are those of all webhooks; `serving_secret_is_current`: the Secret of the servers holds the leaf of `state`.
    """
    if state.authority.certificate.not_valid_after_utc <= now:
        # No API server accepts its leaves: there is nothing to overlap with.
        return _switched(state, state.upcoming, settings, now) if state.upcoming else new_state(settings, now)
    leaf, authority = state.leaf, pem([state.authority.certificate])
    if leaf is None or problems(leaf.certificate_pem(), leaf.key_pem(), authority, (), now):
        # Servers could not load it, so their wait starts with the new one.
        return dataclasses.replace(
            state, leaf=_issue(state.authority, settings.names, settings, now), since=None
        )
    is_everywhere = serving_secret_is_current and all(bundle == state.bundle() for bundle in ca_bundles)
    rotated = _rotated(state, now, settings, is_everywhere=is_everywhere)
    return _renewed(state, settings, now) if rotated is state else rotated


def remaining_wait(state: RotationState, settings: RotationSettings, now: dt.datetime) -> dt.timedelta | None:
    """Return the rest of the present wait; None if no wait has started."""
    if state.since is None:
        return None
    return max(state.since + _wait(state, settings) - now, dt.timedelta(0))


def _rotated(
    state: RotationState, now: dt.datetime, settings: RotationSettings, *, is_everywhere: bool
) -> RotationState:
    """Begin a rotation of the authority if it is due, or advance the present rotation."""
    if state.phase is RotationPhase.STEADY:
        if state.requested is not Renewal.CA and not is_due(state.authority.certificate, now):
            return state
        requested = None if state.requested is Renewal.CA else state.requested
        return dataclasses.replace(state, upcoming=_new_ca(settings, now), requested=requested)
    # The wait starts once bundle and leaf are everywhere, and again after one was not. A future time is from a wrong clock.
    if is_everywhere != (state.since is not None) or (state.since is not None and state.since > now):
        return dataclasses.replace(state, since=now if is_everywhere else None)
    if state.since is None or now - state.since < _wait(state, settings):
        return state
    if state.upcoming is None:
        return dataclasses.replace(state, retired=(), since=None)
    return _switched(state, state.upcoming, settings, now)


def _wait(state: RotationState, settings: RotationSettings) -> dt.timedelta:
    return settings.retirement if state.upcoming is None else settings.propagation


def _switched(
    state: RotationState, authority: KeyPair, settings: RotationSettings, now: dt.datetime
) -> RotationState:
    return dataclasses.replace(
        state,
        authority=authority,
        leaf=_issue(authority, settings.names, settings, now),
        upcoming=None,
        retired=(state.authority.certificate, *state.retired),
        since=None,
    )


def _renewed(state: RotationState, settings: RotationSettings, now: dt.datetime) -> RotationState:
    names = _names_to_issue(state, settings, now)
    if not names:
        return state
    requested = None if state.requested is Renewal.LEAF else state.requested
    return dataclasses.replace(state, leaf=_issue(state.authority, names, settings, now), requested=requested)


def _names_to_issue(state: RotationState, settings: RotationSettings, now: dt.datetime) -> tuple[str, ...]:
    """Return the names for a new leaf; empty if the present one suffices."""
    if state.leaf is None or state.requested is Renewal.LEAF:
        return settings.names
    leaf, authority = state.leaf.certificate, state.authority.certificate
    # A leaf that ends with its authority would get a successor that ends then too.
    if is_due(leaf, now) and leaf.not_valid_after_utc < authority.not_valid_after_utc:
        return settings.names
    carried = carried_names(leaf)
    if set(settings.names) <= set(carried):
        return ()
    # Controllers of two versions with different names must not overwrite each other: until it is due, each adds its own.
    return (*settings.names, *(name for name in carried if name not in settings.names))


def _new_ca(settings: RotationSettings, now: dt.datetime) -> KeyPair:
    # Different names for authorities in one bundle: people, and searches by issuer name, tell them apart by it.
    name = f"{COMMON_NAME} {now:%Y-%m-%dT%H:%M:%SZ}"
    return issue_ca(common_name=name, now=now, lifetime=settings.ca_lifetime)


def _issue(authority: KeyPair, names: Iterable[str], settings: RotationSettings, now: dt.datetime) -> KeyPair:
    return issue_server(authority, names=names, now=now, lifetime=settings.leaf_lifetime)
