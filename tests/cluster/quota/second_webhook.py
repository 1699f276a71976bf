"""Another team's validating webhook, called beside ours: it denies some pods, and takes the names of others.

The API server asks validating webhooks at once, so what this one does comes when ours may have let the pod in already.
"""

import json
import ssl
import threading
from base64 import b64encode
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.controlplane import ControlPlane
from tests.controlplane.pki import Authority

NAME = "second.example.com"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
SERVICES = "/api/v1/namespaces/default/services"
COLLIDES = "collides-"
"""Prefix of the names that are taken by a pod without GPU in the moment in which the API server has chosen them."""


class SecondWebhook:
    """Served and registered for the pods of `namespace`, for the length of a `with` block. Of two pods it denies one."""

    def __init__(
        self, plane: ControlPlane, namespace: str, *, host: int = 30, operation: str = "CREATE"
    ) -> None:
        self._client = plane.client()
        self._namespace = namespace
        self._operation = operation
        self._address = plane.service_address(host)
        self._authority = Authority("second webhook")
        self._certificate = plane.processes.folder / "second-webhook.pem"
        self._certificate.write_bytes(self._authority.issue(names=["second.default.svc"]))
        self._lock = threading.Lock()
        self.told: Counter[str] = Counter()

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
        self._client.delete(f"{SERVICES}/second")
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def decide(self, request: Any) -> bool:
        """Return whether the pod may come in."""
        name: str = request["name"]
        with self._lock:
            self.told["asked"] += 1
            refusal = "taken" if name.startswith(COLLIDES) else "denied"
            what = "allowed" if self.told["asked"] % 2 else refusal
            self.told[what] += 1
        if what == "taken":
            thief = {"metadata": {"name": name}, "spec": {"containers": [{"name": "any", "image": "any"}]}}
            status, answer = self._client.post(f"/api/v1/namespaces/{self._namespace}/pods", thief)
            assert status == 201, answer
        return what != "denied"

    def _register(self) -> None:
        service = {
            "metadata": {"name": "second"},
            "spec": {"clusterIP": self._address, "ports": [{"port": 443}]},
        }
        webhook = {
            "name": NAME,
            "clientConfig": {
                "service": {"namespace": "default", "name": "second", "path": "/", "port": 443},
                "caBundle": b64encode(self._authority.certificate).decode(),
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "operations": [self._operation],
                }
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "objectSelector": {"matchLabels": {"second": "asks"}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        for path, body in (
            (SERVICES, service),
            (CONFIGURATIONS, {"metadata": {"name": NAME}, "webhooks": [webhook]}),
        ):
            status, answer = self._client.post(path, body)
            assert status == 201, answer


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def _handler(webhook: SecondWebhook) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": review["request"]["uid"], "allowed": webhook.decide(review["request"])}
            kind = {key: review[key] for key in ("apiVersion", "kind")}
            body = json.dumps({**kind, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it
            pass

    return Handler
