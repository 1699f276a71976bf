"""The canary through the real API server: what it proves under any policy, and what it finds when a part is broken."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import Command, eventually
from tests.cluster.other_webhook import OtherWebhook
from tests.controlplane import JSON_PATCH, Authority, ControlPlane
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import Webhook, serving
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.commands.canary import canary
from webhook.controller.canary import canary_pod, probe

NAMESPACE = "gpu-admission-canary"
SHARED = "canary-beside-another"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-gpu-admission"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/zz-gpu-admission"

CALLED = ["pods.mutate.gpu-admission.dev is called", "pods.validate.gpu-admission.dev is called"]
PATCHED = [*CALLED, "patches are applied"]
REFUSED = "half a GPU is rejected with our message"
NOT_REFUSED = f"that an invalid pod is rejected: gpu-requests is not enforced in {NAMESPACE}"
NOT_INJECTED = f"that injections persist: the policy of {NAMESPACE} injects nothing"


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> ApiClient:
    return api_client(plane)


@pytest.fixture(scope="module")
def namespace(plane: ControlPlane) -> Iterator[str]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    yield NAMESPACE
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, yaml.safe_dump(POLICY), host=14) as running:
        yield running


@pytest.fixture(scope="module")
def config(webhook: Webhook) -> Path:
    assert webhook.config is not None
    return webhook.config


POLICY = {
    "apiVersion": "gpu-admission.dev/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "default"},
    "spec": {},
}


def _write(folder: Path, spec: dict[str, Any]) -> None:
    (folder / "documents.yaml").write_text(yaml.safe_dump({**POLICY, "spec": spec}))


AUDIT = {
    name: {"mode": "audit"}
    for name in ("gpu-requests", "gpu-toleration", "gpu-class", "readiness-delay", "model-warming")
}


@pytest.mark.usefixtures("webhook")
@cases(
    ("spec", "proved", "left_open"),
    {
        "the-built-in-defaults-prove-everything": (
            {},
            [*PATCHED, "the injections of gpu-toleration are in the final pod", REFUSED],
            [],
        ),
        "a-first-install-that-only-audits-is-called-all-the-same": (
            {"rules": AUDIT},
            PATCHED,
            [NOT_INJECTED, NOT_REFUSED],
        ),
        "so-is-one-of-a-namespace-that-is-exempt": (
            {"exemptions": [{"namespaces": [NAMESPACE], "reason": "test"}]},
            PATCHED,
            [NOT_INJECTED, NOT_REFUSED],
        ),
        "a-policy-that-refuses-the-canary-is-obeyed": (
            {"rules": {"gpu-class": {"allowed": ["nvidia-t4"]}}},
            [*PATCHED, REFUSED],
            ["must pin the pod to a GPU class"],
        ),
        "so-is-one-that-refuses-it-at-once": (
            {"rules": {"gpu-requests": {"maxPerPod": 0}}},
            [CALLED[0], REFUSED],
            [
                "that pods.validate.gpu-admission.dev is called, and patches applied: the policy rejects the canary before",
                "that injections persist: the canary itself was rejected",
            ],
        ),
    },
)
def test_a_canary_says_what_is_proved_and_what_the_policy_leaves_open(
    config: Path,
    api: ApiClient,
    namespace: str,
    spec: dict[str, Any],
    proved: list[str],
    left_open: list[str],
) -> None:
    _write(config, spec)

    def as_wanted() -> bool:
        outcome = probe(api, namespace)
        return list(outcome.proved) == proved

    eventually(as_wanted)
    outcome = probe(api, namespace)

    assert (outcome.ok, outcome.message) == (True, "")
    assert list(outcome.proved) == proved
    assert len(outcome.open) == len(left_open)
    assert all(words in told for words, told in zip(left_open, outcome.open, strict=True))
    assert "version 0.1.0" in outcome.answered_by[0]


def _deleted(plane: ControlPlane, path: str) -> None:
    assert plane.client().delete(path)[0] == 200


def _other_authority(plane: ControlPlane, path: str) -> None:
    bundle = base64.b64encode(Authority("another").certificate).decode()
    patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    assert plane.client().patch(path, patch, content_type=JSON_PATCH)[0] == 200


def _excluded(plane: ControlPlane, path: str) -> None:
    at = "/webhooks/0/namespaceSelector/matchExpressions/0/values/-"
    patch = [{"op": "add", "path": at, "value": NAMESPACE}]
    assert plane.client().patch(path, patch, content_type=JSON_PATCH)[0] == 200


@cases(
    ("break_it", "path", "reason", "message", "remedy"),
    {
        "the-mutating-configuration-is-gone": (
            _deleted,
            MUTATING,
            "not-called",
            "a GPU pod was admitted without a call of pods.mutate.gpu-admission.dev",
            "apply the MutatingWebhookConfiguration zz-gpu-admission of deploy/ again",
        ),
        "the-validating-configuration-is-gone": (
            _deleted,
            VALIDATING,
            "not-validated",
            "a GPU pod was admitted without a call of pods.validate.gpu-admission.dev",
            "apply the ValidatingWebhookConfiguration zz-gpu-admission of deploy/ again",
        ),
        "the-selector-excludes-its-namespace": (
            _excluded,
            MUTATING,
            "not-called",
            "a GPU pod was admitted without a call of pods.mutate.gpu-admission.dev",
            f"its namespaceSelector must not exclude {NAMESPACE}",
        ),
        "the-bundle-is-another-authority": (
            _other_authority,
            MUTATING,
            "call-failed",
            "x509: certificate signed by unknown authority",
            "gpu-admission certs check",
        ),
        "the-bundle-of-the-validating-one-is": (
            _other_authority,
            VALIDATING,
            "call-failed",
            'failed calling webhook "pods.validate.gpu-admission.dev"',
            "gpu-admission certs check",
        ),
    },
)
def test_a_canary_finds_what_is_broken(
    plane: ControlPlane,
    webhook: Webhook,
    config: Path,
    api: ApiClient,
    namespace: str,
    break_it: Callable[[ControlPlane, str], None],
    path: str,
    reason: str,
    message: str,
    remedy: str,
) -> None:
    _write(config, {})
    break_it(plane, path)
    try:
        eventually(lambda: probe(api, namespace).reason == reason)
        outcome = probe(api, namespace)
    finally:
        webhook.register()

    assert (outcome.ok, outcome.reason) == (False, reason)
    assert message in outcome.message
    assert remedy in outcome.remedy


def test_a_canary_changes_no_counter_of_what_users_create(
    config: Path, webhook: Webhook, api: ApiClient, namespace: str
) -> None:
    _write(config, {})
    assert eventually(lambda: REFUSED in probe(api, namespace).proved)
    before = webhook.counted()

    assert probe(api, namespace).ok

    after = webhook.counted()
    moved = {key for key in after if after[key] != before.get(key)}
    assert {name for name, _ in moved} >= {
        "gpu_admission_requests_total",
        "gpu_admission_findings_total",
        "gpu_admission_injections_total",
        "gpu_admission_request_duration_seconds_count",
    }
    assert {dict(labels)["dry_run"] for _, labels in moved} == {"true"}
    assert "denied" not in webhook.log()


def test_a_canary_has_the_labels_for_which_the_webhook_asks(
    plane: ControlPlane, webhook: Webhook, config: Path, api: ApiClient, namespace: str
) -> None:
    del webhook
    _write(config, {})
    required = [
        {"key": "team", "operator": "Exists"},
        {"key": "stage", "operator": "In", "values": ["x", "y"]},
    ]

    def select(selector: JSON) -> None:
        patch = [{"op": "replace", "path": "/webhooks/0/objectSelector", "value": selector}]
        for path in (MUTATING, VALIDATING):
            assert plane.client().patch(path, patch, content_type=JSON_PATCH)[0] == 200

    select({"matchLabels": {"queue": "gpus"}, "matchExpressions": required})
    try:
        eventually(lambda: _without_labels(api, namespace) == "not-called")
        outcome = probe(api, namespace)
    finally:
        select({})

    assert (outcome.ok, outcome.message, outcome.open) == (True, "", ())


def _without_labels(api: ApiClient, namespace: str) -> str:
    """Return the reason why a canary without labels fails, as one does that may not read the configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webhook.controller.canary.selected_labels", lambda _: {})
        return probe(api, namespace).reason


