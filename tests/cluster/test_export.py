"""What `gpu-admission export` writes, on a real API server: the rules hold without our webhook, and it fits in."""

from functools import partial
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.exported import ALL, CHOSEN, EXEMPTED, LABELLED, TEAM, VOID, WARNED, create
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.client import STRATEGIC_PATCH
from tests.controlplane.webhook import ROOT
from webhook.commands import main
from webhook.configuration.documents import Document

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


@pytest.fixture(scope="module")
def plane(exported: ControlPlane) -> ControlPlane:
    return exported


def test_every_expression_type_checks(plane: ControlPlane) -> None:
    listed = accepted(plane.client().get(POLICIES))
    ours = [each for each in listed["items"] if each["metadata"]["name"].startswith("gpu-admission.")]

    assert len(ours) >= 13
    for policy in ours:
        name, generation = policy["metadata"]["name"], policy["metadata"]["generation"]
        checked = eventually(partial(type_checked, plane, name, generation), seconds=90)
        assert checked["typeChecking"] == {}


def type_checked(plane: ControlPlane, name: str, generation: int) -> JSON:
    """Return what the API server says of the policy's types, nothing before it has looked at this generation."""
    status = plane.client().get(f"{POLICIES}/{name}")[1].get("status", {})
    is_checked = status.get("observedGeneration") == generation
    return {"typeChecking": status.get("typeChecking", {})} if is_checked else {}


# ---- what is refused; whether it is what the engine says: static/test_three_ways.py

SIDECARS = [
    gpu_container("4", name="a", restartPolicy="Always"),
    gpu_container("4", name="b"),
    gpu_container("1", name="c", restartPolicy="Always"),
]


@cases(
    ("namespace", "document", "reported"),
    variable=(
        *(TEAM, pod(gpu_container(name="a"), container("b", env=[ALL]))),
        'spec.containers[1].env[0] (container "b") = "all": request nvidia.com/gpu: 1 in resources.limits or remove',
    ),
    more_than_a_container_may_have=(
        *(TEAM, pod(gpu_container("5"))),
        'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "5": set nvidia.com/gpu: 4',
    ),
    more_than_a_pod_may_have=(
        *(TEAM, pod(*(gpu_container("3", name=name) for name in "abc"))),
        "request nvidia.com/gpu: 8 or less; the pod needs 9 nvidia.com/gpu at one time: must be at most 8 per pod",
    ),
    sidecars_count_for_the_whole_life=(
        *(TEAM, pod(gpu_container("4"), initContainers=SIDECARS)),
        "the pod needs 9 nvidia.com/gpu at one time",
    ),
    percentage=(
        *(TEAM, pod(gpu_container("101", resource="nvidia.com/gpucores"))),
        "must be at most 100 percent of a GPU",
    ),
    policy_by_labels=(
        *(LABELLED, pod(gpu_container("2"))),
        "request nvidia.com/gpu: 1 or less; the pod needs 2 nvidia.com/gpu at one time: must be at most 1",
    ),
)
def test_refused(plane: ControlPlane, namespace: str, document: JSON, reported: str) -> None:
    status, answer = create(plane.client(), document, namespace)

    assert status == 403, answer
    assert reported in answer["message"]


def on(gpu_class: str, amount: str = "1", **spec: Any) -> JSON:
    return pod(gpu_container(amount), nodeSelector={"accelerator": gpu_class}, **spec)


def made_by(kind: str) -> JSON:
    owner = {"apiVersion": "ray.io/v1", "kind": kind, "name": "o", "uid": "1", "controller": True}
    return {
        **on("nvidia-t4", restartPolicy="Never"),
        "metadata": {"name": "owned", "ownerReferences": [owner]},
    }


TERMS = [
    {"matchExpressions": [{"key": "accelerator", "operator": "In", "values": ["nvidia-t4", "nvidia-l4"]}]}
]
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}}
RUNS = {"restartPolicy": "Never"}
SERVES = {**gpu_container(), "ports": [{"containerPort": 80}]}
UNPINNED = (
    "spec: set nodeSelector accelerator: nvidia-a100-40gb or nvidia-a100-80gb or nvidia-t4; must pin the pod to a GPU class: "
    "namespace exported-chosen may not use every class [gpu-class]"
)


