"""Doctor on nodes: their classes, resources and taints, and the pods that were deleted on them."""

from pathlib import Path
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.clusters import BY_ID, assert_found, cluster_of
from webhook.tools.doctor.check import CheckResult, run_check

GPU = {"nvidia.com/gpu": "8"}
T4 = {"accelerator": "nvidia-t4"}
NVIDIA = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
POLICIES = "/apis/gpu-admission.dev/v1alpha1/gpupolicies"


def node(
    name: str, labels: dict[str, str], taints: list[dict[str, str]] | None = None, **gpus: str
) -> dict[str, Any]:
    allocatable = {"cpu": "64", **(gpus or GPU)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [NVIDIA] if taints is None else taints},
        "status": {"allocatable": allocatable},
    }


def deleted(name: str, *, gpus: int = 1, at: str | None = "2027-01-31T11:00:00Z") -> dict[str, Any]:
    times = {} if at is None else {"deletionTimestamp": at}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {"name": name, "namespace": "ml", **times},
        "spec": {"nodeName": "a", "containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def stored(spec: dict[str, Any], accepted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the GPUPolicy p as the API server has it, with the spec that was in force last."""
    status = {} if accepted is None else {"status": {"accepted": accepted}}
    return {"metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": spec, **status}


@cases(
    ("check", "nodes", "want"),
    {
        "temporary-taints-do-not-count": (
            "untainted-nodes",
            [
                node("a", {}, []),
                node("b", {}, [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
                node("c", {}),
                node("cpu", {}, [], **{"nvidia.com/gpu": "0"}),
            ],
            ["untainted-gpu-node: Node a, b"],
        ),
        "the-usual-taint-is-tolerated": ("taints", [node("a", T4)], []),
        "the-taint-of-another-vendor-is-tolerated": (
            "taints",
            [node("a", {}, [{"key": "amd.com/gpu", "effect": "NoSchedule"}])],
            [],
        ),
        "many-nodes-are-one-finding": (
            "unknown-classes",
            [node(f"n{number}", {"nvidia.com/gpu.product": "X"}) for number in range(5)],
            ["unknown-class: Node n0, n1, n2 and 2 more has GPUs of an unknown class"],
        ),
        "a-resource-of-no-mapping": (
            "unmapped",
            [
                node("a", {}, None, **{"example.com/npu": "4", "nvidia.com/a100": "1", "rdma/x": "1"}),
                node("b", {}, None, **{"example.com/npu": "2", "example.com/none": "0"}),
            ],
            ["unmapped-resource: Resource example.com/npu is not counted"],
        ),
        "a-node-without-the-label": (
            "class-labels",
            [node("a", {"nvidia.com/gpu.product": "NVIDIA-L4"})],
            ["node-without-label: is of class nvidia-l4 and must have the label accelerator"],
        ),
    },
)
def test_nodes(check: str, nodes: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found(check, {"/api/v1/nodes": nodes}, want, tmp_path)


@cases(
    ("is_ready", "want"),
    {
        "no-kubelet-confirms-their-end": (
            False,
            ["deleted-pods-on-lost-node: is not Ready, and has 1 GPU pods that were deleted (ml/train)"],
        ),
        "a-ready-node-ends-its-pods": (True, []),
    },
)
def test_deleted_pods(is_ready: bool, want: list[str], tmp_path: Path) -> None:
    holder = node("a", {})
    holder["status"]["conditions"] = [{"type": "Ready", "status": "True" if is_ready else "Unknown"}]
    pods = [deleted("train"), deleted("idle", gpus=0), deleted("kept", at=None)]
    assert_found("deleted-pods", {"/api/v1/nodes": [holder], "/api/v1/pods": pods}, want, tmp_path)


def test_device_classes_of_unknown_drivers(tmp_path: Path) -> None:
    classes = {
        "mine": "device.driver == 'gpu.nvidia.com'",
        "other": "device.driver == 'x.example.com'",
        "silent": "true",
    }
    objects = {
        "/apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        "/apis/resource.k8s.io/v1/deviceclasses": [
            {
                "metadata": {"name": name, "uid": name},
                "spec": {"selectors": [{"cel": {"expression": expression}}]},
            }
            for name, expression in classes.items()
        ],
    }
    assert_found("unmapped", objects, ["unmapped-device-class: DeviceClass/other is not counted"], tmp_path)


def test_a_directory_with_a_mistake_leaves_open_what_depends_on_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "policy.yaml").write_text("{")
    nodes = {"/api/v1/nodes": [node("a", T4)]}
    with cluster_of(tmp_path, nodes, config=config) as cluster:
        results = {
            name: run_check(BY_ID[name], cluster) for name in ("documents", "taints", "untainted-nodes")
        }

    assert [finding.id for finding in results["documents"].findings] == ["document-refused"]
    assert [each.why for each in results["taints"].not_checked] == [
        "the configuration cannot be used: see check `documents`"
    ]
    assert results["untainted-nodes"] == CheckResult(BY_ID["untainted-nodes"])


def test_what_was_in_force_before_a_mistake_is_what_is_checked(tmp_path: Path) -> None:
    # The taint would be tolerated by the newest policy, which cannot be used, and not by the one in force.
    tainted = node("a", T4, [NVIDIA, {"key": "ml", "effect": "NoSchedule"}])
    newest = {"rules": {"gpu-toleration": {"tolerations": [{"key": "ml", "operator": "Exists"}]}}, "x": 1}
    objects = {"/api/v1/nodes": [tainted], POLICIES: [stored(newest, {"priority": 1})]}
    assert_found("taints", objects, ["taint-not-tolerated: has the taint ml:NoSchedule"], tmp_path)
