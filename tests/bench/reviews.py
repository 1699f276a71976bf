"""Reviews to replay: what the API server really sends for the pods of tests.bench.pods, and what it sends of them in the end."""

import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import yaml

from tests.bench.admissions import NAMESPACE, PODS
from tests.bench.pods import JSON, model_server
from tests.controlplane import Authority, ControlPlane

MUTATE, VALIDATE = "/mutate", "/validate"


def capture(plane: ControlPlane) -> dict[str, str]:
    """Create a GPU pod by kubectl and return the review of each phase by its path, as it came over the wire.

    What is registered besides stays in force: the first review is of the pod as it arrives, the second of the final one.
    """
    with _recorder(plane) as (url, bundle, reviews):
        configurations = [_configuration(kind, url, bundle) for kind in ("Mutating", "Validating")]
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(configurations))
        for attempt in range(100):  # until the configurations are in force, some 100 ms
            pod = yaml.safe_dump(model_server(f"captured-{attempt}", gpus=1))
            plane.kubectl("create", "--namespace", NAMESPACE, "-f", "-", stdin=pod)
            if set(reviews) == {MUTATE, VALIDATE}:
                break
        for configuration in configurations:
            plane.kubectl("delete", configuration["kind"], configuration["metadata"]["name"])
    plane.client().delete(PODS, {"gracePeriodSeconds": 0})
    return {path: reviews[path] for path in (MUTATE, VALIDATE)}


def _configuration(kind: str, url: str, bundle: str) -> JSON:
    path = {"Mutating": MUTATE, "Validating": VALIDATE}[kind]
    webhook = {
        "name": "capture.example.com",
        "clientConfig": {"url": f"{url}{path}", "caBundle": bundle},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        ],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "aa-bench-capture"},  # called before any other
        "webhooks": [webhook],
    }


@contextmanager
def _recorder(plane: ControlPlane) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Serve a webhook that lets everything in; yields its URL, its CA bundle, and the last body of each path."""
    bodies: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            bodies[self.path.partition("?")[0]] = body
            review: dict[str, Any] = msgspec.json.decode(body)
            review["response"] = {"uid": review.pop("request")["uid"], "allowed": True}
            answer = msgspec.json.encode(review)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it
            pass

    authority, address = Authority("capture"), plane.service_address(40)
    pem = plane.processes.folder / "capture.pem"
    pem.write_bytes(authority.issue(names=["capture.example.com"], addresses=[address]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    with ThreadingHTTPServer((address, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"https://{address}:{server.server_port}", b64encode(authority.certificate).decode(), bodies
        finally:
            server.shutdown()
            thread.join()
