"""Who answers a request, and how many may wait for that.

Small requests that wait for nothing but the processor are answered by the poller's own thread: to hand one to another
thread and take it back costs more than many an answer (100 to 185 µs, measured). All others go to threads, large ones to
few threads of their own: they compute for long, and each thread that computes makes the poller wait for its turn of the
interpreter. Probes are answered like the first kind, in turn with it, and are never shed: an overloaded server that fails its
liveness probe would be killed for it, and its load would bring down the next.

At most `max_concurrent` requests are held at once, worked on or waiting, and a quarter of that may be large ones that wait; one
more is shed. Requests whose bytes are still being sent or received do not count: they cost a socket, not a thread.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, NoReturn

from prometheus_client import CollectorRegistry, Counter, Gauge

from webhook.server.connection import Connection
from webhook.server.http import FAILED, TOO_MANY_REQUESTS, Handler, RefusedError, Request
from webhook.server.settings import Limits
from webhook.threads import thread

# For how long the poller answers before it looks at its sockets again: new requests are shed in time, and a probe waits no
# longer than this and one request.
_SLICE_SECONDS = 0.01
# A review of this size takes some milliseconds, for which others would wait.
_SMALL_BYTES = 64 * 1024
_LARGE_THREADS = 2

log = logging.getLogger("gpu_admission.server")

_RequestQueue = queue.SimpleQueue[tuple[Connection, Request]]


class Application(NamedTuple):
    """What answers requests.

    `answer` runs in the poller's thread for the paths `probes`, and for small requests that `only_computes` selects. For all
    other requests it runs in other threads.
    """

    answer: Handler
    only_computes: Callable[[Request], bool]
    probes: frozenset[str]


class ServerMetrics:
    """Metrics of connections, and of requests before they are answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.open = gauge("gpu_admission_connections", "Open TLS connections.")
        self.cut = counter(
            "gpu_admission_connections_cut",
            "Connections closed on a client: for the deadline that it missed, or to make room.",
            ["reason"],
        )
        self.sent_away = counter(
            "gpu_admission_connections_sent_away",
            "Idle connections closed at the end of a drain, with an answer by which the client repeats a request under way.",
        )
        self.callers_refused = counter(
            "gpu_admission_callers_refused",
            "Requests and handshakes of callers that --client-ca or --client-name does not allow, by what is wrong.",
            ["reason"],
        )
        self.held = gauge(
            "gpu_admission_requests_held", "Requests that are answered now, or wait for a thread."
        )
        self.shed = counter(
            "gpu_admission_requests_shed",
            "Requests answered 503 with Retry-After: --max-concurrent were held, or a quarter as many large ones waited.",
        )


class Dispatcher:
    """Holds requests between their last byte in and their first byte out. All methods belong to the poller's thread.

    `wake` is called from the threads when an answer is ready. While `closing`, every answer asks its client to go elsewhere.
    """

    def __init__(
        self, app: Application, limits: Limits, metrics: ServerMetrics, wake: Callable[[], object]
    ) -> None:
        self.closing = False
        self._app, self._limits, self._metrics, self._wake = app, limits, metrics, wake
        self._own_queues: tuple[deque[tuple[Connection, Request]], ...] = deque(), deque()  # probes, at once
        self._for_threads, self._large = _RequestQueue(), _RequestQueue()
        self._done: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._held = 0
        metrics.held.set_function(lambda: self._held)
        for waiting, count in ((self._for_threads, limits.threads), (self._large, _LARGE_THREADS)):
            for _ in range(count):
                thread("request", partial(self._answer_from_queue, waiting), threading.Event()).start()

    @property
    def busy(self) -> bool:
        """Whether the poller's thread itself has requests to answer."""
        return any(self._own_queues)

    def take(self, connection: Connection, request: Request) -> None:
        """Have the request answered, sooner or later. RefusedError: too many are held already."""
        probes, only_computes = self._own_queues
        maximum, is_large = self._limits.max_concurrent, request.body_size > _SMALL_BYTES
        if request.path in self._app.probes:
            probes.append((connection, request))
        elif self._held >= maximum:
            self._shed(f"{maximum} requests at once are held already (--max-concurrent)")
        elif is_large and self._large.qsize() >= maximum / 4:
            self._shed(f"{self._large.qsize()} large requests wait already (a quarter of --max-concurrent)")
        elif is_large:
            self._large.put((connection, request))
        elif self._app.only_computes(request):
            only_computes.append((connection, request))
        else:
            self._for_threads.put((connection, request))
        self._held += 1

    def _shed(self, why: str) -> NoReturn:
        self._metrics.shed.inc()
        log.warning("shedding: %s", why)
        # The connection closes with it: kube-apiserver has connected to this replica once and for all, and may find another
        # one when it asks again.
        raise RefusedError(TOO_MANY_REQUESTS)

    def answered(self) -> Iterator[Connection]:
        """Give back the connections whose answers are in `outgoing`, and go on with what is answered at once."""
        while not self._done.empty():
            self._held -= 1
            yield self._done.get()
        end = time.monotonic() + _SLICE_SECONDS
        while self.busy and time.monotonic() < end:
            for waiting in self._own_queues:  # in turn: a flood of neither keeps the other waiting
                if waiting:
                    connection, request = waiting.popleft()
                    self._answer(connection, request)
                    self._held -= 1
                    yield connection

    def _answer_from_queue(self, waiting: _RequestQueue, _stopping: threading.Event) -> None:
        while True:
            connection, request = waiting.get()
            self._answer(connection, request)
            with contextlib.suppress(OSError):  # the poller meets it again
                connection.send()
            self._done.put(connection)
            self._wake()

    def _answer(self, connection: Connection, request: Request) -> None:
        try:
            response = self._app.answer(request)
            closing = self.closing or not request.keep_alive
            content = response.encode(close=closing, body=request.method != "HEAD")
        except (Exception, SystemExit):  # nothing that a request does may end a thread
            log.exception("Error handling request %s %s", request.method, request.path)
            closing, content = True, FAILED.encode(close=True)
        connection.closing, connection.outgoing = closing, memoryview(content)
