"""/metrics, /healthz and /readyz of the controller: plain HTTP on one port, for scrapers and the kubelet."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

READ_SECONDS = 5.0
AT_ONCE = 8

Check = Callable[[], str]
"""Returns why not, empty if all is well."""


class Endpoint(ThreadingHTTPServer):
    """Listens as soon as it is made; `start` serves from a thread. Port 0 takes a free one."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, *, registry: CollectorRegistry, healthy: Check, ready: Check
    ) -> None:
        self.registry = registry
        self.checks = {"/healthz": healthy, "/readyz": ready}
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        return self.server_port

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, name="endpoint", daemon=True).start()

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


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = READ_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        check = self.server.checks.get(path)
        if check is not None:
            problem = check()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            self._send(status, "text/plain; charset=utf-8", f"{problem or 'ok'}\n".encode())
        elif path == "/metrics":
            self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"not found\n")

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing: scrapes and probes come every few seconds."""
