"""GPUs that a LimitRange gives by default, on a real API server: who hears of them, and that what it says is right."""

from collections.abc import Iterator, Sequence

import pytest

from tests.builders import JSON, container, deployment, gpu_container, manifest, pod
from tests.cases import cases
from tests.cluster.applying import apply, named
from tests.cluster.configuration import default_policy
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.webhook import Webhook, apply_all, serving, strict_manifests

NAMESPACE = "gpus-by-default"
GIVING = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "gpus", "namespace": NAMESPACE},
    "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "2"}}]},
}
GIVES = "LimitRange gpus gives nvidia.com/gpu: 2 to each container that requests none"


@pytest.fixture(scope="module", autouse=True)
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    reading = ("--kubeconfig", plane.kubeconfig())
    policy = default_policy({"gpu-requests": {"maxPerContainer": 1}})
    with serving(plane, policy, NAMESPACE, arguments=reading) as running:
        yield running


def test_a_limit_range_that_gives_gpus(plane: ControlPlane) -> None:
    taken, said = apply(plane, GIVING)

    assert taken
    assert said == (
        'Warning: LimitRange gpus-by-default/gpus: spec.limits[0].default[nvidia.com/gpu] = "2": set default[nvidia.com/gpu] and '
        "defaultRequest[nvidia.com/gpu] to 0; each container that requests none gets it, also sidecars and init containers "
        "[limit-range]"
    )

    def answer(name: str, main: JSON) -> tuple[bool, str]:
        return apply(plane, named(name, pod(main), NAMESPACE), dry_run=True)

    # The webhook follows LimitRanges from the first pod on that one gave something.
    assert eventually(lambda: GIVES in answer("web", container())[1])
    taken, said = answer("web", container())
    assert not taken
    assert (
        'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "2": '
        "set nvidia.com/gpu: 0 in resources.limits if it needs no GPU, "
        f"or set nvidia.com/gpu: 1 or less; must be at most 1 per container by policy; {GIVES} [gpu-requests]"
    ) in said

    none = container(resources={"limits": {"nvidia.com/gpu": "0"}})
    assert answer("without", none) == (True, "")
    assert answer("one", gpu_container("1"))[0]

    beside = deployment("web", gpu_container("1"), container("proxy"), namespace=NAMESPACE)
    taken, said = apply(plane, beside, dry_run=True)
    assert taken
    assert GIVES in said


# ---- workloads that request none: the webhook does not review those of Kubernetes

