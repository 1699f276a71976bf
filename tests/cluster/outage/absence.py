"""Ways in which a webhook can be away, each on a real address: the API server finds out by itself.

A packet filter would need rights that a test has not; the kernel swallows packets without one. It drops every SYN for a
listener whose queue of connections that nobody accepts is full, so whoever connects hears nothing: neither yes nor no.
"""

import contextlib
import socket
from collections.abc import Iterator

PORT = 443
CONNECTS_WITHIN = 0.3
"""Seconds; on loopback a connection that is taken at all is taken at once."""


@contextlib.contextmanager
def refusing(_address: str) -> Iterator[None]:
    """Have nobody listen, as where the Service has no endpoint or the process has died: connections are refused at once."""
    yield


@contextlib.contextmanager
def swallowing(address: str) -> Iterator[None]:
    """Neither take nor refuse a connection, as where a node has gone or a NetworkPolicy forbids them."""
    with contextlib.ExitStack() as open_sockets:
        open_sockets.enter_context(socket.create_server((address, PORT), backlog=0))
        while True:
            attempt = open_sockets.enter_context(socket.socket())
            attempt.settimeout(CONNECTS_WITHIN)
            try:
                attempt.connect((address, PORT))
            except TimeoutError:
                break  # the queue is full
        yield


@contextlib.contextmanager
def silent(address: str) -> Iterator[None]:
    """Take connections and never say anything on them, as a process that hangs does."""
    with socket.create_server((address, PORT), backlog=1024):
        yield
