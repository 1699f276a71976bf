"""gpu-isolation: containers that ask for no GPU see none."""

from typing import Any

import pytest

from policies.finding import Finding, Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Mode
from policies.rules import gpu_toleration
from policies.rules.gpu_isolation import GPUIsolationOptions, check, mutate
from tests.builders import JSON, apply, container, context, gpu_container, operations, pod, view

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VARIABLE, "value": "void"}
CLAIM = {"name": "gpu", "resourceClaimName": "shared-gpu"}
ELSEWHERE = {"configMapKeyRef": {"name": "gpus", "key": VARIABLE}}
KAI: JSON = {"annotations": {"gpu-fraction": "0.01"}, "schedulerName": "kai-scheduler"}
"""A pod to which KAI assigns a part of a GPU."""


def mounting(path: str, *containers: JSON, **spec: Any) -> JSON:
    """Return a pod whose containers (without any: one that asks for no GPU) mount that path of the node."""
    mounts = [{"name": "host", "mountPath": "/host"}]
    mounted = [{**each, "volumeMounts": mounts} for each in containers or (container(),)]
    return pod(*mounted, volumes=[{"name": "host", "hostPath": {"path": path}}], **spec)


def with_variable(document: JSON, variable: JSON) -> JSON:
    """Return the pod, of one container, with that variable in it."""
    [main] = document["spec"]["containers"]
    return {**document, "spec": {**document["spec"], "containers": [{**main, "env": [variable]}]}}


def findings(document: JSON, **tweaks: Any) -> list[Finding]:
    return list(check(view(document), GPUIsolationOptions(), context(**tweaks)))


def hidden(document: JSON) -> list[str]:
    """Return the names of the containers into which the variable was injected, applied by a JSON patch library."""
    patch = PodPatch(view(document))
    assert list(mutate(patch, GPUIsolationOptions(), context())) == []
    before, after = view(document), view(apply(document, patch))
    return [
        new.container.name
        for old, new in zip(before.places, after.places, strict=True)
        if old.container.env != new.container.env
    ]


def test_it_only_audits_by_default() -> None:
    assert GPUIsolationOptions().mode is Mode.AUDIT


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(
            pod(container("web"), gpu_container("1", "train")), ["web"], id="sidecar-of-a-gpu-container"
        ),
        pytest.param(
            pod(gpu_container("1"), initContainers=[container("fetch")]), ["fetch"], id="init-container"
        ),
        pytest.param(pod(gpu_container("0")), ["main"], id="zero-gpus-are-no-request"),
        pytest.param(pod(gpu_container("1", resource="nvidia.com/mig-1g.10gb")), [], id="slice"),
        pytest.param(pod(container(resources={"requests": {"nvidia.com/gpu": "1"}})), [], id="request-alone"),
        pytest.param(pod(container(env=[VOID])), [], id="hidden-already"),
        pytest.param(pod(container(env=[{"name": VARIABLE, "value": "all"}])), [], id="never-overridden"),
        pytest.param(
            pod(container(env=[{"name": "HOME", "value": "/"}])), ["main"], id="beside-other-variables"
        ),
        pytest.param(pod(container(env=None)), ["main"], id="null-env"),
        pytest.param(pod(**KAI), [], id="fraction-scheduler-sets-it"),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.01"}),
            ["main"],
            id="fraction-that-the-default-scheduler-ignores",
        ),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.01"}, schedulerName="volcano"),
            ["main"],
            id="fraction-that-another-scheduler-ignores",
        ),
        pytest.param(
            pod(schedulerName="kai-scheduler"), ["main"], id="fraction-scheduler-without-a-fraction"
        ),
        pytest.param(pod(**KAI, nodeName="node-1"), ["main"], id="fraction-past-every-scheduler"),
        pytest.param(
            pod(container("main"), container("web"), initContainers=[container("fetch")], **KAI),
            ["web", "fetch"],
            id="beside-the-first-container-which-the-fraction-scheduler-serves",
        ),
        pytest.param(
            pod(
                container("web"),
                container("main"),
                schedulerName="kai-scheduler",
                annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"},
            ),
            ["web"],
            id="beside-the-container-that-the-fraction-scheduler-serves-by-name",
        ),
        pytest.param(
            mounting("/var/lib/kubelet/device-plugins", container("plugin")), [], id="device-plugin"
        ),
        pytest.param(
            mounting("/var/lib/kubelet//pod-resources/kubelet.sock", container("exporter")), [], id="exporter"
        ),
        pytest.param(
            mounting("/var/lib/kubelet", container("agent")), ["agent"], id="another-agent-of-the-node"
        ),
        pytest.param(
            pod(volumes=[{"name": "unmounted", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]),
            ["main"],
            id="only-looks-like-a-device-plugin",
        ),
        pytest.param(
            pod(container(resources={"claims": [{"name": "gpu"}]}), resourceClaims=[CLAIM]), [], id="claim"
        ),
        pytest.param(
            pod(container(resources={"claims": [{"name": "gpu"}]}), container("web"), resourceClaims=[CLAIM]),
            ["web"],
            id="claim-of-another-container",
        ),
    ],
)
def test_containers_that_ask_for_no_gpu_see_none(document: JSON, want: list[str]) -> None:
    assert hidden(document) == want


