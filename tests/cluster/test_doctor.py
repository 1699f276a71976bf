"""`gpu-admission doctor` on a real installation: nothing to say where all is well, and each fault found, with what mends it."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.cluster.controllers import Command, eventually
from tests.controlplane import JSON_PATCH, Authority, Client, ControlPlane, create_gpu_node
from tests.controlplane.webhook import NAMESPACE, Webhook
from webhook.commands.doctor import doctor
from webhook.doctor.checks.permissions import needed
from webhook.doctor.cluster import Names
from webhook.doctor.registry import CHECKS
from webhook.doctor.rights import Right

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/zz-gpu-admission"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
CANARY_NAMESPACE = "gpu-admission-canary"
TEAM = "team"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
T4 = {"accelerator": "nvidia-t4", "nvidia.com/gpu.product": "Tesla-T4"}
CLASSIFIED = {"accelerator": "nvidia-t4"}


class Installation:
    """A control plane with webhook, controller and all that belongs to them; `run` is doctor's word on it."""

    def __init__(self, plane: ControlPlane, webhook: Webhook, controller: Command, folder: Path) -> None:
        self.plane, self.webhook, self.controller, self.folder = plane, webhook, controller, folder

    @property
    def client(self) -> Client:
        return self.plane.client()

    def run(self, *arguments: str | Path, user: str = "admin") -> tuple[int, Any]:
        """Return the exit status, and what was printed as JSON."""
        status, printed = self.text("-o", "json", *arguments, user=user)
        return status, json.loads(printed)

    def text(self, *arguments: str | Path, user: str = "admin") -> tuple[int, str]:
        whole = ["--kubeconfig", str(self.plane.kubeconfig(user)), *map(str, arguments)]
        result = CliRunner().invoke(doctor, whole)
        return result.exit_code, result.output

    def findings(self, *arguments: str | Path) -> dict[str, dict[str, str]]:
        return {
            finding["id"]: finding
            for check in self.run(*arguments)[1]["checks"]
            for finding in check["findings"]
        }

    def configuration(self, *documents: dict[str, Any]) -> Path:
        """Return a directory of documents for --config."""
        metadata = {"apiVersion": "gpu-admission.dev/v1alpha1"}
        text = yaml.safe_dump_all([{**metadata, **document} for document in documents])
        (self.folder / "policy.yaml").write_text(text)
        return self.folder


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    plane = ControlPlane()
    plane.add_user("engineer", groups=["ml-engineers"])
    with plane, Webhook(plane, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        client = plane.client()
        for name in (CANARY_NAMESPACE, TEAM):
            client.post("/api/v1/namespaces", {"metadata": {"name": name}})
        create_gpu_node(client, "gpu-0", labels=T4, taints=(TAINT,))
        webhook.register()
        _ready_endpoint(client)
        _rights(client)
        controller = Command(
            plane, "controller", "--namespace", NAMESPACE, "--canary-namespace", CANARY_NAMESPACE
        )
        controller.start()
        yield Installation(plane, webhook, controller, tmp_path_factory.mktemp("documents"))


def _ready_endpoint(client: Client) -> None:
    # As the EndpointSlice controller makes it; it may hold no loopback address, which is where this webhook listens.
    document = {
        "metadata": {"name": "gpu-admission-1", "labels": {"kubernetes.io/service-name": "gpu-admission"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}],
        "ports": [{"name": "webhook", "port": 8443, "protocol": "TCP"}],
    }
    status, answer = client.post(SLICES, document)
    assert status == 201, answer


def _rights(client: Client) -> None:
    """Give both ServiceAccounts what they need, cluster-wide."""
    kinds = frozenset({"gpuquotas", "gpupolicies", "gpuclasses", "gpuvocabularies"})
    for account, rights in needed(Names(), kinds, karpenter=True).items():
        rules = [_rule(right) for right in rights]
        client.post(f"{RBAC}/clusterroles", {"metadata": {"name": account}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
        client.post(
            f"{RBAC}/clusterrolebindings",
            {"metadata": {"name": account}, "subjects": [subject], "roleRef": role},
        )


def _rule(right: Right) -> dict[str, Any]:
    names = {"resourceNames": [right.name]} if right.name else {}
    return {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb], **names}


# ---- all is well


def test_a_healthy_installation_gives_nothing_to_say(installation: Installation) -> None:
    status, printed = installation.text()

    assert (status, printed) == (0, f"{len(CHECKS)} checks, no findings\n")


def test_json_names_every_check(installation: Installation) -> None:
    status, document = installation.run()

    assert (status, document["healthy"]) == (0, True)
    assert [check["id"] for check in document["checks"]] == [check.id for check in CHECKS]


# ---- what can be wrong

Fault = Callable[[Installation], AbstractContextManager[tuple[str | Path, ...]]]
"""Breaks something, gives the arguments of doctor, and mends it again."""


def patched(path: str, *operations: tuple[str, str, Any]) -> Fault:
    """Change an object by a JSON patch, and put back what it was."""

    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        before = installation.client.get(path)[1]
        patch = [{"op": op, "path": at, "value": value} for op, at, value in operations]
        status, answer = installation.client.patch(path, patch, content_type=JSON_PATCH)
        assert status == 200, answer
        try:
            yield ()
        finally:
            _put_back(installation.client, path, before)

    return fault


def _put_back(client: Client, path: str, before: dict[str, Any]) -> None:
    before["metadata"]["resourceVersion"] = client.get(path)[1]["metadata"]["resourceVersion"]
    status, answer = client.put(path, before)
    assert status == 200, answer


def deleted(path: str) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        before = installation.client.get(path)[1]
        assert installation.client.delete(path)[0] == 200
        try:
            yield ()
        finally:
            for field in ("resourceVersion", "uid"):
                before["metadata"].pop(field)
            status, answer = installation.client.post(path.rpartition("/")[0], before)
            assert status == 201, answer

    return fault


def created(path: str, document: dict[str, Any], *arguments: str) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        status, answer = installation.client.post(path, document)
        assert status == 201, answer
        try:
            yield arguments
        finally:
            name = f"{path}/{document['metadata']['name']}"
            assert installation.client.delete(name, {"gracePeriodSeconds": 0})[0] in {200, 202}

    return fault


def node(*, labels: dict[str, str], taints: tuple[dict[str, str], ...] = (TAINT,)) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        create_gpu_node(installation.client, "odd", labels=labels, taints=taints)
        try:
            yield ()
        finally:
            installation.client.delete("/api/v1/nodes/odd")

    return fault


def documents(*given: dict[str, Any]) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        yield "--config", installation.configuration(*given)

    return fault


def both(first: Fault, second: Fault) -> Fault:
    @contextmanager
    def fault(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
        with first(installation) as one, second(installation) as two:
            yield *one, *two

    return fault


def policy(**spec: Any) -> dict[str, Any]:
    return {"kind": "GPUPolicy", "metadata": {"name": "default"}, "spec": spec}


def deployment(annotations: dict[str, str] | None = None, **spec: Any) -> Fault:
    container = {"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }
    document = {
        "metadata": {"name": "web", "namespace": TEAM},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    return created(f"/apis/apps/v1/namespaces/{TEAM}/deployments", document)


@contextmanager
def webhook_down(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    installation.webhook.stop()
    try:
        yield ()
    finally:
        installation.webhook.start()


@contextmanager
def controller_down(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    installation.plane.processes.terminate("controller", grace=10)
    try:
        yield ()
    finally:
        installation.controller.start()


@contextmanager
def excluded_team(installation: Installation) -> Iterator[tuple[str | Path, ...]]:
    at = "/webhooks/0/namespaceSelector/matchExpressions/0/values/-"
    pod = {
        "metadata": {"name": "trainer"},
        "spec": {
            "containers": [{"name": "a", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
        },
    }
    with (
        created(f"/api/v1/namespaces/{TEAM}/pods", pod)(installation),
        patched(MUTATING, ("add", at, TEAM))(installation),
    ):
        yield ()


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
            patched(VALIDATING, ("remove", "/webhooks/1", None)),
            "entry-missing",
            "webhooks[pod-placement.validate.gpu-admission.dev]",
            APPLY,
            id="an-entry-was-taken-out",
        ),
        pytest.param(
            patched(MUTATING, ("replace", "/webhooks/0/clientConfig/service/path", "/validate")),
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
            patched(MUTATING, ("replace", "/webhooks/0/failurePolicy", "Ignore")),
            "fails-open",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "set failurePolicy: Fail",
            id="it-fails-open",
        ),
        pytest.param(
            patched(VALIDATING, ("replace", "/webhooks/3/failurePolicy", "Fail")),
            "fails-closed",
            "webhooks[workloads.validate.gpu-admission.dev]",
            "set failurePolicy: Ignore",
            id="workloads-fail-closed",
        ),
        pytest.param(
            patched(MUTATING, ("replace", "/webhooks/0/objectSelector", {"matchLabels": {"gpu": "yes"}})),
            "object-selector",
            "webhooks[pods.mutate.gpu-admission.dev]",
            APPLY,
            id="labels-lead-past-it",
        ),
        pytest.param(
            patched(MUTATING, ("replace", "/webhooks/0/matchConditions/0/expression", "true")),
            "entry-differs",
            "webhooks[pods.mutate.gpu-admission.dev]",
            APPLY,
            id="another-condition",
        ),
        pytest.param(
            patched(MUTATING, ("replace", "/webhooks/0/timeoutSeconds", 30)),
            "long-timeout",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "set timeoutSeconds: 5",
            id="a-long-timeout",
        ),
        pytest.param(
            patched(
                MUTATING,
                ("replace", "/webhooks/0/namespaceSelector/matchExpressions/0/values", ["kube-system"]),
            ),
            "own-namespace",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "add gpu-admission to the values",
            id="its-own-pods-depend-on-it",
        ),
        pytest.param(
            excluded_team,
            "unseen-gpu-pods",
            "Namespace/team",
            "take team out of the selector",
            id="gpu-pods-where-nobody-looks",
        ),
        pytest.param(
            patched(MUTATING, ("remove", "/webhooks/0/clientConfig/caBundle", None)),
            "ca-bundle-missing",
            "webhooks[pods.mutate.gpu-admission.dev]",
            "gpu-admission certs rotate",
            id="no-bundle",
        ),
        pytest.param(
            patched(VALIDATING, ("replace", "/webhooks/0/clientConfig/caBundle", ANOTHER_CA)),
            "ca-bundle-does-not-verify",
            "webhooks[pods.validate.gpu-admission.dev]",
            "gpu-admission certs rotate",
            id="the-bundle-of-another-authority",
        ),
        pytest.param(
            webhook_down,
            "canary-call-failed",
            "a GPU pod, tried in gpu-admission-canary",
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
            "add {key: dedicated, operator: Exists} to gpu-toleration.tolerations",
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
            "GPUPolicy/default gpu-class nvidia-h200",
            "gpu-class.knownPools of the policy",
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
            "take spec.pausedUntil out",
            id="a-policy-that-is-paused",
        ),
        pytest.param(
            documents(
                policy(exemptions=[{"namespaces": ["old"], "reason": "migration", "until": "2020-01-31"}])
            ),
            "exemption-over",
            "GPUPolicy/default",
            "take it out",
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
            "write requests.nvidia.com/gpu",
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
            "it takes some ten seconds",
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
        findings = eventually(lambda: _with(installation, found, arguments), seconds=10)
        status = installation.run(*arguments)[0]

    assert found in findings, list(findings)
    assert where in findings[found]["object"]
    assert remedy in findings[found]["remedy"]
    assert status == 1
    assert eventually(lambda: installation.run()[1]["healthy"], seconds=20), installation.text()


def _with(
    installation: Installation, found: str, arguments: tuple[str | Path, ...]
) -> dict[str, dict[str, str]]:
    """Return the findings once there is the one; the API server takes configurations over a moment after storing them."""
    findings = installation.findings(*arguments)
    return findings if found in findings else {}
