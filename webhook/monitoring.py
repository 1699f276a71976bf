"""Metrics and checks in plain HTTP on a port of their own, as scrapers and the kubelet ask for them.

A few clients at once: whoever holds them all up denies the figures to others, and nothing else.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

AT_ONCE = 8
READ_SECONDS = 5.0

Check = Callable[[], str]
"""Returns why not, empty if all is well."""


class Monitoring(ThreadingHTTPServer):
    """Serves /metrics of `registry`, and each check at its path, on a listening socket, once `start` is called."""

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, registry: CollectorRegistry, checks: Mapping[str, Check] | None = None
    ) -> None:
        self.registry = registry
        self.checks = checks or {}
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Serve from a thread of this process."""
        threading.Thread(target=self.serve_forever, name="monitoring", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away or were too slow."""


class _Handler(MetricsHandler):
    server: Monitoring
    timeout = READ_SECONDS

    def do_GET(self) -> None:  # noqa: N802 - the name under which the base class calls it
        path = self.path.partition("?")[0]
        check = self.server.checks.get(path)
        if check is not None:
            problem = check()
            self._say(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, problem or "ok")
        elif path == "/metrics":
            self.registry = self.server.registry
            super().do_GET()
        else:
            self._say(HTTPStatus.NOT_FOUND, "not found")

    def _say(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
