"""The HTTP face: every way a request can be wrong has its own answer, and none of them is a traceback."""

from datetime import UTC, datetime
from time import monotonic
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.builders import JSON, gpu_container, pod, uid
from tests.cases import cases
from tests.webhook.app_client import AppClient
from tests.webhook.serving.clients import client_of
from tests.webhook.serving.served import review
from webhook.serving.admission_review import AdmissionResponse
from webhook.serving.deadline import DEFAULT_SECONDS, deadline_of, seconds_of
from webhook.serving.dispatch import Admission
from webhook.serving.metrics import Metrics

UID = uid("review")


def respond(client: AppClient, endpoint: str, document: JSON) -> JSON:
    answer = client.post(endpoint, json=document)
    assert answer.status_code == 200
    response: JSON = msgspec.json.decode(answer.data)["response"]
    return response


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture
def client(metrics: Metrics) -> AppClient:
    return client_of(metrics)


@cases(
    ("path", "code"),
    words_for_people_behind_the_endpoint=("/mutate/try-again-in-a-minute", 200),
    no_words=("/mutate/", 200),
    another_word=("/mutated", 404),
    not_in_front=("/healthz/mutate", 404),
)
def test_the_first_step_of_the_path_is_the_endpoint(client: AppClient, path: str, code: int) -> None:
    assert client.post(path, json=review(pod(gpu_container()))).status_code == code


OLD = b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}'
NUMBER = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":7}}'
NO_REQUEST = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}'


@cases(
    ("body", "reported"),
    broken_json=(b"{", "the body is not JSON"),
    not_utf_8=(b"\xff\xfe", "the body is not JSON"),
    a_list=(b"[]", "not an AdmissionReview: Expected `object`"),
    empty=(b"{}", "this webhook answers admission.k8s.io/v1"),
    an_old_version=(OLD, "the body is admission.k8s.io/v1beta1 AdmissionReview"),
    no_request=(NO_REQUEST, "no request.uid"),
    uid_is_a_number=(NUMBER, "at `$.request.uid`"),
    nested_without_end=(b'{"a":' * 100_000, "not JSON"),
)
def test_a_bad_request_is_told_why(client: AppClient, body: bytes, reported: str) -> None:
    for endpoint in ("/mutate", "/validate"):
        answer = client.post(endpoint, data=body)
        assert (answer.status_code, answer.mimetype) == (400, "text/plain"), endpoint
        assert reported in answer.text, endpoint


@cases(
    ("tweaks", "want"),
    a_uid_with_a_space=({"uid": "x y"}, "request.uid must be a UUID (RFC 4122)"),
    a_namespace_that_is_a_path=({"namespace": "../../x"}, "request.namespace must be a DNS label"),
    lower=({"operation": "create"}, "request.operation must be one of CREATE, UPDATE, DELETE, CONNECT"),
    no_kind=({"kind": {"group": "", "kind": "Pod\n"}}, "request.kind.kind must be the name of a kind"),
    no_group=({"kind": {"group": "a b", "kind": "Pod"}}, "request.kind.group must be an API group"),
)  # fmt: skip
def test_what_no_api_server_sends_is_refused(client: AppClient, tweaks: JSON, want: str) -> None:
    for endpoint in ("/mutate", "/validate"):
        answer = client.post(endpoint, json=review(pod(gpu_container()), **tweaks))
        assert (answer.status_code, answer.mimetype) == (400, "text/plain"), endpoint
        assert answer.text == f"{want}; no API server sends anything else\n"


@cases(
    ("head", "code", "want"),
    without_a_length=("POST /mutate", 411, "the request needs a Content-Length header\n"),
    another_method=("GET /validate?timeout=5s", 405, "this endpoint takes POST\n"),
)
def test_a_head_that_no_review_has_is_refused(client: AppClient, head: str, code: int, want: str) -> None:
    answer = client.ask(f"{head} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n")

    assert (answer.status_code, answer.text) == (code, want)


@pytest.mark.parametrize("endpoint", ["/mutate", "/validate"])
def test_a_body_of_another_type_is_refused(client: AppClient, endpoint: str) -> None:
    answer = client.post(endpoint, data=b"{}", content_type="text/plain")

    assert (answer.status_code, answer.mimetype) == (415, "text/plain")
    assert "must be application/json, not 'text/plain'" in answer.text


def test_an_object_of_the_wrong_shape_is_refused_with_its_path(client: AppClient) -> None:
    response = respond(client, "/mutate", review({"spec": {"containers": {"name": "x"}}}))

    assert (response["allowed"], response["status"]["code"]) == (False, 400)
    assert "`$.spec.containers`" in response["status"]["message"]


def broken_client(metrics: Metrics) -> AppClient:
    class Broken(Admission, frozen=True):
        def mutate(self, *_: Any, **__: Any) -> AdmissionResponse:
            raise KeyError("secret-of-the-pod")

    return client_of(metrics, Broken)


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
    client = client_of(metrics, readiness=lambda: (False, {"draining": True}))

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


NOT_AFTER = datetime(2027, 1, 1, tzinfo=UTC)


@cases(
    ("state", "want"),
    the_newest=(SimpleNamespace(not_after=NOT_AFTER, last_error=None), (NOT_AFTER.timestamp(), 1)),
    an_older_one=(SimpleNamespace(not_after=NOT_AFTER, last_error="no PEM"), (NOT_AFTER.timestamp(), 0)),
    none_yet=(None, (0, 0)),
)
def test_the_certificate_that_is_served_is_measured(state: Any, want: tuple[float, float]) -> None:
    registry = CollectorRegistry()
    Metrics(registry).watch_certificate(lambda: state)

    expiry = registry.get_sample_value(
        "gpu_admission_certificate_not_after_timestamp_seconds", {"certificate": "leaf"}
    )
    assert (expiry, registry.get_sample_value("gpu_admission_certificate_valid")) == want


@cases(
    ("text", "want"),
    seconds=("5s", 5.0),
    milliseconds=("300ms", 0.3),
    hours=("1h2m3s", 3723.0),
    microseconds=("250µs", 0.00025),
    missing=(None, DEFAULT_SECONDS),
    empty=("", DEFAULT_SECONDS),
    no_unit=("5", DEFAULT_SECONDS),
    garbage=("5s; rm", DEFAULT_SECONDS),
    zero=("0s", DEFAULT_SECONDS),
)
def test_durations(text: str | None, want: float) -> None:
    assert seconds_of(text) == pytest.approx(want)


@cases(
    ("text", "want"),
    a_tenth_is_left=("5s", 4.5),
    at_least_a_tenth_of_a_second=("500ms", 0.4),
    of_almost_nothing_half=("100ms", 0.05),
    no_webhook_has_more_than_thirty_seconds=("9999h", 27.0),
)
def test_a_deadline_leaves_time_to_answer(text: str, want: float) -> None:
    before = monotonic()
    deadline = deadline_of(text)
    assert before + want <= deadline + 1e-6
    assert deadline <= monotonic() + want + 1e-6
