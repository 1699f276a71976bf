"""The one fake API server: a TLS server that answers as a test says.

Use it for what a real one does too rarely (failures, slow and malformed answers, kinds that are not installed), and where a table
has more rows than a real one could be started for. All else is tested in `tests/cluster/`, on a real API server.
"""

import json
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tests.controlplane.pki import Authority
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient


class Request(msgspec.Struct):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Answer(msgspec.Struct):
    """With `stream`, every piece is sent as a chunk; `wait` keeps the connection open and silent at the end.

    `cut` closes the connection instead of answering.
    """

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = {}
    stream: list[bytes] | None = None
    wait: threading.Event | None = None
    cut: bool = False


def status(code: int, message: str, reason: str = "") -> Answer:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}
    return Answer(json.dumps(body).encode(), code)


def answering(objects: Mapping[str, Any]) -> Callable[[Request], Answer]:
    """Answer with the objects by their path: a list is a collection, and what is not there does not exist."""

    def answer(request: Request) -> Answer:
        found = objects.get(request.path)
        if found is None and request.path.endswith("/limitranges"):
            return collection(())  # every API server serves them
        if found is None:
            return status(404, f"no {request.path}", "NotFound")
        if isinstance(found, list):
            return collection(found)
        return found if isinstance(found, Answer) else Answer(json.dumps(found).encode())

    return answer


def collection(items: Sequence[Any]) -> Answer:
    return Answer(json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode())


def group(*versions: str) -> Answer:
    """Return what the API server says of an API group with these versions."""
    return Answer(json.dumps({"versions": [{"version": version} for version in versions]}).encode())


class Collections:
    """Answers lists and watches of these objects, by plural, or with the `Answer` of a plural. Other kinds are not installed.

    `events` are what the watch of a plural reports before it falls silent, until `ended`. `answers` are by path. `read` answers
    everything else, whose paths are in `reads`.
    """

    def __init__(self, **objects: Sequence[Any] | Answer) -> None:
        self.objects = objects
        self.answers: dict[str, Answer] = {}
        self.events: defaultdict[str, list[bytes]] = defaultdict(list)
        self.ended = threading.Event()
        self.read = answering({})
        self.reads: list[str] = []

    def __call__(self, request: Request) -> Answer:
        if request.path in self.answers:
            return self.answers[request.path]
        plural = request.path.rpartition("/")[2]
        if plural not in self.objects:
            self.reads.append(request.path)
            return self.read(request)
        found = self.objects[plural]
        if isinstance(found, Answer):
            return found
        return (
            Answer(stream=self.events[plural], wait=self.ended)
            if "watch" in request.query
            else collection(found)
        )


def page(names: list[str], revision: str, more: str = "") -> Answer:
    metadata = {"resourceVersion": revision, "continue": more}
    items = [
        {"metadata": {"name": name, "uid": name, "namespace": "team", "resourceVersion": revision}}
        for name in names
    ]
    return Answer(json.dumps({"metadata": metadata, "items": items}).encode())


def event(kind: str, name: str, revision: str, **fields: Any) -> bytes:
    metadata = {"name": name, "uid": name, "namespace": "team", "resourceVersion": revision, **fields}
    return json.dumps({"type": kind, "object": {"metadata": metadata}}).encode() + b"\n"


class ApiServer:
    """Calls `answer` with every request, for the length of a `with` block. `requests` are all so far."""

    def __init__(self, folder: Path, answer: Callable[[Request], Answer]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.folder = folder
        authority = Authority("scripted API server")
        (folder / "ca.pem").write_bytes(authority.certificate)
        (folder / "server.pem").write_bytes(authority.issue(names=["localhost"], addresses=["127.0.0.1"]))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        outer = self

        class Handler(_Handler):
            server_of = outer

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that go away are what is being tested."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, **user: str) -> Path:
        cluster = {
            "server": self.url,
            "certificate-authority": str(self.folder / "ca.pem"),
        }
        path = self.folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "me", "user": user or {"token": "secret"}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
                    "current-context": "test",
                }
            )
        )
        return path

    def client(self, read_seconds: float = 5.0) -> ApiClient:
        return ApiClient(load_access(str(self.kubeconfig())), read_seconds=read_seconds)


class Script:
    """Answers with these lists and watches in turn. After these, the last list is repeated and watches stay silent.

    Watches show nothing before `begun`, when the informer has the first list. A request for the revision gets that of the next
    list. A request for one object gets it from the last list.
    """

    def __init__(self, lists: list[Answer], watches: list[Answer]) -> None:
        self.lists = lists
        self.watches = watches
        self.listed: list[Answer] = []
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer:
        if is_list(request):
            self.listed.append(self.lists.pop(0) if len(self.lists) > 1 else self.lists[0])
            return self.listed[-1]
        if request.query.get("limit") == "1":
            failed = self.lists[0].status != 200 and len(self.lists) > 1
            return self.lists.pop(0) if failed else self.lists[0]
        if "fieldSelector" in request.query:
            found = json.loads(self.listed[-1].body)
            name = request.query["fieldSelector"].removeprefix("metadata.name=")
            found["items"] = [each for each in found["items"] if each["metadata"]["name"] == name]
            return Answer(json.dumps(found).encode())
        if self.watches:
            self.begun.wait(60)
            return self.watches.pop(0)
        return Answer(stream=[], wait=self.ended)


class Slow(Script):
    """Holds back each list after the first one."""

    def __init__(self, lists: list[Answer], watches: list[Answer], path: str = "/api/v1/pods") -> None:
        super().__init__(lists, watches)
        self.path, self.requested, self.held_back = path, threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer:
        answer = super().__call__(request)
        if is_list(request) and len(self.listed) > 1 and request.path == self.path:
            self.requested.set()
            self.held_back.wait(60)
        return answer


def is_list(request: Request) -> bool:
    """Whether the request is for more than one object."""
    return not {"watch", "fieldSelector"} & request.query.keys() and request.query["limit"] != "1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms until the client has acknowledged the head
    server_of: ApiServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), dict(self.headers), body)
        self.server_of.requests.append(request)
        answer = self.server_of.answer(request)
        if answer.cut:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.stream is None:
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer.stream:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if answer.wait is not None:
            answer.wait.wait(20)
        self.wfile.write(b"0\r\n\r\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""
