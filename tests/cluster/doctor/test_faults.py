"""`gpu-admission doctor` finds each fault of a real installation, and says what mends it."""

import base64
from pathlib import Path

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.doctor.faults import (
    ADMISSION,
    MUTATING,
    VALIDATING,
    Fault,
    any_caller,
    both,
    broken_client_ca,
    controller_down,
    created,
    deleted,
    deployment,
    documents,
    excluded_team,
    node,
    patched,
    patched_entry,
    policy,
    webhook_down,
)
from tests.cluster.doctor.installation import RBAC, SLICES, T4, TEAM, Installation
from tests.controlplane import Authority
from tests.controlplane.webhook import NAMESPACE

ANOTHER_CA = base64.b64encode(Authority("another").certificate).decode()
LATER = {
    "metadata": {"name": "zzz-another"},
    "webhooks": [
        {
            "name": "pods.another.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:9/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": TEAM}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
            ],
        }
    ],
}
WARMED = {"gpu-admission.dev/model-uri": "s3://models/llama"}
CREDENTIALS = {"model-warming": {"sources": {"s3": {"credentialsSecret": "models"}}}}
APPLY = "apply deploy/ of this version again"


@pytest.mark.parametrize(
    ("fault", "found", "where", "remedy"),
    [
        pytest.param(
            deleted(MUTATING),
            "configuration-missing",
            "MutatingWebhookConfiguration/zz-gpu-admission",
            APPLY,
            id="a-configuration-was-deleted",
        ),
        pytest.param(
            patched_entry(VALIDATING, "pod-placement.validate.gpu-admission.dev", ("remove", "", None)),
            "entry-missing",
            "webhooks[pod-placement.validate.gpu-admission.dev]",
            APPLY,
            id="an-entry-was-taken-out",
        ),
        pytest.param(
            patched_entry(
                MUTATING,
                "pods.mutate.gpu-admission.dev",
                ("replace", "/clientConfig/service/path", "/validate"),
            ),
            "wrong-service",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "--namespace, --service",
            id="an-entry-calls-another-path",
        ),
        pytest.param(
            deleted(f"/api/v1/namespaces/{NAMESPACE}/services/gpu-admission"),
            "service-missing",
            "Service/gpu-admission in gpu-admission",
            APPLY,
            id="the-service-is-gone",
        ),
        pytest.param(
            patched(f"{SLICES}/gpu-admission-1", ("replace", "/endpoints/0/conditions/ready", False)),
            "no-endpoints",
            "Service/gpu-admission in gpu-admission",
            "kubectl -n gpu-admission get pods",
            id="no-replica-is-ready",
        ),
        pytest.param(
            patched_entry(MUTATING, "pods.mutate.gpu-admission.dev", ("replace", "/failurePolicy", "Ignore")),
            "fails-open",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "set failurePolicy: Fail",
            id="it-fails-open",
        ),
        pytest.param(
            patched_entry(
                VALIDATING, "workloads.validate.gpu-admission.dev", ("replace", "/failurePolicy", "Fail")
            ),
            "fails-closed",
            "webhooks[workloads.validate.gpu-admission.dev]",
            "set failurePolicy: Ignore",
            id="workloads-fail-closed",
        ),
        pytest.param(
            patched_entry(
                MUTATING,
                "pods.mutate.gpu-admission.dev",
                ("replace", "/objectSelector", {"matchLabels": {"gpu": "yes"}}),
            ),
            "object-selector",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "empty webhooks.objectSelector of the chart",
            id="labels-lead-past-it",
        ),
        pytest.param(
            patched_entry(
                MUTATING,
                "pods.mutate.gpu-admission.dev",
                ("replace", "/matchConditions/0/expression", "true"),
            ),
            "entry-differs",
            "webhooks[pods.mutate.gpu-admission.dev]",
            APPLY,
            id="another-condition",
        ),
        pytest.param(
            patched_entry(MUTATING, "pods.mutate.gpu-admission.dev", ("replace", "/timeoutSeconds", 30)),
            "long-timeout",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "set timeoutSeconds: 5",
            id="a-long-timeout",
        ),
        pytest.param(
            patched_entry(
                MUTATING,
                "pods.mutate.gpu-admission.dev",
                ("replace", "/namespaceSelector/matchExpressions/0/values", ["kube-system"]),
            ),
            "own-namespace",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "add gpu-admission to the values",
            id="its-own-pods-depend-on-it",
        ),
        pytest.param(
            any_caller,
            "callers-unknown",
            "Service/gpu-admission in gpu-admission",
            "set webhook.clientAuthentication, or networkPolicy.webhookFrom where kube-apiserver cannot be configured",
            id="anybody-may-call",
        ),
        pytest.param(
            broken_client_ca,
            "client-ca-unusable",
            "Service/gpu-admission in gpu-admission",
            "correct ca.crt in the ConfigMap or Secret of webhook.clientAuthentication",
            id="authorities-of-callers-broken",
        ),
        pytest.param(
            excluded_team,
            "unseen-gpu-pods",
            "Namespace/team",
            "remove team from the selector",
            id="gpu-pods-where-nobody-looks",
        ),
        pytest.param(
            patched_entry(
                MUTATING, "pods.mutate.gpu-admission.dev", ("remove", "/clientConfig/caBundle", None)
            ),
            "ca-bundle-missing",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "run `gpu-admission controller --certificate-secret`, which repairs it within seconds",
            id="no-bundle",
        ),
        pytest.param(
            patched_entry(
                VALIDATING,
                "pods.validate.gpu-admission.dev",
                ("replace", "/clientConfig/caBundle", ANOTHER_CA),
            ),
            "ca-bundle-does-not-verify",
            "webhooks[pods.validate.gpu-admission.dev]",
            "run `gpu-admission controller --certificate-secret`, which repairs it within seconds",
            id="the-bundle-of-another-authority",
        ),
        pytest.param(
            webhook_down,
            "canary-call-failed",
            "the canary in gpu-admission-canary",
            "start the webhook",
            id="the-webhook-is-down",
        ),
        pytest.param(
            controller_down,
            "controller-away",
            "Lease/gpu-admission-controller in gpu-admission",
            "kubectl -n gpu-admission logs deployment/gpu-admission-controller",
            id="the-controller-is-down",
        ),
        pytest.param(
            deleted(f"{RBAC}/clusterrolebindings/gpu-admission-controller"),
            "right-missing",
            "ServiceAccount/gpu-admission-controller in gpu-admission",
            "ClusterRole",
            id="the-controller-lost-its-rights",
        ),
        pytest.param(
            created(f"{ADMISSION}/mutatingwebhookconfigurations", LATER),
            "later-webhook",
            "MutatingWebhookConfiguration/zzz-another",
            "give it a name that sorts before",
            id="another-webhook-runs-later",
        ),
        pytest.param(
            node(labels=T4, taints=()),
            "untainted-gpu-node",
            "Node odd",
            "kubectl taint nodes odd nvidia.com/gpu=present:NoSchedule",
            id="a-gpu-node-without-taint",
        ),
        pytest.param(
            node(labels=T4, taints=({"key": "dedicated", "value": "ml", "effect": "NoSchedule"},)),
            "taint-not-tolerated",
            "Node odd",
            "add {key: dedicated, operator: Equal, value: ml, effect: NoSchedule} to gpu-toleration.tolerations",
            id="a-taint-that-nobody-tolerates",
        ),
        pytest.param(
            node(labels={"nvidia.com/gpu.product": "Tesla-T4"}),
            "node-without-label",
            "Node odd",
            "kubectl label nodes odd accelerator=nvidia-t4",
            id="a-node-that-no-class-finds",
        ),
        pytest.param(
            node(labels={"nvidia.com/gpu.product": "NVIDIA-X1000"}),
            "unknown-class",
            "Node odd",
            "write a GPUClass with nodeLabels [{key: nvidia.com/gpu.product, values: [NVIDIA-X1000]}]",
            id="a-gpu-that-no-class-knows",
        ),
        pytest.param(
            node(labels={}),
            "unknown-class",
            "Node odd",
            "kubectl label nodes odd accelerator=CLASS",
            id="a-gpu-node-without-any-label",
        ),
        pytest.param(
            documents(policy(rules={"gpu-class": {"default": "nvidia-h200"}})),
            "class-without-nodes",
            "GPUPolicy/default",
            "gpu-class.autoscaledClasses of the policy",
            id="a-class-that-no-node-has",
        ),
        pytest.param(
            documents(
                policy(rules={"gpu-toleration": {"tolerations": [{"key": "dedicatd", "operator": "Exists"}]}})
            ),
            "toleration-without-taint",
            "GPUPolicy/default",
            "correct its spelling",
            id="a-toleration-of-a-taint-that-is-nowhere",
        ),
        pytest.param(
            documents(policy(rules={"gpu-clas": {}})),
            "document-refused",
            "configuration of",
            "correct it",
            id="a-policy-with-a-mistake",
        ),
        pytest.param(
            documents(policy(pausedUntil="2100-01-01T00:00:00Z")),
            "policy-paused",
            "GPUPolicy/default",
            "remove spec.pausedUntil",
            id="a-policy-that-is-paused",
        ),
        pytest.param(
            created(
                "/apis/gpu-admission.dev/v1alpha1/gpupolicies",
                {
                    "apiVersion": "gpu-admission.dev/v1alpha1",
                    **policy(pausedUntil="2100-01-01T00:00:00Z"),
                },
            ),
            "policy-paused",
            "GPUPolicy/default",
            "remove spec.pausedUntil",
            id="a-policy-in-the-cluster-that-is-paused",
        ),
        pytest.param(
            documents(
                policy(exemptions=[{"namespaces": ["old"], "reason": "migration", "until": "2020-01-31"}])
            ),
            "exemption-over",
            "GPUPolicy/default",
            "remove it",
            id="an-exemption-that-is-over",
        ),
        pytest.param(
            deployment(runtimeClassName="nvidia"),
            "runtime-class-missing",
            "Deployment/web in team",
            "the GPU operator brings nvidia",
            id="a-runtime-class-that-is-not-there",
        ),
        pytest.param(
            deployment({**WARMED, "gpu-admission.dev/model-cache-claim": "models"}),
            "cache-claim-missing",
            "Deployment/web in team",
            "create PersistentVolumeClaim models in team",
            id="a-claim-that-is-not-there",
        ),
        pytest.param(
            both(deployment(WARMED), documents(policy(rules=CREDENTIALS))),
            "credentials-missing",
            "Deployment/web in team",
            "kubectl -n team create secret generic models",
            id="credentials-that-are-not-there",
        ),
        pytest.param(
            created(
                f"/api/v1/namespaces/{TEAM}/resourcequotas",
                {"metadata": {"name": "gpus"}, "spec": {"hard": {"nvidia.com/gpu": "4"}}},
            ),
            "resource-quota-key",
            "ResourceQuota/gpus in team",
            "set requests.nvidia.com/gpu",
            id="a-quota-key-that-limits-nothing",
        ),
        pytest.param(
            created(
                f"/apis/gpu-admission.dev/v1alpha1/namespaces/{TEAM}/gpuquotas",
                {
                    "apiVersion": "gpu-admission.dev/v1alpha1",
                    "kind": "GPUQuota",
                    "metadata": {"name": "default"},
                    "spec": {"hard": {"gpus": "4"}},
                },
            ),
            "quota-not-ready",
            "GPUQuota/default in team",
            "wait ten seconds",
            id="a-quota-that-is-not-counted",
        ),
        pytest.param(
            patched(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuquotas.gpu-admission.dev",
                ("add", "/spec/versions/0/schema/openAPIV3Schema/description", "another"),
            ),
            "crd-differs",
            "CustomResourceDefinition/gpuquotas.gpu-admission.dev",
            APPLY,
            id="a-crd-of-another-version",
        ),
    ],
)
def test_doctor_finds(installation: Installation, fault: Fault, found: str, where: str, remedy: str) -> None:
    with fault(installation) as arguments:
        findings = eventually(lambda: _with(installation, found, arguments))
        status = installation.run(*arguments)[0]

    assert found in findings, list(findings)
    assert where in findings[found]["object"]
    assert remedy in findings[found]["remedy"]
    assert status == 1
    assert eventually(lambda: installation.run()[1]["healthy"]), installation.text()


def _with(
    installation: Installation, found: str, arguments: tuple[str | Path, ...]
) -> dict[str, dict[str, str]]:
    """Return the findings once there is the one; the API server takes configurations over a moment after storing them."""
    findings = installation.findings(*arguments)
    return findings if found in findings else {}
