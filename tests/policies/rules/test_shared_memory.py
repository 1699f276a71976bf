"""shared-memory: pods on several GPUs get a /dev/shm of a size that somebody has thought about."""

from typing import Any

import pytest

from policies.finding import Edit, Severity
from policies.pods.patch import PodPatch
from policies.rule import Mode
from policies.rules.shared_memory import SharedMemoryOptions, mutate
from tests.builders import JSON, apply, container, context, pod, view
from tests.cases import cases

SHM = "/dev/shm"  # noqa: S108 - the mount point in the container
OURS = {"name": "gpu-admission-shm", "mountPath": SHM}
HALF = SharedMemoryOptions()
SIDECAR = {"restartPolicy": "Always"}
ABSOLUTE = SharedMemoryOptions(size_limit="16Gi")


def trainer(
    gpus: str = "8", memory: str | None = "64Gi", resource: str = "nvidia.com/gpu", **tweaks: Any
) -> JSON:
    limits = {resource: gpus, **({"memory": memory} if memory is not None else {})}
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


@cases(
    ("document", "options", "size"),
    half_of_the_memory_limit=(pod(trainer()), HALF, "32Gi"),
    no_whole_gib=(pod(trainer(memory="5Gi")), HALF, "2560Mi"),
    decimal_limit_rounded_down_to_whole_mib=(pod(trainer(memory="1000M")), HALF, "476Mi"),
    a_quarter=(pod(trainer()), SharedMemoryOptions(size_limit="25%"), "16Gi"),
    absolute_needs_no_memory_limit=(pod(trainer(memory=None)), ABSOLUTE, "16Gi"),
    two_gpus_are_several=(pod(trainer(gpus="2")), HALF, "32Gi"),
    one_gpu_in_each_of_two_containers_and_the_smaller_limit=(
        pod(trainer(gpus="1", name="first"), trainer(gpus="1", name="second", memory="8Gi")),
        HALF,
        "4Gi",
    ),
    one_card_of_each_of_two_vendors=(
        pod(trainer(gpus="1"), trainer(gpus="1", name="second", resource="amd.com/gpu")),
        HALF,
        "32Gi",
    ),
    containers_without_gpu_are_left_out=(pod(trainer(), container("logs")), HALF, "32Gi"),
    of_the_pod=(pod(trainer(memory=None), resources={"limits": {"memory": "128Gi"}}), HALF, "64Gi"),
    sidecar=(pod(container(), initContainers=[trainer(name="server", **SIDECAR)]), HALF, "32Gi"),
    beside_other_mounts=(
        pod(
            trainer(volumeMounts=[{"name": "data", "mountPath": f"{SHM}-data"}]),
            volumes=[{"name": "data"}],
        ),
        HALF,
        "32Gi",
    ),
)
def test_pod_on_several_gpus(document: JSON, options: SharedMemoryOptions, size: str) -> None:
    once, findings = run(document, options)

    assert once == with_memory(document, size)
    assert findings == []
    assert run(once, options) == (once, [])  # reinvocation changes nothing


@cases(
    "document",
    no_gpu=pod(container()),
    one_gpu=pod(trainer(gpus="1")),
    amount_that_is_no_quantity=pod(trainer(gpus="many")),
    slices_share_nothing=pod(trainer("2", resource="nvidia.com/mig-1g.10gb")),
    shares_of_one_card=pod(trainer("2", resource="nvidia.com/gpu.shared")),
    one_gpu_after_the_other=(pod(trainer(gpus="1"), initContainers=[trainer(gpus="1", name="warm")])),
    mounted_by_the_user=(pod(trainer(volumeMounts=[{"name": "shm", "mountPath": SHM}]))),
    written_in_another_way=pod(trainer(volumeMounts=[{"name": "shm", "mountPath": "/./dev//shm/."}])),
    the_folder_above_it=(pod(trainer(volumeMounts=[{"name": "devices", "mountPath": "/dev"}]))),
    mounted_in_the_container_beside=(
        pod(trainer(), container("loader", volumeMounts=[{"name": "shm", "mountPath": SHM}]))
    ),
    shared_memory_of_the_node=pod(trainer(), hostIPC=True),
    windows_has_none=pod(trainer(), os={"name": "windows"}),
    half_would_be_less_than_the_64_mib_there_are=pod(trainer(memory="100Mi")),
)
def test_pod_that_is_left_alone(document: JSON) -> None:
    assert run(document) == (document, [])


def test_volume_whose_mount_got_lost_is_mounted_again() -> None:
    document = pod(trainer(), volumes=[volume("8Gi")])

    assert run(document) == (pod(trainer(volumeMounts=[OURS]), volumes=[volume("8Gi")]), [])


NO_LIMIT = (
    "set a memory limit on every container that requests a GPU, or mount a memory emptyDir at /dev/shm; /dev/shm stays "
    "at 64 MiB: sizeLimit 50% needs a memory limit"
)
TAKEN = "rename that volume; volume gpu-admission-shm must be a memory emptyDir"


@cases(
    ("document", "want"),
    no_memory_limit=(pod(trainer(memory=None)), NO_LIMIT),
    one_of_two_without_memory_limit=(pod(trainer(), trainer(name="second", memory=None)), NO_LIMIT),
    memory_limit_that_is_no_quantity=(pod(trainer(memory="lots")), NO_LIMIT),
    name_taken_by_a_claim=(
        pod(
            trainer(),
            volumes=[{"name": "gpu-admission-shm", "persistentVolumeClaim": {"claimName": "data"}}],
        ),
        TAKEN,
    ),
    taken_by_a_disk=(pod(trainer(), volumes=[{"name": "gpu-admission-shm", "emptyDir": {}}]), TAKEN),
)
def test_warning(document: JSON, want: str) -> None:
    assert run(document) == (document, [f"spec.volumes: {want}"])


@cases(
    ("requests", "want"),
    of_a_size_that_only_its_author_knows=({}, "16Gi"),
    at_least_the_request=({"memory": "900Gi"}, "900Gi"),
)
def test_the_memory_limit_that_is_proposed(requests: JSON, want: str) -> None:
    document = pod(container(resources={"limits": {"nvidia.com/gpu": "2"}, "requests": requests}))
    (finding,) = mutate(PodPatch(view(document)), HALF, context())

    assert finding.choices[0] == (Edit("spec.containers[0].resources.limits[memory]", want),)


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
    found = SharedMemoryOptions(size_limit=size_limit).problems()
    assert list(found) == [("sizeLimit", sentence) for sentence in want]


def test_is_off_unless_a_policy_asks_for_it() -> None:
    assert SharedMemoryOptions().mode is Mode.DISABLED
