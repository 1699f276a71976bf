"""
The worker process: one poller, many threads.

The poller alone touches sockets while a client can make it wait: it accepts, goes on with handshakes,
collects requests and delivers answers, all without blocking. A request that is complete and cannot wait for
anything but the processor is answered on the spot. A thread gets a connection only together with a complete
request, so a client that is slow, silent or hostile costs a socket and some bytes until
its deadline, never a thread. Deadlines are for a whole handshake, request or answer, so feeding it in
drips does not extend one. Connections and buffered bytes are bounded; when either runs out, the oldest
that has delivered nothing goes first.

gunicorn 27.0.1 supplies the master process, the parser, the WSGI environment and the response writer.
Private names of it are used, therefore it is pinned exactly in pyproject.toml; tests/webhook/server
holds what an upgrade must keep. Its own gthread worker gives a thread to each of these clients, and lets
each of them block the main loop for 2 s when it closes.
"""

import contextlib
import errno
import functools
import io
import os
import queue
import selectors
import threading
import time
from typing import Any

from gunicorn.http.body import LengthReader
from gunicorn.http.errors import InvalidHeader, NoMoreData
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from gunicorn.http.wsgi import create
from gunicorn.workers.base import Worker
from gunicorn.workers.gthread import PollableMethodQueue

from webhook.server import lifecycle
from webhook.server.connection import Connection, Stage
from webhook.server.exposition import ConnectionMetrics
from webhook.server.response import CONTINUE, ResponseBuffer, refusal

