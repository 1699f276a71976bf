"""What goes over the wire: bodies whole, framing that cannot be read in two ways, limits."""

import contextlib
import hashlib
import ssl
import time
from pathlib import Path

import pytest

from tests.cases import cases
from tests.webhook.server.harness import Client, Server, request

MEBIBYTE = 1024 * 1024
BAD_HEAD = (400, "the head of the request is not valid HTTP/1.1\n")
BAD_LENGTH = (400, "the request must have one Content-Length, a number, and no Transfer-Encoding\n")
TOO_LONG = (413, "the body is longer than this server accepts\n")


def test_a_line_says_where_it_serves(server: Server) -> None:
    assert server.wait_for("serving https://") == (
        f"INFO:gpu_admission.server:serving https://127.0.0.1:{server.port}, "
        f"metrics http://127.0.0.1:{server.metrics_port}/metrics\n"
    )


def test_large_body_arrives_whole(server: Server) -> None:
    body = bytes(range(256)) * (7 * MEBIBYTE // 256)
    with server.client() as client:
        want = {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        assert client.post("/body", body).json() == want


def test_body_in_many_small_pieces_arrives_whole(server: Server) -> None:
    with server.client() as client:
        for piece in request("/body", b"0123456789" * 5):
            client.send(bytes([piece]))
        assert client.answer().json()["length"] == 50


def test_requests_sent_without_waiting_are_answered_in_order(server: Server) -> None:
    with server.client() as client:
        client.send(b"".join(request("/body", b"x" * length) for length in range(20)))
        assert [client.answer().json()["length"] for _ in range(20)] == list(range(20))


def test_application_sees_https(server: Server) -> None:
    with server.client() as client:
        assert client.post("/state").json()["scheme"] == "https"


@cases(
    ("fields", "want"),
    one_byte_over_the_limit=("Content-Length: 8388609", TOO_LONG),
    three_gigabytes=("Content-Length: 3000000000", TOO_LONG),
    more_digits_than_int_takes=("Content-Length: " + "9" * 5000, TOO_LONG),
    too_long_and_asking_first=("Content-Length: 9000000\r\nExpect: 100-continue", TOO_LONG),
    length_and_chunked=("Content-Length: 4\r\nTransfer-Encoding: chunked", BAD_LENGTH),
    chunked_and_length=("Transfer-Encoding: chunked\r\nContent-Length: 4", BAD_LENGTH),
    two_different_lengths=("Content-Length: 4\r\nContent-Length: 5", BAD_HEAD),
    list_of_lengths=("Content-Length: 4, 4", BAD_LENGTH),
    signed_length=("Content-Length: +4", BAD_LENGTH),
    negative_length=("Content-Length: -4", BAD_LENGTH),
    hexadecimal_length=("Content-Length: 0x4", BAD_LENGTH),
    unknown_coding=("Transfer-Encoding: xchunked", (501, "this server knows no such Transfer-Encoding\n")),
    chunked_not_last=("Transfer-Encoding: chunked, identity", BAD_LENGTH),
    not_chunked_at_all=("Transfer-Encoding: gzip", BAD_LENGTH),
)
def test_what_follows_a_refused_head_is_never_a_request(
    server: Server, fields: str, want: tuple[int, str]
) -> None:
    with server.client() as client:
        smuggled = request("/body", b"smuggled")
        client.send(f"POST /body HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n".encode() + smuggled)
        answer = client.answer()
        assert (answer.status, answer.body.decode()) == want
        assert answer.headers["connection"] == "close"
        with pytest.raises(ConnectionError):
            client.answer()


def test_chunked_body_is_never_cut_short(server: Server) -> None:
    with server.client() as client:
        client.send(b"POST /body HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        assert client.answer().status == 411
        assert client.is_closed(within=30)


def test_client_that_sends_all_of_a_long_body_still_reads_the_refusal(server: Server) -> None:
    with server.client() as client:
        client.send(request("/body", b"x" * 9 * MEBIBYTE))
        answer = client.answer()
        assert (answer.status, answer.body.decode()) == TOO_LONG


def test_client_that_asks_first_hears_once_to_continue(server: Server) -> None:
    with server.client() as client:
        client.send(b"POST /body HTTP/1.1\r\nHost: l\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert client.answer().status == 100
        client.send(b"body")
        assert client.answer().json()["length"] == 4
        assert client.post("/body").status == 200


def test_large_body_is_not_answered_on_the_spot(server: Server, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    with server.client() as large, server.client() as small:
        large.send(request(f"/at-once?{ended}", b"x" * 65 * 1024))
        server.wait_for_metric("gpu_admission_requests_held", 1)  # a thread is at it
        assert small.post("/at-once?0").status == 200
        assert large.is_waiting()
        ended.touch()
        assert large.answer().json() == {"slept": str(ended)}


@pytest.mark.parametrize("path", ["/unknown", "/fails-half-way", "/bad-header"])
def test_failing_application_is_a_clean_500(server: Server, path: str) -> None:
    with server.client() as client:
        answer = client.post(path)
    assert (answer.status, answer.body.decode()) == (500, "the server failed to answer this request\n")
    server.wait_for(f"ERROR:gpu_admission.server:Error handling request POST {path}\n")
    with server.client() as client:
        assert client.post("/body").status == 200


def test_client_that_leaves_during_its_answer_harms_nobody(server: Server) -> None:
    for _ in range(20):
        with server.client() as client:
            client.send(request("/sleep?0.1"))
    time.sleep(0.3)
    with server.client() as client:
        assert client.post("/body").status == 200


def test_connection_close_is_honoured_at_once(server: Server) -> None:
    with server.client() as client:
        client.send(b"POST /body HTTP/1.1\r\nHost: l\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        assert client.answer().status == 200
        assert client.is_closed(within=30)  # an idle connection is kept for 110


def test_plain_http_on_the_tls_port_is_closed(server: Server) -> None:
    with server.plain_socket() as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := plain.recv(4096):
                received += data
        assert received == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_tls_1_1_is_refused(server: Server) -> None:
    context = ssl.create_default_context(cafile=server.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")  # else OpenSSL would not even offer it
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with server.plain_socket() as plain, pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_current_tls_is_spoken(server: Server, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=server.ca)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(server.plain_socket(), server_hostname="localhost") as spoken:
        assert spoken.selected_alpn_protocol() == "http/1.1"
        spoken.sendall(request("/body", b"12"))
        assert b'"length": 2' in spoken.recv(4096)


def test_clients_at_once_get_their_own_answers(server: Server) -> None:
    clients: list[Client] = [server.client() for _ in range(40)]
    for round_number in range(5):
        for length, client in enumerate(clients):
            client.send(request("/body", b"x" * (length * 100 + round_number)))
        for length, client in enumerate(clients):
            assert client.answer().json()["length"] == length * 100 + round_number
    for client in clients:
        client.socket.close()
