"""Clients that stall, drip, flood or leave: none of them may cost the others an answer."""

import contextlib
import time
from pathlib import Path

import pytest

from tests.cases import cases
from tests.webhook.server.harness import Server, request, serving

pytestmark = pytest.mark.processes

MEBIBYTE = 1024 * 1024
HALF_A_HELLO = b"\x16\x03\x01"
HALF_A_HEAD = b"POST /body HTTP/1.1\r\nHost: local"
HALF_A_BODY = request("/body", b"x" * 1000)[:-500]


def check_answer(server: Server) -> None:
    """Check that a new client is answered before any deadline, of 10 s, frees what others hold."""
    with server.client(timeout=8) as client:
        assert client.post("/body", b"12345").json()["length"] == 5


@cases(
    "groups",
    idle_tls_and_half_sent_requests=[(b"", 64), (HALF_A_HEAD, 32), (HALF_A_BODY, 32)],
    handshakes_that_go_nowhere=[(b"", 64), (HALF_A_HELLO, 64)],
)
def test_stalled_clients_take_no_thread(server: Server, groups: list[tuple[bytes, int]]) -> None:
    connect = server.plain_socket if (HALF_A_HELLO, 64) in groups else lambda: server.client().socket
    with contextlib.ExitStack() as stalled:
        for sent, count in groups:
            for _ in range(count):
                stalled.enter_context(connect()).sendall(sent)
        for _ in range(5):
            check_answer(server)


def test_client_that_does_not_read_its_answer_takes_no_thread(server: Server) -> None:
    with contextlib.ExitStack() as stalled:
        # more than there are threads, fewer than fill the buffers
        clients = [stalled.enter_context(server.client()) for _ in range(10)]
        for client in clients:
            client.send(request(f"/large?{6 * MEBIBYTE}"))
        for _ in range(5):
            check_answer(server)
        # and who reads in the end gets all of it
        assert clients[-1].answer().body == b"x" * 6 * MEBIBYTE


@cases(("first", "drip"), request_line=(b"", b"P"), head=(HALF_A_HEAD, b"x"), body=(HALF_A_BODY, b"x"))
def test_drips_do_not_extend_the_deadline_of_a_request(directory: Path, first: bytes, drip: bytes) -> None:
    with serving(directory, request_seconds=1) as server, server.client() as client:
        began = time.monotonic()
        client.send(first + drip)
        with pytest.raises(OSError):  # noqa: PT012 - which of the sends fails is the point
            while time.monotonic() - began < 30:
                time.sleep(0.1)
                client.send(drip)
                client.socket.settimeout(0.001)
                with contextlib.suppress(TimeoutError):
                    if client.socket.recv(1) == b"":
                        raise ConnectionError
                client.socket.settimeout(10)
        assert 0.9 < time.monotonic() - began < 25


def test_silent_handshake_ends_at_its_deadline(directory: Path) -> None:
    with serving(directory, handshake_seconds=1) as server, server.plain_socket() as stalled:
        stalled.sendall(HALF_A_HELLO)
        assert stalled.recv(1) == b""


def test_client_that_never_reads_is_cut(directory: Path) -> None:
    with serving(directory, response_seconds=1) as server, server.client() as client:
        client.send(request(f"/large?{32 * MEBIBYTE}"))
        server.wait_for_metric('gpu_admission_connections_cut_total{reason="response deadline"}', 1)
        with pytest.raises(OSError):
            client.answer()


def test_idle_connection_is_kept_longer_than_two_seconds_and_used_again(server: Server) -> None:
    with server.client() as client:
        assert client.post("/body", b"one").status == 200
        time.sleep(2.5)  # gunicorn's own default closes after 2
        assert client.post("/body", b"two").status == 200


def test_memory_is_bounded_under_half_sent_bodies(directory: Path) -> None:
    limit = 16 * MEBIBYTE
    with (
        serving(directory, body_limit=MEBIBYTE, buffer_limit=limit) as server,
        contextlib.ExitStack() as stalled,
    ):
        worker = server.worker()
        before = worker.memory_info().rss
        for _ in range(500):
            client = stalled.enter_context(server.client())
            # one who is refused while it still sends may find its connection closed
            with contextlib.suppress(OSError):
                client.send(request("/body", b"x" * MEBIBYTE)[: -MEBIBYTE // 2])
        time.sleep(0.5)
        # 500 TLS connections cost their own memory: some 40 KiB each
        assert worker.memory_info().rss - before < limit + 500 * 100 * 1024
        check_answer(server)
        assert 'reason="too many bytes"' in server.scrape()


def test_oldest_unfinished_request_is_refused_when_memory_is_short(directory: Path) -> None:
    with (
        serving(directory, body_limit=MEBIBYTE, buffer_limit=MEBIBYTE) as server,
        server.client() as oldest,
        server.client() as younger,
    ):
        oldest.send(request("/body", b"x" * 900_000)[:-1])
        time.sleep(1)  # the server has read it, also where the machine is busy
        assert younger.post("/body", b"y" * 900_000).json()["length"] == 900_000
        answer = oldest.answer()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert oldest.is_closed(within=30)


def test_connection_that_never_asked_makes_place_for_a_new_one(directory: Path) -> None:
    with serving(directory, threads=2, connections=10) as server, contextlib.ExitStack() as stalled:
        regular = stalled.enter_context(server.client())
        assert regular.post("/body", b"x").status == 200
        for _ in range(30):
            stalled.enter_context(server.client())
        check_answer(server)
        assert regular.post("/body", b"x").status == 200
