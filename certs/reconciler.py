"""The reconciler of two Secrets and the caBundles with `rotation`. Any number of reconcilers may run at once.

One Secret holds the state, with the authority's key. The other Secret, for servers, and the caBundles are copies of parts of it.
Every write names the resourceVersion that it replaces, so one of several reconcilers wins and the others read again. Copies are
read before the state and written after it. So no reconciler replaces a copy by an older one, even if it pauses in between.

A reconciler keeps the last state in memory. It restores a deleted or damaged Secret from that, or else makes a new authority.
Authorities whose leaves may still be served (the published ones and the one in memory) stay in the bundle as `retired`, until
`RotationSettings.retirement` has passed.
"""

import contextlib
import dataclasses
import datetime as dt
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cryptography import x509

from certs.check import authorities_of
from certs.rotation import RotationPhase, RotationSettings, RotationState, adopt, advance, new_state
from certs.secret import CA, DamagedError, SecretContent, decode, encode, for_servers

log = logging.getLogger("gpu_admission.certificates")

ATTEMPTS = 8
"""After as many lost races in a row, the caller tries again later."""


class RacedError(Exception):
    """The object was written or deleted since it was read: read again."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredSecret:
    resource_version: str
    content: SecretContent


@dataclasses.dataclass(frozen=True, slots=True)
class WebhookConfiguration:
    """One webhook configuration at one version: the caBundles of its webhooks in order, and the hosts that API servers call."""

    kind: str
    resource_version: str
    bundles: tuple[bytes, ...]
    hosts: tuple[str, ...] = ()


class SecretStore(Protocol):
    """One Secret. `create` and `replace` raise RacedError; any other error is for the caller to handle."""

    def read(self) -> StoredSecret | None: ...
    def create(self, content: SecretContent) -> None: ...
    def replace(self, stored: StoredSecret, content: SecretContent) -> None: ...


class WebhookConfigurations(Protocol):
    """Our webhook configurations, no others. `publish` gives every webhook the bundle; it raises RacedError."""

    def read(self) -> Sequence[WebhookConfiguration]: ...
    def publish(self, configuration: WebhookConfiguration, bundle: bytes) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The state now, how many Secrets were written, and the kinds whose caBundles were."""

    state: RotationState
    written: int
    published: tuple[str, ...]


@dataclasses.dataclass(eq=False)
class CertificateReconciler:
    """Reconciles `secret`, which has the state, and `served`, which servers read. Others may reconcile the same Secrets."""

    secret: SecretStore
    served: SecretStore
    configurations: WebhookConfigurations
    settings: RotationSettings
    clock: Callable[[], dt.datetime]
    last_state: RotationState | None = None

    def reconcile(self) -> ReconcileResult:
        """Do at most one step; call again until nothing was written. Raises RacedError if others were faster every time."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(RacedError):
                return self._reconcile_once()
        return self._reconcile_once()

    def _reconcile_once(self) -> ReconcileResult:
        configurations, served = self.configurations.read(), self.served.read()
        stored = self.secret.read()
        # After the reads, so that a wait that starts now does not include their time.
        now = self.clock()
        before = self._current_state(stored, served, configurations, now)
        published = {bundle for configuration in configurations for bundle in configuration.bundles}
        is_served = served is not None and for_servers(before).data.items() <= served.content.data.items()
        state = advance(before, published, now, self.settings, is_served=is_served)
        written = _write(self.secret, stored, encode(state))
        if written:
            _report(self.last_state, state)
        self.last_state = state
        written += _write(self.served, served, for_servers(state))
        return ReconcileResult(state, written, tuple(self._publish(configurations, state.bundle())))

    def _publish(self, configurations: Sequence[WebhookConfiguration], bundle: bytes) -> Iterable[str]:
        raced = None
        for configuration in configurations:
            if all(each == bundle for each in configuration.bundles):
                continue
            try:
                self.configurations.publish(configuration, bundle)
            except RacedError as error:
                raced = error  # write the other configuration first
            else:
                log.info("wrote the caBundle of the %s", configuration.kind)
                yield configuration.kind
        if raced:
            raise raced

    def _current_state(
        self,
        stored: StoredSecret | None,
        served: StoredSecret | None,
        configurations: Sequence[WebhookConfiguration],
        now: dt.datetime,
    ) -> RotationState:
        """Return the state to advance; authorities whose leaves may still be served stay in the bundle."""
        problem = "is missing"
        readable = authorities_of(served.content.data.get(CA, b"")) if served else ()
        if stored is not None:
            try:
                state = decode(stored.content)
            except DamagedError as error:
                problem, readable = f"is damaged: {error}", (*readable, *error.authorities)
            else:
                remembered = [self.last_state.authority.certificate] if self.last_state else []
                # If a backup replaced the Secret, servers may still present leaves of the authorities in the caBundles. A
                # caBundle that has our authority is only older: a rotation dropped its other authorities, so do not adopt them.
                own = state.authority.certificate
                behind = [each for each in configurations if own not in _authorities([each])]
                return adopt(state, [*remembered, *_authorities(behind)], now)
        if self.last_state is not None:
            log.warning("the Secret %s; restoring it", problem)
        else:
            log.info("the Secret %s; making a certificate authority", problem)
        state = self.last_state or new_state(self.settings, now)
        # Servers could not load a certificate meanwhile: their wait begins again.
        state = dataclasses.replace(state, since=None)
        return adopt(state, [*_authorities(configurations), *readable], now)


def _write(store: SecretStore, stored: StoredSecret | None, content: SecretContent) -> int:
    """Return how many Secrets were written: 1, or 0 where `stored` has the content."""
    if stored is None:
        store.create(content)
    elif stored.content == content:
        return 0
    else:
        store.replace(stored, content)
    return 1


def _authorities(configurations: Iterable[WebhookConfiguration]) -> list[x509.Certificate]:
    bundles = dict.fromkeys(bundle for configuration in configurations for bundle in configuration.bundles)
    return [authority for bundle in bundles for authority in authorities_of(bundle)]


def _report(before: RotationState | None, after: RotationState) -> None:
    if (before is None or before.leaf != after.leaf) and after.leaf:
        log.info("the certificate is valid until %s", after.leaf.certificate.not_valid_after_utc)
    if (before.phase if before else RotationPhase.STEADY) != after.phase:
        log.info("rotation of the certificate authority: %s", after.phase.name.lower())
