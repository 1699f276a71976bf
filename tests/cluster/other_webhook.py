"""A webhook of somebody else: another TLS server, registered under a name that decides when it is called."""

import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from tests.builders import JSON, pod
from tests.controlplane import Authority, ControlPlane

Change = Callable[[JSON], None]


class OtherWebhook:
    """A mutating webhook: changes each new pod of the namespace by `change`, and counts how often it is called."""

    def __init__(self, plane: ControlPlane, folder: Path, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace
        self.change: Change
        self.calls = 0
        authority = Authority("another webhook")
        self._authority = authority.certificate
        (folder / "tls.pem").write_bytes(authority.issue(names=["localhost"], addresses=["127.0.0.1"]))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.pem")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextmanager
    def registered(
        self,
        change: Change,
        *,
        name: str = "zzz-another",
        reinvocation: str = "Never",
        failure_policy: str = "Fail",
    ) -> Iterator[None]:
        """Register it; configurations are called in the order of their names, and ours is zz-gpu-admission."""
        self.change, self.calls = change, 0
        url = f"https://127.0.0.1:{self._server.server_address[1]}/mutate"
        webhook = {
            "name": "pods.another.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "reinvocationPolicy": reinvocation,
            "failurePolicy": failure_policy,
            "clientConfig": {"url": url, "caBundle": b64encode(self._authority).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
            ],
        }
        document = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
        self._plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
        try:
            self._wait_until_called()
            yield
        finally:
            self._plane.kubectl("delete", "mutatingwebhookconfiguration", name)

    def _wait_until_called(self) -> None:
        """Return once the API server has taken the configuration over, which it does a moment after storing it."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        deadline = time.monotonic() + 20
        while not self.calls:
            assert time.monotonic() < deadline, "the API server does not call it"
            self._plane.client().post(path, {**pod(), "metadata": {"name": "probe"}}, {"dryRun": "All"})
        self.calls = 0

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        other = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                changed = json.loads(json.dumps(request["object"]))
                other.calls += 1
                other.change(changed)
                patch = jsonpatch.make_patch(request["object"], changed).to_string().encode()
                response = {
                    "uid": request["uid"],
                    "allowed": True,
                    "patchType": "JSONPatch",
                    "patch": b64encode(patch).decode(),
                }
                body = json.dumps(
                    {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