_ACCEPTS_PER_TURN = 64
_SWEEP_SECONDS = 0.5
_LINGER_SECONDS = 2.0
# At the end, for requests that are under way to us on connections that look idle.
_LAST_CALL_SECONDS = 1.0
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class EdgeWorker(Worker):  # type: ignore[misc] # gunicorn has no types
    """Worker of `webhook.server.application.Server`, whose settings, certificate and listeners it takes."""

    def init_process(self) -> None:
        self.settings = self.app.settings
        self.certificate = self.app.certificate
        self.metrics = ConnectionMetrics(self.app.registry)
        self.connections: set[Connection] = set()
        self.buffered = 0
        self.next_sweep = 0.0
        self.idle_seconds = self.settings.keepalive_seconds
        self.stopping_at_once = False
        self.requests: queue.SimpleQueue[tuple[Connection, bytes, bytes]] = queue.SimpleQueue()
        self.poller = selectors.DefaultSelector()
        self.method_queue = PollableMethodQueue()
        self.method_queue.init()
        lifecycle.begin(self.certificate)
        super().init_process()

    # Life of the process

    def run(self) -> None:
        self.app.start_metrics()
        for number in range(self.settings.threads):
            threading.Thread(target=self.answer_requests, name=f"request-{number}", daemon=True).start()
        self.poller.register(
            self.method_queue.fileno(), selectors.EVENT_READ, lambda: self.method_queue.run_callbacks(None)
        )
        for listener in self.sockets:
            listener.setblocking(False)
            self.poller.register(listener, selectors.EVENT_READ, functools.partial(self.accept, listener))
        while self.alive:
            self.turn()
        self.drain()
        self.stop()

    def handle_exit(self, _signal: int, _frame: object) -> None:
        """SIGTERM: readiness fails from now on."""
        lifecycle.begin_draining()
        self.alive = False
        self.method_queue.defer(_wake)

    def handle_quit(self, signal: int, frame: object) -> None:
        """SIGINT, SIGQUIT: stop, whatever is in flight."""
        self.stopping_at_once = True
        self.handle_exit(signal, frame)

    def drain(self) -> None:
        """Serve on, asking every client to go elsewhere, until all of them have heard that we are leaving."""
        lifecycle.begin_draining()
        if self.stopping_at_once:
            return
        self.log.info("draining for %g s", self.settings.drain_seconds)
        try:
            self.app.on_drain()
        except Exception:
            self.log.exception("on_drain failed")
        self.turn_until(time.monotonic() + self.settings.drain_seconds)

    def stop(self) -> None:
        """Take what is already connected, then no more; finish what is in flight."""
        for listener in self.sockets:
            if not self.stopping_at_once:
                self.accept(listener)
            self.poller.unregister(listener)
            listener.close()
        self.idle_seconds = _LAST_CALL_SECONDS
        last_call = time.monotonic() + _LAST_CALL_SECONDS
        for connection in self.connections:
            if connection.stage is Stage.IDLE:
                connection.deadline = min(connection.deadline, last_call)
        self.turn_until(time.monotonic() + self.settings.graceful_seconds, while_connected=True)
        self.log.info("stopped with %d connections open", len(self.connections))

    def turn_until(self, end: float, *, while_connected: bool = False) -> None:
        while not self.stopping_at_once and (left := end - time.monotonic()) > 0:
            if while_connected and not self.connections:
                return
            self.turn(min(left, _SWEEP_SECONDS))

    def turn(self, timeout: float = _SWEEP_SECONDS) -> None:
        for key, _ in self.poller.select(timeout):
            key.data()
            if self.buffered > self.settings.buffer_limit:
                self.make_room()
        if (now := time.monotonic()) >= self.next_sweep:
            self.next_sweep = now + _SWEEP_SECONDS
            self.notify()
            self.cut_overdue(now)
            if self.ppid != os.getppid():
                self.alive = False

    # Connections, all on the poller's thread

    def accept(self, listener: Any) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                client_socket, client = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self.make_place()
                return
            if len(self.connections) >= self.settings.connections:
                self.make_place()
            try:
                # Not blocking before TLS: the wrapper may already read, to find out whether the
                # client has gone.
                client_socket.setblocking(False)
                tls_socket = self.certificate.context().wrap_socket(
                    client_socket, server_side=True, do_handshake_on_connect=False
                )
            except (OSError, ValueError):
                client_socket.close()
                continue
            now = time.monotonic()
            connection = Connection(tls_socket, client, listener.getsockname(), now=now)
            connection.on_ready = functools.partial(self.advance, connection)
            connection.deadline = now + self.settings.handshake_seconds
            self.connections.add(connection)
            self.metrics.open.set(len(self.connections))
            self.watch(connection, selectors.EVENT_READ)

    def watch(self, connection: Connection, events: int) -> None:
        """Wait for `events` of its socket, 0 for none."""
        if events == connection.events:
            return
        if not connection.events:
            self.poller.register(connection.socket, events, connection.on_ready)
        elif not events:
            self.poller.unregister(connection.socket)
        else:
            self.poller.modify(connection.socket, events, connection.on_ready)
        connection.events = events

    def advance(self, connection: Connection) -> None:
        """Its socket is ready: do what its stage waits for."""
        try:
            match connection.stage:
                case Stage.HANDSHAKE:
                    self.shake_hands(connection)
                case Stage.IDLE | Stage.REQUEST:
                    self.receive(connection)
                case Stage.RESPONSE:
                    self.deliver(connection)
                case Stage.LINGER:
                    if not connection.linger():
                        self.close(connection)
                case Stage.ANSWERING:
                    # Rare: the client sends more, or leaves. To stop watching only then saves two
                    # system calls a request.
                    self.watch(connection, 0)
                case Stage.CLOSED:
                    pass  # by another event of the same turn
        except OSError as error:
            self.log.debug(
                "connection of %s lost in stage %s: %s", connection.client, connection.stage.value, error
            )
            self.close(connection)

    def shake_hands(self, connection: Connection) -> None:
        if events := connection.handshake():
            self.watch(connection, events)
            return
        self.await_request(connection)

    def await_request(self, connection: Connection) -> None:
        connection.stage = Stage.IDLE
        connection.deadline = time.monotonic() + self.idle_seconds
        self.watch(connection, selectors.EVENT_READ)

    def receive(self, connection: Connection) -> None:
        if not connection.receive():
            self.close(connection)
            return
        if connection.received:
            self.collect(connection)

    def collect(self, connection: Connection) -> None:
        """Look at what has come of a request, and pass it on when it is whole."""
        if connection.stage is Stage.IDLE:
            connection.stage = Stage.REQUEST
            connection.since = time.monotonic()
            connection.deadline = connection.since + self.settings.request_seconds
        self.count(connection, len(connection.received))
        if self.buffered > self.settings.buffer_limit:
            self.make_room()
            if connection.stage is not Stage.REQUEST:
                return
        ready, head = connection.ready(), connection.head
        if head is None:
            if ready:
                self.refuse(connection, 431)
        elif head.body is not None and head.body > self.settings.body_limit:
            self.refuse(connection, 413)
        elif ready:
            self.pass_on(connection, *connection.take_request(head))
            return
        elif head.expects_continue and not connection.continued:
            connection.continued = True
            connection.socket.send(CONTINUE)
        if connection.stage is Stage.REQUEST:
            self.watch(connection, selectors.EVENT_READ)

    def pass_on(self, connection: Connection, head: bytes, body: bytes) -> None:
        """Have the request answered: here and now if that cannot wait for anything, else by a thread.

        To hand a request to a thread and take it back costs more than many an answer (100 to 185 µs, measured). One that has
        another request behind it goes to a thread all the same, or a long train of them would hold the poller.
        """
        connection.stage = Stage.ANSWERING
        if connection.received or _path(head) not in self.app.at_once:
            self.requests.put((connection, head, body))
            return
        connection.outgoing = memoryview(self.answer(connection, head, body))
        self.resume(connection)

    def resume(self, connection: Connection) -> None:
        """Take a connection back from the thread that has answered it."""
        connection.served += 1
        try:
            self.deliver(connection)
        except OSError:
            self.close(connection)

    def refuse(self, connection: Connection, status: int) -> None:
        """Answer and close without having read the request."""
        connection.received.clear()
        connection.closing = True
        connection.outgoing = memoryview(refusal(status))
        self.deliver(connection)

    def deliver(self, connection: Connection) -> None:
        if not connection.send():
            if connection.stage is not Stage.RESPONSE:
                connection.stage = Stage.RESPONSE
                connection.deadline = time.monotonic() + self.settings.response_seconds
            self.count(connection, len(connection.outgoing) + len(connection.received))
            self.watch(connection, selectors.EVENT_WRITE)
            return
        self.count(connection, len(connection.received))
        if connection.closing:
            connection.say_goodbye()
            connection.stage = Stage.LINGER
            connection.deadline = time.monotonic() + _LINGER_SECONDS
            self.watch(connection, selectors.EVENT_READ)
        elif connection.received:
            connection.stage = Stage.IDLE
            self.collect(connection)
        else:
            self.await_request(connection)

    def close(self, connection: Connection) -> None:
        if connection.stage is Stage.CLOSED:
            return
        self.watch(connection, 0)
        self.count(connection, 0)
        connection.close()
        self.connections.discard(connection)
        self.metrics.open.set(len(self.connections))

    # Bounds

    def count(self, connection: Connection, held: int) -> None:
        self.buffered += held - connection.counted
        connection.counted = held

    def cut_overdue(self, now: float) -> None:
        for connection in [each for each in self.connections if each.deadline < now]:
            if connection.stage is Stage.ANSWERING:
                continue
            if connection.stage in (Stage.HANDSHAKE, Stage.REQUEST, Stage.RESPONSE):
                self.metrics.cut.labels(f"{connection.stage.value} deadline").inc()
            self.close(connection)

    def make_place(self) -> None:
        """Close the least loss: the oldest connection that never asked anything, else the longest idle."""
        waiting = [each for each in self.connections if each.stage is not Stage.ANSWERING]
        if waiting:
            self.metrics.cut.labels("too many connections").inc()
            self.close(min(waiting, key=lambda each: (each.served > 0, each.since)))

    def make_room(self) -> None:
        """Give up the oldest requests that do not come to an end, in or out, until the rest fits."""
        unfinished = [each for each in self.connections if each.stage in (Stage.REQUEST, Stage.RESPONSE)]
        for connection in sorted(unfinished, key=lambda each: each.since):
            if self.buffered <= self.settings.buffer_limit:
                return
            self.metrics.cut.labels("too many bytes").inc()
            if connection.stage is Stage.RESPONSE:
                self.close(connection)
                continue
            try:
                self.refuse(connection, 503)
            except OSError:
                self.close(connection)

    # Requests, on the threads

    def answer_requests(self) -> None:
        while True:
            connection, head, body = self.requests.get()
            connection.outgoing = memoryview(self.answer(connection, head, body))
            with contextlib.suppress(OSError):  # told again to the poller when it goes on
                connection.send()
            self.method_queue.defer(self.resume, connection)

    def answer(self, connection: Connection, head: bytes, body: bytes) -> bytes:
        """Run the application on the request; decides as well whether the connection closes."""
        response = ResponseBuffer()
        request = None
        try:
            request = self.parse(connection, head, body)
            self.call(request, response, connection)
        except NoMoreData:
            connection.closing = True
            return refusal(411)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - nothing that a request does may end a thread
            connection.closing = True
            response.clear()
            self.handle_error(request, response, connection.client, error)
        return response.content()

    def parse(self, connection: Connection, head: bytes, body: bytes) -> Any:
        request = Request(self.cfg, IterUnreader([head, body]), connection.client, connection.served + 1)
        if not connection.closing:
            # Both of us must see the same end, or the next request could be made up of the rest of this one.
            if not isinstance(reader := request.body.reader, LengthReader) or reader.length != len(body):
                raise InvalidHeader("CONTENT-LENGTH", req=request)
            request.body = io.BytesIO(body)  # no copy, and the application cannot read past it
            request._expected_100_continue = False  # the poller has seen to it  # noqa: SLF001
        return request

    def call(self, request: Any, response_buffer: ResponseBuffer, connection: Connection) -> None:
        response, environ = create(request, response_buffer, connection.client, connection.server, self.cfg)
        environ["wsgi.multithread"] = True
        if not self.alive or connection.closing:
            response.force_close()
        parts = self.wsgi(environ, response.start_response)
        try:
            for part in parts:
                response.write(part)
            response.close()
        finally:
            if hasattr(parts, "close"):
                parts.close()
        connection.closing = response.should_close()


def _path(head: bytes) -> bytes:
    """Return the path in a request line, `POST /mutate?timeout=5s HTTP/1.1`; gunicorn's parser judges the line as a whole."""
    parts = head.split(b" ", 2)
    return parts[1].partition(b"?")[0] if len(parts) > 1 else b""


def _wake() -> None:
    """Nothing to do but to end the poller's wait."""
