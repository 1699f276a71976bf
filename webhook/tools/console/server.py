"""The server of the console on loopback, with an observer of the status."""

import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from webhook.cluster.api import ApiClient
from webhook.tools.console.app import Observer, create_app
from webhook.tools.console.history import History
from webhook.tools.console.views import counted_rows
from webhook.tools.status.reading import read_status, status_reader
from webhook.tools.status.report import ClusterStatus

HOST = "127.0.0.1"
IDLE_SECONDS = 60
"""A connection that sends nothing for so long is closed."""


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def version_string(self) -> str:
        return "gpu-admission"

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - werkzeug's signature
        """Write nothing: the page asks every few seconds."""


def console_server(
    api: ApiClient, *, cluster: str, namespaces: Sequence[str] = (), home: str = "", port: int = 0
) -> BaseWSGIServer:
    """Return the server, bound to a port of loopback, by default a free one. Raises OSError for one that is taken."""
    history = History()

    def read(before: ClusterStatus | None) -> ClusterStatus:
        now, installation = datetime.now(UTC), before.installation if before else None
        return read_status(api, now=now, namespaces=namespaces, home=home, installation=installation)

    observer = Observer(
        status_reader(read),
        lambda status: history.record(monotonic(), counted_rows(status)),
    )
    app = create_app(api, observer, history, cluster=cluster, home=home)
    # Where werkzeug itself cannot bind, it ends the process.
    with socket.create_server((HOST, port)) as bound:
        return make_server(HOST, port, app, threaded=True, request_handler=_Handler, fd=bound.fileno())
