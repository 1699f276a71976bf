"""Metrics and probes in plain HTTP, as the controller and the metrics port of `serve` offer them."""

import contextlib
import socket
import time

import pytest
import urllib3
from prometheus_client import CollectorRegistry, Gauge

from webhook.server.monitoring import LIMITS, listen, start_monitoring
from webhook.server.settings import StartupError

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: local"
HALF_A_BODY = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"


@pytest.fixture(scope="module")
def port() -> int:
    registry = CollectorRegistry()
    Gauge("answer", "To everything.", registry=registry).set(42)
    listener = listen("127.0.0.1", 0)
    checks = {"/healthz": lambda: "", "/readyz": lambda: "not listed yet: pods"}
    start_monitoring(listener, registry, checks)
    number: int = listener.getsockname()[1]
    return number


def get(port: int, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(retries=False, timeout=5) as pool:
        return pool.request("GET", f"http://127.0.0.1:{port}{path}", headers=headers)


@pytest.mark.parametrize(
    ("path", "want_status", "want_text"),
    [
        pytest.param("/healthz", 200, "ok\n", id="all-is-well"),
        pytest.param("/readyz?verbose=1", 503, "not listed yet: pods\n", id="and-if-not-why"),
        pytest.param("/metrics", 200, "# HELP answer To everything.\n# TYPE answer gauge\nanswer 42.0\n", id="metrics"),
        pytest.param("/mutate", 404, "not found\n", id="nothing-else"),
    ],
)  # fmt: skip
def test_answers(port: int, path: str, want_status: int, want_text: str) -> None:
    answer = get(port, path)
    assert (answer.status, answer.data.decode()) == (want_status, want_text)


def test_scraper_gets_the_format_that_it_asks_for(port: int) -> None:
    answer = get(port, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.data.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="silent"),
        pytest.param(HALF_A_HEAD, id="half-a-head"),
        pytest.param(HALF_A_BODY, id="half-a-body"),
    ],
)
def test_probes_and_scrapes_wait_for_no_stalled_client(port: int, sent: bytes) -> None:
    with contextlib.ExitStack() as stalled:
        for _ in range(100):
            client = stalled.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(sent)
        began = time.monotonic()
        assert get(port, "/healthz").status == 200
        assert get(port, "/metrics").status == 200
        assert time.monotonic() - began < 1


def test_more_stalled_clients_than_connections_make_place_for_the_next(port: int) -> None:
    with contextlib.ExitStack() as stalled:
        for _ in range(LIMITS.connections + 20):
            client = stalled.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(HALF_A_HEAD)
        began = time.monotonic()
        assert get(port, "/healthz").status == 200
        assert time.monotonic() - began < 1


def test_body_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(HALF_A_BODY)
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_head_has_the_length_and_no_body(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"HEAD /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        received = b""
        while data := client.recv(4096):
            received += data
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"Content-Length: 3\r\n\r\n")


def test_address_of_another_machine_is_one_sentence() -> None:
    with pytest.raises(StartupError) as refused:
        listen("192.0.2.1", 1)
    assert str(refused.value) == "port: cannot listen on 192.0.2.1 port 1: Cannot assign requested address"
