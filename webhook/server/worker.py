"""
The worker process: one poller, many threads.

A thread gets a connection only together with a complete request, so a client that is slow, silent or hostile
costs a socket and some bytes until its deadline, never a thread. `poller` moves connections on, `dispatcher`
has their requests answered, and what is here runs the application on one, and starts and ends the process.

gunicorn 27.0.1 supplies the master process, the parser, the WSGI environment and the response writer.
Private names of it are used, therefore it is pinned exactly in pyproject.toml; tests/webhook/server
holds what an upgrade must keep. Its own gthread worker gives a thread to each of these clients, and lets
each of them block the main loop for 2 s when it closes.
"""

import contextlib
import io
import os
import time
from typing import Any

from gunicorn.http.body import LengthReader
from gunicorn.http.errors import InvalidHeader, NoMoreData
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from gunicorn.http.wsgi import create
from gunicorn.workers.base import Worker

from webhook.server import lifecycle
from webhook.server.connection import Connection
from webhook.server.dispatcher import Dispatcher
from webhook.server.metrics import EdgeMetrics
from webhook.server.poller import SWEEP_SECONDS, Poller
from webhook.server.response import NO_LENGTH, ResponseBuffer

# At the end, for requests that are under way to us on connections that look idle.
_LAST_CALL_SECONDS = 1.0


class EdgeWorker(Worker):  # type: ignore[misc] # gunicorn has no types
    """Worker of `webhook.server.application.Server`, whose settings, certificate and listeners it takes."""

    def init_process(self) -> None:
        self.settings = self.app.settings
        self.next_sweep = 0.0
        self.stopping_at_once = False
        metrics = EdgeMetrics(self.app.registry)
        self.dispatcher = Dispatcher(
            self.answer,
            self.wake,
            metrics,
            max_concurrent=self.settings.max_concurrent,
            at_once=self.app.at_once,
            probes=self.app.probes,
        )
        self.poller = Poller(self.settings, self.app.certificate, self.dispatcher, metrics, self.log)
        lifecycle.begin(self.app.certificate)
        super().init_process()

    # Life of the process

    def run(self) -> None:
        self.app.start_metrics()
        self.dispatcher.start(self.settings.threads)
        # Signals write to this pipe, too (`signal.set_wakeup_fd`, in gunicorn's `init_signals`).
        self.poller.listen(self.sockets, wake=self.PIPE[0])
        while self.alive:
            self.turn()
        self.drain()
        self.stop()

    def wake(self) -> None:
        """End the poller's wait, from any thread."""
        with contextlib.suppress(BlockingIOError):  # so full that it wakes up anyway
            os.write(self.PIPE[1], b"\0")

    def handle_exit(self, _signal: int, _frame: object) -> None:
        """SIGTERM: readiness fails from now on. A second one changes nothing."""
        lifecycle.begin_draining()
        self.alive = False

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
        self.poller.stop_listening(take_waiting=not self.stopping_at_once)
        self.poller.leave(_LAST_CALL_SECONDS)
        self.turn_until(time.monotonic() + self.settings.graceful_seconds, while_connected=True)
        self.log.info("stopped with %d connections open", len(self.poller.connections))

    def turn_until(self, end: float, *, while_connected: bool = False) -> None:
        while not self.stopping_at_once and (left := end - time.monotonic()) > 0:
            if while_connected and not self.poller.connections:
                return
            self.turn(min(left, SWEEP_SECONDS))

    def turn(self, timeout: float = SWEEP_SECONDS) -> None:
        self.poller.turn(timeout)
        if (now := time.monotonic()) >= self.next_sweep:
            self.next_sweep = now + SWEEP_SECONDS
            self.notify()
            self.poller.cut_overdue(now)
            if self.ppid != os.getppid():
                self.alive = False

    # One request, on the thread that answers it

    def answer(self, connection: Connection, head: bytes, body: bytes) -> bytes:
        """Run the application on the request; decides as well whether the connection closes."""
        response = ResponseBuffer()
        request = None
        try:
            request = self.parse(connection, head, body)
            self.call(request, response, connection)
        except NoMoreData:
            connection.closing = True
            return NO_LENGTH.content()
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