def test_the_variable_is_appended() -> None:
    patch = PodPatch(view(pod(container(env=[{"name": "HOME", "value": "/"}]), container("web"))))

    list(mutate(patch, GPUIsolationOptions(), context()))

    assert operations(patch) == [
        {"op": "add", "path": "/spec/containers/0/env/-", "value": VOID},
        {"op": "add", "path": "/spec/containers/1/env", "value": [VOID]},
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param({"name": VARIABLE, "value": "all"}, "all", id="all"),
        pytest.param({"name": VARIABLE, "value": "0,1"}, "0,1", id="indices"),
        pytest.param(
            {"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            None,
            id="elsewhere",
        ),
    ],
)
def test_gpus_shown_to_a_container_that_asks_for_none(variable: JSON, value: str | None) -> None:
    [finding] = findings(pod(gpu_container("1"), container("web", env=[variable])))

    assert finding == Finding(
        rule="gpu-isolation",
        path="spec.containers[1].env[0]",
        container="web",
        value=value,
        message='NVIDIA_VISIBLE_DEVICES must be "void" or unset in a container that requests no GPU: its GPUs belong '
        "to other pods",
        remedy="request nvidia.com/gpu: 1 in resources.limits or remove the variable",
    )


@pytest.mark.parametrize(
    ("name", "value", "harmless"),
    [
        pytest.param(VARIABLE, "all", "void", id="all"),
        pytest.param(VARIABLE, "0,1", "void", id="indexes"),
        pytest.param(VARIABLE, "GPU-1cb8edae-82f3-6a6f-1c76-a25281b02033", "void", id="uuid"),
        pytest.param(VARIABLE, "MIG-GPU-1cb8edae/1/0", "void", id="mig-id"),
        pytest.param(VARIABLE, "0:0", "void", id="mig-index"),
        pytest.param(VARIABLE, "void,0", "void", id="void-among-others"),
        pytest.param(VARIABLE, "$(OTHER)", "void", id="another-variable"),
        pytest.param("AMD_VISIBLE_DEVICES", "all", "void", id="amd"),
        pytest.param("DOCKER_RESOURCE_GPU", "0", "void", id="amd-by-the-names-of-swarm"),
        pytest.param("ASCEND_VISIBLE_DEVICES", "0-7", "void", id="ascend"),
        pytest.param("HABANA_VISIBLE_DEVICES", "all", "none", id="habana"),
        pytest.param("HABANA_VISIBLE_DEVICES", "void", "none", id="habana-reads-void-as-all"),
        pytest.param("HABANA_VISIBLE_DEVICES", "", "none", id="habana-reads-nothing-as-all"),
    ],
)
def test_a_value_that_shows_gpus(name: str, value: str, harmless: str) -> None:
    [denied] = findings(with_variable(pod(), {"name": name, "value": value}))

    assert (denied.path, denied.container, denied.value) == (
        "spec.containers[0].env[0]",
        "main",
        value or None,
    )
    assert denied.severity is Severity.DENIAL
    assert denied.message.startswith(
        f'{name} must be "{harmless}" or unset in a container that requests no GPU: it'
    )
    assert denied.remedy.endswith("remove the variable")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(gpu_container("1")), "beside a GPU request", id="a-request"),
        pytest.param(
            pod(container(resources={"claims": [{"name": "gpu"}]}), resourceClaims=[CLAIM]),
            "beside a GPU request",
            id="a-claim",
        ),
        pytest.param(pod(**KAI), "beside a GPU request", id="a-fraction"),
        pytest.param(
            pod(annotations={"gpu-fraction": "0.01"}),
            "in a container that requests no GPU",
            id="a-fraction-that-the-default-scheduler-ignores",
        ),
    ],
)
def test_values_beside(document: JSON, want: str) -> None:
    [denied] = findings(with_variable(document, {"name": VARIABLE, "value": "all"}))

    assert denied.message.startswith(f'{VARIABLE} must be "void" or unset {want}: it')
    assert findings(with_variable(document, VOID)) == []


