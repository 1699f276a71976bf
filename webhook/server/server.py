"""Serve a site over TLS in one worker process, until SIGTERM or SIGINT.

gunicorn supplies the master process, its signals and the base of the worker, by public names only; nothing of it reads a
request or writes an answer (docs/edge.md). A thread of the worker gets a connection only together with a whole request, so
a client that is slow, silent or hostile costs a socket and some bytes until its deadline, never a thread.
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
from webhook.server.dispatcher import EdgeMetrics, Site
from webhook.server.monitoring import listen, start_monitoring
from webhook.server.poller import SWEEP_SECONDS, Poller
from webhook.server.settings import ServerSettings, StartupError
from webhook.server.tls import ServingCertificate

EXIT_BAD_START = 2
# What the worker needs after its own deadlines, before the master kills it.
_MARGIN_SECONDS = 5
# At the end, for requests that are under way to us on connections that look idle.
_IDLE_CLOSE_SECONDS = 1.0
_MEMORY = Path("/dev/shm")  # noqa: S108 - the heartbeat file of gunicorn must not wait for a disk

logger = logging.getLogger("gpu_admission.server")

SiteFactory = Callable[[ServingCertificate, Callable[[], bool]], Site]
"""Makes the site, given what is served to new connections and whether the process was asked to stop."""


def run(make_site: SiteFactory, settings: ServerSettings, registry: CollectorRegistry = REGISTRY) -> NoReturn:
    """Serve until a signal ends it; leaves by SystemExit: 0 after a stop, 2 with one line on stderr without a start.

    `make_site` is called in the worker, where threads may be started; it may raise StartupError.
    """
    try:
        server = Server(make_site, settings, registry)
    except StartupError as error:
        print(f"gpu-admission: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_BAD_START)
    sys.exit(Master(server).run())


class Server(BaseApplication):  # type: ignore[misc] # gunicorn has no types
    """What gunicorn's master and `EdgeWorker` need to know. Raises StartupError."""

    def __init__(self, make_site: SiteFactory, settings: ServerSettings, registry: CollectorRegistry) -> None:
        self.make_site, self.settings, self.registry = make_site, settings, registry
        self.draining = False
        self.certificate = ServingCertificate(settings.certificate, settings.key, settings.client_ca)
        self.listener = listen(settings.host, settings.port)
        self.metrics_listener = listen(settings.metrics_host, settings.metrics_port, field="metrics_port")
        super().__init__()

    def load_config(self) -> None:
        settings = self.settings
        for name, value in {
            "bind": [f"fd://{self.listener.detach()}"],
            "worker_class": EdgeWorker,
            "workers": 1,
            "http_parser": "python",  # it has nothing to parse, and looks for no gunicorn_h1c either
            "certfile": str(settings.certificate),  # for its log; the contexts come from ServingCertificate
            "keyfile": str(settings.key),
            "graceful_timeout": int(settings.drain_seconds + settings.graceful_seconds + _MARGIN_SECONDS),
            "control_socket_disable": True,
            "worker_tmp_dir": str(_MEMORY) if os.access(_MEMORY, os.W_OK | os.X_OK) else None,
            "proc_name": "gpu-admission",
            "logger_class": ProcessLog,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Site:
        try:
            return self.make_site(self.certificate, lambda: self.draining)
        except StartupError as error:
            raise AppImportError(f"gpu-admission: {error}") from error


class ProcessLog(Logger):  # type: ignore[misc] # gunicorn has no types
    """Leaves what gunicorn logs to the log of the process; gunicorn's own class adds a handler and a format."""

    def setup(self, cfg: Any) -> None:
        self.cfg, self.error_log.propagate = cfg, True


class Master(Arbiter):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's master, without the signals that would make it a second worker or a second master."""

    def signal(self, number: int, frame: object) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2, signal.SIGWINCH):
            return
        # Changed files are read anyway; what SIGHUP does say is that the terminal has gone.
        super().signal(signal.SIGTERM if number == signal.SIGHUP else number, frame)

    def halt(self, reason: str | None = None, exit_status: int = 0) -> None:
        super().halt(reason, EXIT_BAD_START if exit_status == self.APP_LOAD_ERROR else exit_status)


class EdgeWorker(Worker):  # type: ignore[misc] # gunicorn has no types
    """The worker process: one poller, many threads."""

    stopping_at_once = False

    def run(self) -> None:
        """Serve, drain and stop. gunicorn calls it when signals are handled and the site is made."""
        server: Server = self.app
        [listener], settings, metrics = self.sockets, server.settings, EdgeMetrics(server.registry)
        certificate, site = server.certificate, server.wsgi()
        callers = (
            CallerAuthentication(settings.client_names, certificate, metrics)
            if certificate.client_ca
            else None
        )
        poller = Poller(
            listener,
            site,
            settings,
            metrics,
            wrap=certificate.wrap,
            callers=callers,
            on_sweep=self.on_sweep,
        )
        signal.set_wakeup_fd(poller.wakeup)
        start_monitoring(server.metrics_listener, server.registry)
        # Not before: whoever reads this line may connect, and may stop us.
        address, metrics_address = _address(listener), _address(server.metrics_listener)
        urls = f"https://{address}, metrics http://{metrics_address}/metrics"
        logger.info("serving %s", urls)
        while self.alive:
            poller.poll()
        # Serve on, until every client has heard that we are leaving.
        server.draining = True
        poller.drain()
        logger.info("draining for %g s", settings.drain_seconds)
        self.keep_serving(poller, settings.drain_seconds)
        # Take what is connected already, then no more; finish what is in flight.
        poller.stop_accepting(_IDLE_CLOSE_SECONDS, accept_pending=not self.stopping_at_once)
        self.keep_serving(poller, settings.graceful_seconds, while_connected=True)
        logger.info("stopped with %d connections open", len(poller.connections))

    def keep_serving(self, poller: Poller, seconds: float, *, while_connected: bool = False) -> None:
        end = time.monotonic() + seconds
        while not self.stopping_at_once and (left := end - time.monotonic()) > 0:
            if while_connected and not poller.connections:
                return
            poller.poll(min(left, SWEEP_SECONDS))

    def on_sweep(self) -> None:
        """Give the master a sign of life, and go when it has gone. Connections that are kept depend on the client CA's file."""
        if self.app.certificate.client_ca:
            self.app.certificate.context()
        self.notify()
        if self.ppid != os.getppid():
            self.alive = False

    def handle_exit(self, _signal: int, _frame: object) -> None:
        """SIGTERM: readiness fails from now on. A second one changes nothing."""
        self.app.draining = True
        self.alive = False

    def handle_quit(self, signal: int, frame: object) -> None:
        """SIGINT, SIGQUIT: stop, whatever is in flight."""
        self.stopping_at_once = True
        self.handle_exit(signal, frame)


def _address(listener: Any) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
