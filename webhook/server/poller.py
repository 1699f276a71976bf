"""
All client connections, moved on by one thread that none of them can make wait.

The poller alone touches sockets while a client can delay it: it accepts, goes on with handshakes, collects
requests and delivers answers, all without blocking. Deadlines are for a whole handshake, request or answer,
so feeding it in drips does not extend one. Connections and buffered bytes are bounded; when either runs out,
the oldest that has delivered nothing goes first.
"""

import errno
import functools
import logging
import os
import selectors
import socket
import time
from collections.abc import Iterable
from typing import Any

from webhook.server.connection import Connection, Stage
from webhook.server.dispatcher import Dispatcher
from webhook.server.metrics import EdgeMetrics
from webhook.server.response import (
    BODY_TOO_LONG,
    CONTINUE,
    HEAD_TOO_LONG,
    STOPPING,
    TOO_MANY_BYTES,
    TOO_MANY_REQUESTS,
    Refusal,
)
from webhook.server.settings import ServerSettings

SWEEP_SECONDS = 0.5
"""The longest time between two looks at the deadlines."""

_ACCEPTS_PER_TURN = 64
_LINGER_SECONDS = 2.0
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_WAKE_BYTES = 4096
_SHED_TOLD_SECONDS = 60.0


class Poller:
    """Connections of the listening sockets, whose whole requests go to `dispatcher`."""

    def __init__(
        self,
        settings: ServerSettings,
        certificate: Any,
        dispatcher: Dispatcher,
        metrics: EdgeMetrics,
        log: logging.Logger,
    ) -> None:
        self.connections: set[Connection] = set()
        self._settings = settings
        self._certificate = certificate
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._buffered = 0
        self._idle_seconds = settings.keepalive_seconds
        self._leaving = False
        self._shed_told = -_SHED_TOLD_SECONDS

    def listen(self, listeners: Iterable[Any], wake: int) -> None:
        """Take connections from the sockets from now on; what is written to the pipe that ends in `wake` ends a wait."""
        self._selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, _WAKE_BYTES))
        for listener in listeners:
            listener.setblocking(False)
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, functools.partial(self._accept, listener))

    def stop_listening(self, *, take_waiting: bool) -> None:
        """Take what the kernel has connected already, then no more."""
        for listener in self._listeners:
            while take_waiting and self._accept(listener):
                pass
            self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()

    def leave(self, seconds: float) -> None:
        """Send away whoever asks nothing for so long, in a way that loses no request (`_send_away`)."""
        self._leaving = True
        self._idle_seconds = seconds
        end = time.monotonic() + seconds
        for connection in self.connections:
            if connection.stage is Stage.IDLE:
                connection.deadline = min(connection.deadline, end)

    def turn(self, timeout: float) -> None:
        """Do what can be done now, or wait for it for at most so many seconds."""
        for key, _ in self._selector.select(0 if self._dispatcher.busy else timeout):
            key.data()
            if self._buffered > self._settings.buffer_limit:
                self._make_room()
        for connection in self._dispatcher.answered():
            self._resume(connection)

    def cut_overdue(self, now: float) -> None:
        for connection in [each for each in self.connections if each.deadline < now]:
            if connection.stage is Stage.ANSWERING:
                continue
            if connection.stage is Stage.IDLE and self._leaving:
                self._send_away(connection)
                continue
            if connection.stage in (Stage.HANDSHAKE, Stage.REQUEST, Stage.RESPONSE):
                self._metrics.cut.labels(f"{connection.stage.value} deadline").inc()
            self._close(connection)

    # Connections

    def _accept(self, listener: Any) -> bool:
        """Take new connections, so many a turn; whether there may be more."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                client_socket, client = listener.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._make_place()
                return False
            if len(self.connections) >= self._settings.connections:
                self._make_place()
            try:
                # Not blocking before TLS: the wrapper may already read, to find out whether the
                # client has gone.
                client_socket.setblocking(False)
                tls_socket = self._certificate.context().wrap_socket(
                    client_socket, server_side=True, do_handshake_on_connect=False
                )
            except (OSError, ValueError):
                client_socket.close()
                continue
            now = time.monotonic()
            connection = Connection(tls_socket, client, listener.getsockname(), now=now)
            connection.on_ready = functools.partial(self._advance, connection)
            connection.deadline = now + self._settings.handshake_seconds
            self.connections.add(connection)
            self._metrics.open.set(len(self.connections))
            self._watch(connection, selectors.EVENT_READ)
        return True

    def _watch(self, connection: Connection, events: int) -> None:
        """Wait for `events` of its socket, 0 for none."""
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.socket, events, connection.on_ready)
        elif not events:
            self._selector.unregister(connection.socket)
        else:
            self._selector.modify(connection.socket, events, connection.on_ready)
        connection.events = events

    def _advance(self, connection: Connection) -> None:
        """Its socket is ready: do what its stage waits for."""
        try:
            match connection.stage:
                case Stage.HANDSHAKE:
                    self._shake_hands(connection)
                case Stage.IDLE | Stage.REQUEST:
                    self._receive(connection)
                case Stage.RESPONSE:
                    self._deliver(connection)
                case Stage.LINGER:
                    if not connection.linger():
                        self._close(connection)
                case Stage.ANSWERING:
                    # Rare: the client sends more, or leaves. To stop watching only then saves two
                    # system calls a request.
                    self._watch(connection, 0)
                case Stage.CLOSED:
                    pass  # by another event of the same turn
        except OSError as error:
            self._log.debug(
                "connection of %s lost in stage %s: %s", connection.client, connection.stage.value, error
            )
            self._close(connection)

    def _shake_hands(self, connection: Connection) -> None:
        if events := connection.handshake():
            self._watch(connection, events)
            return
        self._await_request(connection)

    def _await_request(self, connection: Connection) -> None:
        connection.stage = Stage.IDLE
        connection.deadline = time.monotonic() + self._idle_seconds
        self._watch(connection, selectors.EVENT_READ)

    def _receive(self, connection: Connection) -> None:
        if not connection.receive():
            self._close(connection)
            return
        if connection.received:
            self._collect(connection)

    def _collect(self, connection: Connection) -> None:
        """Look at what has come of a request, and pass it on when it is whole."""
        if connection.stage is Stage.IDLE:
            connection.stage = Stage.REQUEST
            connection.since = time.monotonic()
            connection.deadline = connection.since + self._settings.request_seconds
        self._count(connection, len(connection.received))
        if self._buffered > self._settings.buffer_limit:
            self._make_room()
            if connection.stage is not Stage.REQUEST:
                return
        ready, head = connection.ready(), connection.head
        if head is None:
            if ready:
                self._refuse(connection, HEAD_TOO_LONG)
        elif head.body is not None and head.body > self._settings.body_limit:
            self._refuse(connection, BODY_TOO_LONG)
        elif ready:
            self._pass_on(connection, *connection.take_request(head))
            return
        elif head.expects_continue and not connection.continued:
            connection.continued = True
            connection.socket.send(CONTINUE)
        if connection.stage is Stage.REQUEST:
            self._watch(connection, selectors.EVENT_READ)

    def _pass_on(self, connection: Connection, head: bytes, body: bytes) -> None:
        if self._dispatcher.take(connection, head, body):
            connection.stage = Stage.ANSWERING
            return
        # The connection closes with it: kube-apiserver has connected to this replica once and for all, and may find
        # another one when it asks again.
        self._refuse(connection, TOO_MANY_REQUESTS)
        if (now := time.monotonic()) - self._shed_told >= _SHED_TOLD_SECONDS:
            self._shed_told = now
            self._log.warning(
                "shedding: %d requests at once are held already (--max-concurrent)",
                self._settings.max_concurrent,
            )

    def _resume(self, connection: Connection) -> None:
        """Take a connection back that has its answer."""
        connection.served += 1
        try:
            self._deliver(connection)
        except OSError:
            self._close(connection)

    def _refuse(self, connection: Connection, refusal: Refusal) -> None:
        """Answer and close, whatever is left of the request."""
        connection.received.clear()
        connection.closing = True
        connection.outgoing = memoryview(refusal.content())
        self._deliver(connection)

    def _deliver(self, connection: Connection) -> None:
        if not connection.send():
            if connection.stage is not Stage.RESPONSE:
                connection.stage = Stage.RESPONSE
                connection.deadline = time.monotonic() + self._settings.response_seconds
            self._count(connection, len(connection.outgoing) + len(connection.received))
            self._watch(connection, selectors.EVENT_WRITE)
            return
        self._count(connection, len(connection.received))
        if connection.closing:
            connection.say_goodbye()
            connection.stage = Stage.LINGER
            connection.deadline = time.monotonic() + _LINGER_SECONDS
            self._watch(connection, selectors.EVENT_READ)
        elif connection.received:
            connection.stage = Stage.IDLE
            self._collect(connection)
        else:
            self._await_request(connection)

    def _send_away(self, connection: Connection) -> None:
        """
        Close an idle connection of which the client may be making use this very moment.

        A request that crosses our end of the stream is lost: kube-apiserver does not repeat it. One that crosses an
        answer takes it for its own, and repeats. Where none is under way, net/http throws the answer away and notes
        "Unsolicited response received on idle HTTP channel".
        """
        self._metrics.sent_away.inc()
        try:
            self._refuse(connection, STOPPING)
        except OSError:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.stage is Stage.CLOSED:
            return
        self._watch(connection, 0)
        self._count(connection, 0)
        connection.close()
        self.connections.discard(connection)
        self._metrics.open.set(len(self.connections))

    # Bounds

    def _count(self, connection: Connection, held: int) -> None:
        self._buffered += held - connection.counted
        connection.counted = held

    def _make_place(self) -> None:
        """Close the least loss: the oldest connection that never asked anything, else the longest idle."""
        waiting = [each for each in self.connections if each.stage is not Stage.ANSWERING]
        if waiting:
            self._metrics.cut.labels("too many connections").inc()
            self._close(min(waiting, key=lambda each: (each.served > 0, each.since)))

    def _make_room(self) -> None:
        """Give up the oldest requests that do not come to an end, in or out, until the rest fits."""
        unfinished = [each for each in self.connections if each.stage in (Stage.REQUEST, Stage.RESPONSE)]
        for connection in sorted(unfinished, key=lambda each: each.since):
            if self._buffered <= self._settings.buffer_limit:
                return
            self._metrics.cut.labels("too many bytes").inc()
            if connection.stage is Stage.RESPONSE:
                self._close(connection)
                continue
            try:
                self._refuse(connection, TOO_MANY_BYTES)
            except OSError:
                self._close(connection)