@pytest.mark.parametrize(
    "variable",
    [
        pytest.param(VOID, id="void"),
        pytest.param({"name": VARIABLE, "value": "none"}, id="none"),
        pytest.param({"name": VARIABLE, "value": ""}, id="empty"),
        pytest.param({"name": VARIABLE}, id="no-value"),
        pytest.param({"name": "HABANA_VISIBLE_DEVICES", "value": "none"}, id="habana"),
        pytest.param({"name": "AMD_VISIBLE_DEVICES", "value": "none"}, id="amd"),
        # By these a process chooses among the devices that its container has.
        pytest.param({"name": "CUDA_VISIBLE_DEVICES", "value": "0"}, id="cuda"),
        pytest.param({"name": "ROCR_VISIBLE_DEVICES", "value": "0,1"}, id="rocr"),
        pytest.param({"name": "HIP_VISIBLE_DEVICES", "value": "0"}, id="hip"),
        pytest.param({"name": "ASCEND_RT_VISIBLE_DEVICES", "value": "0"}, id="ascend-process"),
    ],
)
def test_a_value_that_shows_nothing_more(variable: JSON) -> None:
    for document in (pod(gpu_container("1")), pod(**KAI), pod()):
        assert findings(with_variable(document, variable)) == []


UNREAD = "can replace the GPUs that the node assigns: what it holds is not known at admission"


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(
            pod(gpu_container("1", env=[{"name": VARIABLE, "valueFrom": ELSEWHERE}])),
            [("spec.containers[0].env[0]", UNREAD, "remove the variable")],
            id="value-from-elsewhere",
        ),
        pytest.param(
            pod(gpu_container("1", envFrom=[{"prefix": "APP_"}, {"configMapRef": {"name": "settings"}}])),
            [("spec.containers[0].envFrom[1]", UNREAD, "set a prefix, or name the variables in env")],
            id="variables-from-elsewhere",
        ),
        pytest.param(
            pod(gpu_container("1", envFrom=[{"prefix": "NVIDIA_", "secretRef": {"name": "s"}}])),
            [("spec.containers[0].envFrom[0]", UNREAD, "set a prefix, or name the variables in env")],
            id="prefix-of-the-variable",
        ),
        pytest.param(
            pod(container(env=[VOID], envFrom=[{"secretRef": {"name": "s"}}])), [], id="overridden-by-void"
        ),
        pytest.param(
            pod(container(env=[{"name": VARIABLE, "valueFrom": ELSEWHERE}], envFrom=[{"prefix": ""}]), **KAI),
            [],
            id="as-kai-writes-it",
        ),
        pytest.param(
            pod(container(envFrom=[{"configMapRef": {"name": "all"}}]), **KAI),
            [("spec.containers[0].envFrom[0]", UNREAD, "set a prefix, or name the variables in env")],
            id="where-kai-serves-and-its-webhook-was-not-called",
        ),
    ],
)
def test_values_that_are_not_in_the_pod_beside_a_gpu(
    document: JSON, want: list[tuple[str, str, str]]
) -> None:
    found = findings(document)

    assert [(each.path, each.message, each.remedy) for each in found] == want
    assert all(each.severity is Severity.WARNING for each in found)


