"""A TCP proxy between a client and the API server that can cut connections, and stop at a large request."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.controlplane import ControlPlane

CHUNK = 65536


class Proxy:
    """Forwards to `target` (host, port), which may change, for the length of a `with` block. TLS passes through untouched.

    `hold` is asked about every chunk that a client sends, and may take its time: what it holds back, the server does not see.
    """

    def __init__(
        self,
        target: tuple[str, int],
        hold: Callable[[bytes], object] = lambda _: None,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.target = target
        self._hold = hold
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(listen)
        self._address = self._listener.getsockname()
        self.port: int = self._address[1]
        self.accepted = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse connections from now on, and end those that there are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who accepts
        self._listener.close()
        self.cut()

    def listen(self) -> None:
        """Take connections again after `close`."""
        self._listener = socket.create_server(self._address)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """End every connection as a crash of the network would be seen: at once, with a reset."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            server = socket.create_connection(self.target)
            self._open |= {client, server}
            for source, sink, hold in ((client, server, self._hold), (server, client, lambda _: None)):
                threading.Thread(target=self._forward, args=(source, sink, hold), daemon=True).start()

    def _forward(
        self,
        source: socket.socket,
        sink: socket.socket,
        hold: Callable[[bytes], object],
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                hold(chunk)
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()  # the sink is the source of the other direction


def through(plane: ControlPlane, proxy: Proxy, folder: Path) -> Path:
    config = json.loads(plane.kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = folder / "proxied.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def address(plane: ControlPlane) -> tuple[str, int]:
    url = urlsplit(plane.url)
    return url.hostname or "", url.port or 0
