"""What a canary concludes from the answers of the API server."""

from time import time
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from policies.pods.annotations import CANARY, INJECTED
from tests.cases import cases
from webhook.canary.probe import MUTATING, VALIDATING, Canary, CanaryResult, probe, selected_labels
from webhook.canary.traces import MUTATE, VALIDATE, CanaryTrace
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, DryRunResult

DENIED = f'admission webhook "{MUTATING}" denied the request: '
HALF = errors.ApiError(DENIED + "[gpu-requests] must be a whole number")
BOTH = (MUTATE, VALIDATE)


class DryRunApi:
    """An API server that answers the first pod with the error, and traces of these calls; the second pod is rejected."""

    def __init__(
        self, error: errors.ApiError | None, calls: tuple[str, ...], *, patched: bool = True
    ) -> None:
        self.error, self.calls, self.patched = error, calls, patched
        self.injects: tuple[str, ...] = ()
        self.enforces: tuple[str, ...] = ("gpu-requests",)
        self.half: errors.ApiError | None = HALF
        self.webhooks: list[Any] | None = None
        self.labels: list[Any] = []
        self.tolerations: list[dict[str, str]] = []

    def get(self, path: str) -> bytes:
        if self.webhooks is None:
            raise errors.NotFound(path)
        return msgspec.json.encode({"webhooks": self.webhooks})

    def dry_run(self, path: str, body: bytes, *, timeout: float) -> DryRunResult:
        assert (path, timeout) == ("/api/v1/namespaces/team/pods", 20.0)
        document = msgspec.json.decode(body)
        nonce = document["metadata"]["annotations"][CANARY]
        traces = tuple(
            CanaryTrace(
                nonce=nonce,
                phase=call,
                patched=patched,
                enforces=self.enforces,
                injects=self.injects,
                replica="webhook-1",
            ).text()
            for call, patched in ((call, self.patched and call == VALIDATE) for call in self.calls)
        )
        whole = document["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        document["metadata"]["annotations"] |= {INJECTED: "{}"} if self.tolerations else {}
        document["spec"]["tolerations"] = self.tolerations
        self.labels.append(document["metadata"].get("labels"))
        return DryRunResult(msgspec.json.encode(document), self.error if whole else self.half, traces)


IGNORED = (
    "with failurePolicy Ignore, start the webhook (kubectl -n gpu-admission get pods) or correct the caBundle"
)
NO_CALL = "a GPU pod was admitted without a call of"
READY = "check whether the API server answers: kubectl get --raw /readyz"
START = "start the webhook: kubectl -n gpu-admission get pods"
FAILED = f"failed calling webhook {MUTATING}"


@cases(
    ("error", "calls", "reason", "message", "remedy"),
    no_call=(
        "",
        (),
        "not-called",
        f"{NO_CALL} pods.mutate.gpu-admission.dev",
        f"{IGNORED}; else apply the MutatingWebhookConfiguration zz-gpu-admission of deploy/ again; its namespaceSelector "
        "must not exclude team",
    ),
    one_call=(
        "",
        (MUTATE,),
        "not-validated",
        f"{NO_CALL} pods.validate.gpu-admission.dev",
        f"{IGNORED}; else apply the ValidatingWebhookConfiguration zz-gpu-admission of deploy/ again; its namespaceSelector "
        "must not exclude team",
    ),
    no_namespace=(
        errors.NotFound("namespaces team not found"),
        (),
        "namespace",
        "namespaces team not found",
        "kubectl create namespace team",
    ),
    api_server_away=(errors.Unavailable("away"), (), "api-server", "away", READY),
    unknown_credentials=(errors.Unauthorized("who?"), (), "api-server", "who?", READY),
    no_rights=(
        errors.Forbidden("cannot create resource pods"),
        (),
        "forbidden",
        "cannot create resource pods",
        "allow it to create pods in namespace team: apply the RBAC of deploy/ again",
    ),
    another_webhook=(
        errors.Forbidden("another webhook denied"),
        (),
        "rejected",
        "another webhook denied",
        "remove what rejects the pod in namespace team, or name another --canary-namespace",
    ),
    a_failed_call=(
        errors.ApiError(f"{FAILED}: 42"),
        (),
        "call-failed",
        f"{FAILED}: 42",
        "kubectl -n gpu-admission get pods,endpointslices",
    ),
)
def test_a_failure_has_a_reason_and_its_remedy(
    error: errors.ApiError | str, calls: tuple[str, ...], reason: str, message: str, remedy: str
) -> None:
    result = probe(cast(ApiClient, DryRunApi(error or None, calls)), "team")  # type: ignore[arg-type]

    assert (result.ok, result.reason, result.message, result.remedy) == (False, reason, message, remedy)


@cases(
    ("cause", "remedy"),
    certificate=(
        "x509: certificate signed by unknown authority",
        "the caBundle does not verify the certificate that is served: gpu-admission doctor",
    ),
    no_service=(
        'service "gpu-admission" not found',
        "apply the Service of deploy/ again: kubectl -n gpu-admission get service gpu-admission",
    ),
    no_replica=('no endpoints available for service "gpu-admission"', START),
    nobody_listens=("connection refused", START),
    no_way=(
        "context deadline exceeded",
        "allow connections from the API server to port 8443 of the webhook (firewall, NetworkPolicy)",
    ),
)
def test_a_failed_call_with_a_known_cause_has_the_remedy_of_the_cause(cause: str, remedy: str) -> None:
    result = probe(cast(ApiClient, DryRunApi(errors.ApiError(f"{FAILED}: {cause}"), ())), "team")

    assert (result.reason, result.remedy) == ("call-failed", remedy)


def test_patches_that_are_not_in_the_final_pod_are_a_failure() -> None:
    result = probe(cast(ApiClient, DryRunApi(None, BOTH, patched=False)), "team")

    assert (result.reason, result.message, result.remedy) == (
        "not-patched",
        "the annotations of the mutating webhook are not in the final pod",
        "find the mutating webhook that runs after zz-gpu-admission and removes annotations: "
        "kubectl get mutatingwebhookconfigurations",
    )


def test_a_success_says_what_was_proved_and_what_the_policy_leaves_open() -> None:
    result = probe(cast(ApiClient, DryRunApi(None, BOTH)), "team")

    called = (f"{MUTATING} is called", f"{VALIDATING} is called")
    assert result.proved == (*called, "patches are applied", "half a GPU is rejected with our message")
    assert result.unproved == ("that injections persist: the policy of team injects nothing",)
    assert result.answered_by == ("webhook-1 (version ?)",)


OURS, OTHERS = "that injections persist: the canary itself was rejected: ", "exceeded quota"


@cases(
    ("error", "calls", "want"),
    by_the_policy=(
        f"{DENIED}no class",
        (MUTATE,),
        f"that {VALIDATING} is called, and patches applied: the policy rejects the canary before",
    ),
    by_another=(OTHERS, BOTH, f"{OURS}{OTHERS}"),
)
def test_a_rejected_canary_proves_the_calls_before(error: str, calls: tuple[str, ...], want: str) -> None:
    result = probe(cast(ApiClient, DryRunApi(errors.Forbidden(error), calls)), "team")

    assert (result.reason, result.unproved[0]) == ("", want)
    assert f"{OURS}{error}" in result.unproved
    assert result.proved[0] == f"{MUTATING} is called"


NOT_REFUSED = f"{MUTATING} did not reject half a GPU: "
SEE_LOG = "see which version answers, and its log: kubectl -n gpu-admission logs -l app.kubernetes.io/component=webhook"


@cases(
    ("enforces", "half", "want"),
    admitted=(True, None, ("not-rejected", f"{NOT_REFUSED}it was admitted", SEE_LOG)),
    rejected_by_others=(True, errors.Forbidden(OTHERS), ("not-rejected", NOT_REFUSED + OTHERS, SEE_LOG)),
    by_another_rule=(
        True,
        errors.ApiError(f"{DENIED}[x]"),
        ("not-rejected", f"{NOT_REFUSED}{DENIED}[x]", SEE_LOG),
    ),
    a_failed_call=(True, errors.ApiError(f"{FAILED}: 42"), ("call-failed",)),
    not_enforced=(False, None, ("", "", "")),
)
def test_half_a_gpu_must_be_rejected(
    enforces: bool, half: errors.ApiError | None, want: tuple[str, ...]
) -> None:
    api = DryRunApi(None, BOTH)
    api.enforces, api.half = ("gpu-requests",) if enforces else (), half

    result = probe(cast(ApiClient, api), "team")

    assert (result.reason, result.message, result.remedy)[: len(want)] == want
    is_open = "that an invalid pod is rejected: gpu-requests is not enforced in team" in result.unproved
    assert is_open is not enforces


OTHER = {"name": "other", "objectSelector": {"matchLabels": {"other": "yes"}}}
SELECTS = {"matchLabels": {"gpu": "yes"}}


@cases(
    ("webhooks", "want"),
    none_registered=(None, None),
    ours=([OTHER, {"name": MUTATING, "objectSelector": SELECTS}], {"gpu": "yes"}),
    ours_selects_all=([OTHER, {"name": MUTATING}], None),
)
def test_both_pods_have_labels_that_our_webhook_selects(webhooks: list[Any] | None, want: Any) -> None:
    api = DryRunApi(None, BOTH)
    api.webhooks = webhooks

    probe(cast(ApiClient, api), "team")

    assert [each or None for each in api.labels] == [want, want]


def test_a_follower_shows_no_canary() -> None:
    registry = CollectorRegistry()
    canary = Canary(cast(ApiClient, DryRunApi(None, BOTH)), "team", registry)
    shown = list[float | None]()
    for act in (canary.send, canary.forget, canary.send):
        act()
        shown.append(registry.get_sample_value("gpu_admission_canary_success"))

    assert [value is not None for value in shown] == [True, False, True]


def test_the_canary_shows_and_logs_what_differs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = CollectorRegistry()
    canary = Canary(cast(ApiClient, None), "team", registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpu_admission_canary_{name}", labels)

    assert (value("success"), value("failures_total", reason="forbidden")) == (None, 0)
    refused = CanaryResult(reason="forbidden", message="no rights", remedy="grant them", seconds=0.5)
    canary._record(refused)
    assert (value("success"), value("duration_seconds")) == (0, 0.5)
    assert value("last_success_timestamp_seconds") is None
    canary._record(refused)
    for _ in range(2):
        canary._record(CanaryResult(proved=("called", "patched"), seconds=0.25))

    assert (value("success"), value("duration_seconds")) == (1, 0.25)
    assert value("failures_total", reason="forbidden") == 2
    assert value("last_success_timestamp_seconds") == pytest.approx(time(), abs=60)
    assert caplog.messages == [
        "canary: no rights; grant them",
        "canary: succeeded in 0.250 s: called; patched",
    ]


@cases(
    ("selector", "want"),
    none=({}, {}),
    label=({"matchLabels": {"gpu": "yes"}}, {"gpu": "yes"}),
    first_of_several=(
        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a", "b", "c"]}]},
        {"gpu": "a"},
    ),
    any=({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, {"gpu": ""}),
    what_must_be_absent=({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}, {}),
)
def test_labels_that_the_webhook_selects(selector: Any, want: dict[str, str]) -> None:
    assert selected_labels(selector) == want


@cases(
    ("tolerated", "want"),
    nothing_is_left=([], "undone"),
    what_every_pod_gets=(["node.kubernetes.io/not-ready"], "undone"),
    our_toleration=(["node.kubernetes.io/not-ready", "nvidia.com/gpu"], ""),
)
def test_injections_are_in_the_final_pod(tolerated: list[str], want: str) -> None:
    api = DryRunApi(None, BOTH)
    api.injects, api.tolerations = ("gpu-toleration",), [{"key": each} for each in tolerated]

    result = probe(cast(ApiClient, api), "team")

    remedy = "find the mutating webhook that runs after zz-gpu-admission: kubectl get mutatingwebhookconfigurations"
    assert (result.reason, result.remedy) == (want, remedy if want else "")
    assert (result.message == "the injections of gpu-toleration are not in the final pod") is bool(want)
    assert ("the injections of gpu-toleration are in the final pod" in result.proved) is (not want)