def test_a_null_is_not_a_value_from_elsewhere() -> None:
    variable = {"name": VARIABLE, "value": "all", "valueFrom": None}

    [finding] = findings(pod(gpu_container("1", env=[variable])))

    assert finding.severity is Severity.DENIAL


# ---- files of the node


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/dev/nvidia0", id="device"),
        pytest.param("//dev/./nvidia-uvm/", id="device-written-otherwise"),
        pytest.param("/dev/dri/card0", id="card"),
        pytest.param("/dev/char", id="devices-by-number"),
        pytest.param("/dev/char/195:0", id="device-by-number"),
        pytest.param("/dev", id="all-devices"),
        pytest.param("/", id="all-of-the-node"),
        pytest.param("/run/nvidia/driver", id="driver-container"),
        pytest.param("/var/run/nvidia/driver/dev/nvidia0", id="device-of-the-driver-container"),
        pytest.param("/run/nvidia", id="above-the-driver-container"),
        pytest.param("/var/lib/kubelet/device-plugins/kubelet.sock", id="socket-of-device-plugins"),
        pytest.param("/var/lib/kubelet/pod-resources", id="pod-resources"),
        pytest.param("/var/lib", id="above-the-kubelet"),
        pytest.param("/run/containerd/containerd.sock", id="containerd"),
        pytest.param("/var/run/containerd", id="above-containerd"),
        pytest.param("/var/run/crio/crio.sock", id="crio"),
        pytest.param("/var/run/docker.sock", id="docker"),
        pytest.param("/run", id="above-the-sockets"),
        pytest.param("/etc/cdi", id="cdi"),
        pytest.param("/var/run/cdi/nvidia.yaml", id="cdi-at-run-time"),
        pytest.param("/proc/1/root/dev/nvidia0", id="root-of-a-process"),
        pytest.param("/tmp/../dev/nvidia0", id="a-step-back"),  # noqa: S108  of the node, and only a text
    ],
)
def test_files_of_the_node_that_lead_to_gpus(path: str) -> None:
    assert [finding.sentence() for finding in findings(mounting(path, gpu_container("1")))] == [
        (
            f'spec.volumes[0].hostPath.path = "{path}": request nvidia.com/gpu: 1 in resources.limits; must not '
            'lead to GPUs of the node (mounted by container "main"): nothing counts or reserves them; device '
            "plugins and exporters need an exemption in the GPUPolicy [gpu-isolation]"
        )
    ]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/var/run/nvidia-container-devices/all", id="as-documented"),
        pytest.param("/var/run//x/../nvidia-container-devices/0", id="written-otherwise"),
        pytest.param("var/run/nvidia-container-devices/cdi/nvidia.com/gpu/all", id="relative"),
    ],
)
def test_a_mount_that_nvidias_runtime_reads_as_a_gpu(path: str) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "null", "mountPath": path}]
    volumes = [{"name": "null", "hostPath": {"path": "/dev/null"}}, {"name": "data", "emptyDir": {}}]

    found = findings(pod(gpu_container("1", volumeMounts=mounts), volumes=volumes))

    assert [finding.sentence() for finding in found] == [
        (
            f'spec.containers[0].volumeMounts[1].mountPath (container "main") = "{path}": request nvidia.com/gpu: '
            "1 in resources.limits; must not be a list of GPUs for NVIDIA's runtime: nothing counts or reserves "
            "them [gpu-isolation]"
        )
    ]


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("cdi.k8s.io/gpus", id="cdi"),
        pytest.param("nvidia.cdi.k8s.io/container.main", id="nvidias-plugin-of-nri"),
        pytest.param("nvidia.cdi.k8s.io", id="nvidias-plugin-for-all-containers"),
        pytest.param("cdi-devices.nri.io/pod", id="device-injector"),
        pytest.param("io.kubernetes.cri-o.Devices", id="crio"),
    ],
)
def test_an_annotation_that_names_devices(key: str) -> None:
    found = findings(pod(gpu_container("1"), annotations={"team": "ml", key: "nvidia.com/gpu=all"}))

    assert [finding.sentence() for finding in found] == [
        (
            f'metadata.annotations[{key}] = "nvidia.com/gpu=all": request nvidia.com/gpu: 1 in resources.limits; '
            "must not name devices of the node: nothing counts or reserves them [gpu-isolation]"
        )
    ]


