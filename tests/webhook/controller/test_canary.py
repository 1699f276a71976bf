"""What a canary concludes from the answers of the API server."""

import threading
from time import time
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from policies.pods.annotations import CANARY, INJECTED
from tests.cases import cases
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, Attempt
from webhook.controller.canary import (
    MUTATING,
    REMEDIES,
    VALIDATING,
    CanaryLoop,
    CanaryResult,
    probe,
    selected_labels,
)
from webhook.serving.canary_trace import MUTATE, VALIDATE, CanaryTrace

DENIED = f'admission webhook "{MUTATING}" denied the request: '
HALF = errors.ApiError(DENIED + "[gpu-requests] must be a whole number")
BOTH = (MUTATE, VALIDATE)


class Cluster:
    """An API server that answers the first pod with the error, and traces of these calls; the second pod is rejected."""

    def __init__(
        self, error: errors.ApiError | None, calls: tuple[str, ...], *, patched: bool = True
    ) -> None:
        self.error, self.calls, self.patched = error, calls, patched
        self.injects: tuple[str, ...] = ()
        self.tolerations: list[dict[str, str]] = []

    def get(self, path: str) -> bytes:
        raise errors.NotFound(path)

    def dry_run(self, path: str, body: bytes, *, timeout: float) -> Attempt:
        assert (path, timeout) == ("/api/v1/namespaces/team/pods", 20.0)
        document = msgspec.json.decode(body)
        nonce = document["metadata"]["annotations"][CANARY]
        traces = tuple(
            CanaryTrace(
                nonce=nonce,
                phase=call,
                patched=patched,
                enforces=("gpu-requests",),
                injects=self.injects,
                replica="webhook-1",
            ).text()
            for call, patched in ((call, self.patched and call == VALIDATE) for call in self.calls)
        )
        whole = document["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        document["metadata"]["annotations"] |= {INJECTED: "{}"} if self.tolerations else {}
        document["spec"]["tolerations"] = self.tolerations
        return Attempt(msgspec.json.encode(document), self.error if whole else HALF, traces)


@cases(
    ("error", "calls", "want"),
    no_call=("", (), "not-called"),
    one_call=("", (MUTATE,), "not-validated"),
    no_namespace=(errors.NotFound("namespaces team not found"), (), "namespace"),
    api_server_away=(errors.Unavailable("away"), (), "api-server"),
    unknown_credentials=(errors.Unauthorized("who?"), (), "api-server"),
    no_rights=(errors.Forbidden("cannot create resource pods"), (), "forbidden"),
    another_webhook=(errors.Forbidden("another webhook denied"), (), "refused"),
    a_failed_call=(errors.ApiError(f"failed calling webhook {MUTATING}: 42"), (), "call-failed"),
)
def test_a_failure_has_a_reason_and_its_remedy(
    error: errors.ApiError | str, calls: tuple[str, ...], want: str
) -> None:
    result = probe(cast(ApiClient, Cluster(error or None, calls)), "team")  # type: ignore[arg-type]

    assert (result.reason, result.ok) == (want, False)
    assert result.remedy == REMEDIES[want].format(namespace="team")


def test_a_failed_call_with_a_known_cause_has_the_remedy_of_the_cause() -> None:
    refused = errors.ApiError(f"failed calling webhook {MUTATING}: connection refused")

    result = probe(cast(ApiClient, Cluster(refused, ())), "team")

    assert (result.reason, result.remedy) == (
        "call-failed",
        "start the webhook: kubectl -n gpu-admission get pods",
    )


def test_patches_that_are_not_in_the_final_pod_are_a_failure() -> None:
    result = probe(cast(ApiClient, Cluster(None, BOTH, patched=False)), "team")

    assert result.reason == "not-patched"
    assert result.message == "the annotations of the mutating webhook are not in the final pod"


def test_a_success_says_what_was_proved_and_what_the_policy_leaves_open() -> None:
    result = probe(cast(ApiClient, Cluster(None, BOTH)), "team")

    called = (f"{MUTATING} is called", f"{VALIDATING} is called")
    assert result.proved == (*called, "patches are applied", "half a GPU is rejected with our message")
    assert result.open == ("that injections persist: the policy of team injects nothing",)
    assert result.answered_by == ("webhook-1 (version ?)",)


def test_only_a_leader_runs_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    leads, probed = [False, True, True, False, True], list[bool]()
    cluster, stopping = cast(ApiClient, Cluster(None, BOTH)), threading.Event()
    is_leading = False

    def probing(api: ApiClient, namespace: str) -> CanaryResult:
        probed.append(is_leading)
        return probe(api, namespace)

    def is_leader() -> bool:
        nonlocal is_leading
        is_leading = leads.pop(0)
        return is_leading

    monkeypatch.setattr("webhook.controller.canary.probe", probing)
    looks = iter(leads[1:])

    def wait(_seconds: float) -> None:
        if next(looks, None) is None:
            stopping.set()

    monkeypatch.setattr(stopping, "wait", wait)
    CanaryLoop(cluster, "team", 60.0, is_leader, CollectorRegistry()).run(stopping)

    assert probed == [True, True], "as soon as it leads, and then once a period"


def test_the_loop_shows_and_logs_what_differs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = CollectorRegistry()
    loop = CanaryLoop(cast(ApiClient, None), "team", 60.0, lambda: True, registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpu_admission_canary_{name}", labels)

    assert (value("success"), value("failures_total", reason="forbidden")) == (None, 0)
    refused = CanaryResult(reason="forbidden", message="no rights", remedy="grant them", seconds=0.5)
    loop._record(refused)
    assert (value("success"), value("duration_seconds")) == (0, 0.5)
    assert value("last_success_timestamp_seconds") is None
    loop._record(refused)
    for _ in range(2):
        loop._record(CanaryResult(proved=("called", "patched"), seconds=0.25))

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
    cluster = Cluster(None, BOTH)
    cluster.injects, cluster.tolerations = ("gpu-toleration",), [{"key": each} for each in tolerated]

    result = probe(cast(ApiClient, cluster), "team")

    assert result.reason == want
    assert (result.message == "the injections of gpu-toleration are not in the final pod") is bool(want)
    assert ("the injections of gpu-toleration are in the final pod" in result.proved) is (not want)
