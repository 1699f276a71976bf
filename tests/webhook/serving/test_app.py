"""The HTTP face: every way a request can be wrong has its own answer, and none of them is a traceback."""

import base64
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.builders import JSON, gpu_container, pod, uid
from tests.cases import cases
from tests.webhook.app_client import AppClient
from tests.webhook.serving.served import review
from webhook.configuration.loader import load_directory
from webhook.serving.admission import Admission
from webhook.serving.audit import Recorder
from webhook.serving.endpoints import create_app
from webhook.serving.engine import Engine
from webhook.serving.metrics import Metrics
from webhook.serving.review import AdmissionResponse

UID = uid("review")


def respond(client: AppClient, endpoint: str, document: JSON) -> JSON:
    """Post a review and return the response in the answer."""
    answer = client.post(endpoint, json=document)
    assert answer.status_code == 200
    response: JSON = msgspec.json.decode(answer.data)["response"]
    return response


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture
def client(metrics: Metrics) -> AppClient:
    engine = Engine(load_directory(None))
    return AppClient(create_app(Admission(lambda: engine, Recorder(metrics)), metrics, lambda: (True, {})))


@cases(
    ("path", "code"),
    {
        "words-for-people-behind-the-endpoint": ("/mutate/try-again-in-a-minute", 200),
        "no-words": ("/mutate/", 200),
        "another-word": ("/mutated", 404),
        "not-in-front": ("/healthz/mutate", 404),
    },
)
def test_the_first_step_of_the_path_is_the_endpoint(client: AppClient, path: str, code: int) -> None:
    assert client.post(path, json=review(pod(gpu_container()))).status_code == code


@cases(
    ("body", "content_type", "code", "reported"),
    {
        "broken-json": (b"{", "application/json", 400, "the body is not JSON"),
        "not-utf-8": (b"\xff\xfe", "application/json", 400, "the body is not JSON"),
        "a-list": (b"[]", "application/json", 400, "not an AdmissionReview: Expected `object`"),
        "empty": (b"{}", "application/json", 400, "this webhook answers admission.k8s.io/v1"),
        "an-old-version": (
            b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}',
            "application/json",
            400,
            "the body is admission.k8s.io/v1beta1 AdmissionReview",
        ),
        "no-request": (
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
            "application/json",
            400,
            "no request.uid",
        ),
        "uid-is-a-number": (
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":7}}',
            "application/json",
            400,
            "at `$.request.uid`",
        ),
        "not-json": (b"{}", "text/plain", 415, "must be application/json, not 'text/plain'"),
        "nested-without-end": (b'{"a":' * 100_000, "application/json", 400, "not JSON"),
    },
)
def test_a_bad_request_is_told_why(
    client: AppClient, body: bytes, content_type: str, code: int, reported: str
) -> None:
    for endpoint in ("/mutate", "/validate"):
        answer = client.post(endpoint, data=body, content_type=content_type)
        assert (answer.status_code, answer.mimetype) == (code, "text/plain"), endpoint
        assert reported in answer.text, endpoint


@cases(
    ("tweaks", "want"),
    {
        "a-uid-with-a-space": ({"uid": "x y"}, "request.uid must be a UUID (RFC 4122)"),
        "a-uid-with-a-line": ({"uid": f"{UID}\n{UID}"}, "request.uid must be a UUID (RFC 4122)"),
        "a-uid-with-more": ({"uid": UID + "x"}, "request.uid must be a UUID (RFC 4122)"),
        "a-namespace-that-is-a-path": ({"namespace": "../../x"}, "request.namespace must be a DNS label"),
        "dots": ({"namespace": ".."}, "request.namespace must be a DNS label"),
        "a-long-namespace": ({"namespace": "a" * 64}, "request.namespace must be a DNS label"),
        "a-namespace-with-a-line": ({"namespace": "ml\n"}, "request.namespace must be a DNS label"),
        "lower": ({"operation": "create"}, "request.operation must be one of CREATE, UPDATE, DELETE, CONNECT"),
        "no-kind": ({"kind": {"group": "", "kind": "Pod\n"}}, "request.kind.kind must be the name of a kind"),
        "no-group": ({"kind": {"group": "a b", "kind": "Pod"}}, "request.kind.group must be an API group"),
    },
)  # fmt: skip
def test_what_no_api_server_sends_is_refused(client: AppClient, tweaks: JSON, want: str) -> None:
    for endpoint in ("/mutate", "/validate"):
        answer = client.post(endpoint, json=review(pod(gpu_container()), **tweaks))
        assert (answer.status_code, answer.mimetype) == (400, "text/plain"), endpoint
        assert answer.text == f"{want}; no API server sends anything else\n"


