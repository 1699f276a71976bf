"""A webhook that answers as a test says: HTTPS at a clusterIP of the plane, registered by whoever needs it."""

import contextlib
import json
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from tests.controlplane.client import accepted
from tests.controlplane.pki import Authority
from tests.controlplane.plane import ControlPlane

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
SERVICES = "/api/v1/namespaces/default/services"


class Reply(NamedTuple):
    """`response` goes back beside the uid of the request, and allows it unless it says otherwise."""

    response: Mapping[str, Any] = {}
    status: int = 200
    headers: Mapping[str, str] = {}


class Call(NamedTuple):
    """`path` with its query, the `request` of the review, the `body` that held it as it came, and the Host that it named."""

    path: str
    request: Any
    body: str
    host: str


Answer = Callable[[Call], Reply | None]
"""None closes the connection without a word."""


class FakeWebhook:
    """Serves the Service `name` of namespace default, at port 443, for the length of a `with` block."""

    def __init__(self, plane: ControlPlane, name: str, answer: Answer, *, host: int) -> None:
        self._client = plane.client()
        self.name = name
        self._answer = answer
        self.address = plane.service_address(host)
        authority = Authority(name)
        self._bundle = b64encode(authority.certificate).decode()
        self._certificate = plane.processes.folder / f"{name}-webhook.pem"
        self._certificate.write_bytes(authority.issue(names=[f"{name}.default.svc"]))
        self.registration = contextlib.ExitStack()
        """What `registered` entered here ends with the webhook."""

    def __enter__(self) -> Self:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate)
        self._server = _Server((self.address, 443), _handler(self._answer))
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        service = {
            "metadata": {"name": self.name},
            "spec": {"clusterIP": self.address, "ports": [{"port": 443}]},
        }
        accepted(self._client.post(SERVICES, service))
        return self

    def __exit__(self, *_: object) -> None:
        self.registration.close()
        self._client.delete(f"{SERVICES}/{self.name}")
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.cut()

    @contextlib.contextmanager
    def registered(self, kind: str, name: str, *webhooks: Mapping[str, Any]) -> Iterator[None]:
        """Have the `validating` or `mutating` webhooks, each made by `entry`, called until the end of the block."""
        path = CONFIGURATIONS.format(kind)
        accepted(self._client.post(path, {"metadata": {"name": name}, "webhooks": webhooks}))
        try:
            yield
        finally:
            self._client.delete(f"{path}/{name}")

    def entry(
        self, name: str, resource: str, *, path: str = "/", operation: str = "CREATE", **more: Any
    ) -> dict[str, Any]:
        """Return a webhook of a configuration, called for a resource of the core group."""
        return {
            "name": name,
            "clientConfig": {
                "service": {"namespace": "default", "name": self.name, "path": path, "port": 443},
                "caBundle": self._bundle,
            },
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": [operation]}
            ],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            **more,
        }


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[Any] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = (
            True  # else the body waits 40 ms until the API server has acknowledged the head
        )

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            review = json.loads(body)
            reply = answer(Call(self.path, review["request"], body, self.headers["Host"]))
            if reply is None:
                self.close_connection = True
                return
            response = {"uid": review["request"]["uid"], "allowed": True, **reply.response}
            kind = {key: review[key] for key in ("apiVersion", "kind")}
            said = json.dumps({**kind, "response": response}).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it
            pass

    return Handler
