"""
Keeps the Secret and the caBundles as `rotation` wants them. Any number of keepers may do so at once.

Every write says which version it replaces, so of several keepers one wins and the others look again. The configurations
are read before the Secret and written after it. A caBundle that has not changed since it was read therefore never
becomes older than the Secret: a keeper that slept between reading and writing does no harm.

A keeper remembers what it saw last. A Secret that is deleted or damaged is written again from that; without it an
authority is made. After anything that happened out of turn, the authorities of which leaves may still be served, those that
are published and the one remembered, stay in the bundle until they have retired in order.
"""

import dataclasses
import datetime as dt
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from cryptography import x509

from certs.rotation import RotationPhase, State, Terms, adopt, advance, found
from certs.secret import Content, DamagedError, authorities_of, decode, encode

log = logging.getLogger("gpu_admission.certificates")

ATTEMPTS = 8
"""Whoever loses a race this often in a row looks again on the next occasion."""


Clock = Callable[[], dt.datetime]


class RacedError(Exception):
    """Somebody else has written since we read, or it has gone: look again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A Secret as it was read at a version."""

    version: str
    content: Content


@dataclasses.dataclass(frozen=True, slots=True)
class Configuration:
    """One webhook configuration: the caBundle of each of its webhooks in order, as it was read at a version."""

    kind: str
    version: str
    bundles: tuple[bytes, ...]


class SecretStore(Protocol):
    """One Secret. `create` and `replace` raise RacedError; any other error is the caller's."""

    def read(self) -> Stored | None: ...
    def create(self, content: Content) -> None: ...
    def replace(self, stored: Stored, content: Content) -> None: ...


class Configurations(Protocol):
    """Our webhook configurations, no others. `publish` gives every webhook the bundle; it raises RacedError."""

    def read(self) -> list[Configuration]: ...
    def publish(self, configuration: Configuration, bundle: bytes) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What a look led to: the state now, whether it was written, and the kinds whose caBundles were."""

    state: State
    written: bool
    published: tuple[str, ...]


class CertificateReconciler:
    """One of those who keep the Secret."""

    def __init__(
        self, secret: SecretStore, configurations: Configurations, terms: Terms, clock: Clock
    ) -> None:
        self._secret = secret
        self._configurations = configurations
        self._terms = terms
        self._clock = clock
        self.known: State | None = None

    def keep(self) -> ReconcileResult:
        """Do what is due, at most one step; call again until nothing was written. RacedError: others were always faster."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._keep()
            except RacedError:
                continue
        return self._keep()

    def _keep(self) -> ReconcileResult:
        configurations = self._configurations.read()
        stored = self._secret.read()
        # Not before: a wait that begins with what was read must not count the time that reading took.
        now = self._clock()
        before = self._understood(stored, configurations, now)
        published = {bundle for each in configurations for bundle in each.bundles}
        state = advance(before, published, now, self._terms)
        content = encode(state)
        written = stored is None or content != stored.content
        if written:
            if stored is None:
                self._secret.create(content)
            else:
                self._secret.replace(stored, content)
            _report(self.known, state)
        self.known = state
        return ReconcileResult(state, written, tuple(self._publish(configurations, state.bundle())))

    def _publish(self, configurations: list[Configuration], bundle: bytes) -> Iterable[str]:
        raced = None
        for each in configurations:
            if all(present == bundle for present in each.bundles):
                continue
            try:
                self._configurations.publish(each, bundle)
            except RacedError as error:
                raced = error  # the other configuration need not wait for it
            else:
                log.info("the caBundle of %s was given our authorities", each.kind)
                yield each.kind
        if raced:
            raise raced

    def _understood(
        self, stored: Stored | None, configurations: list[Configuration], now: dt.datetime
    ) -> State:
        """Return what is to be gone on from; what servers may still have leaves of stays in the bundle."""
        problem, readable = "is missing", tuple[x509.Certificate, ...]()
        if stored is not None:
            try:
                state = decode(stored.content)
            except DamagedError as error:
                problem, readable = f"is damaged: {error}", error.authorities
            else:
                lost = [self.known.authority.certificate] if self.known else []
                return adopt(state, [*lost, *_others(configurations, state)], now)
        if self.known is not None:
            log.warning("the Secret %s; writing it again as it was", problem)
        else:
            log.info("the Secret %s; making a certificate authority", problem)
        state = self.known or found(self._terms, now)
        # Servers could load nothing meanwhile: what waits for them waits anew.
        state = dataclasses.replace(state, since=None)
        return adopt(state, [*_authorities(configurations), *readable], now)


def _authorities(configurations: Iterable[Configuration]) -> list[x509.Certificate]:
    bundles = dict.fromkeys(bundle for each in configurations for bundle in each.bundles)
    return [authority for bundle in bundles for authority in authorities_of(bundle)]


def _others(configurations: Iterable[Configuration], state: State) -> list[x509.Certificate]:
    """Return what is published where the Secret's authority is not: the Secret was replaced, and servers do not know yet.

    Where it is published as well, the rest was dropped in its turn.
    """
    return [
        authority
        for each in configurations
        if not any(state.authority.certificate in authorities_of(bundle) for bundle in each.bundles)
        for authority in _authorities([each])
    ]


def _report(before: State | None, after: State) -> None:
    if (before is None or before.leaf != after.leaf) and after.leaf:
        log.info("the leaf is valid until %s", after.leaf.certificate.not_valid_after_utc)
    if (before.step if before else RotationPhase.STEADY) != after.step:
        log.info("rotation of the certificate authority: %s", after.step.name.lower())
