"""What `gpu-admission export` writes, on a real API server without our webhook: the rules hold all the same."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON, container, gpu_container, pod
from tests.cluster.exported import (
    ALL,
    EXEMPTED,
    LABELLED,
    RESTRICTED,
    TEAM,
    VOID,
    WARNED,
    create,
)
from tests.controlplane import ControlPlane, minor_version
from tests.controlplane.webhook import ROOT
from webhook.commands import main


@pytest.fixture(scope="module")
def plane(exported: ControlPlane) -> ControlPlane:
    return exported


def test_every_expression_type_checks(plane: ControlPlane) -> None:
    status, listed = plane.client().get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")
    assert status == 200
    ours = [each for each in listed["items"] if each["metadata"]["name"].startswith("gpu-admission.")]

    assert len(ours) >= 13
    for policy in ours:
        done = plane.kubectl(
            "wait",
            "validatingadmissionpolicy",
            policy["metadata"]["name"],
            f"--for=jsonpath={{.status.observedGeneration}}={policy['metadata']['generation']}",
            "--timeout=90s",
            "-o",
            "json",
        )
        assert json.loads(done.stdout)["status"].get("typeChecking", {}) == {}


KAI: JSON = {"annotations": {"gpu-fraction": "0.01"}, "schedulerName": "kai-scheduler"}

# ---- what is added


def env_of(document: JSON) -> dict[str, list[JSON]]:
    spec = document["spec"]
    return {each["name"]: each.get("env", []) for each in spec["containers"] + spec.get("initContainers", [])}


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(container("a"), container("b")), {"a": [VOID], "b": [VOID]}, id="cpu-pod"),
        pytest.param(
            pod(container("a", env=[{"name": "HOME", "value": "/"}]), initContainers=[container("b")]),
            {"a": [{"name": "HOME", "value": "/"}, VOID], "b": [VOID]},
            id="beside-other-variables-and-in-init-containers",
        ),
        pytest.param(pod(gpu_container(name="a"), container("b")), {"a": [], "b": [VOID]}, id="sidecar-of-a-gpu"),
        pytest.param(pod(gpu_container("0", name="a")), {"a": [VOID]}, id="zero-gpus-are-none"),
        pytest.param(pod(gpu_container(name="a", resource="rdma/hca")), {"a": [VOID]}, id="another-resource"),
        pytest.param(
            pod(gpu_container(name="a", resource="nvidia.com/mig-1g.10gb")), {"a": []}, id="a-slice-is-a-gpu"
        ),
        pytest.param(
            pod(container("a", resources={"claims": [{"name": "gpu"}]}), container("b"),
                resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}]),
            {"a": [], "b": [VOID]},
            id="a-claim-is-a-gpu",
        ),
        pytest.param(pod(container("a"), **KAI), {"a": []}, id="served-by-a-fraction-scheduler"),
        pytest.param(
            pod(container("a"), container("b"), **KAI),
            {"a": [], "b": [VOID]},
            id="beside-a-container-that-a-fraction-scheduler-serves",
        ),
        pytest.param(
            pod(container("a"), annotations=KAI["annotations"]),
            {"a": [VOID]},
            id="fraction-that-the-default-scheduler-ignores",
        ),
        pytest.param(
            pod(container("a"), **KAI, nodeName="node-1"), {"a": [VOID]}, id="fraction-past-every-scheduler"
        ),
        pytest.param(
            pod(container("a", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])),
            {"a": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]},
            id="said-so-itself",
        ),
    ],
)  # fmt: skip
def test_containers_without_gpu_get_void(
    mutating: ControlPlane, document: JSON, want: dict[str, list[JSON]]
) -> None:
    status, answer = create(mutating.client(), document)

    assert status == 201, answer
    assert env_of(answer) == want


def test_device_plugins_and_exporters_are_denied_unless_exempted(plane: ControlPlane) -> None:
    mounts = [{"name": "plugins", "mountPath": "/var/lib/kubelet/device-plugins"}]
    volumes = [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]
    plugin = pod(container("a", volumeMounts=mounts), volumes=volumes)

    refused, reason = create(plane.client(), plugin)
    exempted, answer = create(plane.client(), plugin, EXEMPTED)

    assert (refused, exempted) == (403, 201)
    assert "device plugins and exporters need an exemption in the GPUPolicy" in reason["message"]
    assert env_of(answer) == {"a": []}


@pytest.mark.parametrize("namespace", [EXEMPTED, WARNED, "default"])
def test_nothing_is_added_where_the_rule_does_not_say_so(mutating: ControlPlane, namespace: str) -> None:
    status, answer = create(mutating.client(), pod(container("a"), gpu_container(name="b")), namespace)

    assert status == 201, answer
    assert env_of(answer) == {"a": [], "b": []}
    assert all(each["key"].startswith("node.kubernetes.io/") for each in answer["spec"]["tolerations"])


GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"}
RESERVED = {"key": "reserved", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}
T4 = {"key": "accelerator", "value": "t4", "effect": "NoSchedule"}
ANY_DEDICATED = {"key": "dedicated", "operator": "Exists"}


@pytest.mark.parametrize(
    ("namespace", "spec", "want"),
    [
        pytest.param(TEAM, {}, [GPU_TAINT, DEDICATED, RESERVED], id="those-of-the-policy"),
        pytest.param(
            TEAM,
            {"tolerations": [GPU_TAINT, ANY_DEDICATED]},
            [GPU_TAINT, ANY_DEDICATED, RESERVED],
            id="unless-tolerated",
        ),
        pytest.param(
            TEAM,
            {"tolerations": [{"operator": "Exists"}]},
            [{"operator": "Exists"}],
            id="everything-tolerated-already",
        ),
        pytest.param(
            RESTRICTED,
            {"nodeSelector": {"accelerator": "nvidia-t4"}},
            [GPU_TAINT, DEDICATED, RESERVED, T4, ANY_DEDICATED],
            id="and-those-of-the-class",
        ),
        pytest.param(
            RESTRICTED,
            {"nodeSelector": {"accelerator": "nvidia-a100"}},
            [GPU_TAINT, DEDICATED, RESERVED],
            id="not-of-another-class",
        ),
    ],
)
def test_gpu_pods_tolerate_the_taints_of_gpu_nodes(
    mutating: ControlPlane, namespace: str, spec: dict[str, Any], want: list[JSON]
) -> None:
    status, answer = create(mutating.client(), pod(gpu_container(), **spec), namespace)

    assert status == 201, answer
    found = [
        each for each in answer["spec"]["tolerations"] if "node.kubernetes.io" not in each.get("key", "")
    ]
    assert [{k: v for k, v in each.items() if (k, v) != ("operator", "Equal")} for each in found] == want


def test_cpu_pods_get_no_tolerations(plane: ControlPlane) -> None:
    _status, answer = create(plane.client(), pod())

    assert all(each["key"].startswith("node.kubernetes.io/") for each in answer["spec"]["tolerations"])


# ---- what is refused

DEVICES: dict[str, Any] = {"volumes": [{"name": "dev", "hostPath": {"path": "/dev//nvidia0"}}]}
MOUNTING = container(volumeMounts=[{"name": "dev", "mountPath": "/dev/nvidia0"}])
SIDECARS = [
    gpu_container("4", name="a", restartPolicy="Always"),
    gpu_container("4", name="b"),
    gpu_container("1", name="c", restartPolicy="Always"),
]


@pytest.mark.parametrize(
    ("namespace", "document", "told"),
    [
        pytest.param(
            TEAM,
            pod(gpu_container(name="a"), container("b", env=[ALL])),
            [
                'spec.containers[1].env[0] (container "b") = "all": request nvidia.com/gpu: 1 in resources.limits or remove'
            ],
            id="variable",
        ),
        pytest.param(
            TEAM,
            pod(
                container(
                    "a",
                    env=[{"name": ALL["name"], "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                )
            ),
            [
                'spec.containers[0].env[0] (container "a"): request nvidia.com/gpu: 1 in resources.limits or remove'
            ],
            id="variable-from-elsewhere",
        ),
        pytest.param(
            TEAM,
            pod(MOUNTING, **DEVICES),
            [
                'spec.volumes[0].hostPath.path = "/dev//nvidia0": request nvidia.com/gpu: 1 in resources.limits; must not lead '
                'to GPUs of the node (mounted by container "main")'
            ],
            id="devices-mounted",
        ),
        pytest.param(
            TEAM,
            pod(gpu_container(env=[ALL])),
            [
                'spec.containers[0].env[0] (container "main") = "all": remove the variable; NVIDIA_VISIBLE_DEVICES must be '
                '"void" or unset beside a GPU request: it replaces the GPUs that the node assigns [gpu-isolation]'
            ],
            id="variable-beside-a-request",
        ),
        pytest.param(
            TEAM,
            pod(container(env=[ALL]), **KAI),
            ['NVIDIA_VISIBLE_DEVICES must be "void" or unset beside a GPU request'],
            id="variable-beside-a-fraction",
        ),
        pytest.param(
            TEAM,
            pod(container(env=[ALL]), annotations=KAI["annotations"]),
            ['NVIDIA_VISIBLE_DEVICES must be "void" or unset in a container that requests no GPU'],
            id="variable-beside-a-fraction-that-the-default-scheduler-ignores",
        ),
        pytest.param(
            TEAM,
            pod(container(env=[{"name": "HABANA_VISIBLE_DEVICES", "value": "void"}])),
            ['(container "main") = "void": request', 'HABANA_VISIBLE_DEVICES must be "none" or unset'],
            id="variable-of-another-vendor",
        ),
        pytest.param(
            TEAM,
            pod(container(env=[{"name": "DOCKER_RESOURCE_GPU", "value": "0"}])),
            ['DOCKER_RESOURCE_GPU must be "void" or unset'],
            id="variable-of-another-vendor-by-prefix",
        ),
        pytest.param(
            TEAM,
            pod(
                gpu_container(
                    volumeMounts=[{"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"}]
                ),
                volumes=[{"name": "null", "hostPath": {"path": "/dev/null"}}],
            ),
            [
                'spec.containers[0].volumeMounts[0].mountPath (container "main") = '
                '"/var/run/nvidia-container-devices/all": request nvidia.com/gpu: 1 in'
            ],
            id="null-mounted-where-nvidias-runtime-reads-a-gpu",
        ),
        *(
            pytest.param(
                TEAM,
                pod(MOUNTING, volumes=[{"name": "dev", "hostPath": {"path": path}}]),
                [
                    f'spec.volumes[0].hostPath.path = "{path}": request nvidia.com/gpu: 1 in',
                    "must not lead to GPUs",
                ],
                id=name,
            )
            for name, path in (
                ("devices-by-number", "/dev/char/195:0"),
                ("driver-container", "/run/nvidia/driver"),
                ("pod-resources", "/var/lib/kubelet/pod-resources/"),
                ("runtime-socket", "/var/run//containerd/containerd.sock"),
                ("above-runtime-sockets", "/var/run"),
                ("cdi", "/etc/cdi"),
            )
        ),
        pytest.param(
            TEAM,
            pod(gpu_container(), annotations={"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}),
            [
                'metadata.annotations[nvidia.cdi.k8s.io/container.main] = "nvidia.com/gpu=all": request',
                "must not name devices of the node",
            ],
            id="cdi-annotation",
        ),
        pytest.param(
            TEAM,
            pod(gpu_container("5")),
            [
                'spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "5": set nvidia.com/gpu: 4'
            ],
            id="more-than-a-container-may-have",
        ),
        pytest.param(
            TEAM,
            pod(*(gpu_container("3", name=name) for name in "abc")),
            [
                "request nvidia.com/gpu: 8 or less; the pod needs 9 nvidia.com/gpu at one time: must be at most 8 per pod"
            ],
            id="more-than-a-pod-may-have",
        ),
        pytest.param(
            TEAM,
            pod(gpu_container("4"), initContainers=SIDECARS),
            ["the pod needs 9 nvidia.com/gpu at one time"],
            id="sidecars-count-for-the-whole-life",
        ),
        pytest.param(
            TEAM,
            pod(gpu_container("101", resource="nvidia.com/gpucores")),
            ["must be at most 100 percent of a GPU"],
            id="percentage",
        ),
        pytest.param(
            LABELLED,
            pod(gpu_container("2")),
            [
                "request nvidia.com/gpu: 1 or less; the pod needs 2 nvidia.com/gpu at one time: must be at most 1"
            ],
            id="policy-by-labels",
        ),
    ],
)
def test_refused(plane: ControlPlane, namespace: str, document: JSON, told: list[str]) -> None:
    status, answer = create(plane.client(), document, namespace)

    assert status == 403, answer
    assert all(words in answer["message"] for words in told), answer["message"]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            pod(gpu_container(env=[{"name": ALL["name"], "value": value}])), id=f"variable-that-is-{value or 'empty'}"
        )
        for value in ("", "void", "none")
    ]
    + [
        pytest.param(
            pod(
                container(env=[{"name": ALL["name"], "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]),
                **KAI,
            ),
            id="variable-as-kai-writes-it",
        ),
        pytest.param(
            pod(gpu_container(env=[{"name": "ROCR_VISIBLE_DEVICES", "value": "0"}])), id="variable-of-the-process"
        ),
        pytest.param(
            pod(container(volumeMounts=[{"name": "log", "mountPath": "/log"}]),
                volumes=[{"name": "log", "hostPath": {"path": "/var/log"}}]),
            id="another-directory-of-the-node",
        ),
    ],
)  # fmt: skip
def test_not_refused(plane: ControlPlane, document: JSON) -> None:
    status, answer = create(plane.client(), document)

    assert status == 201, answer


def test_the_documents_of_the_cluster(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "deploy/chart/files/crds").glob("*.yaml")):
        plane.kubectl("apply", "--server-side", "-f", path)
    stored = {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        "kind": "GPUPolicy",
        "metadata": {"name": "stored"},
        "spec": {"match": {"namespaces": ["exported-stored"]}, "rules": {"gpu-requests": {"maxPerPod": 3}}},
    }
    plane.kubectl("wait", "--for=condition=Established", "crd/gpupolicies.gpu-admission.dev", "--timeout=90s")
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(stored))
    of_it = ("--kubeconfig", str(plane.kubeconfig()), "--kubernetes", f"1.{minor_version()}")
    result = CliRunner().invoke(main, ["export", *of_it, "-o", "json"])
    plane.kubectl("delete", "gpupolicy", "stored")

    assert result.exit_code == 0, result.stderr
    names = {each["metadata"]["name"] for each in json.loads(result.stdout)["items"]}
    assert {"gpu-admission.stored.gpu-requests", "gpu-admission.built-in.gpu-requests"} <= names
    # kubectl takes the List with what is beside its items.
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=result.stdout)
    assert len(applied.stdout.splitlines()) == len(json.loads(result.stdout)["items"])
