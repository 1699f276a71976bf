"""Another mutating webhook, called after ours: what it adds is looked at, what it takes out is noticed, and nothing loops."""

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
import pytest

from tests.builders import JSON, container, gpu_container, pod
from tests.cluster.test_admission import apply, named, stored
from tests.controlplane import Authority, ControlPlane
from tests.controlplane.webhook import Webhook

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-requests: {maxPerContainer: 8}
    gpu-class: {default: nvidia-a100-80gb}
"""
NAMESPACE = "shared"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
Change = Callable[[JSON], None]


class OtherWebhook:
    """A mutating webhook of somebody else: changes each pod by `change`, and counts how often it is called."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
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
    def registered(self, change: Change, *, reinvocation: str = "Never") -> Iterator[None]:
        self.change, self.calls = change, 0
        url = f"https://127.0.0.1:{self._server.server_address[1]}/mutate"
        webhook = {
            "name": "pods.another.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "reinvocationPolicy": reinvocation,
            "clientConfig": {"url": url, "caBundle": b64encode(self._authority).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
            ],
        }
        document = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "zzz-another"},
            "webhooks": [webhook],
        }
        accepted, said = apply(self._plane, document)
        assert accepted, said
        try:
            self._wait_until_called()
            yield
        finally:
            self._plane.kubectl("delete", "mutatingwebhookconfiguration", "zzz-another")

    def _wait_until_called(self) -> None:
        """Return once the API server has taken the configuration over, which it does a moment after storing it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        deadline = time.monotonic() + 20
        while not self.calls:
            assert time.monotonic() < deadline, "the API server does not call it"
            self._plane.client().post(path, named("probe", pod(), NAMESPACE), {"dryRun": "All"})
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


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    config = tmp_path_factory.mktemp("config")
    (config / "policy.yaml").write_text(POLICY)
    plane.kubectl("create", "namespace", NAMESPACE)
    with Webhook(plane, config=config) as running:
        running.register()
        yield running
        running.unregister()
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def other(
    plane: ControlPlane,
    webhook: Webhook,  # noqa: ARG001  it has to be registered first
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OtherWebhook]:
    other = OtherWebhook(plane, tmp_path_factory.mktemp("other"))
    yield other
    other.close()


def adds(added: JSON) -> Change:
    """Return the change of an injector: its container, unless the pod has it."""

    def change(document: JSON) -> None:
        containers = document["spec"]["containers"]
        if not any(present["name"] == added["name"] for present in containers):
            containers.append(added)

    return change


def strips(document: JSON) -> None:
    document["spec"]["tolerations"] = [
        t for t in document["spec"].get("tolerations", []) if t["key"] != TOLERATION["key"]
    ]


def creating(plane: ControlPlane, name: str, *containers: JSON) -> tuple[bool, str]:
    return apply(plane, named(name, pod(*containers), NAMESPACE))


def lines_of(webhook: Webhook, name: str) -> list[tuple[str, str]]:
    return [(line["phase"], line["verdict"]) for line in webhook.audit() if line["name"] == name]


WRONG = [
    pytest.param(gpu_container("9", "helper"), ['(container "helper") = "9"', "at most 8 per container"], id="too-many"),
    pytest.param(gpu_container("1", "helper", "nvidia.com/mig-9g.99gb"), ["9g.99gb", '(container "helper")'], id="unknown-slice"),
]  # fmt: skip


@pytest.mark.parametrize(("added", "told"), WRONG)
def test_a_wrong_container_added_to_a_gpu_pod_is_refused_when_we_are_asked_again(
    plane: ControlPlane, other: OtherWebhook, added: JSON, told: list[str]
) -> None:
    with other.registered(adds(added)):
        accepted, said = creating(plane, "injected", gpu_container())

    assert not accepted
    assert 'admission webhook "pods.mutate.gpu-admission.dev" denied the request' in said
    assert all(words in said for words in told), said


@pytest.mark.parametrize(("added", "told"), WRONG)
def test_a_wrong_container_added_to_a_pod_that_we_never_mutated_is_refused_by_validate(
    plane: ControlPlane, other: OtherWebhook, added: JSON, told: list[str]
) -> None:
    # Without a GPU it did not concern us, so there is no second call to /mutate either.
    with other.registered(adds(added)):
        accepted, said = creating(plane, "injected", container())

    assert not accepted
    assert 'admission webhook "pods.validate.gpu-admission.dev" denied the request' in said
    assert all(words in said for words in told), said


def test_a_sound_container_added_to_a_pod_that_we_never_mutated_is_told_what_it_lacks(
    plane: ControlPlane, other: OtherWebhook
) -> None:
    with other.registered(adds(gpu_container("1", "helper"))):
        accepted, said = creating(plane, "late", container())

    assert accepted, said
    assert "Warning: toleration nvidia.com/gpu:NoSchedule is missing from the final pod" in said
    assert "[gpu-toleration]" in said


def test_both_converge(plane: ControlPlane, webhook: Webhook, other: OtherWebhook) -> None:
    with other.registered(adds(gpu_container("1", "helper")), reinvocation="IfNeeded"):
        accepted, said = creating(plane, "both", gpu_container("1", "train"))

    assert accepted, said
    assert "Warning" not in said
    spec = stored(plane, "both", NAMESPACE)["spec"]
    assert [each["name"] for each in spec["containers"]] == ["train", "helper"]
    assert spec["tolerations"].count(TOLERATION) == 1
    assert lines_of(webhook, "both") == [
        ("mutate", "patched"),
        ("mutate", "allowed"),
        ("validate", "allowed"),
    ]
    assert other.calls == 1


def test_what_is_stripped_once_is_added_again(
    plane: ControlPlane, webhook: Webhook, other: OtherWebhook
) -> None:
    with other.registered(strips):
        accepted, said = creating(plane, "stripped-once", gpu_container())

    assert accepted, said
    assert TOLERATION in stored(plane, "stripped-once", NAMESPACE)["spec"]["tolerations"]
    assert lines_of(webhook, "stripped-once") == [
        ("mutate", "patched"),
        ("mutate", "patched"),
        ("validate", "allowed"),
    ]
    assert other.calls == 1


def test_what_is_stripped_every_time_does_not_loop_and_is_told(
    plane: ControlPlane, webhook: Webhook, other: OtherWebhook
) -> None:
    with other.registered(strips, reinvocation="IfNeeded"):
        accepted, said = creating(plane, "stripped", gpu_container())

    assert accepted, said
    assert TOLERATION not in stored(plane, "stripped", NAMESPACE)["spec"]["tolerations"]
    assert "Warning: toleration nvidia.com/gpu:NoSchedule is missing from the final pod" in said
    assert "a later webhook took it out" in said
    assert other.calls == 2
    lines = [line for line in webhook.audit() if line["name"] == "stripped"]
    assert [(line["phase"], line["verdict"]) for line in lines] == [
        ("mutate", "patched"),
        ("mutate", "patched"),
        ("validate", "warned"),
    ]
    [finding] = lines[-1]["findings"]
    assert (finding["rule"], finding["outcome"]) == ("gpu-toleration", "warned")
