"""What failed connections are called: one sentence without host, port, class of Python or number of an error."""

import errno
import http.client
import inspect
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import urllib3
import yaml
from urllib3 import exceptions as failures

from certs.issue import issue_ca, issue_server
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer
from webhook.cluster import errors
from webhook.cluster.access import AccessError, load_access
from webhook.cluster.api import ApiClient
from webhook.prometheus.client import Prometheus, PrometheusError

RAW = re.compile(
    r"Pool|urllib3|\b[Pp]ort\b|port=|object at 0x|Errno|Error\b|Exception|_ssl|\[SSL|127\.0\.0\.1|localhost|:\d"
)
"""What no message has: it means nothing to the person who reads a denial, or tells a tenant about the network."""
SENTENCE = re.compile(r"[a-z][\w ,:/'().-]{8,120}")
RESET = struct.pack("ii", 1, 0)
HEAD = b"HTTP/1.1 200 OK\r\n"


def hang(_connection: socket.socket) -> None:
    sleep(1)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(answer)


@contextmanager
def listening(then: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve each connection by `then`, after its first bytes came; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(0.05)
                    with suppress(TimeoutError):  # what stays unread would reset the connection
                        while connection.recv(4096):
                            pass
                    then(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def client_of(folder: Path, server: str, **fields: Any) -> ApiClient:
    path = folder / "kubeconfig"
    user = fields.pop("user", {})
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": server, **fields}}],
        "users": [{"name": "it", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return ApiClient(load_access(str(path)))


def message_of(client: ApiClient, *, timeout: float = 0.3) -> str:
    with pytest.raises(errors.ApiError) as caught:
        client.post("/api/v1/namespaces/team/pods", b"{}", timeout=timeout)
    return str(caught.value)


def said(sentence: str) -> str:
    return f"POST /api/v1/namespaces/team/pods: the API server {sentence}"


@cases(
    ("then", "want"),
    it_says_nothing=(hang, "did not answer in time"),
    it_closes=(lambda _: None, "closed the connection"),
    it_resets=(reset, "closed the connection"),
    it_stops_in_its_answer=(answering(HEAD + b"Content-Length: 100\r\n\r\n{"), "cut its answer short"),
    it_stops_in_a_chunk=(
        answering(HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{"), "cut its answer short",
    ),
    its_chunks_have_no_length=(
        answering(HEAD + b"Transfer-Encoding: chunked\r\n\r\nxx\r\n{"), "cut its answer short",
    ),
    it_speaks_something_else=(answering(b"220 mail ESMTP\r\n"), "did not answer as HTTP does"),
    its_answer_is_not_compressed=(
        answering(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
        "sent an answer that cannot be read",
    ),
)  # fmt: skip
def test_a_connection_that_fails(tmp_path: Path, then: Callable[[socket.socket], None], want: str) -> None:
    with listening(then) as address:
        message = message_of(client_of(tmp_path, f"http://{address}"))

    assert message == said(want)
    assert not RAW.search(message)


def certificate(folder: Path, names: list[str], *, age: timedelta = timedelta()) -> dict[str, str]:
    now = datetime.now(UTC) - age
    authority = issue_ca(common_name="tests", now=now, lifetime=timedelta(days=1000))
    leaf = issue_server(authority, names=names, now=now, lifetime=timedelta(days=1))
    (folder / "server.pem").write_bytes(leaf.certificate_pem() + leaf.key_pem())
    (folder / "ca.pem").write_bytes(authority.certificate_pem())
    return {"certificate-authority": str(folder / "ca.pem")}


@contextmanager
def encrypted(folder: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://localhost:{server.getsockname()[1]}"
        thread.join(5)


@cases(
    ("names", "age", "known", "want"),
    by_an_unknown_authority=(["localhost"], 0, False, "its authority is not the one that is trusted here"),
    for_another_name=(["other.example"], 0, True, "it is for another name"),
    that_has_expired=(["localhost"], 9, True, "it has expired"),
    that_is_not_valid_yet=(["localhost"], -9, True, "it is not valid yet"),
)
def test_a_certificate(tmp_path: Path, names: list[str], age: int, known: bool, want: str) -> None:
    trusted = certificate(tmp_path, names, age=timedelta(days=age))
    with encrypted(tmp_path) as url:
        message = message_of(client_of(tmp_path, url, **(trusted if known else {})))

    assert message == said(f"has a certificate that is not accepted: {want}")


def test_it_does_not_speak_tls(tmp_path: Path) -> None:
    with listening(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        message = message_of(client_of(tmp_path, f"https://{address}"))

    assert message == said("does not agree on TLS")


@cases(
    ("server", "want"),
    nobody_listens=("https://127.0.0.1:9", "refused the connection"),
    no_such_name=("https://nowhere.invalid:6443", "has a name that cannot be resolved"),
)
def test_an_address(tmp_path: Path, server: str, want: str) -> None:
    assert message_of(client_of(tmp_path, server)) == said(want)


@cases(
    "server",
    no_host="https://",
    another_scheme="ftp://127.0.0.1",
    none="",
    no_scheme="127.0.0.1:6443",
    cut="http://[::1",
    port="http://127.0.0.1:99999",
)
def test_a_server_that_is_none(tmp_path: Path, server: str) -> None:
    with pytest.raises(AccessError) as refused:
        client_of(tmp_path, server)
    want = f"kubeconfig {tmp_path}/kubeconfig: the server of the cluster must be an https:// address"
    assert str(refused.value) == want


def test_a_proxy_that_is_away(tmp_path: Path) -> None:
    client = client_of(tmp_path, "https://127.0.0.1:6443", **{"proxy-url": "http://127.0.0.1:9"})

    assert message_of(client) in {said("cannot be reached through its proxy"), said("refused the connection")}


@cases(
    "token",
    of_two_lines="one\ntwo",
    beyond_latin="ключ",
    with_a_command="a\x1b[2J",
)
def test_a_token_that_no_header_holds_is_named_and_not_shown(tmp_path: Path, token: str) -> None:
    message = message_of(client_of(tmp_path, "http://127.0.0.1:9", user={"token": token}))

    assert message == "the credentials cannot be read: the token must be one line of ASCII"


def test_a_watch_that_breaks_off(tmp_path: Path) -> None:
    stop = threading.Event()
    with ApiServer(tmp_path, lambda _: Answer(stream=[b"{}"], wait=stop)) as server:
        client = server.client()
        with (
            pytest.raises(errors.Silent) as caught,
            client.stream("/api/v1/pods", query={}, read_seconds=0.2) as response,
        ):
            list(response.stream())
        stop.set()

    assert str(caught.value) == "GET /api/v1/pods: the API server did not answer in time"


def test_what_is_said_of_an_answer_that_cannot_be_read() -> None:
    assert errors.UNREADABLE == "the API server sent an answer that cannot be read"


POOL = urllib3.HTTPSConnectionPool("10.0.0.1", 6443)
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def made(kind: type[Exception]) -> Exception:
    """Return an exception of the kind with texts such as urllib3 writes."""
    text = f"{POOL}: [Errno 111] <urllib3.connection.HTTPSConnection object at 0x7f>"
    for arguments in (
        (text,),
        (POOL, text),
        (POOL, "/api", text),
        ("10.0.0.1", POOL, OSError(113, "No route to host")),
        (7, 9),
        (urllib3.HTTPResponse(), b"xx"),
    ):
        with suppress(TypeError, AttributeError):
            error = kind(*arguments)
            repr(error)
            error.__dict__.update(verify_code=0)
            return error
    raise AssertionError(kind)


ALL = [
    each
    for module in (failures, http.client, ssl, socket)
    for _, each in inspect.getmembers(module, inspect.isclass)
    if issubclass(each, Exception) and not issubclass(each, Warning)
]
SYSTEM = [
    OSError(number, text)
    for number, text in ((number, errno.errorcode[number]) for number in errno.errorcode)
]


def wrapped(error: Exception) -> list[Exception]:
    aborted, refused = failures.ProtocolError("Connection aborted.", error), failures.SSLError(error)
    return [error, aborted, refused, failures.MaxRetryError(POOL, "/api", error)]


@cases(
    ("failure", "want"),
    of_a_proxy=(failures.ProxyError("x", OSError()), "cannot be reached through its proxy"),
    of_tls=(failures.SSLError("x"), "does not agree on TLS"),
    of_time=(failures.TimeoutError("x"), "did not answer in time"),
    of_an_answer=(failures.ProtocolError("x"), "cut its answer short"),
    of_the_system=(OSError(errno.EHOSTUNREACH, "x"), "cannot be reached: no route to host"),
    of_another_kind=(Exception("x"), "did not answer"),
)
def test_a_failure_in_words(failure: Exception, want: str) -> None:
    assert errors.failure_text(failure) == want


def test_a_response_without_words() -> None:
    assert str(errors.of_response(503, b"")) == "HTTP 503"


def test_no_failure_is_named_as_python_names_it() -> None:
    said = {errors.failure_text(each) for error in (*map(made, ALL), *SYSTEM) for each in wrapped(error)}

    assert len(said) > 50
    assert [words for words in said if RAW.search(words) or not SENTENCE.fullmatch(words)] == []


def test_prometheus_fails_in_the_same_words() -> None:
    with (
        listening(hang) as address,
        pytest.raises(PrometheusError, match=rf"^Prometheus at http://{address} did not answer in time$"),
    ):
        Prometheus(f"http://{address}", timeout=0.2).query("up")


def test_what_the_api_server_quotes_obeys_nobody() -> None:
    """It quotes names of users, and the words of other people's webhooks."""
    error = errors.of_response(403, b'{"message": "no: \\u001b[2J\\u202ename\\nin two lines", "code": 403}')

    assert str(error) == "no: \ufffd[2J\ufffdname\nin two lines"


@cases("seconds", none_left=0.0, less_than_none=-0.5)
def test_a_call_without_time_is_not_made(tmp_path: Path, seconds: float) -> None:
    with ApiServer(tmp_path, lambda _: Answer()) as server:
        assert message_of(server.client(), timeout=seconds) == said("did not answer in time")
        assert server.requests == []
