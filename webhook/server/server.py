"""Serves an application over TLS in one worker process, until SIGTERM or SIGINT.

gunicorn supplies the master process, its signals and the base class of the worker, by public names only. It reads no
request and writes no response (docs/develop/http-server.md). A thread of the worker gets a connection only with a complete
request. So a slow, silent or hostile client costs a socket and some bytes until its deadline, but never a thread.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import AppImportError
from gunicorn.glogging import Logger
from gunicorn.workers.base import Worker
from prometheus_client import REGISTRY, CollectorRegistry

from webhook.server.callers import CallerAuthentication
from webhook.server.dispatcher import Application, ServerMetrics
from webhook.server.monitoring import listen, start_monitoring
from webhook.server.poller import SWEEP_SECONDS, Poller
from webhook.server.settings import ServerSettings, StartupError
from webhook.server.tls import ServingCertificate

EXIT_BAD_START = 2
_MARGIN_SECONDS = 5
"""The master kills a worker that still runs this long after its deadlines."""
_IDLE_CLOSE_SECONDS = 1.0
"""How long an idle connection stays open at the end: a request on it may be on its way."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - the heartbeat file of gunicorn must not wait for a disk

log = logging.getLogger("gpu_admission.server")

AppFactory = Callable[[ServingCertificate, Callable[[], bool]], Application]
"""Creates the application. Its arguments: the serving certificate, and whether the process is draining."""


def run(make_app: AppFactory, settings: ServerSettings, registry: CollectorRegistry = REGISTRY) -> NoReturn:
    """Serve until a signal, and raise SystemExit: with 0 after a stop, with 2 and one line on stderr if the start fails.

    `make_app` is called in the worker process, and so may start threads. It may raise StartupError.
    """
    try:
        server = ServingWorkload(make_app, settings, registry)
    except StartupError as error:
        print(f"gpu-admission: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_BAD_START)
    sys.exit(Master(server).run())


class ServingWorkload(BaseApplication):  # type: ignore[misc] # gunicorn has no types
    """The settings and listeners for gunicorn's master and `ServerWorker`. Raises StartupError."""

    def __init__(self, make_app: AppFactory, settings: ServerSettings, registry: CollectorRegistry) -> None:
        self.make_app, self.settings, self.registry = make_app, settings, registry
        self.draining = False
        self.certificate = ServingCertificate(settings.certificate, settings.key, settings.client_ca)
        self.listener = listen(settings.host, settings.port)
        self.metrics_listener = listen(settings.metrics_host, settings.metrics_port, field="metrics_port")
        super().__init__()

    def load_config(self) -> None:
        settings = self.settings
        for name, value in {
            "bind": [f"fd://{self.listener.detach()}"],
            "worker_class": ServerWorker,
            "workers": 1,
            "http_parser": "python",  # not used; the default would look for gunicorn_h1c
            "certfile": str(settings.certificate),  # for its log; the contexts come from ServingCertificate
            "keyfile": str(settings.key),
            "graceful_timeout": int(settings.drain_seconds + settings.graceful_seconds + _MARGIN_SECONDS),
            "control_socket_disable": True,
            "worker_tmp_dir": str(_MEMORY) if os.access(_MEMORY, os.W_OK | os.X_OK) else None,
            "proc_name": "gpu-admission",
            "logger_class": ProcessLog,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Application:
        try:
            return self.make_app(self.certificate, lambda: self.draining)
        except StartupError as error:
            raise AppImportError(f"gpu-admission: {error}") from error


class ProcessLog(Logger):  # type: ignore[misc] # gunicorn has no types
    """Passes gunicorn's messages to the log of the process, without gunicorn's own handler and format."""

    def setup(self, cfg: Any) -> None:
        self.cfg, self.error_log.propagate = cfg, True


class Master(Arbiter):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's master. It ignores the signals that would start a second worker or a second master."""

    def signal(self, number: int, frame: object) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2, signal.SIGWINCH):
            return
        # SIGHUP need not reload: changed files are read anyway. It means that the terminal was closed.
        super().signal(signal.SIGTERM if number == signal.SIGHUP else number, frame)

    def halt(self, reason: str | None = None, exit_status: int = 0) -> None:
        super().halt(reason, EXIT_BAD_START if exit_status == self.APP_LOAD_ERROR else exit_status)


class ServerWorker(Worker):  # type: ignore[misc] # gunicorn has no types
    """The worker process, with one poller and many threads."""

    stopping_at_once = False

    def run(self) -> None:
        """Serve, drain and stop. gunicorn calls it once signal handlers are set and the application is created."""
        server: ServingWorkload = self.app
        [listener], settings, metrics = self.sockets, server.settings, ServerMetrics(server.registry)
        certificate, app = server.certificate, server.wsgi()
        callers = None
        if certificate.client_ca:
            callers = CallerAuthentication(settings.client_names, certificate, metrics)
        poller = Poller(
            listener, app, settings, metrics, wrap=certificate.wrap, callers=callers, on_sweep=self.on_sweep
        )
        signal.set_wakeup_fd(poller.wakeup)
        start_monitoring(server.metrics_listener, server.registry)
        # Log this last: who reads it may connect, or stop the process.
        address, metrics_address = _address(listener), _address(server.metrics_listener)
        urls = f"https://{address}, metrics http://{metrics_address}/metrics"
        log.info("serving %s", urls)
        while self.alive:
            poller.poll()
        # Every response now closes its connection, so that clients move to other replicas.
        server.draining = True
        poller.drain()
        log.info("draining for %g s", settings.drain_seconds)
        self.keep_serving(poller, settings.drain_seconds)
        # Accept pending connections, then no more. Finish the requests in flight.
        poller.stop_accepting(_IDLE_CLOSE_SECONDS, accept_pending=not self.stopping_at_once)
        self.keep_serving(poller, settings.graceful_seconds, while_connected=True)
        log.info("stopped with %d connections open", len(poller.connections))

    def keep_serving(self, poller: Poller, seconds: float, *, while_connected: bool = False) -> None:
        end = time.monotonic() + seconds
        while not self.stopping_at_once and (left := end - time.monotonic()) > 0:
            if while_connected and not poller.connections:
                return
            poller.poll(min(left, SWEEP_SECONDS))

    def on_sweep(self) -> None:
        """Send the master a heartbeat, and stop if the master has ended. Load a changed client CA for the open connections."""
        if self.app.certificate.client_ca:
            self.app.certificate.context()
        self.notify()
        if self.ppid != os.getppid():
            self.alive = False

    def handle_exit(self, _signal: int, _frame: object) -> None:
        """SIGTERM: start to drain, so that readiness fails. A second one changes nothing."""
        self.app.draining = True
        self.alive = False

    def handle_quit(self, signal: int, frame: object) -> None:
        """SIGINT, SIGQUIT: stop at once, even with requests in flight."""
        self.stopping_at_once = True
        self.handle_exit(signal, frame)


def _address(listener: Any) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
