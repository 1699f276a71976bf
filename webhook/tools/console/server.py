"""The server of the console on loopback, with an observer of the status."""

import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import monotonic

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from webhook.cluster.api import ApiClient
from webhook.tools.console.app import create_app
from webhook.tools.console.history import History
from webhook.tools.console.observer import Observer
from webhook.tools.console.views import counted_rows
from webhook.tools.status.reading import read_status
from webhook.tools.status.report import ClusterStatus, InstallationStatus

HOST = "127.0.0.1"
IDLE_SECONDS = 60
"""A connection that sends nothing for so long is closed."""

INSTALLATION_SECONDS = 60.0
"""The checks of the installation take seconds, so they are made less often than the rest is read."""


def status_reader(api: ApiClient, namespaces: Sequence[str], home: str) -> Callable[[], ClusterStatus]:
    """Return a function that reads the status, the installation not each time."""
    installation: InstallationStatus | None = None
    read_at = 0.0

    def read() -> ClusterStatus:
        nonlocal installation, read_at
        if monotonic() - read_at > INSTALLATION_SECONDS:
            installation = None
        now = datetime.now(UTC)
        found = read_status(api, now=now, namespaces=namespaces, home=home, installation=installation)
        if installation is None:
            installation, read_at = found.installation, monotonic()
        return found

    return read


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
    observer = Observer(
        status_reader(api, namespaces, home),
        lambda status: history.record(monotonic(), counted_rows(status)),
    )
    app = create_app(api, observer, history, cluster=cluster, home=home)
    # Where werkzeug itself cannot bind, it ends the process.
    with socket.create_server((HOST, port)) as bound:
        return make_server(HOST, port, app, threaded=True, request_handler=_Handler, fd=bound.fileno())
