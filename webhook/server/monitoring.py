"""Metrics and probes in plain HTTP on a port of their own, as scrapers and the kubelet ask for them.

The same poller as for reviews: no client that is slow, silent or hostile keeps another one waiting.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

from prometheus_client import CollectorRegistry, make_wsgi_app

from webhook.server.dispatcher import Application, ServerMetrics
from webhook.server.http import Request, Response, call_wsgi, text
from webhook.server.poller import Poller
from webhook.server.settings import Limits, StartupError
from webhook.threads import thread

# For a burst of kube-apiserver dials (25 and more a server) while who accepts them is busy.
BACKLOG = 1024
# A scrape only computes, so more threads would make none faster.
LIMITS = Limits(threads=2, max_concurrent=16, connections=128, body_limit=0)

Check = Callable[[], str]
"""Returns why not, empty if all is well. It must not wait: the poller's thread asks."""


def listen(host: str, port: int, *, field: str = "port") -> socket.socket:
    """Listen on a name or address, `::` for both families; port 0 takes a free one. Raises StartupError."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        # The message of create_server repeats the address.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise StartupError(f"{field}: cannot listen on {host} port {port}: {reason}") from error


def start_monitoring(
    listener: socket.socket, registry: CollectorRegistry, checks: Mapping[str, Check] | None = None
) -> None:
    """Serve /metrics of `registry`, and each check at its path, from a thread of this process."""
    checks, metrics = checks or {}, make_wsgi_app(registry)

    def answer(request: Request) -> Response:
        if check := checks.get(request.path):
            problem = check()
            return text(503 if problem else 200, problem or "ok")
        return call_wsgi(metrics, request) if request.path == "/metrics" else text(404, "not found")

    app = Application(answer, only_computes=lambda _request: False, probes=frozenset(checks))
    # The metrics of the server count reviews and those who send them, not this.
    poller = Poller(listener, app, LIMITS, ServerMetrics(CollectorRegistry()))

    def serve(_stopping: threading.Event) -> NoReturn:
        while True:
            poller.poll()

    thread("monitoring", serve, threading.Event()).start()