@cases(
    ("document", "reported"),
    an_allowed_class=(on("nvidia-t4"), ""),
    another_class=(on("nvidia-l4"), "must not pin the pod to nvidia-l4: not allowed in namespace exported-chosen [gpu-class]"),
    one_of_two_values=(pod(gpu_container(), affinity=AFFINITY), "must not pin the pod to nvidia-l4: not allowed in namespace"),
    no_pin=(pod(gpu_container()), UNPINNED),
    no_pin_yet=(pod(gpu_container(), schedulingGates=[{"name": "example.com/queue"}]), ""),
    another_class_before_the_gate_is_lifted=(on("nvidia-l4", schedulingGates=[{"name": "example.com/queue"}]), "must not pin"),
    no_gpu=(pod(container(), nodeSelector={"accelerator": "nvidia-l4"}), ""),
    a_node_by_name=(pod(gpu_container(), nodeSelector={"kubernetes.io/hostname": "n"}), ""),
    a_validator_of_a_gpu_operator=(pod(gpu_container(), nodeName="n"), ""),
    more_than_of_this_class=(on("nvidia-t4", "3"), "the pod needs 3 nvidia.com/gpu at one time: must be at most 2 per pod"),
    as_many_of_another_class=(on("nvidia-a100", "3"), ""),
    more_than_of_any_class=(on("nvidia-a100", "7"), "the pod needs 7 nvidia.com/gpu at one time: must be at most 6 per pod"),
    no_deadline=(on("nvidia-t4", **RUNS), "spec.activeDeadlineSeconds: set it to 3600 or less; must be set: "),
    no_deadline_on_another_class=(on("nvidia-a100", **RUNS), "spec.activeDeadlineSeconds: set it to 7200 or less; must be set: "),
    too_long=(on("nvidia-t4", **RUNS, activeDeadlineSeconds=3601), ' = "3601": set it to 3600 or less; must be at most 3600, '),
    as_long_as_it_may=(on("nvidia-t4", **RUNS, activeDeadlineSeconds=3600), ""),
    as_long_as_another_class_may=(on("nvidia-a100", **RUNS, activeDeadlineSeconds=7200), ""),
    a_server=({**on("nvidia-t4"), "spec": {**on("nvidia-t4", **RUNS)["spec"], "containers": [SERVES]}}, ""),
    an_exempt_kind_that_anybody_wrote=(made_by("RayCluster"), "must be set: the longest runtime that the policy allows"),
    a_pod_of_another_kind=(made_by("PyTorchJob"), "must be set: the longest runtime that the policy allows"),
)  # fmt: skip
def test_classes_and_runtimes(plane: ControlPlane, document: JSON, reported: str) -> None:
    status, answer = create(plane.client(), document, CHOSEN)

    assert status == (403 if reported else 201), answer
    assert reported in answer.get("message", "")


@cases(
    ("user", "is_refused"),
    an_operator=("system:serviceaccount:kuberay:operator", False),
    an_account_of_the_tenant=(f"system:serviceaccount:{CHOSEN}:default", True),
)
def test_an_exempt_kind_counts_where_a_controller_made_the_pod(
    plane: ControlPlane, user: str, is_refused: bool
) -> None:
    as_user = ("--as", user, "--as-group", "system:masters", "-n", CHOSEN, "--dry-run=server")

    done = plane.kubectl(
        "create", *as_user, "-f", "-", stdin=yaml.safe_dump(made_by("RayCluster")), check=False
    )

    assert (done.returncode == 0, "activeDeadlineSeconds: set it to 3600" in done.stderr) == (
        not is_refused,
        is_refused,
    )


def test_a_gate_is_lifted_only_from_a_pod_that_is_pinned(plane: ControlPlane) -> None:
    stored(plane, "gated", pod(gpu_container(), schedulingGates=[{"name": "example.com/queue"}]), CHOSEN)
    path = f"/api/v1/namespaces/{CHOSEN}/pods/gated"

    refused, answer = plane.client().patch(path, {"spec": {"schedulingGates": None}})
    pin = {"spec": {"schedulingGates": None, "nodeSelector": {"accelerator": "nvidia-t4"}}}
    lifted, _ = plane.client().patch(path, pin)

    assert (refused, lifted) == (403, 200)
    assert UNPINNED in answer["message"]


def test_the_documents_of_the_cluster(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "deploy/chart/files/crds").glob("*.yaml")):
        plane.kubectl("apply", "--server-side", "-f", path)
    spec = {"match": {"namespaces": ["exported-stored"]}, "rules": {"gpu-requests": {"maxPerPod": 3}}}
    plane.kubectl("wait", "--for=condition=Established", "crd/gpupolicies.gpu-admission.dev", "--timeout=90s")
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(Document("GPUPolicy", "stored", spec).data))
    result = CliRunner().invoke(main, ["export", "--kubeconfig", str(plane.kubeconfig())])
    plane.kubectl("delete", "gpupolicy", "stored")

    assert result.exit_code == 0, result.stderr
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(result.stdout)]
    assert {"gpu-admission.stored.gpu-requests", "gpu-admission.built-in.gpu-requests"} <= set(names)
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=result.stdout)
    assert len(applied.stdout.splitlines()) == len(names)
    by_label = ("-l", "gpu-admission.dev/rule=gpu-requests")
    applied = plane.kubectl("apply", "--dry-run=server", *by_label, "-f", "-", stdin=result.stdout)
    assert len(applied.stdout.splitlines()) == sum("gpu-requests" in each for each in names)


# ---- ephemeral containers


