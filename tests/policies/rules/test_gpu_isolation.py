"""gpu-isolation: containers that ask for no GPU see none."""

from typing import Any

import pytest

from policies.finding import Edit, Finding, Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Mode
from policies.rules import gpu_toleration
from policies.rules.gpu_isolation import EXPOSED_GPUS, GPUIsolationOptions, check, mutate
from tests.builders import JSON, apply, container, context, gpu_container, pod, view
from tests.cases import cases

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VARIABLE, "value": "void"}
CLAIM = {"name": "gpu", "resourceClaimName": "shared-gpu"}
CLAIMING = pod(container(resources={"claims": [{"name": "gpu"}]}), resourceClaims=[CLAIM])
ELSEWHERE = {"configMapKeyRef": {"name": "gpus", "key": VARIABLE}}
REPLACED = "beside a GPU request: it replaces the GPUs that the node assigns"
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


@cases(
    ("document", "want"),
    sidecar_of_a_gpu_container=(pod(container("web"), gpu_container("1", "train")), ["web"]),
    init_container=(pod(gpu_container("1"), initContainers=[container("fetch")]), ["fetch"]),
    zero_gpus_are_no_request=(pod(gpu_container("0")), ["main"]),
    slice=(pod(gpu_container("1", resource="nvidia.com/mig-1g.10gb")), []),
    request_alone=(pod(container(resources={"requests": {"nvidia.com/gpu": "1"}})), []),
    hidden_already=(pod(container(env=[VOID])), []),
    never_overridden=(pod(container(env=[{"name": VARIABLE, "value": "all"}])), []),
    beside_other_variables=(pod(container(env=[{"name": "HOME", "value": "/"}])), ["main"]),
    null_env=(pod(container(env=None)), ["main"]),
    fraction_scheduler_sets_it=(pod(**KAI), []),
    fraction_that_the_default_scheduler_ignores=(pod(annotations={"gpu-fraction": "0.01"}), ["main"]),
    beside_the_first_container_which_the_fraction_scheduler_serves=(
        pod(container("main"), container("web"), initContainers=[container("fetch")], **KAI),
        ["web", "fetch"],
    ),
    beside_the_container_that_the_fraction_scheduler_serves_by_name=(
        pod(
            container("web"),
            container("main"),
            schedulerName="kai-scheduler",
            annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"},
        ),
        ["web"],
    ),
    device_plugin=(mounting("/var/lib/kubelet/device-plugins", container("plugin")), []),
    exporter=(mounting("/var/lib/kubelet//pod-resources/kubelet.sock", container("exporter")), []),
    another_agent_of_the_node=(mounting("/var/lib/kubelet", container("agent")), ["agent"]),
    only_looks_like_a_device_plugin=(
        pod(volumes=[{"name": "unmounted", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]),
        ["main"],
    ),
    claim=(CLAIMING, []),
    claim_of_another_container=(
        pod(container(resources={"claims": [{"name": "gpu"}]}), container("web"), resourceClaims=[CLAIM]),
        ["web"],
    ),
)
def test_containers_that_ask_for_no_gpu_see_none(document: JSON, want: list[str]) -> None:
    assert hidden(document) == want


@cases(
    ("variable", "value"),
    all=({"name": VARIABLE, "value": "all"}, "all"),
    elsewhere=({"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}, None),
)
def test_gpus_shown_to_a_container_that_asks_for_none(variable: JSON, value: str | None) -> None:
    [finding] = findings(pod(gpu_container("1"), container("web", env=[variable])))

    assert finding == Finding(
        reason=EXPOSED_GPUS,
        path="spec.containers[1].env[0]",
        container="web",
        value=value,
        message='NVIDIA_VISIBLE_DEVICES must be "void" or unset in a container that requests no GPU: the GPUs '
        "that it sees belong to other pods",
        choices=(
            (
                Edit("spec.containers[1].resources.limits[nvidia.com/gpu]", 1),
                Edit("spec.containers[1].env[0]"),
            ),
            (Edit("spec.containers[1].env[0]"),),
        ),
        remedy="request nvidia.com/gpu: 1 in resources.limits or remove the variable",
    )


@cases(
    ("name", "value", "harmless"),
    all=(VARIABLE, "all", "void"),
    void_among_others=(VARIABLE, "void,0", "void"),
    amd=("AMD_VISIBLE_DEVICES", "all", "void"),
    amd_by_the_names_of_swarm=("DOCKER_RESOURCE_GPU", "0", "void"),
    habana=("HABANA_VISIBLE_DEVICES", "all", "none"),
    habana_reads_void_as_all=("HABANA_VISIBLE_DEVICES", "void", "none"),
    habana_reads_nothing_as_all=("HABANA_VISIBLE_DEVICES", "", "none"),
)
def test_a_value_that_shows_gpus(name: str, value: str, harmless: str) -> None:
    [denied] = findings(with_variable(pod(), {"name": name, "value": value}))

    assert denied.path == "spec.containers[0].env[0]"
    assert (denied.container, denied.value) == ("main", value or None)
    assert denied.severity is Severity.DENIAL
    assert denied.message.startswith(
        f'{name} must be "{harmless}" or unset in a container that requests no GPU: the GPUs that it'
    )
    assert denied.remedy.endswith("remove the variable")


@cases(
    ("document", "want"),
    a_request=(pod(gpu_container("1")), REPLACED),
    a_claim=(CLAIMING, REPLACED),
    a_fraction=(pod(**KAI), REPLACED),
    a_fraction_that_the_default_scheduler_ignores=(
        pod(annotations={"gpu-fraction": "0.01"}),
        "in a container that requests no GPU: the GPUs that it sees belong to other pods",
    ),
)
def test_values_beside(document: JSON, want: str) -> None:
    [denied] = findings(with_variable(document, {"name": VARIABLE, "value": "all"}))

    assert denied.message == f'{VARIABLE} must be "void" or unset {want}'
    assert findings(with_variable(document, VOID)) == []


@cases(
    "variable",
    void=VOID,
    none={"name": VARIABLE, "value": "none"},
    empty={"name": VARIABLE, "value": ""},
    no_value={"name": VARIABLE},
    habana={"name": "HABANA_VISIBLE_DEVICES", "value": "none"},
    amd={"name": "AMD_VISIBLE_DEVICES", "value": "none"},
    # By these a process chooses among the devices that its container has.
    cuda={"name": "CUDA_VISIBLE_DEVICES", "value": "0"},
    ascend_process={"name": "ASCEND_RT_VISIBLE_DEVICES", "value": "0"},
)
def test_a_value_that_shows_nothing_more(variable: JSON) -> None:
    for document in (pod(gpu_container("1")), pod(**KAI), pod()):
        assert findings(with_variable(document, variable)) == []


UNREAD = "can replace the GPUs that the node assigns: what it holds is not known at admission"


@cases(
    ("document", "want"),
    value_from_elsewhere=(
        pod(gpu_container("1", env=[{"name": VARIABLE, "valueFrom": ELSEWHERE}])),
        [("spec.containers[0].env[0]", UNREAD, "remove the variable")],
    ),
    variables_from_elsewhere=(
        pod(gpu_container("1", envFrom=[{"prefix": "APP_"}, {"configMapRef": {"name": "settings"}}])),
        [("spec.containers[0].envFrom[1]", UNREAD, "set a prefix, or name the variables in env")],
    ),
    prefix_of_the_variable=(
        pod(gpu_container("1", envFrom=[{"prefix": "NVIDIA_", "secretRef": {"name": "s"}}])),
        [("spec.containers[0].envFrom[0]", UNREAD, "set a prefix, or name the variables in env")],
    ),
    overridden_by_void=(pod(container(env=[VOID], envFrom=[{"secretRef": {"name": "s"}}])), []),
    as_kai_writes_it=(
        pod(container(env=[{"name": VARIABLE, "valueFrom": ELSEWHERE}], envFrom=[{"prefix": ""}]), **KAI),
        [],
    ),
    where_kai_serves_and_its_webhook_was_not_called=(
        pod(container(envFrom=[{"configMapRef": {"name": "all"}}]), **KAI),
        [("spec.containers[0].envFrom[0]", UNREAD, "set a prefix, or name the variables in env")],
    ),
)
def test_values_from_elsewhere_beside_a_gpu(document: JSON, want: list[tuple[str, str, str]]) -> None:
    found = findings(document)

    assert [(each.path, each.message, each.remedy) for each in found] == want
    assert all(each.severity is Severity.WARNING for each in found)


def assigned(key: str) -> JSON:
    """Return the variable as the documentation of Ascend's device plugin has it, of the annotation with that key."""
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
    return {"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": field}


@cases(
    ("document", "want"),
    of_its_resource=(pod(gpu_container(env=[assigned("nvidia.com/gpu")])), []),
    of_its_resource_by_the_author=(
        pod(gpu_container(env=[assigned("nvidia.com/gpu")]), annotations={"nvidia.com/gpu": "0,1"}),
        [UNREAD],
    ),
    of_another_name=(pod(gpu_container(env=[assigned("example.com/devices")])), [UNREAD]),
    beside_no_request=(
        pod(container(env=[assigned("nvidia.com/gpu")])),
        [
            'ASCEND_VISIBLE_DEVICES must be "void" or unset in a container that requests no GPU: the GPUs that it sees '
            "belong to other pods"
        ],
    ),
)
def test_an_annotation_in_which_a_scheduler_writes_the_devices(document: JSON, want: list[str]) -> None:
    assert [each.message for each in findings(document)] == want


DATA = {
    "shown": {"NVIDIA_VISIBLE_DEVICES": "all", "HOME": "/"},
    "hidden": {"NVIDIA_VISIBLE_DEVICES": "void"},
    "empty": {},
}


def from_map(name: str, **tweaks: Any) -> JSON:
    return pod(gpu_container("1", envFrom=[{"configMapRef": {"name": name}}], **tweaks))


def from_key(name: str, *, beside: JSON) -> JSON:
    source = {"configMapKeyRef": {"name": name, "key": VARIABLE}}
    return pod({**beside, "env": [{"name": VARIABLE, "valueFrom": source}]})


@cases(
    ("document", "want"),
    which_shows=(
        from_map("shown"),
        [("spec.containers[0].envFrom[0]", "set a prefix, or name the variables in env", REPLACED)],
    ),
    which_hides=(from_map("hidden"), []),
    which_has_others=(from_map("hidden", env=[VOID]), []),
    below_a_prefix=(
        pod(gpu_container("1", envFrom=[{"prefix": "A_", "configMapRef": {"name": "shown"}}])),
        [],
    ),
    overridden=(from_map("shown", env=[VOID]), []),
    one_key=(
        from_key("shown", beside=gpu_container("1")),
        [("spec.containers[0].env[0]", "remove the variable", REPLACED)],
    ),
    one_key_that_hides=(from_key("hidden", beside=gpu_container("1")), []),
    one_key_that_hides_beside_no_request=(from_key("hidden", beside=container()), []),
    no_such_key=(from_key("empty", beside=gpu_container("1")), []),
)
def test_a_config_map_that_is_known(document: JSON, want: list[tuple[str, str, str]]) -> None:
    found = findings(document, config_maps=DATA)

    assert [(each.path, each.remedy, each.message) for each in found] == [
        (path, remedy, f'{VARIABLE} must be "void" or unset {why}') for path, remedy, why in want
    ]
    assert all(each.severity is Severity.DENIAL for each in found)


def test_a_null_is_not_a_value_from_elsewhere() -> None:
    variable = {"name": VARIABLE, "value": "all", "valueFrom": None}

    [finding] = findings(pod(gpu_container("1", env=[variable])))

    assert finding.severity is Severity.DENIAL


# ---- files of the node


@pytest.mark.parametrize("path", ["/dev/nvidia0", "//dev/./nvidia-uvm/", "/"])
def test_files_of_the_node_that_lead_to_gpus(path: str) -> None:
    assert [finding.sentence() for finding in findings(mounting(path, gpu_container("1")))] == [
        f'spec.volumes[0].hostPath.path = "{path}": remove it, and request GPUs only in resources.limits; must '
        'not lead to GPUs of the node (mounted by container "main"): nothing counts or reserves them; device '
        "plugins and exporters need an exemption in the GPUPolicy"
    ]


@cases(
    "path",
    as_documented="/var/run/nvidia-container-devices/all",
    written_otherwise="/var/run//x/../nvidia-container-devices/0",
)
def test_a_mount_that_nvidias_runtime_reads_as_a_gpu(path: str) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "null", "mountPath": path}]
    volumes = [{"name": "null", "hostPath": {"path": "/dev/null"}}, {"name": "data", "emptyDir": {}}]

    found = findings(pod(gpu_container("1", volumeMounts=mounts), volumes=volumes))

    assert [finding.sentence() for finding in found] == [
        f'spec.containers[0].volumeMounts[1].mountPath (container "main") = "{path}": remove it, and request '
        "GPUs only in resources.limits; must not be a list of GPUs for NVIDIA's runtime: nothing counts or reserves "
        "them"
    ]


@cases(
    "key",
    cdi="cdi.k8s.io/gpus",
    nvidias_plugin_of_nri="nvidia.cdi.k8s.io/container.main",
    nvidias_plugin_for_all_containers="nvidia.cdi.k8s.io",
    device_injector="cdi-devices.nri.io/pod",
    device_injector_by_its_present_name="devices.noderesource.dev/container.main",
    devices_of_cdi_by_its_present_name="cdi-devices.noderesource.dev/pod",
    device_injector_of_gke="devices.gke.io/container.tcpx-daemon",
    crio="io.kubernetes.cri-o.Devices",
)
def test_an_annotation_that_names_devices(key: str) -> None:
    found = findings(pod(gpu_container("1"), annotations={"team": "ml", key: "nvidia.com/gpu=all"}))

    assert [finding.sentence() for finding in found] == [
        f'metadata.annotations[{key}] = "nvidia.com/gpu=all": remove it, and request GPUs only in resources.limits; '
        "must not name devices of the node: nothing counts or reserves them"
    ]


@cases(
    ("path", "want"),
    a_card=("/dev/nvidia0", ["spec.volumes[0]", "spec.containers[0].volumeMounts[0]"]),
    a_folder_of_cards=("/dev/dri", ["spec.volumes[0]", "spec.containers[0].volumeMounts[0]"]),
    what_agents_read=("/var/lib/kubelet/pod-resources", []),
    a_parent_directory=("/dev", []),
    a_socket=("/run/containerd/containerd.sock", []),
)
def test_a_device_has_a_fix_and_what_agents_need_has_none(path: str, want: list[str]) -> None:
    [finding] = findings(mounting(path, gpu_container("1")))
    assert [(edit.path, edit.value) for edit in finding.fix] == [(each, None) for each in want]


def test_a_volume_that_nobody_mounts_shows_nothing() -> None:
    volume = {"name": "d", "hostPath": {"path": "/dev/nvidia0"}}
    assert findings(pod(gpu_container("1"), volumes=[volume])) == []


PRIVILEGED = {"privileged": True}


@cases(
    ("document", "want"),
    asks=(pod(gpu_container("1", securityContext=PRIVILEGED)), [0]),
    beside_one_that_asks=(pod(gpu_container("1"), container("web", securityContext=PRIVILEGED)), [1]),
    not_on_gpu_nodes=(pod(container(securityContext=PRIVILEGED)), []),
    unprivileged=(pod(gpu_container("1", securityContext={"privileged": False})), []),
)
def test_privileged_containers(document: JSON, want: list[int]) -> None:
    found = findings(document)
    said = {(finding.message, finding.remedy) for finding in found}

    assert [(finding.path, finding.severity) for finding in found] == [
        (f"spec.containers[{index}].securityContext.privileged", Severity.WARNING) for index in want
    ]
    assert said <= {
        (
            "should be false: a privileged container sees every device of the node, also those of other pods",
            "remove it; GPUs need no privileges, and TPUs only in old versions of GKE",
        )
    }


DEDICATED = gpu_toleration.GPUTolerationOptions(
    tolerations=(Toleration(key="dedicated", operator="Equal", value="ml-workloads", effect="NoSchedule"),)
)


@cases(
    ("toleration", "warned"),
    everything=({"operator": "Exists"}, True),
    every_noexecute=({"operator": "Exists", "effect": "NoExecute"}, False),
    the_usual_taint=({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
    taint_of_another_vendor=({"key": "amd.com/gpu", "operator": "Exists"}, True),
    taint_of_no_gpu=({"key": "amd.com/nic", "operator": "Exists"}, False),
    taint_of_a_class=({"key": "accelerator", "value": "t4"}, True),
    taint_of_the_policy=({"key": "dedicated", "value": "ml-workloads"}, True),
    what_every_pod_has=({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}, False),
)
def test_pods_on_gpu_nodes_that_ask_for_no_gpu(toleration: JSON, warned: bool) -> None:
    document = pod(container(env=[VOID]), tolerations=[{"key": "x", "operator": "Exists"}, toleration])

    found = findings(document, options_of=lambda _: DEDICATED)

    assert [finding.sentence() for finding in found] == (
        [
            "spec.tolerations[1]: remove the toleration or request a GPU; should not let the pod onto GPU nodes: "
            "it requests no GPU, and takes CPU and memory from pods that do"
        ]
        if warned
        else []
    )


@cases(
    ("document", "made_by_daemonset"),
    agents_of_every_node=(pod(tolerations=[{"operator": "Exists"}]), True),
    asks_for_a_gpu=(pod(gpu_container("1"), tolerations=[{"operator": "Exists"}]), False),
    asks_for_a_part=(pod(**KAI, tolerations=[{"operator": "Exists"}]), False),
)
def test_pods_that_belong_on_gpu_nodes(document: JSON, made_by_daemonset: bool) -> None:
    assert findings(document, made_by_daemonset=made_by_daemonset) == []


def test_privileged_on_gpu_nodes_without_a_gpu() -> None:
    document = pod(container(securityContext=PRIVILEGED), tolerations=[{"operator": "Exists"}])

    assert [finding.path for finding in findings(document)] == [
        "spec.containers[0].securityContext.privileged",
        "spec.tolerations[0]",
    ]
