"""
Prometheus text exposition, on a port of its own and in plain HTTP, as scrapers expect it.

A few threads at most: whoever holds them all up denies the figures to others, and nothing else.
"""

import socket
import socketserver
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import MetricsHandler

_SCRAPES_AT_ONCE = 8
_READ_SECONDS = 5.0


class ConnectionMetrics:
    """What the edge itself has to report."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("gpu_admission_connections", "Open TLS connections.", registry=registry)
        self.cut = Counter(
            "gpu_admission_connections_cut",
            "Connections closed on a client: for the deadline that it missed, or to make room.",
            ["reason"],
            registry=registry,
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        handler = type("Handler", (MetricsHandler,), {"registry": registry, "timeout": _READ_SECONDS})
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.free = threading.BoundedSemaphore(_SCRAPES_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of scrapers that went away or were too slow."""


def start(listener: socket.socket, registry: CollectorRegistry) -> None:
    """Serve `registry` on the listening socket, from a thread of this process."""
    server: socketserver.BaseServer = _Server(listener, registry)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
