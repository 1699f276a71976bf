"""One client connection: its socket, its buffers and its state.

No socket operation blocks. A connection belongs either to the poller, which moves it on when its socket
is ready, or to the one thread that answers its request; so nothing here needs a lock.
"""

import contextlib
import enum
import selectors
import socket
import ssl

from webhook.server.http import Request, find_request
from webhook.server.tls import Caller, caller_of

# A TLS record holds at most 16 KiB. A smaller read could leave decrypted bytes in OpenSSL, of which the poller hears nothing: the
# socket is not ready.
_READ_BYTES = 32 * 1024
# Reads after which the other connections get their turn.
_READS_PER_POLL = 8
# OpenSSL returns from a write when all of it is sent. After a smaller write the bytes sent no longer count.
_WRITE_BYTES = 256 * 1024
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class ConnectionState(enum.Enum):
    HANDSHAKE = "handshake"
    IDLE = "idle"  # waits for the first byte of a request
    REQUEST = "request"  # waits for the rest of it
    ANSWERING = "answering"  # waits for its answer
    RESPONSE = "response"  # waits for the client to take the answer
    LINGER = "linger"  # waits for the client to close
    CLOSED = "closed"


class Connection:
    """A socket, with TLS or plain, and its buffers.

    deadline, since: moments of `monotonic`; `since` is the start of the present request, at first that of the connection.
    counted: the bytes that the poller has added for this connection to its sum of all buffers.
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
        self.counted_bytes = self.answers_sent = 0

    def handshake(self) -> int:
        """Go on with the handshake; returns the events to wait for, 0 when it is done. OSError: it failed."""
        try:
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.do_handshake()
                self.caller = caller_of(self.socket)
        except _WOULD_BLOCK as wait:
            return selectors.EVENT_WRITE if isinstance(wait, ssl.SSLWantWriteError) else selectors.EVENT_READ
        return 0

    def receive(self) -> bool:
        """Read what has arrived, up to the end of one request; False at the end of the stream. Raises RefusedError."""
        try:
            for _ in range(_READS_PER_POLL):
                data = self.socket.recv(_READ_BYTES)
                self.received += data
                if not data or self.has_whole_request():
                    return bool(data)
        except _WOULD_BLOCK:
            return True
        return True

    def has_whole_request(self) -> bool:
        """Whether `request` and all of its body have arrived. Raises RefusedError."""
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
                self.outgoing = self.outgoing[self.socket.send(self.outgoing[:_WRITE_BYTES]) :]
        except _WOULD_BLOCK:
            return False
        return True

    def end_stream(self) -> None:
        """Tell the client that nothing follows. A close while the client still sends could destroy the answer."""
        self._close_notify()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def linger(self) -> bool:
        """Discard what still arrives; False when the client has closed."""
        with contextlib.suppress(*_WOULD_BLOCK):
            return all(self.socket.recv(_READ_BYTES) for _ in range(_READS_PER_POLL))
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
