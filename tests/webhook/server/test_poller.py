"""What the poller answers, counts and logs where connections, bytes, requests or time are too few; real load is tested beside."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.cases import cases
from webhook.server.dispatcher import Application, ServerMetrics
from webhook.server.http import Request, Response, text
from webhook.server.monitoring import listen
from webhook.server.poller import Poller
from webhook.server.settings import Limits

TRY_AGAIN = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\nConnection: close"
SMALL = b"POST / HTTP/1.1\r\n\r\n"
LARGE = b"POST / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n" + b"x" * 65537


class Polled:
    """A poller in this thread, with plain connections to it. Its requests are answered when `released` is set."""

    def __init__(self, **limits: Any) -> None:
        self.registry, self.released, self.begun = (
            CollectorRegistry(),
            threading.Event(),
            threading.Semaphore(0),
        )
        listener = listen("127.0.0.1", 0)
        self._address = listener.getsockname()
        app = Application(self._answer, only_computes=lambda _request: False, probes=frozenset())
        self.poller = Poller(listener, app, Limits(**limits), ServerMetrics(self.registry))
        self.clients: list[socket.socket] = []

    def _answer(self, _request: Request) -> Response:
        self.begun.release()
        self.released.wait(60)
        return text(200, "ok")

    def send(self, data: bytes) -> socket.socket:
        client = socket.create_connection(self._address, timeout=30)
        self.clients.append(client)
        sender = threading.Thread(target=client.sendall, args=[data])
        sender.start()
        while sender.is_alive():
            self.poller.poll(0.01)
        for _ in range(5 if data is not LARGE else 100):
            self.poller.poll(0.01)
        return client

    def cut(self) -> dict[str, float]:
        return {
            sample.labels["reason"]: sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "gpu_admission_connections_cut_total"
        }


@pytest.fixture
def polled() -> Iterator[Callable[..., Polled]]:
    made: list[Polled] = []

    def make(**limits: Any) -> Polled:
        made.append(Polled(**limits))
        return made[-1]

    yield make
    for each in made:
        each.released.set()
        for client in each.clients:
            client.close()
        for connection in each.poller.connections:
            connection.close()


def answer(client: socket.socket) -> str:
    return re.sub(r"Content-Length: \d+\r\n", "", client.recv(4096).decode())


def test_a_connection_too_many_takes_the_place_of_the_oldest_idle_one(polled: Callable[..., Polled]) -> None:
    running = polled(connections=1)

    oldest, _ = running.send(b""), running.send(b"")

    assert answer(oldest) == ""
    assert running.cut() == {"too many connections": 1}


def test_bytes_too_many_are_those_of_the_oldest_unfinished_request(polled: Callable[..., Polled]) -> None:
    running = polled(buffer_limit=10)

    client = running.send(b"POST / HTTP/1.1\r\n")

    assert running.cut() == {"too many bytes": 1}
    assert answer(client) == f"{TRY_AGAIN}\r\n\r\ntoo many bytes of unfinished requests; try again\n"


def test_a_request_that_does_not_end_is_cut_at_its_deadline(polled: Callable[..., Polled]) -> None:
    running = polled(request_seconds=0.01)
    client = running.send(b"POST / HTTP/1.1\r\n")

    running.poller._cut_overdue(time.monotonic() + 1)

    assert running.cut() == {"request deadline": 1}
    assert answer(client) == ""


@cases(
    ("limit", "sent", "logged"),
    requests=(1, SMALL, "shedding: 1 requests at once are held already (--max-concurrent)"),
    large_ones=(4, LARGE, "shedding: 1 large requests wait already (a quarter of --max-concurrent)"),
)
def test_requests_too_many_hear_when_to_ask_again(
    polled: Callable[..., Polled], caplog: pytest.LogCaptureFixture, limit: int, sent: bytes, logged: str
) -> None:
    running = polled(max_concurrent=limit, threads=1)
    for _ in range(2 if sent is LARGE else 1):
        running.send(sent)
        assert running.begun.acquire(timeout=30)
    if sent is LARGE:
        running.send(sent)  # waits: two threads are at work

    client = running.send(sent)

    assert caplog.messages == [logged]
    assert answer(client) == f"{TRY_AGAIN}\r\n\r\ntoo many requests at once; try again\n"
    assert running.registry.get_sample_value("gpu_admission_requests_shed_total") == 1


def test_an_idle_connection_hears_that_this_replica_stops(polled: Callable[..., Polled]) -> None:
    running = polled()
    client = running.send(b"")

    running.poller.stop_accepting(0, accept_pending=False)
    time.sleep(0.01)
    running.poller._cut_overdue(time.monotonic())

    assert answer(client) == (f"{TRY_AGAIN}\r\n\r\nthis replica of gpu-admission is stopping; try again\n")
    assert running.registry.get_sample_value("gpu_admission_connections_sent_away_total") == 1


def test_each_metric_says_what_it_counts() -> None:
    registry = CollectorRegistry()
    ServerMetrics(registry)

    assert {family.name: family.documentation for family in registry.collect()} == {
        "gpu_admission_connections": "Open TLS connections.",
        "gpu_admission_connections_cut": (
            "Connections closed on a client: for the deadline that it missed, or to make room."
        ),
        "gpu_admission_connections_sent_away": (
            "Idle connections closed at the end of a drain, with an answer by which the client repeats a request under way."
        ),
        "gpu_admission_callers_refused": (
            "Requests and handshakes of callers that --client-ca or --client-name does not allow, by what is wrong."
        ),
        "gpu_admission_requests_held": "Requests that are answered now, or wait for a thread.",
        "gpu_admission_requests_shed": (
            "Requests answered 503 with Retry-After: --max-concurrent were held, or a quarter as many large ones waited."
        ),
    }