def stored(plane: ControlPlane, name: str, document: JSON, namespace: str = TEAM) -> None:
    document["metadata"]["name"] = name
    accepted(create(plane.client(), document, namespace, dry_run=False))


def debug(plane: ControlPlane, name: str, debugger: JSON, namespace: str = TEAM) -> tuple[int, JSON]:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/ephemeralcontainers"
    patch = {"spec": {"ephemeralContainers": [debugger]}}
    return plane.client().patch(path, patch, content_type=STRATEGIC_PATCH)


LIST = "/var/run/nvidia-container-devices/all"


def test_an_ephemeral_container_may_not_see_gpus(plane: ControlPlane) -> None:
    stored(plane, "debugged", pod(gpu_container(), volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}]))
    mounts = [{"name": "dev", "mountPath": "/dev"}]

    shown, first = debug(plane, "debugged", container("peek", env=[ALL]))
    mounted, second = debug(plane, "debugged", container("peek", volumeMounts=mounts))
    listing = container("peek", volumeMounts=[{**mounts[0], "mountPath": LIST}])
    listed, third = debug(plane, "debugged", listing)

    assert (shown, mounted, listed) == (403, 403, 403)
    want = 'spec.ephemeralContainers[0].env[0] (container "peek") = "all": request nvidia.com/gpu: 1 in resources.limits'
    assert want in first["message"]
    assert '(mounted by container "peek"): nothing counts or reserves them' in second["message"]
    assert f'(container "peek") = "{LIST}": remove it, and request' in third["message"]


def test_ephemeral_containers_get_void_once(exported: ControlPlane) -> None:
    stored(exported, "helped", pod(gpu_container()))

    first, _ = debug(exported, "helped", container("one"))
    second, answer = debug(exported, "helped", container("two"))

    assert (first, second) == (200, 200)
    added = {each["name"]: each["env"] for each in answer["spec"]["ephemeralContainers"]}
    assert added == {"one": [VOID], "two": [VOID]}
    assert "env" not in answer["spec"]["containers"][0]


def test_what_an_ephemeral_container_was_before_is_left_alone(plane: ControlPlane) -> None:
    stored(plane, "old", pod(container("main", env=[ALL])), EXEMPTED)
    assert debug(plane, "old", container("one", env=[ALL]), EXEMPTED)[0] == 200


# ---- annotations


def test_an_annotation_that_names_devices_may_not_be_added_later(plane: ControlPlane) -> None:
    stored(plane, "annotated", pod(gpu_container(), annotations={"team": "ml"}))
    path = f"/api/v1/namespaces/{TEAM}/pods/annotated"
    key = "nvidia.cdi.k8s.io/container.main"

    refused, answer = plane.client().patch(path, {"metadata": {"annotations": {key: "nvidia.com/gpu=all"}}})
    changed, _ = plane.client().patch(path, {"metadata": {"annotations": {"team": "web"}}})

    assert (refused, changed) == (403, 200)
    assert f'metadata.annotations[{key}] = "nvidia.com/gpu=all": remove it, and request' in answer["message"]


def test_an_annotation_from_before_is_left_alone(plane: ControlPlane) -> None:
    annotations = {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}
    stored(plane, "annotated-before", pod(container(), annotations=annotations), WARNED)
    path = f"/api/v1/namespaces/{WARNED}/pods/annotated-before"

    assert plane.client().patch(path, {"metadata": {"labels": {"team": "web"}}})[0] == 200


# ---- modes


def test_a_rule_that_only_warns_warns(plane: ControlPlane) -> None:
    said = warnings(plane, pod(container("a", env=[ALL])), WARNED)

    reported = 'spec.containers[0].env[0] (container "a") = "all": request nvidia.com/gpu: 1 in'
    assert sum(each.count(reported) for each in said) == 1


def warnings(plane: ControlPlane, document: JSON, namespace: str) -> list[str]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    return (
        plane.client().send("POST", path, {**document, "metadata": {"name": "p"}}, {"dryRun": "All"}).warnings
    )


# ---- odd pods; large ones: test_export_cost.py


@cases(
    "document",
    container=pod(container(env=None, resources=None, volumeMounts=None, securityContext=None)),
    resources=pod(container(resources={"limits": None, "requests": None, "claims": None})),
    variable=pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": None}])),
    spec=(
        pod(gpu_container(), initContainers=None, volumes=None, tolerations=None, nodeSelector=None, affinity=None,
            schedulingGates=None, resourceClaims=None, nodeName=None, overhead=None)),
    affinity=pod(gpu_container(), affinity={"nodeAffinity": None, "podAffinity": {}}),
    toleration=pod(gpu_container(), tolerations=[{"operator": "Exists", "key": None, "effect": None}]),
    metadata={**pod(gpu_container()), "metadata": {"name": "x", "annotations": None, "labels": None}},
)  # fmt: skip
def test_nothing_is_in_the_way_of_a_pod_with_nulls(plane: ControlPlane, document: JSON) -> None:
    accepted(create(plane.client(), document))
