"""
One client connection, from its first TLS byte to its last, never waited for.

Every socket operation here returns at once. A connection belongs either to the poller, which moves it on
when its socket is ready, or to the one thread that answers its request; so nothing here needs a lock.
"""

import contextlib
import enum
import selectors
import socket
import ssl
from typing import Any

from webhook.server.framing import HEAD_LIMIT, Head, find_head

# A TLS record holds at most 16 KiB. A read of no less leaves nothing decrypted behind, so that the
# readiness of the socket tells the whole truth.
_READ = 32 * 1024
# Reads after which the other connections get their turn.
_READS_PER_TURN = 8
# OpenSSL reports a write when all of it is out; in pieces, what has left is no longer counted.
_WRITE = 256 * 1024
# What a client may still send after our last word and yet read it: twice the largest body.
_LINGER_BYTES = 16 * 1024 * 1024


class Stage(enum.Enum):
    """What a connection is waiting for."""

    HANDSHAKE = "handshake"
    IDLE = "idle"  # the first byte of a request
    REQUEST = "request"  # the rest of it
    ANSWERING = "answering"  # a thread
    RESPONSE = "response"  # the client to take the answer
    LINGER = "linger"  # the client to close
    CLOSED = "closed"


class Connection:
    """
    A TLS socket with its buffers.

    `deadline` and `since` are on the monotonic clock; `since` is when the present request began, or the
    connection itself before any. `counted` is the number of bytes that the worker's account of buffers
    holds for this connection.
    """

    __slots__ = (
        "client",
        "closing",
        "continued",
        "counted",
        "deadline",
        "events",
        "head",
        "lingered",
        "on_ready",
        "outgoing",
        "received",
        "searched",
        "served",
        "server",
        "since",
        "socket",
        "stage",
    )  # fmt: skip

    def __init__(self, tls_socket: ssl.SSLSocket, client: Any, server: Any, *, now: float) -> None:
        self.socket = tls_socket
        self.client = client
        self.server = server
        self.stage = Stage.HANDSHAKE
        self.since = self.deadline = now
        self.events = 0  # what the poller watches for
        self.on_ready: Any = None
        self.received = bytearray()
        self.searched = 0
        self.head: Head | None = None
        self.continued = False  # "100 Continue" was sent
        self.outgoing = memoryview(b"")
        self.closing = False  # after the answer
        self.counted = 0
        self.served = 0
        self.lingered = 0

    def handshake(self) -> int:
        """Go on with the handshake; returns the events to wait for, 0 when it is done. OSError: it failed."""
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        return 0

    def receive(self) -> bool:
        """Take in what is there, up to the end of one request; False at the end of the stream."""
        for _ in range(_READS_PER_TURN):
            try:
                data = self.socket.recv(_READ)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not data:
                return False
            self.received += data
            if self.ready():
                break
        return True

    def ready(self) -> bool:
        """Whether there is a whole request, or a head that promises none."""
        if self.head is None:
            self.head = find_head(self.received, self.searched)
            self.searched = len(self.received)
            if self.head is None:
                return len(self.received) > HEAD_LIMIT
        return self.head.body is None or len(self.received) >= self.head.size + self.head.body

    def take_request(self, head: Head) -> tuple[bytes, bytes]:
        """Head and body of the whole request, taken out of `received`; what follows stays there."""
        end = len(self.received) if head.body is None else head.size + head.body
        with memoryview(self.received) as view:
            request = bytes(view[: head.size]), bytes(view[head.size : end])
        # Where a body of unknown form ends, so does what can be told apart on this connection.
        self.closing = head.body is None
        del self.received[:end]
        self.head, self.searched, self.continued = None, 0, False
        return request

    def send(self) -> bool:
        """Hand `outgoing` to the socket; True when it took everything. OSError: the client is gone."""
        while self.outgoing:
            try:
                sent = self.socket.send(self.outgoing[:_WRITE])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            self.outgoing = self.outgoing[sent:]
        return True

    def say_goodbye(self) -> None:
        """Tell the client that nothing follows; to close while it sends could destroy the answer."""
        self._close_notify()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def linger(self) -> bool:
        """Throw away what still comes; False when the client has closed or has sent too much."""
        for _ in range(_READS_PER_TURN):
            try:
                data = self.socket.recv(_READ)
            except (ssl.SSLWantReadError, BlockingIOError):
                return True
            if not data:
                return False
            self.lingered += len(data)
        return self.lingered < _LINGER_BYTES

    def close(self) -> None:
        if self.stage is Stage.IDLE:
            self._close_notify()
        self.stage = Stage.CLOSED
        self.received.clear()
        self.outgoing = memoryview(b"")
        with contextlib.suppress(OSError):
            self.socket.close()

    def _close_notify(self) -> None:
        # The client's own close_notify is not waited for, and reported as an error here.
        with contextlib.suppress(OSError, ValueError):
            self.socket.unwrap()
