"""gpu-isolation: accelerators by names that no GPUResourceMapping has, and resources that show all cards of a node."""

from typing import Any

import pytest

from policies.finding import Edit, Severity
from policies.gpus.mapping_spec import Measure, OtherScheduler, ResourceMappingSpec, ResourcePattern
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeFacts, NodeGroup, NodeState, node_facts
from policies.pods.patch import PodPatch
from policies.registry import RULES, fingerprints
from policies.rules.gpu_isolation import GPUIsolationOptions, check, mutate
from tests.builders import JSON, container, context, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None).resource_mapping


def asking(name: str, amount: str = "1", **spec: Any) -> JSON:
    return pod(gpu_container(amount, resource=name), **spec)


def is_hidden(document: JSON, nodes: NodeFacts | None = None) -> bool:
    patch = PodPatch(view(document))
    assert list(mutate(patch, GPUIsolationOptions(), context(nodes=nodes, resource_mapping=BUILT_IN))) == []
    return bool(patch.changes)


def nodes_with(*names: str, pools: tuple[NodeGroup, ...] = ()) -> NodeFacts:
    return node_facts((), [((), NodeState(resources=frozenset(names)))], pools)


ACCELERATORS = """
example.com/gpu squat.ai/gpu tensor-fusion.ai/vgpu acme.io/fast-gpu-2 acme.io/gpumem acme.io/npu3 acme.io/TPU acme.io/dcu
acme.io/mlu370 acme.io/vgcu acme.io/cuda_cores acme.io/xpu.half acme.io/Ascend910 gpu.acme.io/a1 acme.io/edgetpu
acme.io/accelerators acme.io/dri tensor-fusion.ai/index_3
"""
OTHERS = """
x.io/output x.io/compute acme.io/fpga rdma/hca acme.io/driver acme.io/gpuless verisilicon.com/solios devices.kubevirt.io/kvm
acme.io/cpu
"""


@pytest.mark.parametrize("name", ACCELERATORS.split())
def test_a_word_of_the_name_means_an_accelerator(name: str) -> None:
    assert not is_hidden(asking(name))
    assert is_hidden(asking(name, "0"))


@pytest.mark.parametrize("name", OTHERS.split())
def test_letters_within_a_word_mean_nothing(name: str) -> None:
    assert is_hidden(asking(name))


@cases(
    ("nodes", "spec", "want"),
    nodes_unknown=(None, {}, False),
    a_node_has_it=(nodes_with("acme.io/gpu", "nvidia.com/gpu"), {}, False),
    no_node_has_it=(nodes_with("nvidia.com/gpu"), {}, True),
    a_cordoned_node_has_it=(
        node_facts(
            (),
            [
                ((), NodeState(resources=frozenset({"nvidia.com/gpu"}))),
                ((), NodeState(is_schedulable=False, resources=frozenset({"acme.io/gpu"}))),
            ],
        ),
        {},
        False,
    ),
    a_pool_may_bring_it=(nodes_with("nvidia.com/gpu", pools=(NodeGroup({}, pool="burst"),)), {}, False),
    on_a_node_by_name_where_no_scheduler_checks=(None, {"nodeName": "gpu-1"}, True),
)
def test_only_where_a_node_may_have_it(nodes: NodeFacts | None, spec: JSON, want: bool) -> None:
    assert is_hidden(asking("acme.io/gpu", **spec), nodes) is want


def test_a_spelling_that_no_node_has() -> None:
    assert is_hidden(asking("nvidia/gpu"), nodes_with("nvidia.com/gpu"))


def test_a_name_that_the_mapping_has_as_nothing() -> None:
    nothing = ResourcePattern(pattern="acme.io/gpu-nic", measure=Measure.NOTHING)
    mapping = ResourceMapping([ResourceMappingSpec(resources=(nothing,))])
    patch = PodPatch(view(asking("acme.io/gpu-nic")))

    list(mutate(patch, GPUIsolationOptions(), context(resource_mapping=mapping)))

    assert patch.changes


def test_it_is_said_once_with_the_mapping_to_write() -> None:
    document = pod(
        gpu_container("1", "a", resource="squat.ai/gpu"), gpu_container("2", "b", resource="squat.ai/gpu")
    )

    [found] = check(view(document), GPUIsolationOptions(), context(resource_mapping=BUILT_IN))

    assert (found.severity, found.path) == (
        Severity.WARNING,
        "spec.containers[0].resources.limits[squat.ai/gpu]",
    )
    assert found.sentence() == (
        'spec.containers[0].resources.limits[squat.ai/gpu] (container "a"): should be in a GPUResourceMapping: it is an '
        "accelerator by its name, and no quota counts it; ask the platform team to add {pattern: squat.ai/gpu, "
        "measure: devices} to its spec.resources (measure: nothing if it is not one)"
    )


