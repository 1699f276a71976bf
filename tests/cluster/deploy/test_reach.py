"""What reaches the webhook, by its own count of requests: what asks for a GPU, always; anything else, never."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import JSON, container, deployment
from tests.cases import cases
from tests.controlplane import JSON_PATCH, MERGE_PATCH, ControlPlane, accepted
from tests.controlplane.plane import CLAIMS_API
from tests.controlplane.webhook import Calls, Webhook
from webhook.configuration.documents import Document

GPU = {"limits": {"nvidia.com/gpu": "1"}}
CPU = {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}}
DRY_RUN = {"dryRun": "All"}
FORBIDDEN = 403
NEVER: Calls = Counter()
BOTH: Calls = Counter(mutate=1, validate=1)
ONCE: Calls = Counter(validate=1)
TEAM = "reach"
LABEL = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    for name in (TEAM, "gpu-operator"):
        plane.kubectl("create", "namespace", name)
    with Webhook(plane) as running:
        running.register()
        for name in (TEAM, "gpu-operator", "gpu-admission", "gpu-admission-canary", "kube-node-lease"):
            # Its pods' account, which a controller makes.
            plane.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", "-n", name)
        yield running
        running.unregister()


def pod(*containers: JSON, metadata: JSON | None = None, **spec: Any) -> JSON:
    containers = containers or (container(),)
    return {
        "metadata": {"generateName": "pod-", **(metadata or {})},
        "spec": {"containers": containers, **spec},
    }


def annotated(**annotations: str) -> JSON:
    return pod(metadata={"annotations": annotations})


def calls(
    webhook: Webhook, plane: ControlPlane, method: str, path: str, body: Any = None, **options: Any
) -> Calls:
    """Send a request, which must succeed unless it is the webhook that refuses; return how often that was called."""
    before = webhook.calls()
    if method == "PATCH":
        options.setdefault("content_type", MERGE_PATCH)
    status, answer = plane.client().request(method, path, body, **options)
    found = webhook.calls() - before
    assert status in {200, 201} or (status == FORBIDDEN and found), answer
    return found


def pods(namespace: str = TEAM, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


@cases(
    "body",
    nothing_said=pod(),
    cpu_and_memory=pod(container(resources=CPU)),
    hugepages=(pod(container(resources={"limits": {"hugepages-2Mi": "2Mi", "memory": "1Gi"}}))),
    resources_null=pod(container(resources=None)),
    resources_empty=pod(container(resources={})),
    limits_null=pod(container(resources={"limits": None, "requests": None})),
    lists_null=pod(initContainers=None, resourceClaims=None),
    lists_empty=pod(initContainers=[], resourceClaims=[]),
    init_container_resources_null=(pod(initContainers=[container("init", resources=None)])),
    annotations_null=pod(metadata={"annotations": None, "labels": None}),
    annotations_empty=pod(metadata={"annotations": {}}),
    annotations_of_others=annotated(**{"nvidia.com/gpu": "1", "gpu": "1"}),
    pod_level_resources=pod(resources={"limits": {"cpu": "2"}}),
    on_gpu_nodes_without_asking=(
        pod(nodeSelector={"nvidia.com/gpu.present": "true"}, tolerations=[{"operator": "Exists"}])
    ),
)
def test_never(webhook: Webhook, plane: ControlPlane, body: JSON) -> None:
    assert calls(webhook, plane, "POST", pods(), body, query=DRY_RUN) == NEVER


@cases(
    "body",
    gpu=pod(container(resources=GPU)),
    gpu_and_null_lists=pod(container(resources=GPU), initContainers=None),
    second_container=(pod(container("sidecar", resources=None), container(resources=GPU))),
    init_container=pod(initContainers=[container("init", resources=GPU)]),
    second_init_container=(
        pod(initContainers=[container("a", resources=None), container("b", resources=GPU)])
    ),
    requests_null=pod(container(resources={**GPU, "requests": None})),
    mig=pod(container(resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}})),
    time_sliced=pod(container(resources={"limits": {"nvidia.com/gpu.shared": "1"}})),
    amd=pod(container(resources={"limits": {"amd.com/gpu": "1"}})),
    unheard_of=pod(container(resources={"limits": {"example.com/next-year": "1"}})),
    none_of_them=pod(container(resources={"limits": {"nvidia.com/gpu": "0"}})),
    claim_that_no_container_uses=(pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])),
    claim_template=(
        pod(
            container(resources={"claims": [{"name": "gpu"}]}),
            resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}],
        )
    ),
    fraction=annotated(**{"gpu-fraction": "0.5"}),
    fraction_by_memory=annotated(**{"gpu-memory": "4000"}),
    annotation_of_ours=annotated(**{"gpu-admission.dev/gpu-class": "nvidia-t4"}),
)
def test_always(webhook: Webhook, plane: ControlPlane, body: JSON) -> None:
    assert calls(webhook, plane, "POST", pods(), body, query=DRY_RUN) == BOTH


@cases(
    "resources",
    request_without_limit={"requests": {"nvidia.com/gpu": "1"}},
    half_a_gpu={"limits": {"nvidia.com/gpu": "500m"}},
)
def test_what_the_api_server_would_refuse_is_heard_before(
    webhook: Webhook, plane: ControlPlane, resources: JSON
) -> None:
    found = calls(webhook, plane, "POST", pods(), pod(container(resources=resources)), query=DRY_RUN)

    assert found == Counter(mutate=1)


@cases(
    ("namespace", "want"),
    kube_system=("kube-system", NEVER),
    kube_node_lease=("kube-node-lease", NEVER),
    our_own=("gpu-admission", NEVER),
    a_name_that_anybody_could_have_created=("gpu-operator", BOTH),
    the_canary=("gpu-admission-canary", BOTH),
    default=("default", BOTH),
)
def test_namespaces(webhook: Webhook, plane: ControlPlane, namespace: str, want: Calls) -> None:
    # As the restricted profile wants it, which our own namespace enforces.
    security = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
    body = pod(
        container(resources=GPU, securityContext=security),
        securityContext={"seccompProfile": {"type": "RuntimeDefault"}},
    )

    assert calls(webhook, plane, "POST", pods(namespace), body, query=DRY_RUN) == want


TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}
UNGATE = [
    {"op": "replace", "path": "/spec/schedulingGates", "value": []},
    {"op": "add", "path": "/spec/nodeSelector", "value": {"pool": "a100"}},
]
IMAGE = [{"op": "replace", "path": "/spec/containers/0/image", "value": "x:2"}]


def merged(**fields: Any) -> dict[str, Any]:
    return {"body": fields}


@cases(
    ("resources", "subresource", "change", "want"),
    gate_lifted_and_node_selected=(GPU, "", {"body": UNGATE, "content_type": JSON_PATCH}, BOTH),
    the_same_of_a_cpu_pod=(CPU, "", {"body": UNGATE, "content_type": JSON_PATCH}, NEVER),
    fraction=(GPU, "", merged(metadata={"annotations": {"gpu-fraction": "0.5"}}), ONCE),
    fraction_of_cpu_pod=(CPU, "", merged(metadata={"annotations": {"gpu-fraction": "0.5"}}), ONCE),
    other_annotation=(GPU, "", merged(metadata={"annotations": {"note": "x"}}), NEVER),
    label=(GPU, "", merged(metadata={"labels": {"note": "x"}}), NEVER),
    finalizer=(GPU, "", merged(metadata={"finalizers": ["example.com/f"]}), NEVER),
    image=(GPU, "", {"body": IMAGE, "content_type": JSON_PATCH}, Counter(mutate=1)),
    image_of_a_cpu_pod=(CPU, "", {"body": IMAGE, "content_type": JSON_PATCH}, NEVER),
    status=(GPU, "/status", merged(status={"phase": "Running"}), NEVER),
    ephemeral_container=(
        GPU,
        "/ephemeralcontainers",
        merged(spec={"ephemeralContainers": [{"name": "debug", "image": "x"}]}),
        NEVER,
    ),
)
def test_changes_of_a_stored_pod(
    webhook: Webhook, plane: ControlPlane, resources: JSON, subresource: str, change: Any, want: Calls
) -> None:
    gated = pod(container(resources=resources), schedulingGates=[{"name": "example.com/queue"}])
    stored = accepted(plane.client().post(pods(), gated))
    path = pods(name=stored["metadata"]["name"])

    assert calls(webhook, plane, "PATCH", path + subresource, **change) == want

    assert calls(webhook, plane, "DELETE", path, {"gracePeriodSeconds": 0}) == NEVER


def test_a_toleration_that_is_added_later(webhook: Webhook, plane: ControlPlane) -> None:
    name = plane.client().post(pods(), pod(container(resources=GPU)))[1]["metadata"]["name"]
    patch = [{"op": "add", "path": "/spec/tolerations/-", "value": {**TOLERATION, "key": "late"}}]

    assert calls(webhook, plane, "PATCH", pods(name=name), patch, content_type=JSON_PATCH) == BOTH


DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"


@cases(("resources", "want"), gpu=(GPU, ONCE), cpu=(CPU, NEVER))
def test_workloads(webhook: Webhook, plane: ControlPlane, resources: JSON, want: Calls) -> None:
    assert (
        calls(
            webhook,
            plane,
            "POST",
            DEPLOYMENTS,
            deployment("server", container(resources=resources)),
            query=DRY_RUN,
        )
        == want
    )


def test_changes_of_a_workload(webhook: Webhook, plane: ControlPlane) -> None:
    before = webhook.calls()
    accepted(plane.client().post(DEPLOYMENTS, deployment("server", container(resources=GPU), replicas=0)))
    path = f"{DEPLOYMENTS}/server"
    plane.kubectl("wait", "deployment/server", "-n", TEAM, "--for=condition=Available", "--timeout=90s")
    assert webhook.calls() - before == ONCE  # and not for its ReplicaSet

    assert calls(webhook, plane, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}) == NEVER
    assert calls(webhook, plane, "PATCH", f"{path}/scale", {"spec": {"replicas": 0}}) == NEVER
    relabelled = {"spec": {"template": {"metadata": {"labels": {"app": "server", "version": "2"}}}}}
    # More often than once where a controller's write came between: the API server then applies the patch again.
    assert set(calls(webhook, plane, "PATCH", path, relabelled)) == {"validate"}


def test_claims(webhook: Webhook, plane: ControlPlane) -> None:
    path = f"{CLAIMS_API}/namespaces/{TEAM}/resourceclaims"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}}

    assert calls(webhook, plane, "POST", path, claim) == ONCE
    assert calls(webhook, plane, "PATCH", f"{path}/one", {"metadata": {"labels": {"a": "b"}}}) == NEVER


def test_documents_wherever_they_are(webhook: Webhook, plane: ControlPlane) -> None:
    group = "/apis/gpu-admission.dev/v1alpha1"
    for path, kind, spec in (
        (f"{group}/gpupolicies", "GPUPolicy", {"priority": 3, "match": {"namespaces": ["nowhere"]}}),
        (f"{group}/namespaces/gpu-admission/gpuquotas", "GPUQuota", {"hard": {"gpus": "1"}}),
    ):
        assert calls(webhook, plane, "POST", path, Document(kind, "default", spec).data) == ONCE
        label = {"metadata": {"labels": {"a": "b"}}}
        assert calls(webhook, plane, "PATCH", f"{path}/default", label) == NEVER
        assert calls(webhook, plane, "DELETE", f"{path}/default") == NEVER


def test_resource_quotas_but_not_their_status(webhook: Webhook, plane: ControlPlane) -> None:
    path = f"/api/v1/namespaces/{TEAM}/resourcequotas"
    body = {"metadata": {"name": "compute"}, "spec": {"hard": {"nvidia.com/gpu": "1"}}}

    assert calls(webhook, plane, "POST", path, body) == ONCE
    status = {"status": {"hard": {"nvidia.com/gpu": "1"}}}
    assert calls(webhook, plane, "PATCH", f"{path}/compute/status", status) == NEVER
    plane.client().delete(f"{path}/compute")


def test_what_the_api_server_counts_while_we_are_away(webhook: Webhook, plane: ControlPlane) -> None:
    """The alerts read these counters: their names and labels are the API server's."""
    webhook.stop()
    try:
        refused, answer = plane.client().post(pods(), pod(container(resources=GPU)), DRY_RUN)
        let_in, _ = plane.client().post(DEPLOYMENTS, deployment("away", container(resources=GPU)), DRY_RUN)
        unaffected, _ = plane.client().post(pods(), pod(), DRY_RUN)
        exposed = plane.client().get("/metrics")[1]
    finally:
        webhook.start()

    assert (refused, let_in, unaffected) == (500, 201, 201), answer
    counted = {
        (name, dict(LABEL.findall(labels)).get("name"), dict(LABEL.findall(labels)).get("error_type"))
        for name, labels in re.findall(
            r"^apiserver_admission_webhook_(\w+)\{(.*gpu-admission\.dev.*)\}", exposed, re.MULTILINE
        )
    }
    assert {
        ("rejection_count", "pods.mutate.gpu-admission.dev", "calling_webhook_error"),
        ("fail_open_count", "workloads.validate.gpu-admission.dev", None),
        ("admission_duration_seconds_bucket", "pods.mutate.gpu-admission.dev", None),
    } <= counted
