"""The canary through the real API server: what it proves under any policy, and what it finds when a part is broken."""

import base64
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import JSON_PATCH, Authority, ControlPlane, accepted
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import Webhook, serving
from webhook.canary.probe import CanaryResult, canary_pod, probe
from webhook.cluster.api import ApiClient
from webhook.commands.canary import canary

NAMESPACE = "gpu-admission-canary"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-gpu-admission"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/zz-gpu-admission"

VALIDATE = "pods.validate.gpu-admission.dev"
CALLED = ["pods.mutate.gpu-admission.dev is called", f"{VALIDATE} is called"]
PATCHED = [*CALLED, "patches are applied"]
REFUSED = "half a GPU is rejected with our message"
NOT_REFUSED = f"that an invalid pod is rejected: gpu-requests is not enforced in {NAMESPACE}"
NOT_INJECTED = f"that injections persist: the policy of {NAMESPACE} injects nothing"

POLICY = {
    "apiVersion": "gpu-admission.dev/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "default"},
    "spec": {},
}


class Scene(NamedTuple):
    plane: ControlPlane
    webhook: Webhook
    api: ApiClient

    def configure(self, **spec: Any) -> None:
        assert self.webhook.config is not None
        (self.webhook.config / "documents.yaml").write_text(yaml.safe_dump({**POLICY, "spec": spec}))

    def patch(self, path: str, op: str, at: str, value: Any) -> None:
        operation = {"op": op, "path": f"/webhooks/0/{at}", "value": value}
        accepted(self.plane.client().patch(path, [operation], content_type=JSON_PATCH))

    def probe(self) -> CanaryResult:
        return probe(self.api, NAMESPACE)


@pytest.fixture(scope="module")
def scene(plane: ControlPlane) -> Iterator[Scene]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    with serving(plane, yaml.safe_dump(POLICY), host=14) as webhook:
        yield Scene(plane, webhook, api_client(plane))
    plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


AUDIT = {
    name: {"mode": "audit"}
    for name in ("gpu-requests", "gpu-toleration", "gpu-class", "readiness-delay", "model-warming")
}


@cases(
    ("spec", "proved", "left_open"),
    the_built_in_defaults_prove_everything=(
        {},
        [*PATCHED, "the injections of gpu-toleration are in the final pod", REFUSED],
        [],
    ),
    a_first_install_that_only_audits_is_called_all_the_same=(
        {"rules": AUDIT},
        PATCHED,
        [NOT_INJECTED, NOT_REFUSED],
    ),
    so_is_one_of_a_namespace_that_is_exempt=(
        {"exemptions": [{"namespaces": [NAMESPACE], "reason": "test"}]},
        PATCHED,
        [NOT_INJECTED, NOT_REFUSED],
    ),
    a_policy_that_refuses_the_canary_is_obeyed=(
        {"rules": {"gpu-class": {"allowed": ["nvidia-t4"]}}},
        [*PATCHED, REFUSED],
        ["must pin the pod to a GPU class"],
    ),
    so_is_one_that_refuses_it_at_once=(
        {"rules": {"gpu-requests": {"maxPerPod": 0}}},
        [CALLED[0], REFUSED],
        [
            "that pods.validate.gpu-admission.dev is called, and patches applied: the policy rejects the canary before",
            "that injections persist: the canary itself was rejected",
        ],
    ),
)
def test_a_canary_says_what_is_proved_and_what_the_policy_leaves_open(
    scene: Scene, spec: dict[str, Any], proved: list[str], left_open: list[str]
) -> None:
    scene.configure(**spec)
    eventually(lambda: list(scene.probe().proved) == proved)
    outcome = scene.probe()

    assert (outcome.ok, outcome.message) == (True, "")
    assert list(outcome.proved) == proved
    assert len(outcome.unproved) == len(left_open)
    assert all(words in reported for words, reported in zip(left_open, outcome.unproved, strict=True))
    assert "version 0.1.0" in outcome.answered_by[0]


def _deleted(scene: Scene, path: str) -> None:
    assert scene.plane.client().delete(path)[0] == 200


def _other_authority(scene: Scene, path: str) -> None:
    bundle = base64.b64encode(Authority("another").certificate).decode()
    scene.patch(path, "replace", "clientConfig/caBundle", bundle)


def _excluded(scene: Scene, path: str) -> None:
    scene.patch(path, "add", "namespaceSelector/matchExpressions/0/values/-", NAMESPACE)


WITHOUT = "a GPU pod was admitted without a call of pods.{}.gpu-admission.dev"


