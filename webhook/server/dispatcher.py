"""
Who answers a request, and how many may wait for that.

Three kinds, told apart by the path. Requests that cannot wait for anything but the processor are answered by
the poller's own thread: to hand one to another thread and take it back costs more than many an answer (100 to
185 µs, measured). All others go to threads. Probes are answered like the first kind, in turn with it, and are
never shed: an overloaded server that fails its liveness probe would be killed for it, and its load would
bring down the next.

At most `max_concurrent` requests are held at once, worked on or waiting; one more is shed. Those that a
connection holds back while it sends or takes bytes are none of them: they cost a socket, not a thread.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator

from webhook.server.connection import Connection
from webhook.server.metrics import EdgeMetrics

# For how long the poller answers before it looks at its sockets again: new requests are shed in time, and a
# probe waits no longer than this and one request.
_SLICE_SECONDS = 0.01

_Request = tuple[Connection, bytes, bytes]
Answer = Callable[[Connection, bytes, bytes], bytes]
"""Makes the answer to head and body of a request, and decides whether the connection closes after it."""


class Dispatcher:
    """
    Holds requests between their last byte in and their first byte out.

    All methods belong to the poller's thread. `wake` is called from the threads when there is something to take back.
    """

    def __init__(
        self,
        answer: Answer,
        wake: Callable[[], object],
        metrics: EdgeMetrics,
        *,
        max_concurrent: int,
        at_once: Container[bytes],
        probes: frozenset[bytes],
    ) -> None:
        self._answer = answer
        self._wake = wake
        self._metrics = metrics
        self._max_concurrent = max_concurrent
        self._paths_at_once, self._paths_of_probes = at_once, probes
        self._at_once: deque[_Request] = deque()
        self._probes: deque[_Request] = deque()
        self._for_threads: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._held = 0
        metrics.held.set_function(lambda: self._held)

    @property
    def busy(self) -> bool:
        """Whether the poller's thread itself has requests to answer."""
        return bool(self._probes or self._at_once)

    def start(self, threads: int) -> None:
        for number in range(threads):
            threading.Thread(target=self._work, name=f"request-{number}", daemon=True).start()

    def take(self, connection: Connection, head: bytes, body: bytes) -> bool:
        """Have the request answered, sooner or later; False if there are too many already."""
        path = _path(head)
        if path in self._paths_of_probes:
            self._probes.append((connection, head, body))
        elif self._held >= self._max_concurrent:
            self._metrics.shed.inc()
            return False
        elif path in self._paths_at_once:
            self._at_once.append((connection, head, body))
        else:
            self._for_threads.put((connection, head, body))
        self._held += 1
        return True

    def answered(self) -> Iterator[Connection]:
        """Give back the connections whose answers are in `outgoing`, and go on with what is answered at once."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._given_back(self._done.get_nowait())
        end = time.monotonic() + _SLICE_SECONDS
        while self.busy and time.monotonic() < end:
            for waiting in (
                self._probes,
                self._at_once,
            ):  # in turn: a flood of neither keeps the other waiting
                if waiting:
                    connection, head, body = waiting.popleft()
                    connection.outgoing = memoryview(self._answer(connection, head, body))
                    yield self._given_back(connection)

    def _given_back(self, connection: Connection) -> Connection:
        self._held -= 1
        return connection

    def _work(self) -> None:
        """Be one of the threads."""
        while True:
            connection, head, body = self._for_threads.get()
            connection.outgoing = memoryview(self._answer(connection, head, body))
            with contextlib.suppress(OSError):  # told again to the poller when it goes on
                connection.send()
            self._done.put(connection)
            self._wake()


def _path(head: bytes) -> bytes:
    """Return the path in a request line, `POST /mutate?timeout=5s HTTP/1.1`; gunicorn's parser judges the line as a whole."""
    parts = head.split(b" ", 2)
    return parts[1].partition(b"?")[0] if len(parts) > 1 else b""
