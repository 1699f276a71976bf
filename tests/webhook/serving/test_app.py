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
from webhook.serving.deadline import DEFAULT_SECONDS, deadline_of, parse_duration, seconds_of
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
NOBODY_SENDS = "no API server sends anything else"


def sent(**tweaks: Any) -> bytes:
    return msgspec.json.encode(review(pod(gpu_container()), **tweaks))


@cases(
    ("body", "want"),
    broken_json=(b"{", "the body is not JSON: Input data was truncated"),
    not_utf_8=(b"\xff\xfe",
        "the body is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    a_list=(b"[]", "the body is not an AdmissionReview: Expected `object`, got `array`"),
    empty=(b"{}", "the body is (none) (none); this webhook answers admission.k8s.io/v1 AdmissionReview"),
    an_old_version=(OLD,
        "the body is admission.k8s.io/v1beta1 AdmissionReview; "
        "this webhook answers admission.k8s.io/v1 AdmissionReview"),
    no_request=(NO_REQUEST, "the AdmissionReview has no request.uid, so no answer could be matched to it"),
    uid_is_a_number=(NUMBER,
        "the body is not an AdmissionReview: Expected `str`, got `int` - at `$.request.uid`"),
    a_uid_with_a_space=(sent(uid="x y"), f"request.uid must be a UUID (RFC 4122); {NOBODY_SENDS}"),
    a_namespace_that_is_a_path=(sent(namespace="../../x"), f"request.namespace must be a DNS label; {NOBODY_SENDS}"),
    an_operation_in_small_letters=(sent(operation="create"),
        f"request.operation must be one of CREATE, UPDATE, DELETE, CONNECT; {NOBODY_SENDS}"),
    no_kind=(sent(kind={"group": "", "kind": "Pod\n"}), f"request.kind.kind must be the name of a kind; {NOBODY_SENDS}"),
    no_group=(sent(kind={"group": "a b", "kind": "Pod"}), f"request.kind.group must be an API group; {NOBODY_SENDS}"),
)  # fmt: skip
def test_a_body_that_is_no_review_is_refused_with_the_reason(
    client: AppClient, body: bytes, want: str
) -> None:
    for endpoint in ("/mutate", "/validate"):
        answer = client.post(endpoint, data=body)
        assert (answer.status_code, answer.mimetype, answer.text) == (400, "text/plain", f"{want}\n"), (
            endpoint
        )


def test_a_body_nested_without_end_is_refused(client: AppClient) -> None:
    answer = client.post("/mutate", data=b'{"a":' * 100_000)

    assert answer.status_code == 400
    assert "the body is not JSON: " in answer.text


@cases(
    ("head", "code", "want"),
    without_a_length=("POST /mutate", 411, "the request needs a Content-Length header"),
    another_method=("GET /validate?timeout=5s", 405, "this endpoint takes POST"),
    another_type=(
        "POST /mutate HTTP/1.1\r\nContent-Length: 2\r\nContent-Type: text/plain",
        415,
        "the body must be application/json, not 'text/plain'",
    ),
    no_type=(
        "POST /validate HTTP/1.1\r\nContent-Length: 2",
        415,
        "the body must be application/json, not nothing",
    ),
)
def test_a_head_that_no_review_has_is_refused(client: AppClient, head: str, code: int, want: str) -> None:
    version = "" if "HTTP" in head else " HTTP/1.1\r\nContent-Type: application/json"
    answer = client.ask(f"{head}{version}\r\n\r\n", b"{}")

    assert (answer.status_code, answer.mimetype, answer.text) == (code, "text/plain", f"{want}\n")


def test_an_object_of_the_wrong_shape_is_refused_with_its_path(client: AppClient) -> None:
    response = respond(client, "/mutate", review({"spec": {"containers": {"name": "x"}}}))

    assert response["status"] == {
        "code": 400,
        "reason": "BadRequest",
        "message": "gpu-admission cannot read the object: Expected `array | null`, got `object` - at `$.spec.containers`",
    }


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
    assert response["status"] == {
        "code": 500,
        "reason": "InternalError",
        "message": "internal error of gpu-admission: report it to the platform team; see its log for request uid "
        + UID,
    }
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


NOT_AFTER = datetime(2027, 1, 1, tzinfo=UTC)


def test_each_metric_says_what_it_counts(metrics: Metrics) -> None:
    authorities: Any = SimpleNamespace(state=SimpleNamespace(not_after=NOT_AFTER, last_error=None))
    metrics.watch_client_ca(authorities)

    assert {family.name: family.documentation for family in metrics.registry.collect()} == {
        "gpu_admission_requests": "Admission requests answered.",
        "gpu_admission_findings": "Findings, by rule, reason, and what became of them.",
        "gpu_admission_injections": "Pods that a rule changed.",
        "gpu_admission_request_duration_seconds": "Time from the whole body to the answer.",
        "gpu_admission_bad_requests": "HTTP requests that were no admission review.",
        "gpu_admission_internal_errors": "Requests that failed through a defect of ours.",
        "gpu_admission_audit_lines_lost": "Audit lines that could not be written.",
        "gpu_admission_events_lost": "Events of denials that could not be written.",
        "gpu_admission_certificate_not_after_timestamp_seconds": (
            "Expiry of the leaf that is served, of the CA that issued it, and of those of callers; 0: there is none."
        ),
        "gpu_admission_certificate_valid": (
            "1 if the newest certificate is served, 0 if it could not be used and an older one is, or none."
        ),
        "gpu_admission_client_ca_valid": (
            "1 if the newest --client-ca is in use, 0 if it could not be used and an older one is; absent without one."
        ),
    }


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


def test_a_duration_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError) as error:
        parse_duration("5s; rm")

    assert str(error.value) == '"5s; rm" is not a valid duration: write 30m or 1h30m'


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
