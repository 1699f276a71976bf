"""Closed-loop HTTP clients over TLS, in a process of their own: each sends its next request when the last is answered.

`python -m tests.bench.clients` reads a `Plan` from standard input, says "ready" once every connection stands, begins at the
next line, and prints the `Outcome`; both are JSON, a line each. It goes on until its input ends, over the same connections if
a plan is for the same server. One thread serves all connections. It makes the requests beforehand, and reads each
answer only to its end: on a machine with two cores, what the client spends is taken from the server.
"""

import re
import selectors
import socket
import ssl
import sys
import time
from collections import deque

import msgspec

NUMBER, TURN = "NUMBER", "TURN"
"""Stand for digits in path and body: six that differ in every request, as an object's name must, and four that come round."""

PATIENCE = 30
"""Seconds without any answer after which the server is given up."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` times `method` with `body` to https://`host`:`port``path`, over `clients` connections that are kept alive.

    NUMBER is that of the request, from `first` on, and TURN the same modulo `turns`.
    """

    host: str
    port: int
    path: str
    body: str
    requests: int
    clients: int
    ca_file: str
    server_name: str
    token: str | None = None
    method: str = "POST"
    content_type: str = "application/json"
    turns: int = 1
    first: int = 0

    @property
    def server(self) -> tuple[object, ...]:
        """Return what its connections depend on."""
        return self.host, self.port, self.clients, self.ca_file, self.server_name


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock seconds of the whole, milliseconds of every request, and what went wrong first, if anything did."""

    seconds: float
    milliseconds: list[float]
    client_cpu_seconds: float
    statuses: dict[int, int]
    complaint: str | None = None


class _Connection:
    def __init__(self, plan: Plan, context: ssl.SSLContext) -> None:
        raw = socket.create_connection((plan.host, plan.port), timeout=PATIENCE)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(raw, server_hostname=plan.server_name)
        self.answer = bytearray()
        self.sent_at = 0.0

    def send(self, request: bytes) -> None:
        self.answer.clear()
        self.sent_at = time.perf_counter()
        self.socket.settimeout(PATIENCE)
        self.socket.sendall(request)
        self.socket.settimeout(0)

    def receive(self) -> bool:
        """Take in what is there; whether the answer is whole."""
        while True:
            try:
                data = self.socket.recv(65536)
            except ssl.SSLWantReadError:
                return self._is_whole()
            if not data:
                raise ConnectionError("the server closed a connection that was to be kept alive")
            self.answer += data

    def _is_whole(self) -> bool:
        head = self.answer.find(b"\r\n\r\n") + 4
        if head < 4:
            return False
        if length := _LENGTH.search(self.answer, 0, head):
            return len(self.answer) >= head + int(length[1])
        if _CHUNKED.search(self.answer, 0, head):
            return self.answer.endswith(_LAST_CHUNK)
        raise ConnectionError(f"an answer without an end: {bytes(self.answer[:head])!r}")

    @property
    def status(self) -> int:
        return int(self.answer[9:12])


def requests_of(plan: Plan) -> deque[bytes]:
    lines = [
        f"Host: {plan.server_name}",
        "User-Agent: kube-apiserver-admission",
        f"Content-Type: {plan.content_type}",
        "Accept: application/json, */*",
        *([f"Authorization: Bearer {plan.token}"] if plan.token else []),
    ]
    made: deque[bytes] = deque()
    for number in range(plan.first, plan.first + plan.requests):
        path, text = (
            each.replace(NUMBER, f"{number:06d}").replace(TURN, f"{number % plan.turns:04d}")
            for each in (plan.path, plan.body)
        )
        body = text.encode()
        head = [f"{plan.method} {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}", "", ""]
        made.append("\r\n".join(head).encode() + body)
    return made


def run(connections: list[_Connection], requests: deque[bytes]) -> Outcome:
    """Send all requests, each connection one at a time; returns when all are answered."""
    milliseconds: list[float] = []
    statuses: dict[int, int] = {}
    complaint = None
    cpu, started = time.process_time(), time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for connection in connections[: len(requests)]:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(requests.popleft())
        while selector.get_map():
            ready = selector.select(PATIENCE)
            if not ready:
                raise TimeoutError(f"no answer for {PATIENCE} s to {len(selector.get_map())} clients")
            for key, _ in ready:
                connection = key.data
                if not connection.receive():
                    continue
                milliseconds.append((time.perf_counter() - connection.sent_at) * 1000)
                statuses[connection.status] = statuses.get(connection.status, 0) + 1
                if connection.status >= 300 and complaint is None:
                    complaint = connection.answer.decode(errors="replace")
                if requests:
                    connection.send(requests.popleft())
                else:
                    selector.unregister(connection.socket)
    return Outcome(
        seconds=time.perf_counter() - started,
        milliseconds=milliseconds,
        client_cpu_seconds=time.process_time() - cpu,
        statuses=statuses,
        complaint=complaint,
    )


def main() -> None:
    connections: list[_Connection] = []
    server: tuple[object, ...] = ()
    while line := sys.stdin.readline():
        plan = msgspec.json.decode(line, type=Plan)
        requests = requests_of(plan)
        if plan.server != server:
            context = ssl.create_default_context(cafile=plan.ca_file)
            connections = [_Connection(plan, context) for _ in range(plan.clients)]
            server = plan.server
        _tell("ready")
        if not sys.stdin.readline():  # the process that started this has ended
            return
        _tell(msgspec.json.encode(run(connections, requests)).decode())


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
