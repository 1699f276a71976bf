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

from certs.check import cas_in
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
    updated_kinds: tuple[str, ...]


@dataclasses.dataclass(eq=False)
class CertificateReconciler:
    """Reconciles `state_secret`, and `serving_secret`, which servers read. Others may reconcile the same Secrets."""

    state_secret: SecretStore
    serving_secret: SecretStore
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
        configurations, serving = self.configurations.read(), self.serving_secret.read()
        stored = self.state_secret.read()
        # After the reads, so that a wait that starts now does not include their time.
        now = self.clock()
        before = self._current_state(stored, serving, configurations, now)
        ca_bundles = {bundle for configuration in configurations for bundle in configuration.bundles}
        serving_secret_is_current = (
            serving is not None and for_servers(before).data.items() <= serving.content.data.items()
        )
        state = advance(
            before, ca_bundles, now, self.settings, serving_secret_is_current=serving_secret_is_current
        )
        written = _write(self.state_secret, stored, encode(state))
        if written:
            _log_transition(self.last_state, state)
        self.last_state = state
        written += _write(self.serving_secret, serving, for_servers(state))
        return ReconcileResult(state, written, tuple(self._publish(configurations, state.bundle())))

    def _publish(self, configurations: Sequence[WebhookConfiguration], bundle: bytes) -> Iterable[str]:
        raced = None
        for configuration in configurations:
            if all(ca_bundle == bundle for ca_bundle in configuration.bundles):
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
        serving: StoredSecret | None,
        configurations: Sequence[WebhookConfiguration],
        now: dt.datetime,
    ) -> RotationState:
        """Return the state to advance; authorities whose leaves may still be served stay in the bundle."""
        problem = "is missing"
        readable_cas = cas_in(serving.content.data.get(CA, b"")) if serving else ()
        if stored is not None:
            try:
                state = decode(stored.content)
            except DamagedError as error:
                problem, readable_cas = f"is damaged: {error}", (*readable_cas, *error.authorities)
            else:
                remembered = [self.last_state.authority.certificate] if self.last_state else []
                # A restored backup may hold an old CA. Then servers may still present leaves of the CAs in caBundles that lack
                # it: keep these. A caBundle that has it is of an earlier phase of our rotation, which dropped its other CAs.
                our_ca = state.authority.certificate
                foreign = [each for each in configurations if our_ca not in _cas_of([each])]
                return adopt(state, [*remembered, *_cas_of(foreign)], now)
        if self.last_state is not None:
            log.warning("the Secret %s; restoring it", problem)
        else:
            log.info("the Secret %s; making a certificate authority", problem)
        state = self.last_state or new_state(self.settings, now)
        # Servers could not load a certificate meanwhile: their wait begins again.
        state = dataclasses.replace(state, since=None)
        return adopt(state, [*_cas_of(configurations), *readable_cas], now)


def _write(store: SecretStore, stored: StoredSecret | None, content: SecretContent) -> int:
    """Return how many Secrets were written: 1, or 0 where `stored` has the content."""
    if stored is None:
        store.create(content)
    elif stored.content == content:
        return 0
    else:
        store.replace(stored, content)
    return 1


def _cas_of(configurations: Iterable[WebhookConfiguration]) -> list[x509.Certificate]:
    bundles = dict.fromkeys(bundle for configuration in configurations for bundle in configuration.bundles)
    return [authority for bundle in bundles for authority in cas_in(bundle)]


def _log_transition(before: RotationState | None, after: RotationState) -> None:
    if (before is None or before.leaf != after.leaf) and after.leaf:
        log.info("the certificate is valid until %s", after.leaf.certificate.not_valid_after_utc)
    if (before.phase if before else RotationPhase.STEADY) != after.phase:
        log.info("rotation of the certificate authority: %s", after.phase.name.lower())
