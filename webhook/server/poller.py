"""All client connections, served by one thread that no client can make wait.

The poller alone touches sockets while a client can delay it: it accepts, goes on with handshakes, collects requests and
delivers answers, all without blocking. Deadlines are for a whole handshake, request or answer, so feeding it in drips does
not extend one. Connections and buffered bytes are bounded; when either runs out, the oldest that has delivered nothing
goes first.
"""

import contextlib
import errno
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from webhook.server import http
from webhook.server.callers import CallerAuthentication
from webhook.server.connection import Connection, ConnectionState
from webhook.server.dispatcher import Application, Dispatcher, ServerMetrics
from webhook.server.settings import Limits

SWEEP_SECONDS = 0.5
"""The longest time between two looks at the deadlines."""

_ACCEPTS_PER_POLL = 64
_LINGER_SECONDS = 2.0
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_UNFINISHED = {ConnectionState.REQUEST, ConnectionState.RESPONSE}
_TIMED = {ConnectionState.HANDSHAKE, *_UNFINISHED}
"""States whose deadline is counted when it ends a connection."""


class Poller:
    """Connections to a listening socket, whose whole requests are answered by `app`.

    `wrap` puts TLS around a new connection, without waiting for it. `on_sweep` is called with every look at the deadlines.
    With `callers`, all pages but the probes of `app` need an allowed caller.
    """

    def __init__(
        self,
        listener: Any,
        app: Application,
        limits: Limits,
        metrics: ServerMetrics,
        *,
        wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
        callers: CallerAuthentication | None = None,
        on_sweep: Callable[[], object] = lambda: None,
    ) -> None:
        self.connections: set[Connection] = set()
        self._listener, self._limits, self._metrics = listener, limits, metrics
        self._wrap, self._on_sweep = wrap, on_sweep
        self._callers, self._probes = callers, app.probes
        self._dispatcher = Dispatcher(app, limits, metrics, self.wake)
        self._selector = selectors.DefaultSelector()
        self._buffered, self._next_sweep = 0, 0.0
        self._idle_seconds, self._is_stopping = limits.keepalive_seconds, False
        waking, self.wakeup = os.pipe()
        """A byte written to `wakeup` ends a wait, from any thread or signal handler."""
        os.set_blocking(waking, False)
        os.set_blocking(self.wakeup, False)
        self._selector.register(waking, selectors.EVENT_READ, lambda: os.read(waking, 4096))
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # so full that it wakes up anyway
            os.write(self.wakeup, b"\0")

    def drain(self) -> None:
        """Ask the client with every answer from now on to go elsewhere."""
        self._dispatcher.closing = True

    def stop_accepting(self, seconds: float, *, accept_pending: bool) -> None:
        """Accept pending connections, then no more. Close connections that are idle for this many seconds."""
        while accept_pending and self._accept():
            pass
        self._selector.unregister(self._listener)
        self._listener.close()
        self._idle_seconds, self._is_stopping = seconds, True
        end = time.monotonic() + seconds
        for connection in self.connections:
            if connection.state is ConnectionState.IDLE:
                connection.deadline = min(connection.deadline, end)

    def poll(self, timeout: float = SWEEP_SECONDS) -> None:
        """Wait until a socket is ready, or for the timeout. Handle all that are ready."""
        for key, _ in self._selector.select(0 if self._dispatcher.busy else timeout):
            if isinstance(key.data, Connection):
                self._move_on(key.data, self._advance)
            else:
                key.data()
            self._limit_buffers()
        for connection in self._dispatcher.answered():
            connection.answers_sent += 1
            self._move_on(connection, self._deliver)
        if (now := time.monotonic()) >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
            self._cut_overdue(now)
            self._on_sweep()

    def _cut_overdue(self, now: float) -> None:
        for connection in [connection for connection in self.connections if connection.deadline < now]:
            if connection.state is ConnectionState.IDLE and self._is_stopping:
                # Answer before closing: a request may be on its way. kube-apiserver repeats a request that gets this answer, but
                # not one that meets a closed stream. Without a request, net/http drops the answer, and logs "Unsolicited response
                # received on idle HTTP channel".
                self._metrics.sent_away.inc()
                self._refuse(connection, http.STOPPING)
            elif connection.state is not ConnectionState.ANSWERING:
                if connection.state in _TIMED:
                    self._metrics.cut.labels(f"{connection.state.value} deadline").inc()
                self._close(connection)

    def _accept(self) -> bool:
        """Accept a limited number of connections. Return whether there may be more."""
        for _ in range(_ACCEPTS_PER_POLL):
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._close_oldest()
                return False
            if len(self.connections) >= self._limits.connections:
                self._close_oldest()
            try:
                accepted.setblocking(False)  # before TLS, which may already read: has the client gone?
                accepted = self._wrap(accepted)
            except (OSError, ValueError):
                accepted.close()
                continue
            connection = Connection(accepted, now=time.monotonic())
            connection.deadline += self._limits.handshake_seconds
            self.connections.add(connection)
            self._metrics.open.set(len(self.connections))
            self._move_on(connection, self._advance)
        return True

    def _watch(self, connection: Connection, events: int) -> None:
        """Wait for `events` of its socket, 0 for none."""
        if events == connection.events:
            return
        if connection.events:
            self._selector.unregister(connection.socket)
        if events:
            self._selector.register(connection.socket, events, connection)
        connection.events = events

    def _move_on(self, connection: Connection, step: Callable[[Connection], object]) -> None:
        try:
            step(connection)
        except http.RefusedError as refused:
            self._refuse(connection, refused.response)
        except ssl.SSLCertVerificationError as error:
            if self._callers:
                problem = f"whose client certificate: {error.verify_message}"
                self._callers.record_refusal(connection, "not verified", problem)
            # The alert that says so would be lost with what the client sends meanwhile.
            connection.end_stream()
            self._enter(connection, ConnectionState.LINGER, _LINGER_SECONDS)
        except OSError:
            self._close(connection)

    def _advance(self, connection: Connection) -> None:
        """Its socket is ready: do what its state waits for."""
        match connection.state:
            case ConnectionState.HANDSHAKE:
                if events := connection.handshake():
                    self._watch(connection, events)
                else:
                    self._enter(connection, ConnectionState.IDLE, self._idle_seconds)
            case ConnectionState.IDLE | ConnectionState.REQUEST:
                if not connection.receive():
                    self._close(connection)
                elif connection.received:
                    self._collect(connection)
            case ConnectionState.RESPONSE:
                self._deliver(connection)
            case ConnectionState.LINGER:
                if not connection.linger():
                    self._close(connection)
            case ConnectionState.ANSWERING | ConnectionState.CLOSED:
                # Rare: the client sends more, or leaves. To stop watching only then saves two system calls a request.
                self._watch(connection, 0)

    def _enter(self, connection: Connection, state: ConnectionState, seconds: float) -> None:
        """Change the state. The client gets this many seconds for what the state waits for."""
        connection.state = state
        connection.deadline = time.monotonic() + seconds
        writes = state is ConnectionState.RESPONSE
        self._watch(connection, selectors.EVENT_WRITE if writes else selectors.EVENT_READ)

    def _collect(self, connection: Connection) -> None:
        """Look at what has come of a request, and pass it on when it is whole."""
        if connection.state is ConnectionState.IDLE:
            connection.since = time.monotonic()
            self._enter(connection, ConnectionState.REQUEST, self._limits.request_seconds)
        self._count_bytes(connection, len(connection.received))
        self._limit_buffers()
        if connection.state is not ConnectionState.REQUEST:
            return
        whole, request = connection.has_whole_request(), connection.request
        if request is not None:
            if self._callers and request.path not in self._probes:
                self._callers.check(connection)
            if request.body_size > self._limits.body_limit:
                raise http.RefusedError(http.BODY_TOO_LONG)
            if whole:
                connection.take_body(request)
                self._dispatcher.take(connection, request)
                connection.state = ConnectionState.ANSWERING
            elif request.expects_continue:
                request.expects_continue = False
                connection.socket.send(http.CONTINUE)

    def _refuse(self, connection: Connection, response: http.Response) -> None:
        """Answer and close, whatever is left of the request."""
        connection.received.clear()
        connection.closing = True
        connection.outgoing = memoryview(response.encode(close=True))
        self._move_on(connection, self._deliver)

    def _deliver(self, connection: Connection) -> None:
        is_sent = connection.send()
        self._count_bytes(connection, len(connection.outgoing) + len(connection.received))
        if not is_sent:
            if connection.state is not ConnectionState.RESPONSE:
                self._enter(connection, ConnectionState.RESPONSE, self._limits.response_seconds)
        elif connection.closing:
            connection.end_stream()
            self._enter(connection, ConnectionState.LINGER, _LINGER_SECONDS)
        else:
            self._enter(connection, ConnectionState.IDLE, self._idle_seconds)
            if connection.received:
                self._collect(connection)

    def _close(self, connection: Connection) -> None:
        if connection.state is ConnectionState.CLOSED:
            return
        self._watch(connection, 0)
        self._count_bytes(connection, 0)
        connection.close()
        self.connections.discard(connection)
        self._metrics.open.set(len(self.connections))

    def _count_bytes(self, connection: Connection, held: int) -> None:
        self._buffered += held - connection.counted_bytes
        connection.counted_bytes = held

    def _close_oldest(self) -> None:
        """Close the oldest connection without a request so far, else the one that has been idle for longest."""
        waiting = [each for each in self.connections if each.state is not ConnectionState.ANSWERING]
        if waiting:
            self._metrics.cut.labels("too many connections").inc()
            self._close(min(waiting, key=lambda connection: (connection.answers_sent > 0, connection.since)))

    def _limit_buffers(self) -> None:
        """End the oldest unfinished requests and responses until the buffers are within their limit."""
        if self._buffered <= self._limits.buffer_limit:
            return
        unfinished = [connection for connection in self.connections if connection.state in _UNFINISHED]
        for connection in sorted(unfinished, key=lambda connection: connection.since):
            if self._buffered <= self._limits.buffer_limit:
                return
            self._metrics.cut.labels("too many bytes").inc()
            if connection.state is ConnectionState.RESPONSE:
                self._close(connection)
            else:
                self._refuse(connection, http.TOO_MANY_BYTES)