@cases(
    ("break_it", "path", "reason", "message", "remedy"),
    the_mutating_configuration_is_gone=(
        *(_deleted, MUTATING, "not-called", WITHOUT.format("mutate")),
        "apply the MutatingWebhookConfiguration zz-gpu-admission of deploy/ again",
    ),
    the_validating_configuration_is_gone=(
        *(_deleted, VALIDATING, "not-validated", WITHOUT.format("validate")),
        "apply the ValidatingWebhookConfiguration zz-gpu-admission of deploy/ again",
    ),
    the_selector_excludes_its_namespace=(
        *(_excluded, MUTATING, "not-called", WITHOUT.format("mutate")),
        f"its namespaceSelector must not exclude {NAMESPACE}",
    ),
    the_bundle_is_another_authority=(
        *(_other_authority, MUTATING, "call-failed", "x509: certificate signed by unknown authority"),
        "gpu-admission doctor",
    ),
    the_bundle_of_the_validating_one_is=(
        *(_other_authority, VALIDATING, "call-failed", f'failed calling webhook "{VALIDATE}"'),
        "gpu-admission doctor",
    ),
)
def test_a_canary_finds_what_is_broken(
    scene: Scene, break_it: Callable[[Scene, str], None], path: str, *, reason: str, message: str, remedy: str
) -> None:
    scene.configure()
    break_it(scene, path)
    try:
        eventually(lambda: scene.probe().reason == reason)
        outcome = scene.probe()
    finally:
        scene.webhook.register()

    assert (outcome.ok, outcome.reason) == (False, reason)
    assert message in outcome.message
    assert remedy in outcome.remedy


def test_a_canary_changes_no_counter_of_what_users_create(scene: Scene) -> None:
    scene.configure()
    assert eventually(lambda: REFUSED in scene.probe().proved)
    before, log = scene.webhook.counted(), scene.webhook.log()

    assert scene.probe().ok

    after = scene.webhook.counted()
    moved = {key for key in after if after[key] != before.get(key)}
    assert {name for name, _ in moved} >= {
        "gpu_admission_requests_total",
        "gpu_admission_findings_total",
        "gpu_admission_injections_total",
        "gpu_admission_request_duration_seconds_count",
    }
    assert {dict(labels)["dry_run"] for _, labels in moved} == {"true"}
    assert "denied" not in scene.webhook.log().removeprefix(log)


def test_a_canary_has_the_labels_for_which_the_webhook_asks(scene: Scene) -> None:
    scene.configure()
    required = [
        {"key": "team", "operator": "Exists"},
        {"key": "stage", "operator": "In", "values": ["x", "y"]},
    ]

    def select(selector: JSON) -> None:
        for path in (MUTATING, VALIDATING):
            scene.patch(path, "replace", "objectSelector", selector)

    select({"matchLabels": {"queue": "gpus"}, "matchExpressions": required})
    try:
        eventually(lambda: _without_labels(scene) == "not-called")
        outcome = scene.probe()
    finally:
        select({})

    assert (outcome.ok, outcome.message, outcome.unproved) == (True, "", ())


def _without_labels(scene: Scene) -> str:
    """Return the reason why a canary without labels fails, as one does that may not read the configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webhook.canary.probe.selected_labels", lambda _: {})
        return scene.probe().reason


def test_a_user_who_may_not_create_pods_is_told_so(scene: Scene) -> None:
    arguments = ["-n", NAMESPACE, "--kubeconfig", str(scene.plane.kubeconfig("engineer"))]
    shown = CliRunner().invoke(canary, arguments)

    assert shown.exit_code == 1
    assert shown.stdout.startswith("canary: failed: ")
    reported = " ".join(shown.stdout.split())
    assert 'User "engineer" cannot create resource "pods"' in reported
    assert "[forbidden]" in reported
    assert f"\n  fix: allow it to create pods in namespace {NAMESPACE}" in shown.stdout


def test_the_mark_is_no_way_around_the_rules_and_marks_nothing_that_is_stored(scene: Scene) -> None:
    scene.configure()
    nonce, client = "0123456789abcdef", scene.plane.client()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    refused = client.post(path, canary_pod(nonce, "0.5"))
    stored = client.post(path, canary_pod(nonce, "1"))

    assert (refused[0], stored[0]) == (403, 201)
    assert "[gpu-requests]" in refused[1]["message"]
    assert "gpu-admission.dev/canary-answer" not in stored[1]["metadata"]["annotations"]
    assert "nvidia.com/gpu" in {each["key"] for each in stored[1]["spec"]["tolerations"]}
