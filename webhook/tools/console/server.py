"""The console assembled: the caller's client, an observer of the status, the pages, and the server of them on loopback."""

import socket
from collections.abc import Sequence
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


class StatusReader:
    """Reads the status again and again, the installation not each time."""

    def __init__(self, api: ApiClient, namespaces: Sequence[str], home: str) -> None:
        self._api, self._namespaces, self._home = api, namespaces, home
        self._installation: InstallationStatus | None = None
        self._installation_read = 0.0

    def read(self) -> ClusterStatus:
        if monotonic() - self._installation_read > INSTALLATION_SECONDS:
            self._installation = None
        found = read_status(
            self._api,
            now=datetime.now(UTC),
            namespaces=self._namespaces,
            home=self._home,
            installation=self._installation,
        )
        if self._installation is None:
            self._installation, self._installation_read = found.installation, monotonic()
        return found


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
        StatusReader(api, namespaces, home).read,
        lambda status: history.record(monotonic(), counted_rows(status)),
    )
    app = create_app(api, observer, history, cluster=cluster, home=home)
    # Where werkzeug itself cannot bind, it ends the process.
    with socket.create_server((HOST, port)) as bound:
        return make_server(HOST, port, app, threaded=True, request_handler=_Handler, fd=bound.fileno())