FUSED: JSON = {"annotations": {"tensor-fusion.ai/gpu-count": "1"}}


@cases(
    ("document", "want"),
    its_scheduler_reads_the_annotation=(pod(container(), **FUSED, schedulerName="tensor-fusion-scheduler"), False),
    it_requests_none=(
        pod(
            container(),
            annotations={"tensor-fusion.ai/gpu-count": "0"},
            schedulerName="tensor-fusion-scheduler",
        ),
        True,
    ),
    an_annotation_that_requests_nothing=(
        pod(
            container(),
            annotations={"tensor-fusion.ai/note": "1"},
            schedulerName="tensor-fusion-scheduler",
        ),
        True,
    ),
    another_scheduler_does_not=(pod(container(), **FUSED, schedulerName="kubeshare-scheduler"), True),
    none_reads_it_with_a_node_name=(
        pod(container(), **FUSED, schedulerName="tensor-fusion-scheduler", nodeName="gpu-1"),
        True,
    ),
    its_scheduler_without_the_annotation=(pod(container(), schedulerName="tensor-fusion-scheduler"), True),
    on_a_virtual_node=(pod(container(), nodeSelector={"type": "virtual-kubelet"}), False),
    on_another_node=(pod(container(), nodeSelector={"type": "cpu"}), True),
)  # fmt: skip
def test_gpus_that_another_scheduler_or_cloud_gives(document: JSON, want: bool) -> None:
    assert is_hidden(document) is want


def test_another_scheduler_is_data_and_changes_no_demand() -> None:
    other = OtherScheduler(scheduler_name="vram-scheduler", annotation_prefixes=("example.com/vram-",))
    mapping = ResourceMapping((*BUILT_IN.specs, ResourceMappingSpec(other_schedulers=(other,))))
    document = pod(container(), annotations={"example.com/vram-gib": "8"}, schedulerName="vram-scheduler")

    [found] = check(view(document), GPUIsolationOptions(), context(resource_mapping=mapping))
    assert found.message == (
        "gets GPUs from vram-scheduler: no quota counts them, and no rule but this one reads them"
    )
    assert (
        fingerprints(RULES, mapping).read_metadata(view(document).annotations) == view(document).annotations
    )
    assert b"chedulers" not in ResourceMapping((ResourceMappingSpec(other_schedulers=(other,)),)).document


def test_gpus_of_another_scheduler_are_not_counted() -> None:
    [found] = check(
        view(pod(container(), **FUSED)), GPUIsolationOptions(), context(resource_mapping=BUILT_IN)
    )

    assert found.severity is Severity.WARNING
    assert found.sentence() == (
        "metadata.annotations[tensor-fusion.ai/gpu-count]: gets GPUs from tensor-fusion-scheduler: no quota counts them, "
        "and no rule but this one reads them"
    )


@cases(
    "document",
    suggested_name=asking("nvidia.co/gpu"),
    none_of_them=asking("squat.ai/gpu", "0"),
    mapped=asking("nvidia.com/gpu"),
)
def test_of_these_nothing_is_said(document: JSON) -> None:
    assert list(check(view(document), GPUIsolationOptions(), context(resource_mapping=BUILT_IN))) == []


def test_such_a_pod_belongs_on_gpu_nodes() -> None:
    tolerant = asking("squat.ai/gpu", tolerations=[{"operator": "Exists"}])

    assert [
        each.reason.name
        for each in check(view(tolerant), GPUIsolationOptions(), context(resource_mapping=BUILT_IN))
    ] == ["UnmappedResource"]


@pytest.mark.parametrize(
    "name",
    ["gpu.intel.com/monitoring", "gpu.intel.com/xe_monitoring", "device.gpustack.ai/nvidia.visibility"],
)
def test_a_resource_that_shows_all_cards_of_the_node(name: str) -> None:
    [found] = check(view(asking(name)), GPUIsolationOptions(), context(resource_mapping=BUILT_IN))

    assert found.sentence() == (
        f'spec.containers[0].resources.limits[{name}] (container "main"): remove it, and request GPUs only in '
        "resources.limits; must not be requested: it shows the container all GPUs of the node, and nothing counts "
        "or reserves them; monitors need an exemption in the GPUPolicy"
    )
    assert (found.severity, found.is_example) == (Severity.DENIAL, True)
    assert found.choices == (
        (
            Edit("spec.containers[0].resources.limits[nvidia.com/gpu]", 1),
            Edit(f"spec.containers[0].resources.limits[{name}]"),
        ),
    )
    assert (
        list(check(view(asking(name, "0")), GPUIsolationOptions(), context(resource_mapping=BUILT_IN))) == []
    )
