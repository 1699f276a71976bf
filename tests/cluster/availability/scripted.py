"""A webhook that answers as a table says, to learn from a real API server what it makes of it."""

import json
import ssl
import threading
import time
from base64 import b64encode
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.controlplane import ControlPlane
from tests.controlplane.pki import Authority

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SERVICES = "/api/v1/namespaces/default/services"
NAME = "scripted"


class Say(NamedTuple):
    """One answer: an HTTP status and the value of Retry-After, if any. Status 0 closes the connection instead."""

    status: int
    retry_after: str | None = None


ALLOW = Say(200)


class Script(NamedTuple):
    """What is said to the first calls, one after another; `last` to all others."""

    first: tuple[Say, ...]
    last: Say = ALLOW
    timeout_seconds: int = 5


class Call(NamedTuple):
    at: float
    query: str


class ScriptedWebhook:
    """Registered for ConfigMaps that carry the label `script`, with the name of the script, for a `with` block."""

    def __init__(self, plane: ControlPlane, scripts: dict[str, Script], *, host: int = 31) -> None:
        self._client = plane.client()
        self._scripts = scripts
        self._address = plane.service_address(host)
        self._authority = Authority("scripted webhook")
        self._certificate = plane.processes.folder / "scripted-webhook.pem"
        self._certificate.write_bytes(self._authority.issue(names=[f"{NAME}.default.svc"]))
        self._lock = threading.Lock()
        self.calls: dict[str, list[Call]] = defaultdict(list)

    def __enter__(self) -> Self:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate)
        self._server = _Server((self._address, 443), _handler(self))
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self._register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.delete(f"{CONFIGURATIONS}/{NAME}")
        self._client.delete(f"{SERVICES}/{NAME}")
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next(self, path: str) -> Say:
        name, _, query = path.strip("/").partition("?")
        with self._lock:
            number = len(self.calls[name])
            self.calls[name].append(Call(time.monotonic(), query))
        script = self._scripts[name]
        return script.first[number] if number < len(script.first) else script.last

    def _register(self) -> None:
        service = {
            "metadata": {"name": NAME},
            "spec": {"clusterIP": self._address, "ports": [{"port": 443}]},
        }
        webhooks = [self._webhook(name, script) for name, script in self._scripts.items()]
        for path, body in (
            (SERVICES, service),
            (CONFIGURATIONS, {"metadata": {"name": NAME}, "webhooks": webhooks}),
        ):
            status, answer = self._client.post(path, body)
            assert status == 201, answer

    def _webhook(self, name: str, script: Script) -> dict[str, Any]:
        return {
            "name": f"{name}.{NAME}.example.com",
            "clientConfig": {
                "service": {"namespace": "default", "name": NAME, "path": f"/{name}", "port": 443},
                "caBundle": b64encode(self._authority.certificate).decode(),
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["configmaps"],
                    "operations": ["CREATE"],
                }
            ],
            "objectSelector": {"matchLabels": {"script": name}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": script.timeout_seconds,
        }


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def _handler(webhook: ScriptedWebhook) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            say = webhook.next(self.path)
            if not say.status:
                self.close_connection = True
                return
            response = {"uid": review["request"]["uid"], "allowed": True}
            kind = {key: review[key] for key in ("apiVersion", "kind")}
            body = json.dumps({**kind, "response": response}).encode()
            self.send_response(say.status)
            if say.retry_after is not None:
                self.send_header("Retry-After", say.retry_after)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it
            pass

    return Handler
