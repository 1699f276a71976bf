"""`gpu-admission doctor` finds each fault of a real installation, and says what mends it."""

import base64
from contextlib import ExitStack
from typing import Any, NamedTuple

from tests.builders import deployment, gpu_container, manifest
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.doctor.faults import (
    ADMISSION,
    API,
    MUTATING,
    VALIDATING,
    Arguments,
    Fault,
    created,
    deleted,
    documents,
    node,
    nothing,
    patched,
    patched_entry,
    policy,
)
from tests.cluster.doctor.installation import RBAC, SLICES, T4, TEAM, Installation
from tests.controlplane import Authority
from tests.controlplane.webhook import NAMESPACE


def workload(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Fault:
    document = deployment(name, gpu_container(), namespace=TEAM, annotations=annotations or {})
    document["spec"]["template"]["spec"] |= spec
    return created(f"/apis/apps/v1/namespaces/{TEAM}/deployments", document)


def webhook_down(installation: Installation, repairs: ExitStack) -> Arguments:
    installation.webhook.stop()
    repairs.callback(installation.webhook.start)
    return ()


def broken_client_ca(installation: Installation, repairs: ExitStack) -> Arguments:
    file = installation.plane.callers_ca
    repairs.callback(file.write_bytes, file.read_bytes())
    file.write_text("-----BEGIN")
    assert eventually(lambda: "keeping the client CA" in installation.webhook.log())
    return ()


def controller_down(installation: Installation, repairs: ExitStack) -> Arguments:
    installation.plane.processes.terminate("controller", grace=30)
    repairs.callback(installation.controller.start)
    return ()


def excluded_team(installation: Installation, repairs: ExitStack) -> Arguments:
    pod = manifest("v1", "Pod", "trainer", {"containers": [gpu_container()]})
    created(f"/api/v1/namespaces/{TEAM}/pods", pod)(installation, repairs)
    at = "/webhooks/0/namespaceSelector/matchExpressions/0/values/-"
    return patched(MUTATING, ("add", at, TEAM))(installation, repairs)


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


class Finding(NamedTuple):
    """A fault, and what doctor says of it: the finding, the object, and what mends it."""

    fault: Fault
    id: str
    where: str
    remedy: str


MUTATE, VALIDATE = "pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"
PLACEMENT, WORKLOADS = "pod-placement.validate.gpu-admission.dev", "workloads.validate.gpu-admission.dev"
REPAIRED = "a controller with --certificate-secret repairs it within seconds"
SERVICE = "Service/gpu-admission in gpu-admission"
DEFAULT = "GPUPolicy/default"
PAUSED = {"pausedUntil": "2100-01-01T00:00:00Z"}
ML = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


def mutating(op: str, at: str, value: object) -> Fault:
    return patched_entry(MUTATING, MUTATE, op, at, value)


def validating(entry: str, op: str, at: str, value: object) -> Fault:
    return patched_entry(VALIDATING, entry, op, at, value)


REGISTRATION = [
    Finding(validating(PLACEMENT, "remove", "", None), "entry-missing", PLACEMENT, APPLY),
    Finding(
        mutating("replace", "/clientConfig/service/path", "/validate"), "wrong-service", MUTATE, "use --namespace"
    ),
    Finding(mutating("replace", "/failurePolicy", "Ignore"), "fails-open", MUTATE, "set failurePolicy: Fail"),
    Finding(
        validating(WORKLOADS, "replace", "/failurePolicy", "Fail"), "fails-closed", WORKLOADS, "set failurePolicy: Ignore"
    ),
    Finding(
        mutating("replace", "/objectSelector", {"matchLabels": {"gpu": "yes"}}),
        "object-selector", MUTATE, "empty webhooks.objectSelector of the chart",
    ),
    Finding(mutating("replace", "/matchConditions/0/expression", "true"), "entry-differs", MUTATE, APPLY),
    Finding(mutating("replace", "/timeoutSeconds", 30), "long-timeout", MUTATE, "set timeoutSeconds: 5"),
    Finding(
        mutating("replace", "/namespaceSelector/matchExpressions/0/values", ["kube-system"]),
        "own-namespace", MUTATE, "add gpu-admission to the values",
    ),
    Finding(mutating("remove", "/clientConfig/caBundle", None), "ca-bundle-missing", MUTATE, REPAIRED),
    Finding(
        validating(VALIDATE, "replace", "/clientConfig/caBundle", ANOTHER_CA), "ca-bundle-does-not-verify", VALIDATE, REPAIRED
    ),
]  # fmt: skip
OTHER_ACCOUNT = deployment("gpu-admission-controller", gpu_container(), namespace=NAMESPACE)
OTHER_ACCOUNT["metadata"]["labels"] = {
    "app.kubernetes.io/name": "gpu-admission",
    "app.kubernetes.io/component": "controller",
}
CLUSTER = [
    Finding(
        created(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", OTHER_ACCOUNT),
        "controller-user", "Deployment/gpu-admission-controller in gpu-admission", "serviceAccountName",
    ),
    Finding(
        patched(f"{SLICES}/gpu-admission-1", ("replace", "/endpoints/0/conditions/ready", False)),
        "no-endpoints", SERVICE, "kubectl -n gpu-admission get pods",
    ),
    Finding(excluded_team, "unseen-gpu-pods", "Namespace/team", "remove team from the selector"),
    Finding(
        deleted(f"{RBAC}/clusterrolebindings/gpu-admission-controller"),
        "right-missing", "ServiceAccount/gpu-admission-controller in gpu-admission", "ClusterRole",
    ),
    Finding(
        created(f"{ADMISSION}/mutatingwebhookconfigurations", LATER),
        "later-webhook", "MutatingWebhookConfiguration/zzz-another", "give it a name that sorts before",
    ),
    Finding(
        created(
            f"/api/v1/namespaces/{TEAM}/resourcequotas",
            {"metadata": {"name": "gpus"}, "spec": {"hard": {"nvidia.com/gpu": "4"}}},
        ),
        "resource-quota-key", "ResourceQuota/gpus in team", "set requests.nvidia.com/gpu",
    ),
    Finding(
        patched(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuquotas.gpu-admission.dev",
            ("add", "/spec/versions/0/schema/openAPIV3Schema/description", "another"),
        ),
        "crd-differs", "CustomResourceDefinition/gpuquotas.gpu-admission.dev", APPLY,
    ),
    Finding(
        created(f"{API}/gpupolicies", {"apiVersion": "gpu-admission.dev/v1alpha1", **policy(**PAUSED)}),
        "policy-paused", DEFAULT, "remove spec.pausedUntil",
    ),
    Finding(
        created(
            f"{API}/namespaces/{TEAM}/gpuquotas",
            manifest("gpu-admission.dev/v1alpha1", "GPUQuota", "default", {"hard": {"gpus": "4"}}),
        ),
        "quota-not-ready", "GPUQuota/default in team", "wait ten seconds",
    ),
]  # fmt: skip
NODES = [
    Finding(
        node("bare", labels=T4, taints=()),
        "untainted-gpu-node", "Node bare", "kubectl taint nodes bare nvidia.com/gpu=present:NoSchedule",
    ),
    Finding(
        node("dedicated", labels=T4, taints=(ML,)), "taint-not-tolerated", "Node dedicated",
        "add {key: dedicated, operator: Equal, value: ml, effect: NoSchedule} to gpu-toleration.tolerations",
    ),
    Finding(
        node("unlabelled", labels={"nvidia.com/gpu.product": "Tesla-T4"}),
        "node-without-label", "Node unlabelled", "kubectl label nodes unlabelled accelerator=nvidia-t4",
    ),
    Finding(
        node("strange", labels={"nvidia.com/gpu.product": "NVIDIA-X1000"}), "unknown-class", "Node strange",
        "write a GPUClass with nodeLabels [{key: nvidia.com/gpu.product, values: [NVIDIA-X1000]}]",
    ),
    Finding(
        node("nameless", labels={}), "unknown-class", "Node nameless", "kubectl label nodes nameless accelerator=CLASS"
    ),
]  # fmt: skip
DOCUMENTS = [
    Finding(
        documents(
            policy(
                **PAUSED,
                exemptions=[{"namespaces": ["old"], "reason": "migration", "until": "2020-01-31"}],
                rules={
                    "gpu-class": {"default": "nvidia-h200"},
                    "gpu-toleration": {"tolerations": [{"key": "dedicatd", "operator": "Exists"}]},
                    **CREDENTIALS,
                },
            )
        ),
        "class-without-nodes", DEFAULT, "gpu-class.autoscaledClasses of the policy",
    ),
    Finding(nothing, "toleration-without-taint", DEFAULT, "correct its spelling"),
    Finding(nothing, "policy-paused", DEFAULT, "remove spec.pausedUntil"),
    Finding(nothing, "exemption-over", DEFAULT, "remove it"),
    Finding(
        workload("runs", runtimeClassName="nvidia"),
        "runtime-class-missing", "Deployment/runs in team", "the GPU operator brings nvidia",
    ),
    Finding(
        workload("cached", {**WARMED, "gpu-admission.dev/model-cache-claim": "models"}),
        "cache-claim-missing", "Deployment/cached in team", "create PersistentVolumeClaim models in team",
    ),
    Finding(
        nothing, "credentials-missing", "Deployment/cached in team", "kubectl -n team create secret generic models"
    ),
]  # fmt: skip
GONE = [
    Finding(
        deleted(MUTATING), "configuration-missing", "MutatingWebhookConfiguration/zz-gpu-admission", APPLY
    ),
    Finding(
        deleted(f"/api/v1/namespaces/{NAMESPACE}/services/gpu-admission"), "service-missing", SERVICE, APPLY
    ),
    Finding(documents(policy(rules={"gpu-clas": {}})), "document-rejected", "configuration of", "correct it"),
]
CONTROLLER = "gpu-admission-controller in gpu-admission"
LOGS = "kubectl -n gpu-admission logs deployment/gpu-admission-controller"
CLIENT_CA = "correct ca.crt in the ConfigMap or Secret of webhook.clientAuthentication"


@cases(
    "faults",
    entries_that_somebody_changed=REGISTRATION,
    objects_that_somebody_changed=CLUSTER,
    nodes=NODES,
    documents_and_workloads=DOCUMENTS,
    what_is_gone_or_cannot_be_read=GONE,
    authorities_of_callers_broken=([Finding(broken_client_ca, "client-ca-unusable", SERVICE, CLIENT_CA)]),
    the_webhook_is_down=[
        Finding(webhook_down, "canary-call-failed", "the canary in gpu-admission-canary", "start the webhook")
    ],
    the_controller_is_down=[Finding(controller_down, "controller-away", f"Lease/{CONTROLLER}", LOGS)],
)
def test_doctor_finds(installation: Installation, faults: list[Finding]) -> None:
    """All of them at once: no fault hides another."""
    with ExitStack() as broken:
        arguments = [part for each in faults for part in each.fault(installation, broken)]

        def missing() -> list[str]:
            status, printed = installation.run(*arguments)
            found = [finding for check in printed["checks"] for finding in check["findings"]]
            assert (status, bool(found)) in {(1, True), (0, False)}
            return [each.id for each in faults if not any(_is(each, finding) for finding in found)]

        # The API server takes configurations over a moment after storing them.
        assert eventually(lambda: not missing()), missing()
    assert eventually(lambda: installation.run()[1]["healthy"]), installation.text()


def _is(want: Finding, found: dict[str, str]) -> bool:
    return want.id == found["id"] and want.where in found["object"] and want.remedy in found["remedy"]
