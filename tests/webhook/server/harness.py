"""Real processes and raw TLS sockets for tests of the HTTP server."""

import contextlib
import dataclasses
import datetime as dt
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil

from certs.files import ensure_self_signed
from certs.issue import KeyPair, issue_ca, issue_server

WITHIN = 60.0
"""Seconds for what takes one where the machine has nothing else to do."""
NAMES = ["localhost", "127.0.0.1"]
_SERVING = re.compile(r"serving https://127\.0\.0\.1:(\d+), metrics http://127\.0\.0\.1:(\d+)/metrics")


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One TLS connection, byte by byte; `pem` holds the client's certificate and key, `session` is one to resume."""

    def __init__(
        self,
        port: int,
        ca: Path,
        timeout: float = 30,
        *,
        pem: Path | None = None,
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.context = context or ssl.create_default_context(cafile=ca)
        if pem is not None:
            self.context.load_cert_chain(pem)
        # Connected after it was wrapped: of a peer that resets in between, wrap_socket() of 3.11 leaves a socket open.
        self.socket = self.context.wrap_socket(socket.socket(), server_hostname="localhost", session=session)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(("127.0.0.1", port))
        except BaseException:
            self.socket.close()
            raise
        self._left = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, path: str, body: bytes = b"") -> Answer:
        self.send(request(path, body))
        return self.answer()

    def answer(self) -> Answer:
        """Read one answer; ConnectionError: the server closed before its end."""
        head, _, self._left = self._until(b"\r\n\r\n").partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._left) < length:
            self._left += self._receive()
        body, self._left = self._left[:length], self._left[length:]
        return Answer(int(status.split()[1]), headers, body)

    def is_closed(self, within: float) -> bool:
        """Whether the server closes, saying nothing more, in so many seconds."""
        self.socket.settimeout(within)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def is_waiting(self) -> bool:
        """Whether nothing of an answer has come so far."""
        if self._left:
            return False
        timeout = self.socket.gettimeout()
        self.socket.settimeout(0)  # a session ticket alone makes the socket readable
        try:
            self._left += self._receive()
        except ssl.SSLWantReadError:
            return True
        finally:
            self.socket.settimeout(timeout)
        return False

    def _until(self, end: bytes) -> bytes:
        while end not in self._left:
            self._left += self._receive()
        return self._left

    def _receive(self) -> bytes:
        if not (data := self.socket.recv(65536)):
            raise ConnectionError("the server closed the connection")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def request(path: str, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Server:
    """A running server; `lines` is what it has said on stderr."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.ca = directory / "ca.crt"
        self.process = start(directory, **settings)
        self.lines: list[str] = []
        self.port = self.metrics_port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_for("serving https://")
        except BaseException:
            self.end()
            raise

    def client(self, **options: Any) -> Client:
        return Client(self.port, self.ca, **options)

    def plain_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def worker(self) -> psutil.Process:
        [worker] = psutil.Process(self.process.pid).children()
        return worker

    def wait_for(self, text: str, within: float = WITHIN) -> str:
        end = time.monotonic() + within
        while time.monotonic() < end:
            if found := [line for line in self.lines if text in line]:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"{text!r} is not in:\n{''.join(self.lines)}")

    def scrape(self) -> str:
        with socket.create_connection(("127.0.0.1", self.metrics_port), timeout=30) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            parts = []
            while data := scraper.recv(65536):
                parts.append(data)
        return b"".join(parts).decode()

    def metric(self, name: str) -> float:
        """Return a metric by its name, with its labels where it has any; 0 where those were not seen yet."""
        values = [
            line.rsplit(" ", 1)[1] for line in self.scrape().splitlines() if line.startswith(f"{name} ")
        ]
        assert values or "{" in name, name
        return float(values[0]) if values else 0.0

    def wait_for_metric(self, name: str, want: float, within: float = WITHIN) -> None:
        end = time.monotonic() + within
        while (found := self.metric(name)) != want:
            assert time.monotonic() < end, f"{name} is {found}"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM, within: float = WITHIN) -> int:
        self.process.send_signal(number)
        return self.wait(within)

    def wait(self, within: float = WITHIN) -> int:
        code = self.process.wait(within)
        self._reader.join(30)
        return code

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join(30)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := _SERVING.search(line):
                self.port, self.metrics_port = int(found[1]), int(found[2])
            self.lines.append(line)


def start(directory: Path, **settings: Any) -> subprocess.Popen[str]:
    """Start the program with certificates from the directory, in a process group of its own."""
    given = {
        "certificate": str(directory / "tls.crt"),
        "key": str(directory / "tls.key"),
        "host": "127.0.0.1",
        "port": 0,
        "metrics_host": "127.0.0.1",
        "metrics_port": 0,
        "drain_seconds": 0,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.webhook.server.program", json.dumps(given | settings)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_in_vain(directory: Path, **settings: Any) -> tuple[int, str]:
    """Start what must end by itself; exit code and all that it said on stderr."""
    process = start(directory, **settings)
    try:
        _, said = process.communicate(timeout=WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said


@contextlib.contextmanager
def serving(directory: Path, **settings: Any) -> Iterator[Server]:
    server = Server(directory, **settings)
    try:
        yield server
    finally:
        server.end()


def certificates(directory: Path) -> Path:
    ensure_self_signed(directory, NAMES, dt.datetime.now(dt.UTC))
    return directory


def replace(path: Path, data: bytes | None) -> None:
    """Write a file as Kubernetes renews those of a Secret: at no moment is there half of it. None removes it."""
    if data is None:
        path.unlink()
        return
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(data)
    beside.replace(path)


def new_pair(name: str = "localhost") -> tuple[KeyPair, KeyPair]:
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    authority = issue_ca(common_name="another", now=now, lifetime=day)
    return authority, issue_server(authority, names=[name, *NAMES], now=now, lifetime=day)
