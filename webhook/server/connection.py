"""One client connection, from its first byte to its last, never waited for.

Every socket operation here returns at once. A connection belongs either to the poller, which moves it on when its socket
is ready, or to the one thread that answers its request; so nothing here needs a lock.
"""

import contextlib
import enum
import selectors
import socket
import ssl

from webhook.server.http import Request, find_request
from webhook.server.tls import Caller, caller_of

# A TLS record holds at most 16 KiB. A read of no less leaves nothing decrypted behind, which would be there to take
# without the socket being ready.
_READ = 32 * 1024
# Reads after which the other connections get their turn.
_READS_PER_POLL = 8
# OpenSSL reports a write when all of it is out; in pieces, what has left is no longer counted.
_WRITE = 256 * 1024
_NOT_NOW = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class ConnectionState(enum.Enum):
    HANDSHAKE = "handshake"
    IDLE = "idle"  # the first byte of a request
    REQUEST = "request"  # the rest of it
    ANSWERING = "answering"  # its answer to be made
    RESPONSE = "response"  # the client to take the answer
    LINGER = "linger"  # the client to close
    CLOSED = "closed"


class Connection:
    """A socket, with TLS or plain, and its buffers.

    deadline, since: moments of `monotonic`; `since` is the start of the present request, at first that of the connection.
    counted: the bytes of this connection in the poller's sum of buffers.
    """

    def __init__(self, client_socket: socket.socket, *, now: float) -> None:
        self.socket = client_socket
        self.state = ConnectionState.HANDSHAKE
        self.since = self.deadline = now
        self.events = 0  # what the poller watches for
        self.received = bytearray()
        self.request: Request | None = None
        self.caller: Caller | None = None  # whose certificate the handshake has verified
        self.outgoing = memoryview(b"")
        self.closing = False  # after the answer
        self.counted = self.served = 0

    def handshake(self) -> int:
        """Go on with the handshake; returns the events to wait for, 0 when it is done. OSError: it failed."""
        try:
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.do_handshake()
                self.caller = caller_of(self.socket)
        except _NOT_NOW as wait:
            return selectors.EVENT_WRITE if isinstance(wait, ssl.SSLWantWriteError) else selectors.EVENT_READ
        return 0

    def receive(self) -> bool:
        """Take in what is there, up to the end of one request; False at the end of the stream. Raises RefusedError."""
        try:
            for _ in range(_READS_PER_POLL):
                data = self.socket.recv(_READ)
                self.received += data
                if not data or self.is_whole():
                    return bool(data)
        except _NOT_NOW:
            return True
        return True

    def is_whole(self) -> bool:
        """Whether `request` and all of its body are there. Raises RefusedError."""
        self.request = request = self.request or find_request(self.received)
        return request is not None and len(self.received) >= request.head_size + request.body_size

    def take_body(self, request: Request) -> None:
        """Give the whole request its body, out of `received`; what follows stays there."""
        end = request.head_size + request.body_size
        with memoryview(self.received) as view:
            request.body, request.began = bytes(view[request.head_size : end]), self.since
        del self.received[:end]
        self.request = None

    def send(self) -> bool:
        """Hand `outgoing` to the socket; True when it took everything. OSError: the client is gone."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.socket.send(self.outgoing[:_WRITE]) :]
        except _NOT_NOW:
            return False
        return True

    def say_goodbye(self) -> None:
        """Say that nothing follows; to close while the client sends could destroy the answer."""
        self._close_notify()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def linger(self) -> bool:
        """Throw away what still comes; False when the client has closed."""
        with contextlib.suppress(*_NOT_NOW):
            return all(self.socket.recv(_READ) for _ in range(_READS_PER_POLL))
        return True

    def close(self) -> None:
        if self.state is ConnectionState.IDLE:
            self._close_notify()
        self.state = ConnectionState.CLOSED
        with contextlib.suppress(OSError):
            self.socket.close()

    def _close_notify(self) -> None:
        # The client's own close_notify is not waited for, and reported as an error here.
        if isinstance(self.socket, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self.socket.unwrap()
