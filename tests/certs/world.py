"""A cluster in memory, for what no real one shows in a second: every interleaving, every crash, every delay.

Secrets and configurations compare versions as the API server does. API servers learn of a caBundle late, servers of
their Secret, but never later than LAG. After every single change, each API server calls each server.
"""

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable

from certs.check import PEMPair, PublishedBundles, issued_by, observe, rejection_reasons
from certs.reconciler import CertificateReconciler, RacedError, StoredSecret, WebhookConfiguration
from certs.rotation import RotationSettings
from certs.secret import CA, CERTIFICATE, KEY, SecretContent

NAME = "gpu-admission.gpu-admission.svc"
BEGIN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
LAG = 4 * SECOND
TERMS = RotationSettings(names=(NAME,), propagation=10 * SECOND, retirement=20 * SECOND)
KINDS = ("Mutating", "Validating")
STATE, SERVED = "stored", "served"


class Crash(Exception):  # noqa: N818 - an event
    """The controller died here."""


class World:
    def __init__(self) -> None:
        self.now = BEGIN
        self.stored: StoredSecret | None = None
        """The Secret with the state."""
        self.served: StoredSecret | None = None
        """The Secret that servers read."""
        self.versions = 0
        self.history: dict[str, list[tuple[dt.datetime, tuple[bytes, ...]]]] = {
            kind: [(BEGIN, (b"", b""))] for kind in KINDS
        }
        self.configuration_versions = dict.fromkeys(KINDS, "0")
        self.api_servers = [ApiServer(self), ApiServer(self)]
        self.servers = [Server(self, careful=True), Server(self, careful=True), Server(self, careful=False)]
        self.checking = False
        self.out_of_turn = False
        """The Secret was lost with all memory of it: those who take whatever is mounted are no longer promised anything."""

    def version(self) -> str:
        self.versions += 1
        return str(self.versions)

    def content(self) -> SecretContent:
        assert self.stored is not None
        return self.stored.content

    def store(self, content: SecretContent | None, secret: str = STATE) -> None:
        setattr(self, secret, None if content is None else StoredSecret(self.version(), content))
        self.check()

    def published(self, kind: str) -> tuple[bytes, ...]:
        return self.history[kind][-1][1]

    def set_bundles(self, kind: str, bundles: tuple[bytes, ...]) -> None:
        self.history[kind].append((self.now, bundles))
        self.configuration_versions[kind] = self.version()
        self.check()

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += SECOND
            for api_server in self.api_servers:
                api_server.hear_overdue()
            for server in self.servers:
                server.hear_overdue()
            self.check()

    def check(self) -> None:
        if not self.checking:
            return
        for server in self.servers:
            if self.out_of_turn and not server.careful:
                continue
            assert server.held is not None
            for api_server in self.api_servers:
                for kind in KINDS:
                    for bundle in set(api_server.bundles(kind)):
                        assert verifies(server.held.certificate, bundle), "a call has failed"


@functools.cache
def verifies(certificate: bytes, bundle: bytes) -> bool:
    """Ask at one time for all: nothing expires within a test."""
    return issued_by(certificate, bundle, BEGIN)


class ApiServer:
    """Sees each configuration as it was at some time, never longer ago than LAG."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen = dict.fromkeys(KINDS, 0)

    def bundles(self, kind: str) -> tuple[bytes, ...]:
        return self._world.history[kind][self._seen[kind]][1]

    def hear(self, kind: str) -> None:
        self._seen[kind] = len(self._world.history[kind]) - 1
        self._world.check()

    def hear_overdue(self) -> None:
        for kind in KINDS:
            history = self._world.history[kind]
            known = [index for index, (at, _) in enumerate(history) if at <= self._world.now - LAG]
            self._seen[kind] = max(self._seen[kind], known[-1] if known else 0)


class Server:
    """Presents what it took from the Secret; one that is careful asks `rejection_reasons` first, a mounted Secret does not."""

    def __init__(self, world: World, *, careful: bool) -> None:
        self._world = world
        self.careful = careful
        self.held: PEMPair | None = None
        self._published: PublishedBundles | None = None
        self._looked = BEGIN

    def hear(self) -> None:
        world = self._world
        self._looked = world.now
        bundles = frozenset(bundle for kind in KINDS for bundle in world.published(kind))
        self._published = observe(self._published, bundles, (NAME,), world.now)
        if world.served is None:
            return
        data = world.served.content.data
        offered = PEMPair(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(CA, b""))
        published = self._published if self.careful else None
        if offered == self.held:
            return
        if not rejection_reasons(offered, self.held, published, world.now):
            self.held = offered
            world.check()

    def hear_overdue(self) -> None:
        if self._world.now - self._looked >= LAG:
            self.hear()


@dataclasses.dataclass
class Interruption:
    """What happens to a controller at its `operation`th call: something else first, or it dies before or after it."""

    operation: int
    dies: str = ""  # "before", "after"
    meanwhile: Callable[[], None] = lambda: None


class Controller:
    """A keeper whose calls can be interrupted; it loses its memory when it dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._count = 0
        self._interruption: Interruption | None = None
        self.reconciler = self._born()

    def reconcile(self, interruption: Interruption | None = None) -> bool:
        """Look once; returns whether anything was written."""
        self._count, self._interruption = 0, interruption
        try:
            return self.reconciler.reconcile().written > 0
        except Crash:
            self.reconciler = self._born()
            return True
        except RacedError:
            return True

    def settle(self) -> None:
        while self.reconcile():
            pass

    def die(self) -> None:
        self.reconciler = self._born()

    def _born(self) -> CertificateReconciler:
        state, served = _Secret(self, STATE), _Secret(self, SERVED)
        return CertificateReconciler(state, served, _Configurations(self), TERMS, lambda: self.world.now)

    def call(self, effect: Callable[[], None]) -> None:
        self._count += 1
        met = self._interruption
        if met is None or met.operation != self._count:
            effect()
            return
        self._interruption = None
        met.meanwhile()
        if met.dies == "before":
            raise Crash
        effect()
        if met.dies == "after":
            raise Crash


class _Secret:
    def __init__(self, controller: Controller, name: str) -> None:
        self._controller = controller
        self._world = controller.world
        self._name = name

    def read(self) -> StoredSecret | None:
        self._controller.call(lambda: None)
        return self._now()

    def create(self, content: SecretContent) -> None:
        def effect() -> None:
            if self._now() is not None:
                raise RacedError
            self._world.store(content, self._name)

        self._controller.call(effect)

    def replace(self, stored: StoredSecret, content: SecretContent) -> None:
        def effect() -> None:
            now = self._now()
            if now is None or now.resource_version != stored.resource_version:
                raise RacedError
            self._world.store(content, self._name)

        self._controller.call(effect)

    def _now(self) -> StoredSecret | None:
        found: StoredSecret | None = getattr(self._world, self._name)
        return found


class _Configurations:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._world = controller.world

    def read(self) -> list[WebhookConfiguration]:
        self._controller.call(lambda: None)
        return [
            WebhookConfiguration(kind, self._world.configuration_versions[kind], self._world.published(kind))
            for kind in KINDS
        ]

    def publish(self, configuration: WebhookConfiguration, bundle: bytes) -> None:
        def effect() -> None:
            if self._world.configuration_versions[configuration.kind] != configuration.resource_version:
                raise RacedError
            self._world.set_bundles(configuration.kind, tuple(bundle for _ in configuration.bundles))

        self._controller.call(effect)
