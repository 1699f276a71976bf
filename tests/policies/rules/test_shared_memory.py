"""shared-memory: pods on several GPUs get a /dev/shm of a size that somebody has thought about."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.pods.patch import PodPatch
from policies.rule import Mode
from policies.rules.shared_memory import SharedMemoryOptions, mutate
from tests.builders import JSON, apply, container, context, pod, view

SHM = "/dev/shm"  # noqa: S108 - the mount point in the container
OURS = {"name": "gpu-admission-shm", "mountPath": SHM}
HALF = SharedMemoryOptions()
ABSOLUTE = SharedMemoryOptions(size_limit="16Gi")


def trainer(gpus: str = "8", memory: str | None = "64Gi", **tweaks: Any) -> JSON:
    limits = {"nvidia.com/gpu": gpus, **({"memory": memory} if memory is not None else {})}
    return container(**{"resources": {"limits": limits}, **tweaks})


def volume(size: str) -> JSON:
    return {"name": "gpu-admission-shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def with_memory(document: JSON, size: str) -> JSON:
    """Return the document with our volume in it, and mounted where it asks for GPUs."""
    spec = document["spec"]
    mounted = {
        name: [
            {**each, "volumeMounts": [*each.get("volumeMounts", []), OURS]} if "resources" in each else each
            for each in spec[name]
        ]
        for name in ("containers", "initContainers")
        if name in spec
    }
    return {**document, "spec": {**spec, **mounted, "volumes": [*(spec.get("volumes") or []), volume(size)]}}


def run(document: JSON, options: SharedMemoryOptions = HALF) -> tuple[JSON, list[str]]:
    patch = PodPatch(view(document))
    findings = list(mutate(patch, options, context()))
    assert all(finding.severity is Severity.WARNING for finding in findings)
    return apply(document, patch), [finding.sentence() for finding in findings]


@pytest.mark.parametrize(
    ("document", "options", "size"),
    [
        pytest.param(pod(trainer()), HALF, "32Gi", id="half-of-the-memory-limit"),
        pytest.param(pod(trainer(memory="5Gi")), HALF, "2560Mi", id="no-whole-gib"),
        pytest.param(
            pod(trainer(memory="1000M")), HALF, "476Mi", id="decimal-limit-rounded-down-to-whole-mib"
        ),
        pytest.param(pod(trainer()), SharedMemoryOptions(size_limit="25%"), "16Gi", id="a-quarter"),
        pytest.param(pod(trainer(memory=None)), ABSOLUTE, "16Gi", id="absolute-needs-no-memory-limit"),
        pytest.param(pod(trainer(gpus="2")), HALF, "32Gi", id="two-gpus-are-several"),
        pytest.param(
            pod(trainer(gpus="1", name="first"), trainer(gpus="1", name="second", memory="8Gi")),
            HALF,
            "4Gi",
            id="one-gpu-in-each-of-two-containers-and-the-smaller-limit",
        ),
        pytest.param(
            pod(trainer(), container("logs")), HALF, "32Gi", id="containers-without-gpu-are-left-out"
        ),
        pytest.param(
            pod(trainer(memory=None), resources={"limits": {"memory": "128Gi"}}),
            HALF,
            "64Gi",
            id="memory-limit-of-the-whole-pod",
        ),
        pytest.param(
            pod(container(), initContainers=[trainer(name="server", restartPolicy="Always")]),
            HALF,
            "32Gi",
            id="sidecar",
        ),
        pytest.param(
            pod(
                trainer(volumeMounts=[{"name": "data", "mountPath": f"{SHM}-data"}]),
                volumes=[{"name": "data"}],
            ),
            HALF,
            "32Gi",
            id="beside-other-mounts",
        ),
        pytest.param(pod(trainer(), volumes=None), HALF, "32Gi", id="volumes-null"),
    ],
)
def test_pod_on_several_gpus(document: JSON, options: SharedMemoryOptions, size: str) -> None:
    once, findings = run(document, options)

    assert once == with_memory(document, size)
    assert findings == []
    assert run(once, options) == (once, [])  # reinvocation changes nothing


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(container()), id="no-gpu"),
        pytest.param(pod(trainer(gpus="1")), id="one-gpu"),
        pytest.param(pod(trainer(gpus="many")), id="amount-that-is-no-quantity"),
        pytest.param(
            pod(container(resources={"limits": {"nvidia.com/mig-1g.10gb": 2, "memory": "64Gi"}})),
            id="slices-share-nothing",
        ),
        pytest.param(
            pod(trainer(gpus="1"), initContainers=[trainer(gpus="1", name="warm")]),
            id="one-gpu-after-the-other",
        ),
        pytest.param(
            pod(trainer(volumeMounts=[{"name": "shm", "mountPath": SHM}])), id="mounted-by-the-user"
        ),
        pytest.param(
            pod(trainer(volumeMounts=[{"name": "shm", "mountPath": SHM + "/"}])), id="with-a-slash-behind"
        ),
        pytest.param(
            pod(trainer(volumeMounts=[{"name": "shm", "mountPath": "/./dev//shm/."}])),
            id="written-in-another-way",
        ),
        pytest.param(
            pod(trainer(volumeMounts=[{"name": "devices", "mountPath": "/dev"}])), id="the-folder-above-it"
        ),
        pytest.param(
            pod(trainer(), container("loader", volumeMounts=[{"name": "shm", "mountPath": SHM}])),
            id="mounted-in-the-container-beside",
        ),
        pytest.param(pod(trainer(), hostIPC=True), id="shared-memory-of-the-node"),
        pytest.param(pod(trainer(), os={"name": "windows"}), id="windows-has-none"),
        pytest.param(
            pod(trainer(), nodeSelector={"kubernetes.io/os": "windows"}), id="windows-by-node-selector"
        ),
        pytest.param(pod(trainer(memory="100Mi")), id="half-would-be-less-than-the-64-mib-there-are"),
    ],
)
def test_pod_that_is_left_alone(document: JSON) -> None:
    assert run(document) == (document, [])


def test_volume_whose_mount_got_lost_is_mounted_again() -> None:
    document = pod(trainer(), volumes=[volume("8Gi")])

    assert run(document) == (pod(trainer(volumeMounts=[OURS]), volumes=[volume("8Gi")]), [])


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(
            pod(trainer(memory=None)),
            (
                "spec.volumes: set a memory limit on every container that requests a GPU, or mount a memory emptyDir "
                "at /dev/shm; /dev/shm stays at 64 MiB: sizeLimit 50% needs a memory limit [shared-memory]"
            ),
            id="no-memory-limit",
        ),
        pytest.param(
            pod(trainer(), trainer(name="second", memory=None)),
            (
                "spec.volumes: set a memory limit on every container that requests a GPU, or mount a memory emptyDir "
                "at /dev/shm; /dev/shm stays at 64 MiB: sizeLimit 50% needs a memory limit [shared-memory]"
            ),
            id="one-of-two-without-memory-limit",
        ),
        pytest.param(
            pod(trainer(memory="lots")),
            (
                "spec.volumes: set a memory limit on every container that requests a GPU, or mount a memory emptyDir "
                "at /dev/shm; /dev/shm stays at 64 MiB: sizeLimit 50% needs a memory limit [shared-memory]"
            ),
            id="memory-limit-that-is-no-quantity",
        ),
        pytest.param(
            pod(
                trainer(),
                volumes=[{"name": "gpu-admission-shm", "persistentVolumeClaim": {"claimName": "data"}}],
            ),
            (
                "spec.volumes: rename that volume; volume gpu-admission-shm must be a memory emptyDir [shared-memory]"
            ),
            id="name-taken-by-a-claim",
        ),
        pytest.param(
            pod(trainer(), volumes=[{"name": "gpu-admission-shm", "emptyDir": {}}]),
            (
                "spec.volumes: rename that volume; volume gpu-admission-shm must be a memory emptyDir [shared-memory]"
            ),
            id="name-taken-by-a-disk",
        ),
    ],
)
def test_warning(document: JSON, want: str) -> None:
    assert run(document) == (document, [want])


@pytest.mark.parametrize(
    ("size_limit", "want"),
    [
        ("1%", []),
        ("100%", []),
        ("64Mi", []),
        ("0%", ['must be a whole percentage from 1% to 100%, not "0%"']),
        ("101%", ['must be a whole percentage from 1% to 100%, not "101%"']),
        ("12.5%", ['must be a whole percentage from 1% to 100%, not "12.5%"']),
        ("-5%", ['must be a whole percentage from 1% to 100%, not "-5%"']),
        (2**30, []),
        (1, ['must be at least 64Mi, which every pod has anyway, not "1"']),
        ("32Mi", ['must be at least 64Mi, which every pod has anyway, not "32Mi"']),
        ("-1Gi", ['must be at least 64Mi, which every pod has anyway, not "-1Gi"']),
        (
            "8GB",
            [
                'must be a quantity or a percentage such as 50%: "8GB" is not a Kubernetes quantity: expected a '
                "number and perhaps a suffix, such as 2, 500m or 16Gi"
            ],
        ),
    ],
)
def test_problems(size_limit: str | int, want: list[str]) -> None:
    assert list(SharedMemoryOptions(size_limit=size_limit).problems()) == [
        ("sizeLimit", sentence) for sentence in want
    ]


def test_is_off_unless_a_policy_asks_for_it() -> None:
    assert SharedMemoryOptions().mode is Mode.DISABLED