def test_a_volume_that_nobody_mounts_shows_nothing() -> None:
    assert (
        findings(pod(gpu_container("1"), volumes=[{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}])) == []
    )


PRIVILEGED = {"privileged": True}


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(pod(gpu_container("1", securityContext=PRIVILEGED)), [0], id="asks"),
        pytest.param(
            pod(gpu_container("1"), container("web", securityContext=PRIVILEGED)),
            [1],
            id="beside-one-that-asks",
        ),
        pytest.param(pod(container(securityContext=PRIVILEGED)), [], id="not-on-gpu-nodes"),
        pytest.param(pod(gpu_container("1", securityContext={"privileged": False})), [], id="unprivileged"),
    ],
)
def test_privileged_containers(document: JSON, want: list[int]) -> None:
    found = findings(document)

    assert [(finding.path, finding.severity) for finding in found] == [
        (f"spec.containers[{index}].securityContext.privileged", Severity.WARNING) for index in want
    ]
    assert all("sees every device of the node" in finding.message for finding in found)


DEDICATED = gpu_toleration.GPUTolerationOptions(
    tolerations=(Toleration(key="dedicated", operator="Equal", value="ml-workloads", effect="NoSchedule"),)
)


@pytest.mark.parametrize(
    ("toleration", "warned"),
    [
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"operator": "Exists", "effect": "NoSchedule"}, True, id="every-noschedule"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="every-noexecute"),
        pytest.param({"key": "nvidia.com/gpu", "operator": "Exists"}, True, id="the-usual-taint"),
        pytest.param(
            {"key": "nvidia.com/gpu", "value": "present"}, True, id="the-usual-taint-as-gke-writes-it"
        ),
        pytest.param({"key": "amd.com/gpu", "operator": "Exists"}, True, id="taint-of-another-vendor"),
        pytest.param({"key": "amd.com/nic", "operator": "Exists"}, False, id="taint-of-no-gpu"),
        pytest.param({"key": "accelerator", "value": "t4"}, True, id="taint-of-a-class"),
        pytest.param({"key": "accelerator", "value": "t5"}, False, id="another-value"),
        pytest.param({"key": "dedicated", "value": "ml-workloads"}, True, id="taint-of-the-policy"),
        pytest.param({"key": "dedicated", "value": "web"}, False, id="taint-of-another-pool"),
        pytest.param(
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}, False, id="what-every-pod-has"
        ),
    ],
)
def test_pods_on_gpu_nodes_that_ask_for_no_gpu(toleration: JSON, warned: bool) -> None:
    document = pod(container(env=[VOID]), tolerations=[{"key": "x", "operator": "Exists"}, toleration])

    found = findings(document, options_of=lambda _: DEDICATED)

    assert [finding.sentence() for finding in found] == (
        [
            (
                "spec.tolerations[1]: remove the toleration or request a GPU; should not let the pod onto GPU nodes: "
                "it requests no GPU, and takes CPU and memory from pods that do [gpu-isolation]"
            )
        ]
        if warned
        else []
    )


@pytest.mark.parametrize(
    ("document", "by_daemonset"),
    [
        pytest.param(pod(tolerations=[{"operator": "Exists"}]), True, id="agents-of-every-node"),
        pytest.param(
            pod(gpu_container("1"), tolerations=[{"operator": "Exists"}]), False, id="asks-for-a-gpu"
        ),
        pytest.param(
            pod(**KAI, tolerations=[{"operator": "Exists"}]),
            False,
            id="asks-for-a-part",
        ),
    ],
)
def test_pods_that_belong_on_gpu_nodes(document: JSON, by_daemonset: bool) -> None:
    assert findings(document, made_by_daemonset=by_daemonset) == []


def test_privileged_on_gpu_nodes_without_a_gpu() -> None:
    document = pod(container(securityContext=PRIVILEGED), tolerations=[{"operator": "Exists"}])

    assert [finding.path for finding in findings(document)] == [
        "spec.containers[0].securityContext.privileged",
        "spec.tolerations[0]",
    ]
