"""Doctor on nodes: their classes, resources and taints, and the pods that were deleted on them."""

from pathlib import Path
from typing import Any

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import NVIDIA, POLICIES, node, stored
from tests.webhook.tools.installed_clusters import BY_ID, assert_found, checked, cluster_of
from webhook.tools.doctor.check import CheckResult, run_check

T4 = {"accelerator": "nvidia-t4"}
SPOT = {"spot": {"mode": "enforce", "nodeSelector": {"cloud.google.com/gke-spot": "true"}}}


def deleted(name: str, *, gpus: int = 1, at: str | None = "2027-01-31T11:00:00Z") -> dict[str, Any]:
    times = {} if at is None else {"deletionTimestamp": at}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {"name": name, "namespace": "ml", **times},
        "spec": {"nodeName": "a", "containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


@cases(
    ("check", "nodes", "want"),
    temporary_taints_do_not_count=(
        "untainted-nodes",
        [
            node("a", {}, []),
            node("b", {}, [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
            node("c", {}),
            node("cpu", {}, [], **{"nvidia.com/gpu": "0"}),
        ],
        [
            "untainted-gpu-node: Nodes a, b must have a taint: pods without GPUs may fill its CPUs, and its GPUs "
            "stay idle\n"
            "kubectl taint nodes a b nvidia.com/gpu=present:NoSchedule"
        ],
    ),
    the_usual_taint_is_tolerated=("taints", [node("a", T4)], []),
    the_taint_of_another_vendor_is_tolerated=(
        "taints",
        [node("a", {}, [{"key": "amd.com/gpu", "effect": "NoSchedule"}])],
        [],
    ),
    many_nodes_are_one_finding=(
        "unknown-classes",
        [node(f"n{number}", {"nvidia.com/gpu.product": "X"}) for number in range(5)],
        [
            "unknown-class: Nodes n0, n1, n2 and 2 more have GPUs of an unknown class (nvidia.com/gpu.product=X)\n"
            "write a GPUClass with nodeLabels [{key: nvidia.com/gpu.product, values: [X]}]"
        ],
    ),
    a_node_of_two_classes=(
        "unknown-classes",
        [node("a", {"accelerator": "nvidia-l4", "nvidia.com/gpu.product": "Tesla-T4"})],
        [
            "node-of-several-classes: Node a has labels of several classes: nvidia-l4, nvidia-t4\n"
            "name a label in nodeLabels of one class only; a GPUClass with the name of a built-in class replaces "
            "it"
        ],
    ),
    a_node_with_labels_and_no_gpus=(
        "device-plugins",
        [
            node("a", T4, [], **{"nvidia.com/gpu": "0"}),
            node("b", T4),
            node("cpu", {}, [], **{"nvidia.com/gpu": "0"}),
        ],
        [
            "labelled-node-without-gpus: Node a must have the GPUs that its labels name: pods that request them stay pending\n"
            "see the device plugin there: kubectl get pods -A --field-selector spec.nodeName=a"
        ],
    ),
    two_classes_of_a_family=("unknown-classes", [node("a", {"accelerator": "nvidia-a100"})], []),
    a_resource_of_no_mapping=(
        "unmapped",
        [
            node("a", {}, None, **{"example.com/npu": "4", "nvidia.com/a100": "1", "rdma/x": "1"}),
            node("b", {}, None, **{"example.com/npu": "2", "example.com/none": "0"}),
        ],
        [
            "unmapped-resource: Resource example.com/npu is not counted: no GPUResourceMapping names this "
            "resource of Nodes a, b\n"
            "name it in a GPUResourceMapping: measure devices if these are GPUs, nothing if not"
        ],
    ),
    a_node_without_the_label=(
        "class-labels",
        [node("a", {"nvidia.com/gpu.product": "NVIDIA-L4"})],
        [
            "node-without-label: Node a is of class nvidia-l4 and must have the label accelerator, by which pods "
            "are pinned to a class\n"
            "kubectl label nodes a accelerator=nvidia-l4, or set gpu-class.labelKey to a label that the nodes "
            "have"
        ],
    ),
)
def test_nodes(check: str, nodes: list[JSON], want: list[str], tmp_path: Path) -> None:
    assert_found(check, {"/api/v1/nodes": nodes}, want, tmp_path)


@cases(
    ("is_ready", "want"),
    no_kubelet_confirms_their_end=(
        False,
        [
            "deleted-pods-on-lost-node: Node a is not Ready; GPU pods with a deletionTimestamp: 1 (ml/train); "
            "their containers may still run\n"
            "do not force-delete them: the quota would be freed while their containers may run; if the node is "
            "off: kubectl taint nodes a node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        ],
    ),
    a_ready_node_ends_its_pods=(True, []),
)
def test_deleted_pods(is_ready: bool, want: list[str], tmp_path: Path) -> None:
    holder = node("a", {})
    holder["status"]["conditions"] = [{"type": "Ready", "status": "True" if is_ready else "Unknown"}]
    pods = [deleted("train"), deleted("idle", gpus=0), deleted("kept", at=None)]
    assert_found("deleted-pods", {"/api/v1/nodes": [holder], "/api/v1/pods": pods}, want, tmp_path)


@cases(
    ("rules", "labels", "want"),
    no_node_has_the_labels=(
        SPOT,
        {},
        [
            "spot-pool-without-nodes: GPUPolicy/p names a spot pool, and no node has its labels "
            "(cloud.google.com/gke-spot=true): no new pod is placed on it\n"
            "set rules.spot.nodeSelector to the labels of your spot nodes, or disable the rule"
        ],
    ),
    a_node_has_them=(SPOT, {"cloud.google.com/gke-spot": "true"}, []),
    disabled=({"spot": {**SPOT["spot"], "mode": "disabled"}}, {}, []),
)
def test_spot_pools(rules: JSON, labels: dict[str, str], want: list[str], tmp_path: Path) -> None:
    objects = {"/api/v1/nodes": [node("a", {**T4, **labels})], POLICIES: [stored({"rules": rules})]}
    assert_found("spot-pools", objects, want, tmp_path)


@cases(
    ("rules", "want"),
    by_the_default_label=({}, "install GPU Feature Discovery, or kubectl label nodes a accelerator=CLASS"),
    # Pods are pinned by another label, so this one would bring none.
    by_the_product=({"gpu-class": {"labelKey": "nvidia.com/gpu.product"}}, "install GPU Feature Discovery"),
)
def test_how_a_node_gets_a_class(rules: JSON, want: str, tmp_path: Path) -> None:
    objects = {"/api/v1/nodes": [node("a", {})], POLICIES: [stored({"rules": rules})]}
    (finding,) = checked("unknown-classes", objects, tmp_path).findings

    assert finding.message == "has GPUs, and no label names their class"
    assert finding.remedy == want


def test_what_no_node_has(tmp_path: Path) -> None:
    rules = {
        "gpu-toleration": {"tolerations": [{"key": "ml", "operator": "Exists"}]},
        "gpu-class": {"default": "nvidia-l4"},
    }
    objects = {"/api/v1/nodes": [node("a", T4)], POLICIES: [stored({"rules": rules})]}
    taints = [
        "toleration-without-taint: GPUPolicy/p tolerates ml, and no node has the taint\n"
        "correct its spelling, taint the intended nodes, or remove it"
    ]
    assert_found("taints", objects, taints, tmp_path)
    (finding,) = checked("class-labels", objects, tmp_path).findings
    assert f"{finding.id}: {finding.object} {finding.message}" == (
        "class-without-nodes: GPUPolicy/p names class nvidia-l4: no node matches accelerator=nvidia-l4, so the pod stays "
        "pending"
    )
    assert finding.remedy == (
        "label the intended nodes, or, if nodes are created on demand, name the class in gpu-class.autoscaledClasses of the "
        "policy"
    )


def test_device_classes_of_unknown_drivers(tmp_path: Path) -> None:
    classes = {
        "mine": "device.driver == 'gpu.nvidia.com'",
        "other": "device.driver == 'x.example.com'",
        "silent": "true",
    }
    stored = [
        {
            "metadata": {"name": name, "uid": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
        for name, expression in classes.items()
    ]
    dra = "/apis/resource.k8s.io"
    objects = {dra: {"versions": [{"version": "v1"}]}, f"{dra}/v1/deviceclasses": stored}
    assert_found(
        "unmapped",
        objects,
        [
            "unmapped-device-class: DeviceClass/other is not counted: its selectors name no known driver of "
            "GPUs, and no GPUResourceMapping names it\n"
            "name it in a GPUResourceMapping: measure devices if these are GPUs, nothing if not"
        ],
        tmp_path,
    )


def test_a_directory_with_a_mistake_leaves_open_what_depends_on_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "policy.yaml").write_text("{")
    nodes = {"/api/v1/nodes": [node("a", T4)]}
    names = ("documents", "taints", "untainted-nodes")
    with cluster_of(tmp_path, nodes, config=config) as cluster:
        documents, taints, untainted = (run_check(BY_ID[name], cluster) for name in names)

    assert [finding.id for finding in documents.findings] == ["document-rejected"]
    (missed,) = taints.not_checked
    assert missed.why == "the configuration cannot be used: see check `documents`"
    assert untainted == CheckResult(BY_ID["untainted-nodes"])


def test_what_was_in_force_before_a_mistake_is_what_is_checked(tmp_path: Path) -> None:
    # The taint would be tolerated by the newest policy, which cannot be used, and not by the one in force.
    tainted = node("a", T4, [NVIDIA, {"key": "ml", "effect": "NoSchedule"}])
    newest = {"rules": {"gpu-toleration": {"tolerations": [{"key": "ml", "operator": "Exists"}]}}, "x": 1}
    objects = {"/api/v1/nodes": [tainted], POLICIES: [stored(newest, {"priority": 1})]}
    assert_found(
        "taints",
        objects,
        [
            "taint-not-tolerated: Node a has the taint ml:NoSchedule, which no policy and no class of its GPUs "
            "tolerates: GPU pods cannot run there\n"
            "add {key: ml, operator: Exists, effect: NoSchedule} to gpu-toleration.tolerations of a policy, or "
            "to the class"
        ],
        tmp_path,
    )


def test_what_to_do_with_several_nodes_names_each(tmp_path: Path) -> None:
    """The command was for the first one alone, and 30 nodes would make a line that nobody reads."""
    video = [{"key": "dedicated", "value": "video", "effect": "NoSchedule"}]
    three = {"/api/v1/nodes": [node(name, {"nvidia.com/gpu.product": "NVIDIA-L4"}, video) for name in "abc"]}
    many = {"/api/v1/nodes": [node(f"n{number:02}", {}, []) for number in range(30)]}

    (label,) = checked("class-labels", three, tmp_path).findings
    (taint,) = checked("taints", three, tmp_path).findings
    (untainted,) = checked("untainted-nodes", many, tmp_path).findings
    assert [f"{each.object} {each.message}\n{each.remedy}" for each in (label, taint)] == [
        "Nodes a, b, c are of class nvidia-l4 and must have the label accelerator, by which pods are pinned to a class\n"
        "kubectl label nodes a b c accelerator=nvidia-l4, or set gpu-class.labelKey to a label that the nodes have",
        "Nodes a, b, c have the taint dedicated=video:NoSchedule, which no policy and no class of their GPUs tolerates: GPU "
        "pods cannot run there\n"
        "add {key: dedicated, operator: Equal, value: video, effect: NoSchedule} to gpu-toleration.tolerations of a policy, or "
        "to the class",
    ]
    twenty = " ".join(f"n{number:02}" for number in range(20))
    assert untainted.remedy == (
        f"kubectl taint nodes {twenty} nvidia.com/gpu=present:NoSchedule (and so on for 10 more)"
    )