def test_a_webhook_that_is_down_is_told(webhook: Webhook, api: ApiClient, namespace: str) -> None:
    webhook.stop()
    try:
        outcome = probe(api, namespace)
    finally:
        webhook.start()

    assert outcome.reason == "call-failed"
    assert "connection refused" in outcome.message
    assert outcome.remedy == "start the webhook: kubectl -n gpu-admission get pods"


@pytest.mark.usefixtures("webhook")
def test_a_namespace_that_is_not_there_is_told(api: ApiClient) -> None:
    outcome = probe(api, "nowhere")

    assert (outcome.reason, outcome.remedy) == ("namespace", "kubectl create namespace nowhere")


@pytest.mark.usefixtures("webhook")
def test_a_user_who_may_not_create_pods_is_told_so(plane: ControlPlane, namespace: str) -> None:
    outcome = probe(ApiClient(load_access(str(plane.kubeconfig("engineer")))), namespace)

    assert outcome.reason == "forbidden"
    assert 'User "engineer" cannot create resource "pods"' in outcome.message
    arguments = ["-n", namespace, "--kubeconfig", str(plane.kubeconfig("engineer"))]
    shown = CliRunner().invoke(canary, arguments)
    assert shown.exit_code == 1
    assert shown.stdout.startswith("canary: failed: ")
    assert "[forbidden]" in shown.stdout
    assert f"\n  fix: allow it to create pods in namespace {namespace}" in shown.stdout