POLICY = "gpu-admission-limit-ranges"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
NONE: JSON = {"limits": {"nvidia.com/gpu": "0"}}
TOLD = f"Warning: Validation failed for ValidatingAdmissionPolicy '{POLICY}' with binding '{POLICY}': "
TO_EACH = "; LimitRange {1} gives {0}: {2} to each container that requests none"
SAID = TOLD + "set {0}: 0 in resources.limits of containers that need none" + TO_EACH
TO_ASK = TOLD + "ask the platform team to take {0} out of LimitRange {1}" + TO_EACH
GPUS = SAID.format("nvidia.com/gpu", "gpus", 2)
LABELS = {"app": "x"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": pod(container())["spec"]}
SELECTING: JSON = {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}
TO_THE_END = {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}


@pytest.fixture(scope="module")
def warned(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Install the policy of the chart; return when it holds."""
    installed = [each for each in strict_manifests() if each["metadata"]["name"] == POLICY]
    assert [each["kind"] for each in installed] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    apply_all(plane, installed)
    apply(plane, GIVING)
    assert eventually(lambda: GPUS in said_of(plane, deployment("web", container()))[1])
    yield plane
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        plane.client().delete(f"{REGISTRATION}/{kind}/{POLICY}")


def said_of(plane: ControlPlane, document: JSON, namespace: str = NAMESPACE) -> tuple[bool, str]:
    metadata = {**document["metadata"], "namespace": namespace}
    return apply(plane, {**document, "metadata": metadata}, dry_run=True)


@cases(
    ("document", "want"),
    a_deployment=(deployment("web", container()), GPUS),
    a_stateful_set=(manifest("apps/v1", "StatefulSet", "web", {"serviceName": "web", **SELECTING}), GPUS),
    a_daemon_set=(manifest("apps/v1", "DaemonSet", "web", SELECTING), GPUS),
    a_replica_set=(manifest("apps/v1", "ReplicaSet", "web", SELECTING), GPUS),
    a_replication_controller=(
        manifest("v1", "ReplicationController", "web", {"selector": LABELS, "template": TEMPLATE}),
        GPUS,
    ),
    a_job=(manifest("batch/v1", "Job", "web", TO_THE_END), GPUS),
    one_that_requests_0=(deployment("web", container(resources=NONE)), ""),
    one_of_another_workload=(
        manifest(
            *("apps/v1", "ReplicaSet", "web", SELECTING),
            ownerReferences=[
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1", "controller": True}
            ],
        ),
        "",
    ),
)
def test_a_workload_without_gpus_where_a_limit_range_gives_them(
    warned: ControlPlane, document: JSON, want: str
) -> None:
    assert said_of(warned, document) == (True, want)


@cases(
    ("document", "path"),
    a_cron_job=(
        manifest(
            *("batch/v1", "CronJob", "nightly"), {"schedule": "@daily", "jobTemplate": {"spec": TO_THE_END}}
        ),
        "containers[0]",
    ),
    a_container_beside_one_with_gpus=(
        deployment("web", gpu_container("1"), container("proxy")),
        "containers[1]",
    ),
)
def test_what_the_webhook_reviews_is_told_once(warned: ControlPlane, document: JSON, path: str) -> None:
    taken, said = said_of(warned, document)

    assert taken
    assert [line for line in said.splitlines() if GIVES in line] == [
        f"Warning: {document['kind']} {NAMESPACE}/{document['metadata']['name']}: its pods would be denied: "
        f'{path}.resources.limits[nvidia.com/gpu] (container "{"main" if path.endswith("[0]") else "proxy"}") = "2": '
        "set nvidia.com/gpu: 0 in resources.limits if it needs no GPU, or set nvidia.com/gpu: 1 or less; "
        f"must be at most 1 per container by policy; {GIVES} [gpu-requests]"
    ]


def container_limits(name: str, namespace: str, **item: JSON) -> JSON:
    return {
        **GIVING,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


@cases(
    ("limit_ranges", "want"),
    none=((), ""),
    two=(
        (
            container_limits("gpus", "", default={"nvidia.com/gpu": "1"}),
            container_limits("other-gpus", "", max={"amd.com/gpu": "8", "cpu": "4"}),
        ),
        "\n".join([SAID.format("nvidia.com/gpu", "gpus", 1), SAID.format("amd.com/gpu", "other-gpus", 8)]),
    ),
    a_request_alone=(
        (container_limits("gpus", "", defaultRequest={"nvidia.com/gpu": "1"}),),
        SAID.format("nvidia.com/gpu", "gpus", 1),
    ),
    of_pods=(
        ({**GIVING, "spec": {"limits": [{"type": "Pod", "max": {"nvidia.com/gpu": "2"}}]}},),
        "",
    ),
    none_of_gpus=((container_limits("sizes", "", default={"cpu": "1", "memory": "1Gi"}),), ""),
    none_by_default=(
        (
            container_limits(
                "gpus",
                "",
                default={"nvidia.com/gpu": "0"},
                defaultRequest={"nvidia.com/gpu": "0"},
                max={"nvidia.com/gpu": "4"},
            ),
        ),
        "",
    ),
    one_that_refuses_0=(
        (
            container_limits(
                "gpus", "", default={"nvidia.com/gpu": "2", "amd.com/gpu": "1"}, min={"nvidia.com/gpu": "1"}
            ),
        ),
        TO_ASK.format("nvidia.com/gpu", "gpus", "2").replace("gpu: 2 to", "gpu: 2 and amd.com/gpu: 1 to"),
    ),
    a_ratio_that_refuses_0=(
        (
            container_limits(
                "gpus", "", max={"nvidia.com/gpu": "2"}, maxLimitRequestRatio={"nvidia.com/gpu": "1"}
            ),
        ),
        TO_ASK.format("nvidia.com/gpu", "gpus", "2"),
    ),
)
def test_the_warning_says_what_each_limit_range_gives(
    warned: ControlPlane, request: pytest.FixtureRequest, limit_ranges: Sequence[JSON], want: str
) -> None:
    namespace = request.node.callspec.id.replace("_", "-")
    client = warned.client()
    accepted(client.post("/api/v1/namespaces", {"metadata": {"name": namespace}}))
    for each in limit_ranges:
        apply(warned, {**each, "metadata": {**each["metadata"], "namespace": namespace}})
    web = deployment("web", container())

    assert eventually(
        lambda: sorted(said_of(warned, web, namespace)[1].splitlines()) == sorted(want.splitlines())
    ), said_of(warned, web, namespace)
    without = named(
        "web", pod(container(resources={"limits": {"nvidia.com/gpu": "0", "amd.com/gpu": "0"}})), namespace
    )
    assert eventually(lambda: apply(warned, without, dry_run=True)[0] is ("ask" not in want))
    client.delete(f"/api/v1/namespaces/{namespace}")
