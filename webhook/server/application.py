"""
Run a WSGI application behind the edge, in one worker process, until SIGTERM or SIGINT.

What keeps it from starting (an address in use, a certificate that is not there) is one line on stderr
and exit code 2.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import NoReturn
from wsgiref.types import WSGIApplication

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import AppImportError
from prometheus_client import REGISTRY, CollectorRegistry

from webhook.listening import CannotListenError, listen
from webhook.monitoring import Monitoring
from webhook.server.lifecycle import StartupError
from webhook.server.settings import ServerSettings
from webhook.server.tls import CertificateError, ServingCertificate
from webhook.server.worker import EdgeWorker

EXIT_BAD_START = 2
# What the worker needs after its own deadlines, before the master kills it.
_MARGIN_SECONDS = 5
_MEMORY = Path("/dev/shm")  # noqa: S108 - the heartbeat file of gunicorn must not wait for a disk


def run(
    application_factory: Callable[[], WSGIApplication],
    settings: ServerSettings,
    *,
    on_drain: Callable[[], None] = lambda: None,
    registry: CollectorRegistry = REGISTRY,
    at_once: Container[bytes] = frozenset(),
    probes: frozenset[bytes] = frozenset(),
) -> NoReturn:
    """
    Serve until told to stop; leaves by SystemExit: 0 after a stop, 2 when it could not start.

    The factory is called in the worker, where threads may be started; it may raise StartupError.
    `on_drain` is called there too, when draining begins. `at_once` are the paths whose requests wait for nothing
    but the processor: they are answered without being handed to a thread; so are those of `probes`, which besides are
    answered however many requests there are.
    """
    try:
        certificate = ServingCertificate(settings.certificate, settings.key)
        listener = _listen("port", settings.host, settings.port)
        metrics_listener = _listen("metrics_port", settings.metrics_host, settings.metrics_port)
    except (CertificateError, StartupError) as error:
        print(f"gpu-admission: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_BAD_START)
    print(  # noqa: T201
        f"gpu-admission: serving https://{_address(listener)}, metrics http://{_address(metrics_listener)}/metrics",
        file=sys.stderr,
        flush=True,
    )
    server = Server(
        application_factory=application_factory,
        settings=settings,
        certificate=certificate,
        listener=listener,
        metrics_listener=metrics_listener,
        on_drain=on_drain,
        registry=registry,
        at_once=at_once,
        probes=probes,
    )
    master = os.getpid()
    try:
        server.run()
    except SystemExit as stop:
        # The worker leaves through here too; its code is how the master learns of the refusal.
        refused = stop.code == Arbiter.APP_LOAD_ERROR and os.getpid() == master
        sys.exit(EXIT_BAD_START if refused else stop.code)
    sys.exit(0)


class Server(BaseApplication):  # type: ignore[misc] # gunicorn has no types
    """What gunicorn's master and `EdgeWorker` need to know."""

    def __init__(
        self,
        *,
        application_factory: Callable[[], WSGIApplication],
        settings: ServerSettings,
        certificate: ServingCertificate,
        listener: socket.socket,
        metrics_listener: socket.socket,
        on_drain: Callable[[], None],
        registry: CollectorRegistry,
        at_once: Container[bytes],
        probes: frozenset[bytes],
    ) -> None:
        self.application_factory = application_factory
        self.settings = settings
        self.certificate = certificate
        self.listener = listener
        self.metrics_listener = metrics_listener
        self.on_drain = on_drain
        self.registry = registry
        self.at_once = at_once
        self.probes = probes
        super().__init__()

    def load_config(self) -> None:
        settings = self.settings
        for name, setting in {
            "bind": [f"fd://{self.listener.detach()}"],
            "worker_class": EdgeWorker,
            "workers": 1,
            "certfile": str(
                settings.certificate
            ),  # makes the scheme https; the contexts come from ServingCertificate
            "keyfile": str(settings.key),
            "keepalive": int(settings.keepalive_seconds),
            "graceful_timeout": int(settings.drain_seconds + settings.graceful_seconds + _MARGIN_SECONDS),
            "control_socket_disable": True,
            "worker_tmp_dir": str(_MEMORY) if os.access(_MEMORY, os.W_OK | os.X_OK) else None,
            "forwarded_allow_ips": "",  # nobody may say that they are somebody else
            "loglevel": settings.log_level,
            "proc_name": "gpu-admission",
        }.items():
            self.cfg.set(name, setting)

    def load(self) -> WSGIApplication:
        try:
            return self.application_factory()
        except StartupError as error:
            raise AppImportError(f"gpu-admission: {error}") from error

    def start_metrics(self) -> None:
        Monitoring(self.metrics_listener, self.registry).start()

    def run(self) -> None:
        Master(self).run()


class Master(Arbiter):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's master, without the signals that would make it a second worker or a second master."""

    def signal(self, number: int, frame: object) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2, signal.SIGWINCH):
            return
        # Files are reloaded without being told; what SIGHUP does tell is that the terminal has gone.
        super().signal(signal.SIGTERM if number == signal.SIGHUP else number, frame)


def _listen(field: str, host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except CannotListenError as error:
        raise StartupError(f"{field}: {error}") from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