def test_an_api_server_that_is_away_is_told(tmp_path: Path, plane: ControlPlane) -> None:
    document = yaml.safe_load(plane.kubeconfig().read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "config").write_text(yaml.safe_dump(document))

    assert probe(ApiClient(load_access(str(tmp_path / "config"))), NAMESPACE).reason == "api-server"


def _without_answer(document: JSON) -> None:
    document["metadata"]["annotations"].pop("gpu-admission.dev/canary-answer", None)


def _without_tolerations(document: JSON) -> None:
    document["spec"]["tolerations"] = []


@pytest.mark.usefixtures("webhook")
@cases(
    ("change", "reason", "message"),
    {
        "an-annotation": (
            _without_answer,
            "not-patched",
            "the annotations of the mutating webhook are not in the final pod",
        ),
        "a-toleration": (
            _without_tolerations,
            "undone",
            "the injections of gpu-toleration are not in the final pod",
        ),
    },
)
def test_another_webhook_that_takes_out_what_was_injected_is_found(
    plane: ControlPlane,
    config: Path,
    api: ApiClient,
    change: Callable[[JSON], None],
    reason: str,
    message: str,
) -> None:
    _write(config, {})
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": SHARED}})
    eventually(lambda: probe(api, SHARED).ok)
    with OtherWebhook(plane, SHARED) as other, other.in_force(change, reinvocation="IfNeeded"):
        outcome = probe(api, SHARED)

    assert (outcome.reason, outcome.message) == (reason, message)
    assert "find the mutating webhook that runs after zz-gpu-admission" in outcome.remedy


@pytest.mark.usefixtures("webhook")
def test_the_mark_is_no_way_around_the_rules_and_marks_nothing_that_is_stored(
    plane: ControlPlane, config: Path, namespace: str
) -> None:
    _write(config, {})
    nonce = "0123456789abcdef"
    path = f"/api/v1/namespaces/{namespace}/pods"
    refused = plane.client().post(path, canary_pod(nonce, "0.5"))
    stored = plane.client().post(path, canary_pod(nonce, "1"))

    assert (refused[0], stored[0]) == (403, 201)
    assert "[gpu-requests]" in refused[1]["message"]
    assert "gpu-admission.dev/canary-answer" not in stored[1]["metadata"]["annotations"]
    assert "nvidia.com/gpu" in {each["key"] for each in stored[1]["spec"]["tolerations"]}


@pytest.mark.slow
def test_the_controller_shows_the_canary_in_its_metrics(
    quotas: ControlPlane, webhook: Webhook, config: Path, namespace: str
) -> None:
    _write(config, {})
    lease, canary = f"canary-{uuid4()}", ("--canary-namespace", namespace, "--canary-seconds", "1")
    leader = Command(quotas, "canary-leader", "--lease", lease, *canary)
    follower = Command(quotas, "canary-follower", "--lease", lease, *canary)
    leader.start()
    assert eventually(
        lambda: leader.metric("gpu_admission_canary_success") == ["gpu_admission_canary_success 1.0"]
    )
    follower.start()

    assert leader.metric("gpu_admission_canary_last_success_timestamp_seconds")
    assert leader.metric("gpu_admission_canary_duration_seconds")
    assert follower.metric("gpu_admission_canary_success") == []

    webhook.stop()
    try:
        assert eventually(
            lambda: leader.metric("gpu_admission_canary_success") == ["gpu_admission_canary_success 0.0"]
        )
        # The first one may have met the end of a connection, and not yet that nobody listens.
        assert eventually(lambda: _failures(leader, "call-failed") >= 3)
    finally:
        webhook.start()
    assert _failures(leader, "not-called") == 0
    assert eventually(lambda: leader.metric("gpu_admission_canary_success")[0].endswith(" 1.0"))
    refused = [line for line in leader.log().splitlines() if "connection refused" in line]
    assert len(refused) == 1, "a failure that lasts is said once"
    assert "start the webhook" in refused[0]
    quotas.processes.terminate("canary-leader", grace=30)
    assert eventually(lambda: bool(follower.metric("gpu_admission_canary_success")), seconds=60)
    quotas.processes.terminate("canary-follower", grace=30)


def _failures(controller: Command, reason: str) -> float:
    (line,) = controller.metric(f'gpu_admission_canary_failures_total{{reason="{reason}"}}')
    return float(line.rsplit(" ", 1)[1])