@cases(
    ("head", "code", "want"),
    {
        "without-a-length": ("POST /mutate", 411, "the request needs a Content-Length header\n"),
        "another-method": ("GET /validate?timeout=5s", 405, "this endpoint takes POST\n"),
    },
)
def test_a_head_that_no_review_has_is_refused(client: AppClient, head: str, code: int, want: str) -> None:
    answer = client.ask(f"{head} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n")

    assert (answer.status_code, answer.text) == (code, want)


def test_a_gpu_pod_gets_a_patch_that_adds_a_toleration(client: AppClient) -> None:
    response = respond(client, "/mutate", review(pod(gpu_container())))

    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    operations = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in operations[0]["value"]


def test_a_cpu_pod_gets_no_patch(client: AppClient) -> None:
    response = respond(client, "/mutate", review(pod()))

    assert response["allowed"] is True
    assert "patch" not in response


def test_the_validating_endpoint_never_patches(client: AppClient) -> None:
    response = respond(client, "/validate", review(pod(gpu_container())))

    assert "patch" not in response
    assert "patchType" not in response


def test_an_object_of_the_wrong_shape_is_refused_with_its_path(client: AppClient) -> None:
    response = respond(client, "/mutate", review({"spec": {"containers": {"name": "x"}}}))

    assert (response["allowed"], response["status"]["code"]) == (False, 400)
    assert "`$.spec.containers`" in response["status"]["message"]


def broken_client(metrics: Metrics) -> AppClient:
    class Broken(Admission):
        def mutate(self, *_: Any, **__: Any) -> AdmissionResponse:
            raise KeyError("secret-of-the-pod")

    engine = Engine(load_directory(None))
    broken = Broken(lambda: engine, Recorder(metrics))
    return AppClient(create_app(broken, metrics, lambda: (True, {})))


def test_a_defect_of_ours_still_answers_and_quotes_nothing(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    answer = broken_client(metrics).post("/mutate", json=review(pod(gpu_container())))

    response = msgspec.json.decode(answer.data)["response"]
    assert answer.status_code == 200
    assert (response["uid"], response["allowed"]) == (UID, False)
    assert response["status"]["code"] == 500
    assert "secret-of-the-pod" not in answer.text + caplog.text
    assert "KeyError at test_app.py" in caplog.text
    assert metrics.registry.get_sample_value("gpu_admission_internal_errors_total") == 1


def test_a_defect_of_ours_refuses_no_update(metrics: Metrics) -> None:
    """A failed call is what the registration's failurePolicy Ignore lets pass; an answer would have to be a denial."""
    answer = broken_client(metrics).post("/mutate", json=review(pod(gpu_container()), operation="UPDATE"))

    assert (answer.status_code, answer.text) == (500, "internal error of gpu-admission\n")
    assert metrics.registry.get_sample_value("gpu_admission_internal_errors_total") == 1


def test_readiness_is_the_status_and_the_details_are_json(metrics: Metrics) -> None:
    engine = Engine(load_directory(None))
    admission = Admission(lambda: engine, Recorder(metrics))
    detail: dict[str, object] = {"draining": True}
    client = AppClient(create_app(admission, metrics, lambda: (False, detail)))

    answer = client.get("/readyz")

    assert (answer.status_code, answer.json) == (503, {"ready": False, "draining": True})
    assert client.get("/healthz").text == "ok\n"


def test_requests_are_counted_by_phase_verdict_and_whether_they_are_dry_runs(
    client: AppClient, metrics: Metrics
) -> None:
    client.post("/mutate", json=review(pod(gpu_container())))
    client.post("/mutate", json=review(pod(gpu_container()), dryRun=True))
    client.post("/mutate", data=b"{", content_type="application/json")

    sample = metrics.registry.get_sample_value
    for dry_run in ("false", "true"):
        of = {"dry_run": dry_run}
        assert sample("gpu_admission_requests_total", {"phase": "mutate", "verdict": "patched", **of}) == 1
        assert sample("gpu_admission_injections_total", {"rule": "gpu-toleration", **of}) == 1
    assert sample("gpu_admission_bad_requests_total", {"code": "400"}) == 1
