"""gpu-isolation: containers that ask for no GPU see none."""

from typing import Any

import pytest

from policies.finding import Finding, Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Mode
from policies.rules import gpu_toleration
from policies.rules.gpu_isolation import GPUIsolationOptions, check, holds_gpu_devices, mutate
from tests.builders import JSON, apply, container, context, gpu_container, operations, pod, view

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VARIABLE, "value": "void"}
CLAIM = {"name": "gpu", "resourceClaimName": "shared-gpu"}


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
        pytest.param(pod(annotations={"gpu-fraction": "0.5"}), [], id="fraction-scheduler-sets-it"),
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
        remedy='request GPUs in resources.limits ("nvidia.com/gpu": 1) or remove the variable',
    )


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(container(env=[VOID])), id="void"),
        pytest.param(pod(container(env=[{"name": VARIABLE, "value": "none"}])), id="none"),
        pytest.param(pod(container(env=[{"name": VARIABLE}])), id="empty"),
        pytest.param(
            pod(gpu_container("1", env=[{"name": VARIABLE, "value": "all"}])), id="beside-a-request"
        ),
        pytest.param(
            pod(container(env=[{"name": VARIABLE, "value": "0"}]), annotations={"gpu-fraction": "0.5"}),
            id="fraction",
        ),
    ],
)
def test_nothing_is_shown(document: JSON) -> None:
    assert findings(document) == []


@pytest.mark.parametrize(
    "path",
    [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "//dev/./nvidia-uvm/",
        "/dev/dri",
        "/dev/dri/card0",
        "/dev/kfd",
        "/dev/accel0",
        "/dev",
        "/",
    ],
)
def test_gpu_devices_as_files(path: str) -> None:
    volume = {"name": "devices", "hostPath": {"path": path}}
    document = pod(
        gpu_container("1", volumeMounts=[{"name": "devices", "mountPath": "/d"}]), volumes=[volume]
    )

    assert [finding.sentence() for finding in findings(document)] == [
        f'spec.volumes[0].hostPath.path = "{path}": must not hold GPU devices of the node (mounted by '
        'container "main"): nothing counts or reserves them; request GPUs in resources.limits '
        '("nvidia.com/gpu": 1), which mounts their devices [gpu-isolation]'
    ]


@pytest.mark.parametrize("path", ["/dev/infiniband", "/dev/driver", "/data", "/home/dev/nvidia0", ""])
def test_paths_without_gpu_devices(path: str) -> None:
    assert not holds_gpu_devices(path)


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
            "spec.tolerations[1]: should not let the pod onto GPU nodes: it requests no GPU, and takes CPU and "
            "memory from pods that do; remove the toleration or request a GPU [gpu-isolation]"
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
            pod(annotations={"gpu-fraction": "0.5"}, tolerations=[{"operator": "Exists"}]),
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
