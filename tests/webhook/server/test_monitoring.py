"""Metrics and probes in plain HTTP, as the controller and the metrics port of `serve` offer them."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import urllib3
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from tests.cases import cases
from webhook.server import monitoring
from webhook.server.monitoring import LIMITS, listen, start_monitoring

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: local"
HALF_A_BODY = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"


@pytest.fixture(scope="module")
def port() -> int:
    registry = CollectorRegistry()
    Gauge("answer", "To everything.", registry=registry).set(42)
    return started(registry)


def started(registry: CollectorRegistry) -> int:
    listener = listen("127.0.0.1", 0)
    checks = {"/healthz": lambda: "", "/readyz": lambda: "not listed yet: pods"}
    start_monitoring(listener, registry, checks)
    number: int = listener.getsockname()[1]
    return number


def get(port: int, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(retries=False, timeout=8) as pool:
        return pool.request("GET", f"http://127.0.0.1:{port}{path}", headers=headers)


@cases(
    ("path", "want_status", "want_text"),
    all_is_well=("/healthz", 200, "ok\n"),
    and_if_not_why=("/readyz?verbose=1", 503, "not listed yet: pods\n"),
    metrics=("/metrics", 200, "# HELP answer To everything.\n# TYPE answer gauge\nanswer 42.0\n"),
    nothing_else=("/mutate", 404, "not found\n"),
)  # fmt: skip
def test_answers(port: int, path: str, want_status: int, want_text: str) -> None:
    answer = get(port, path)
    assert (answer.status, answer.data.decode()) == (want_status, want_text)


def test_scraper_gets_the_format_that_it_asks_for(port: int) -> None:
    answer = get(port, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.data.endswith(b"# EOF\n")


@cases("sent", silent=b"", half_a_head=HALF_A_HEAD, half_a_body=HALF_A_BODY)
def test_probes_and_scrapes_wait_for_no_stalled_client(port: int, sent: bytes) -> None:
    with contextlib.ExitStack() as stalled:
        for _ in range(100):
            stalled.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(sent)
        assert get(port, "/healthz").status == 200
        assert get(port, "/metrics").status == 200


def test_more_stalled_clients_than_connections_make_place_for_the_next(port: int) -> None:
    with contextlib.ExitStack() as stalled:
        for _ in range(LIMITS.connections + 20):
            client = stalled.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(HALF_A_HEAD)
        assert get(port, "/healthz").status == 200


def test_a_byte_now_and_then_holds_no_connection_beyond_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "LIMITS", dataclasses.replace(LIMITS, request_seconds=1.5))
    port = started(CollectorRegistry())
    with contextlib.ExitStack() as stack:
        dripping = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)]
        began = time.monotonic()
        for byte in HALF_A_HEAD[:12]:
            for client in dripping:
                with contextlib.suppress(OSError):  # those that are closed by now
                    client.sendall(bytes([byte]))
            assert get(port, "/healthz").status == 200
            assert get(port, "/metrics").status == 200
            time.sleep(0.25)
        assert time.monotonic() - began > 2.5
        assert [is_closed(client) for client in dripping] == [True] * 8


def test_probes_are_answered_while_scrapes_wait_for_their_turn() -> None:
    scraped, released = threading.Semaphore(0), threading.Event()

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            scraped.release()
            released.wait(60)
            yield from ()

    registry = CollectorRegistry(auto_describe=False)
    port = started(registry)
    registry.register(Slow())
    with contextlib.ExitStack() as stack:
        scrapers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)]
        for scraper in scrapers:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all(scraped.acquire(timeout=30) for _ in range(LIMITS.threads))
        assert get(port, "/healthz").status == 200  # though every thread is at a scrape, and six more wait
        released.set()
        for scraper in scrapers:
            scraper.settimeout(30)
            assert scraper.recv(4096).startswith(b"HTTP/1.1 200 ")


def is_closed(client: socket.socket) -> bool:
    client.settimeout(30)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_body_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(HALF_A_BODY)
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_head_has_the_length_and_no_body(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"HEAD /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        received = b""
        while data := client.recv(4096):
            received += data
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"Content-Length: 3\r\n\r\n")
