"""host-resources: a pod gets the CPU and memory that belong to its GPUs, and does not take what belongs to others."""

import pytest

from policies.finding import Edit
from policies.pods.patch import PodPatch
from policies.rule import Mode
from policies.rules.host_resources import HostResourcesOptions, mutate
from tests.builders import JSON, container, context, node_affinity, pod, view
from tests.cases import cases
from tests.policies.rules.shares import A100, MIG, SHARES, T4, run, sidecar, trainer


@cases(
    ("document", "want"),
    one_gpu=(pod(trainer(), nodeSelector=A100), ["main: requests cpu=12", "main: requests memory=120Gi"]),
    four=(pod(trainer("4"), nodeSelector=A100), ["main: requests cpu=48", "main: requests memory=480Gi"]),
    memory_is_missing_alone=(pod(trainer(cpu="4"), nodeSelector=A100), ["main: requests memory=120Gi"]),
    a_limit_of_the_author_is_a_request=(pod(trainer(limit_cpu="2"), nodeSelector=A100), ["main: requests memory=120Gi"]),
    a_slice_is_a_seventh_rounded_down=(
        pod(trainer(resource=MIG), nodeSelector=A100),
        ["main: requests cpu=1714m", "main: requests memory=17554Mi"],
    ),
    a_part_by_annotation=(
        pod(container("main"), annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler", nodeSelector=A100),
        ["main: requests cpu=6", "main: requests memory=60Gi"],
    ),
    a_time_sliced_share=(pod(trainer(), nodeSelector=T4), ["main: requests cpu=1500m"]),
    each_container_gets_that_of_its_gpus=(
        pod(trainer("1"), trainer("2", name="other"), nodeSelector=A100),
        ["main: requests cpu=12", "other: requests cpu=24", "main: requests memory=120Gi", "other: requests memory=240Gi"],
    ),
    others_of_the_pod_are_part_of_the_share=(
        pod(trainer(), sidecar(requests={"cpu": "500m", "memory": "1Gi"}, limits={"cpu": "2"}), nodeSelector=A100),
        ["main: requests cpu=11500m", "main: requests memory=119Gi"],
    ),
    an_init_container_has_ended_by_then=(
        pod(trainer(), initContainers=[sidecar(requests={"cpu": "8"})], nodeSelector=A100),
        ["main: requests cpu=12", "main: requests memory=120Gi"],
    ),
    one_with_a_gpu_runs_alone=(
        pod(trainer(cpu="12", memory="1Gi"), initContainers=[trainer(name="warm", memory="1Gi")], nodeSelector=A100),
        ["warm: requests cpu=12"],
    ),
    a_restartable_one_does_not_end=(
        pod(trainer(), initContainers=[{**sidecar(requests={"cpu": "8"}), "restartPolicy": "Always"}], nodeSelector=A100),
        ["main: requests cpu=4", "main: requests memory=120Gi"],
    ),
    an_init_container_starts_beside_a_restartable_one_with_gpus=(
        pod(
            container(),
            initContainers=[
                {**trainer(name="server", memory="1Gi"), "restartPolicy": "Always"},
                sidecar(requests={"cpu": "2"}),
            ],
            nodeSelector=A100,
        ),
        ["server: requests cpu=10"],
    ),
    overhead_of_a_runtime_class=(
        pod(trainer(), overhead={"cpu": "250m"}, nodeSelector=A100),
        ["main: requests cpu=11750m", "main: requests memory=120Gi"],
    ),
    of_a_family_the_smaller_share=(
        pod(trainer(), affinity=node_affinity([("accelerator", "In", "nvidia-a100-40gb", "nvidia-a100-80gb")])),
        ["main: requests cpu=8", "main: requests memory=60Gi"],
    ),
    of_a_family_that_is_not_all_known=(
        pod(trainer(), affinity=node_affinity([("accelerator", "In", "amd-mi300x", "nvidia-a100-80gb")])), [],
    ),
    the_pod_has_memory_of_its_own=(
        pod(trainer(), resources={"requests": {"memory": "64Gi"}}, nodeSelector=A100),
        ["main: requests cpu=12"],
    ),
    the_pod_has_a_limit_of_its_own=(
        pod(trainer(), resources={"limits": {"cpu": "8", "memory": "64Gi"}}, nodeSelector=A100),
        [],
    ),
    nothing_is_left_by_the_others=(
        pod(trainer(memory="1Gi"), sidecar(requests={"cpu": "12"}), nodeSelector=A100),
        [],
    ),
    no_gpu=(pod(container(), nodeSelector=A100), []),
    zero_gpus=(pod(trainer("0"), nodeSelector=A100), []),
    not_pinned=(pod(trainer()), []),
    a_class_without_a_share=(pod(trainer(resource="amd.com/gpu"), nodeSelector={"accelerator": "amd-mi300x"}), []),
    on_a_node_of_the_authors=(pod(trainer(), nodeSelector=A100, nodeName="node-1"), []),
)  # fmt: skip
def test_what_is_missing(document: JSON, want: list[str]) -> None:
    changes, found, _ = run(document)

    assert changes == want
    assert found == []


def test_a_daemonset_gets_nothing() -> None:
    assert run(pod(trainer(), nodeSelector=A100), made_by_daemonset=True)[0] == []


IN_ALL = "a GPU's share on nvidia-a100-80gb is 12 CPUs"


@cases(
    ("document", "options", "want"),
    the_share_of_four=(
        pod(trainer("4", cpu="96", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "96": set cpu: 48; must be at most 48: '
         f"{IN_ALL}; 96 leave 4 GPUs without CPUs of their own"],
    ),
    a_little_more_takes_one_more_gpu=(
        pod(trainer("1", cpu="12100m", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "12100m": set cpu: 12; must be at most 12: '
         f"{IN_ALL}; 12100m leave 1 GPU without CPUs of its own"],
    ),
    more_than_the_node_has_leaves_no_more_than_it_has=(
        pod(trainer("6", cpu="1k", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "1k": set cpu: 72; must be at most 72: '
         f"{IN_ALL}; 1000 leave 2 GPUs without CPUs of their own"],
    ),
    memory=(
        pod(trainer("2", cpu="1", memory="300Gi"), nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[0].resources.requests[memory] (container "main") = "300Gi": set memory: 240Gi; must be at most 240Gi: '
         "a GPU's share on nvidia-a100-80gb is 120Gi of memory; 300Gi leave 1 GPU without memory of its own"],
    ),
    as_much_again_is_allowed=(
        pod(trainer(cpu="24", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(max=2.0), [],
    ),
    more_than_that=(
        pod(trainer(cpu="25", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(max=1.5),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "25": set cpu: 18; must be at most 18: '
         f"{IN_ALL}, and max allows 1.5 times that; 25 leave 2 GPUs without CPUs of their own"],
    ),
    no_maximum=(pod(trainer(cpu="96", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(max=None), []),
    all_gpus_of_the_node=(pod(trainer("8", cpu="190", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(), []),
    a_container_beside_it=(
        pod(trainer(cpu="12", memory="1Gi"), sidecar(requests={"cpu": "1"}), nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "12": set cpu: 11; must be at most 11 beside the other '
         f"containers, 12 in all: {IN_ALL}; 13 leave 1 GPU without CPUs of its own"],
    ),
    a_loader_takes_it_all=(
        pod(trainer(cpu="4", memory="1Gi"), sidecar(requests={"cpu": "64"}), nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[1].resources.requests[cpu] (container "proxy") = "64": set cpu: 8; must be at most 8 beside the other '
         f"containers, 12 in all: {IN_ALL}; 68 leave 5 GPUs without CPUs of their own"],
    ),
    two_that_both_have_too_much=(
        pod(trainer(cpu="40", memory="1Gi"), sidecar(requests={"cpu": "40"}), nodeSelector=A100), HostResourcesOptions(),
        [f"spec: request less cpu, or more GPUs; must request at most 12 of cpu in all: {IN_ALL}; 80 leave 6 GPUs without CPUs "
         "of their own"],
    ),
    an_init_container_holds_it_for_as_long_as_the_pod_lives=(
        pod(trainer(cpu="1", memory="1Gi"), initContainers=[sidecar(requests={"cpu": "24"})], nodeSelector=A100),
        HostResourcesOptions(),
        ['spec.initContainers[0].resources.requests[cpu] (container "proxy") = "24": set cpu: 12; must be at most 12: '
         f"{IN_ALL}; 24 leave 1 GPU without CPUs of its own"],
    ),
    the_pod_as_a_whole=(
        pod(trainer(), resources={"requests": {"cpu": "13", "memory": "1Gi"}}, nodeSelector=A100), HostResourcesOptions(),
        ["spec.resources.requests[cpu]: request less cpu, or more GPUs; must request at most 12 of cpu in all: "
         f"{IN_ALL}; 13 leave 1 GPU without CPUs of its own"],
    ),
    its_limit_where_no_container_requests_any=(
        pod(trainer(), resources={"limits": {"cpu": "13", "memory": "1Gi"}}, nodeSelector=A100), HostResourcesOptions(),
        ["spec.resources.limits[cpu]: request less cpu, or more GPUs; must request at most 12 of cpu in all: "
         f"{IN_ALL}; 13 leave 1 GPU without CPUs of its own"],
    ),
    else_what_the_containers_request=(
        pod(trainer(cpu="8"), resources={"limits": {"cpu": "13", "memory": "1Gi"}}, nodeSelector=A100),
        HostResourcesOptions(), [],
    ),
    which_may_be_too_much=(
        pod(trainer(cpu="13"), resources={"limits": {"cpu": "26", "memory": "1Gi"}}, nodeSelector=A100), HostResourcesOptions(),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "13": set cpu: 12; must be at most 12: '
         f"{IN_ALL}; 13 leave 1 GPU without CPUs of its own"],
    ),
    a_slice=(
        pod(trainer(resource=MIG, cpu="1715m", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(), [],
    ),
    of_several_classes_the_largest_share_is_the_maximum=(
        pod(
            trainer(cpu="12", memory="1Gi"),
            affinity=node_affinity([("accelerator", "In", "nvidia-a100-40gb", "nvidia-a100-80gb")]),
        ),
        HostResourcesOptions(),
        [],
    ),
    one_more_class_without_a_share_allows_no_more=(
        pod(
            trainer(cpu="13", memory="1Gi"),
            affinity=node_affinity([("accelerator", "In", "amd-mi300x", "nvidia-a100-80gb")]),
        ),
        HostResourcesOptions(),
        ['spec.containers[0].resources.requests[cpu] (container "main") = "13": set cpu: 12; must be at most 12: '
         f"{IN_ALL}; 13 leave 1 GPU without CPUs of its own"],
    ),
    an_amount_that_is_no_quantity=(
        pod(trainer(cpu="many", memory="1Gi"), nodeSelector=A100), HostResourcesOptions(), [],
    ),
)  # fmt: skip
def test_what_is_too_much(document: JSON, options: HostResourcesOptions, want: list[str]) -> None:
    assert run(document, options) == ([], want, document)


@cases(
    ("document", "advice", "want"),
    two_containers=(
        pod(trainer(cpu="40", memory="1Gi"), sidecar(requests={"cpu": "40"}), nodeSelector=A100),
        "request less cpu, or more GPUs",
        [("containers[0]", "6"), ("containers[1]", "6")],
    ),
    beside_the_overhead_of_a_runtime_class=(
        pod(trainer(cpu="40", memory="1Gi"), sidecar(requests={"cpu": "40"}), overhead={"cpu": "2"}, nodeSelector=A100),
        "request less cpu, or more GPUs",
        [("containers[0]", "5"), ("containers[1]", "5")],
    ),
    the_pod_as_a_whole_beside_the_overhead=(
        pod(trainer(), resources={"requests": {"cpu": "13", "memory": "1Gi"}}, overhead={"cpu": "2"}, nodeSelector=A100),
        "request less cpu, or more GPUs",
        [("resources", "10")],
    ),
    the_overhead_takes_it_all=(
        pod(trainer(cpu="1", memory="1Gi"), overhead={"cpu": "24"}, nodeSelector=A100), "request more GPUs", [],
    ),
    no_container_requests_any=(
        pod(trainer(cpu="0", memory="1Gi"), overhead={"cpu": "24"}, nodeSelector=A100), "request more GPUs", [],
    ),
)  # fmt: skip
def test_equal_parts_of_what_is_allowed(document: JSON, advice: str, want: list[tuple[str, str]]) -> None:
    (found,) = mutate(PodPatch(view(document)), HostResourcesOptions(), context(classes=SHARES))

    edits = [(edit.path.split(".")[1], edit.value) for choice in found.choices for edit in choice]
    assert (found.advice, edits) == (advice, want)


@cases(
    ("container", "want"),
    a_request=(trainer(cpu="24", memory="1Gi"), [("requests", "12")]),
    a_limit_alone=(trainer(limit_cpu="24", memory="1Gi"), [("limits", "12")]),
    a_pair=(trainer(limit_cpu="24", cpu="24", memory="1Gi"), [("limits", "12"), ("requests", "12")]),
    a_limit_that_is_more=(trainer(limit_cpu="32", cpu="24", memory="1Gi"), [("requests", "12")]),
)
def test_fix(container: JSON, want: list[tuple[str, str]]) -> None:
    patch = PodPatch(view(pod(container, nodeSelector=A100)))

    (found,) = mutate(patch, HostResourcesOptions(), context(classes=SHARES))

    assert found.fix == tuple(
        Edit(f"spec.containers[0].resources.{kind}[cpu]", amount) for kind, amount in want
    )


@pytest.mark.parametrize("most", [0.5, float("nan"), float("inf"), 101])
def test_problems(most: float) -> None:
    found = list(HostResourcesOptions(max=most).problems())

    assert found == [("max", f"must be from 1 to 100, not {most}: the share itself must be allowed")]


@pytest.mark.parametrize("most", [None, 1, 1.25, 100])
def test_no_problems(most: float | None) -> None:
    assert list(HostResourcesOptions(max=most).problems()) == []


def test_is_off_unless_a_policy_asks_for_it() -> None:
    assert HostResourcesOptions().mode is Mode.DISABLED
