"""gpu-toleration: GPU pods, and only GPU pods, may land on tainted GPU nodes."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.gpus.mapping_spec import DeviceClassPattern, ResourceMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeState, node_facts
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Context, Phase
from policies.rules.gpu_class import GPUClassOptions
from policies.rules.gpu_toleration import GPUTolerationOptions, mutate
from tests.builders import (
    JSON,
    RESOURCE_MAPPING,
    apply,
    container,
    context,
    gpu_container,
    node_affinity,
    pod,
    view,
)
from tests.cases import cases
from webhook.configuration.loader import load_directory

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TEAM = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
T4 = {"key": "accelerator", "operator": "Equal", "value": "t4", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"}
DEFAULTS = GPUTolerationOptions()
SEED = GPUTolerationOptions(
    tolerations=(
        Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),
        Toleration(key="dedicated", value="ml-workloads", effect="NoSchedule"),
    )
)
TRAINING: JSON = {"key": "nvidia.com/gpu", "value": "training", "effect": "NoSchedule"}
OWN_TAINT = GPUTolerationOptions(
    tolerations=(Toleration(key="nvidia.com/gpu", value="training", effect="NoSchedule"),)
)
BY_VENDOR = GPUTolerationOptions(
    by_vendor={"amd.com": (Toleration(key="rocm", operator="Exists", effect="NoSchedule"),)}
)
ROCM: JSON = {"key": "rocm", "operator": "Exists", "effect": "NoSchedule"}
DRA = ResourceMapping(
    (
        *RESOURCE_MAPPING.specs,
        ResourceMappingSpec(
            device_classes=(
                DeviceClassPattern(pattern="gpu.amd.com", resource="amd.com/gpu"),
                DeviceClassPattern(
                    pattern="big", resource="nvidia.com/gpu", extended_resource_name="example.com/big"
                ),
                DeviceClassPattern(pattern="any-gpu"),
            )
        ),
    )
)


def run(document: JSON, options: GPUTolerationOptions = DEFAULTS, given: Context | None = None) -> JSON:
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, given or context())) == []
    return apply(document, patch)


def taint(key: str) -> JSON:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def gpu_pod(**spec: Any) -> JSON:
    return pod(gpu_container(), **spec)


@cases(
    ("document", "options", "want"),
    gpu_container=(gpu_pod(), DEFAULTS, [GPU]),
    init_container=(pod(container(), initContainers=[gpu_container(name="warm")]), DEFAULTS, [GPU]),
    fraction_annotation=(pod(annotations={"gpu-fraction": "0.5"}), DEFAULTS, [GPU]),
    no_gpu=(pod(), DEFAULTS, None),
    zero_gpus_is_no_gpu=(pod(gpu_container("0")), DEFAULTS, None),
    list_is_null=(gpu_pod(tolerations=None), DEFAULTS, [GPU]),
    keeps_existing=(gpu_pod(tolerations=[TEAM]), DEFAULTS, [TEAM, GPU]),
    tolerated_already=(gpu_pod(tolerations=[GPU]), DEFAULTS, [GPU]),
    tolerates_all=(gpu_pod(tolerations=[{"operator": "Exists"}]), DEFAULTS, [{"operator": "Exists"}]),
    all_of_the_policy=(gpu_pod(), SEED, [GPU, DEDICATED]),
    only_what_is_missing=(gpu_pod(tolerations=[DEDICATED]), SEED, [DEDICATED, GPU]),
    pinned_to_a_class=(gpu_pod(nodeSelector={"accelerator": "nvidia-t4"}), DEFAULTS, [GPU, T4]),
    another_class=(gpu_pod(nodeSelector={"accelerator": "nvidia-a100"}), DEFAULTS, [GPU]),
    a_list_that_names_the_taint_says_it_better=(gpu_pod(), OWN_TAINT, [TRAINING]),
    its_vendor=(pod(gpu_container(resource="amd.com/gpu")), BY_VENDOR, [taint("amd.com/gpu"), ROCM]),
    of_another_vendor=(gpu_pod(), BY_VENDOR, [GPU]),
    of_two_vendors=(
        pod(gpu_container(), gpu_container(name="other", resource="amd.com/gpu")),
        BY_VENDOR,
        [GPU, taint("amd.com/gpu"), ROCM],
    ),
)
def test_tolerations(document: JSON, options: GPUTolerationOptions, want: list[JSON] | None) -> None:
    once = run(document, options)

    assert once["spec"].get("tolerations") == want
    assert run(once, options) == once  # reinvocation changes nothing


BUILT_IN = load_directory(None).resource_mapping

TAINTS = {
    "nvidia.com/gpu": (
        "nvidia.com/gpu nvidia.com/gpu.shared nvidia.com/mig-1g.10gb nvidia.com/mig-1g.10gb.shared nvidia.com/gpumem "
        "nvidia.com/GRID_T4-1Q volcano.sh/vgpu-number"
    ),
    "amd.com/gpu": "amd.com/gpu amd.com/cpx_nps4",
    "google.com/tpu": "google.com/tpu",
    "aws.amazon.com/neuron": "aws.amazon.com/neuron aws.amazon.com/neuroncore aws.amazon.com/neurondevice",
    "habana.ai/gaudi": "habana.ai/gaudi",
    "gpu.intel.com/i915": "gpu.intel.com/i915",
    "huawei.com/Ascend910": "huawei.com/Ascend910",
}


@pytest.mark.parametrize(
    ("resource", "key"), [(name, key) for key, names in TAINTS.items() for name in names.split()]
)
def test_the_taint_is_named_as_the_resource_of_the_vendor_s_device(resource: str, key: str) -> None:
    once = run(pod(gpu_container(resource=resource)), given=context(resource_mapping=BUILT_IN))

    assert once["spec"]["tolerations"] == [taint(key)]


CLAIM: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}


@cases(
    ("document", "claimed", "want"),
    claim=(pod(**CLAIM), ("gpu.amd.com",), [taint("amd.com/gpu"), DEDICATED]),
    claim_for_a_gpu_of_any_vendor=(pod(**CLAIM), ("any-gpu",), [DEDICATED]),
    claim_for_perhaps_a_gpu=(pod(**CLAIM), (), None),
    perhaps_a_gpu_beside_a_gpu=(pod(gpu_container(), **CLAIM), (), [GPU, DEDICATED]),
    implicit_name_of_a_device_class=(
        pod(gpu_container(resource="deviceclass.resource.kubernetes.io/gpu.amd.com")),
        (),
        [taint("amd.com/gpu"), DEDICATED],
    ),
    implicit_name_of_any_vendor=(
        pod(gpu_container(resource="deviceclass.resource.kubernetes.io/any-gpu")),
        (),
        [DEDICATED],
    ),
    extended_name=(pod(gpu_container(resource="example.com/big")), (), [GPU, DEDICATED]),
)
def test_devices_by_dra(document: JSON, claimed: tuple[str, ...], want: list[JSON] | None) -> None:
    options = GPUTolerationOptions(tolerations=SEED.tolerations[1:])

    once = run(document, options, context(resource_mapping=DRA, device_classes=claimed))

    assert once["spec"].get("tolerations") == want


OF_DAEMONSET = context(Phase.TEMPLATE, made_by_daemonset=True)


def test_the_template_of_a_daemonset_needs_tolerations_itself() -> None:
    patch = PodPatch(view(gpu_pod(nodeSelector={"accelerator": "nvidia-t4"}, tolerations=[TEAM])))

    [finding] = mutate(patch, DEFAULTS, OF_DAEMONSET)

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        "spec.tolerations: add {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}, {key: accelerator, operator: Equal, "
        "value: t4, effect: NoSchedule} to the template; the DaemonSet controller makes no pod for a node whose taints the "
        "template does not tolerate"
    )
    assert patch.changes == []


@cases(
    ("document", "given"),
    tolerated_in_the_template=(gpu_pod(tolerations=[{"operator": "Exists"}]), OF_DAEMONSET),
    no_gpu=(pod(), OF_DAEMONSET),
    template_of_a_deployment=(gpu_pod(), context(Phase.TEMPLATE)),
    pod_of_a_daemonset=(gpu_pod(), context(Phase.MUTATE, made_by_daemonset=True)),
)
def test_templates_that_need_none(document: JSON, given: Context) -> None:
    assert list(mutate(PodPatch(view(document)), DEFAULTS, given)) == []


NO_KEY = "is required: a toleration without a key tolerates every taint"


@cases(
    ("by_vendor", "want"),
    a_domain=({"amd.com": ()}, []),
    a_resource=(
        {"amd.com/gpu": ()},
        [("byVendor[amd.com/gpu]", "must be named as the domain of its resources, such as nvidia.com")],
    ),
    no_key=({"amd.com": (Toleration(operator="Exists"),)}, [("byVendor[amd.com][0].key", NO_KEY)]),
)
def test_vendor_problems(by_vendor: dict[str, tuple[Toleration, ...]], want: list[tuple[str, str]]) -> None:
    assert list(GPUTolerationOptions(by_vendor=by_vendor).problems()) == want


@cases(
    ("toleration", "want"),
    valid=(Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"), []),
    no_key=(Toleration(operator="Exists"), [("tolerations[0].key", NO_KEY)]),
)
def test_problems(toleration: Toleration, want: list[tuple[str, str]]) -> None:
    assert list(GPUTolerationOptions(tolerations=(toleration,)).problems()) == want


RESERVED = Toleration(key="reserved", effect="NoSchedule")
WANTS_RESERVED = [
    "spec.tolerations: add {key: reserved, operator: Exists, effect: NoSchedule} if the pod may run there; each node with "
    "nvidia.com/gpu that the pod selects has a taint that it does not tolerate, such as reserved:NoSchedule, so the pod "
    "stays pending"
]

OTHER = Toleration(key="spot", value="yes", effect="NoExecute")
TOO_FEW = "no node that the pod selects has 8 nvidia.com/gpu, so the pod stays pending"


def with_gpus(*taints: Toleration) -> NodeState:
    return NodeState(taints=taints, resources=frozenset({"nvidia.com/gpu"}))


def having(amount: int) -> NodeState:
    return NodeState(resources=frozenset({"nvidia.com/gpu"}), amounts=(("nvidia.com/gpu", amount),))


EFA = "vpc.amazonaws.com/efa"


def beside_gpus(gpus: str, name: str, amount: str) -> JSON:
    return gpu_container(resources={"limits": {"nvidia.com/gpu": gpus, name: amount}})


def beside(name: str, amount: int) -> NodeState:
    amounts = (("nvidia.com/gpu", 8), (name, amount))
    return NodeState(resources=frozenset(dict(amounts)), amounts=amounts)


@cases(
    ("document", "states", "tweaks", "want"),
    no_node_takes_it=(gpu_pod(), [with_gpus(RESERVED)], {}, WANTS_RESERVED),
    it_asks_for_two_resources=(
        pod({**gpu_container(), "resources": {"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}}}),
        [NodeState(taints=(RESERVED,), resources=frozenset({"nvidia.com/gpu", "amd.com/gpu"}))],
        {},
        [WANTS_RESERVED[0].replace("nvidia.com/gpu that", "amd.com/gpu and nvidia.com/gpu that")],
    ),
    each_node_has_two_taints=(
        gpu_pod(),
        [with_gpus(RESERVED, OTHER)],
        {},
        [
            "spec.tolerations: add {key: reserved, operator: Exists, effect: NoSchedule} and {key: spot, operator: Equal, "
            'value: "yes", effect: NoExecute} if the pod may run there; each node with nvidia.com/gpu that the pod selects has '
            "a taint that it does not tolerate, such as reserved:NoSchedule, so the pod stays pending"
        ],
    ),
    no_node_has_both_resources=(
        pod({**gpu_container(), "resources": {"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}}}),
        [NodeState(resources=frozenset({"nvidia.com/gpu"})), NodeState(resources=frozenset({"amd.com/gpu"}))],
        {},
        [
            "spec: request only one of them, or each in a pod of its own; no schedulable node has amd.com/gpu and "
            "nvidia.com/gpu together, so the pod stays pending"
        ],
    ),
    it_also_selects_nodes_without_either=(
        pod(
            {**gpu_container(), "resources": {"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}}},
            nodeSelector={"zone": "1"},
        ),
        [NodeState(resources=frozenset({"nvidia.com/gpu"})), NodeState(resources=frozenset({"amd.com/gpu"}))],
        {},
        [
            "spec: remove nvidia.com/gpu, or remove amd.com/gpu and remove zone; no schedulable node has amd.com/gpu and "
            "nvidia.com/gpu together, so the pod stays pending"
        ],
    ),
    no_node_has_as_many=(
        pod(gpu_container("8")),
        [having(2), having(4)],
        {},
        [f"spec.containers[0].resources.limits[nvidia.com/gpu]: set nvidia.com/gpu: 4; {TOO_FEW}"],
    ),
    no_node_has_as_many_of_several_containers=(
        pod(gpu_container("6"), gpu_container("2")),
        [having(4)],
        {},
        [f"spec.containers[0].resources.limits[nvidia.com/gpu]: set nvidia.com/gpu: 2; {TOO_FEW}"],
    ),
    no_node_has_as_many_of_both_containers=(
        pod(gpu_container("4"), gpu_container("4")),
        [having(2)],
        {},
        [f"spec: request nvidia.com/gpu: 2 or less; {TOO_FEW}"],
    ),
    nor_of_an_init_container_and_an_app_container=(
        pod(gpu_container("8"), initContainers=[gpu_container("8", name="init")]),
        [having(4)],
        {},
        [f"spec: request nvidia.com/gpu: 4 or less; {TOO_FEW}"],
    ),
    no_node_has_one_for_each_container=(
        pod(*[gpu_container("2", name=f"part-{at}") for at in range(4)]),
        [having(2)],
        {},
        [f"spec.containers[0].resources.limits[nvidia.com/gpu]: {TOO_FEW}"],
    ),
    a_node_has_as_many=(pod(gpu_container("8")), [having(2), having(8)], {}, []),
    no_node_has_as_many_network_cards=(
        pod(beside_gpus("1", EFA, "32")),
        [beside(EFA, 4)],
        {},
        [
            f"spec.containers[0].resources.limits[{EFA}]: set {EFA}: 4; no node that the pod selects has 32 {EFA}, so the pod "
            "stays pending"
        ],
    ),
    no_node_with_gpus_has_network_cards=(
        pod(beside_gpus("1", "rdma/hca", "1")),
        [with_gpus(), NodeState(resources=frozenset({"rdma/hca"}))],
        {},
        [
            "spec: remove rdma/hca; no schedulable node has nvidia.com/gpu and rdma/hca together, so the pod stays pending"
        ],
    ),
    no_node_at_all_has_what_others_may_give=(pod(beside_gpus("1", "hami.io/x", "1")), [with_gpus()], {}, []),
    a_node_has_as_many_network_cards=(pod(beside_gpus("1", EFA, "4")), [beside(EFA, 4)], {}, []),
    it_selects_nodes_without_gpus=(
        gpu_pod(nodeSelector={"zone": "1"}),
        [with_gpus(), NodeState()],
        {},
        [
            "spec: remove nodeSelector zone=1; no schedulable node that the pod selects has nvidia.com/gpu now, so the pod "
            "stays pending"
        ],
    ),
    one_of_two_constraints_is_in_the_way=(
        gpu_pod(
            nodeSelector={"zone": "1"},
            affinity=node_affinity([("other", "In", "x")]),
        ),
        [with_gpus(), NodeState()],
        {},
        [
            "spec: remove nodeSelector zone=1; no schedulable node that the pod selects has nvidia.com/gpu now, so the pod "
            "stays pending"
        ],
    ),
    either_of_two_constraints_is_in_the_way=(
        gpu_pod(nodeSelector={"zone": "0"}, affinity=node_affinity([("zone", "In", "1")])),
        [with_gpus(), with_gpus()],
        {},
        [
            "spec: remove nodeSelector zone=0 or the required node affinity; no schedulable node that the pod selects has "
            "nvidia.com/gpu now, so the pod stays pending"
        ],
    ),
    two_constraints_are_in_the_way=(
        gpu_pod(nodeSelector={"zone": "1"}, affinity=node_affinity([("zone", "In", "1")])),
        [with_gpus(), NodeState()],
        {},
        [
            "spec: remove nodeSelector zone=1 and the required node affinity; no schedulable node that the pod selects has "
            "nvidia.com/gpu now, so the pod stays pending"
        ],
    ),
    its_class_is_unknown_and_gpu_class_says_it=(
        gpu_pod(nodeSelector={"accelerator": "nvidia-a10O"}),
        [with_gpus()],
        {"options_of": {"gpu-class": GPUClassOptions()}.get},
        [],
    ),
    gpu_class_denies_its_class=(
        gpu_pod(nodeSelector={"accelerator": "nvidia-a100-80gb"}),
        [with_gpus(RESERVED)],
        {"options_of": {"gpu-class": GPUClassOptions(allowed=("nvidia-t4",))}.get},
        [],
    ),
    it_is_told_the_first=(gpu_pod(), [with_gpus(RESERVED, RESERVED)], {}, WANTS_RESERVED),
    a_node_takes_it=(gpu_pod(), [with_gpus(RESERVED), with_gpus()], {}, []),
    it_tolerates_the_taint=(
        gpu_pod(tolerations=[{"key": "reserved", "operator": "Exists"}]),
        [with_gpus(RESERVED)],
        {},
        [],
    ),
    no_node_has_its_resource=(gpu_pod(), [NodeState(taints=(RESERVED,))], {}, []),
    placed_by_name=(gpu_pod(nodeName="a"), [with_gpus(RESERVED)], {}, []),
    gated=(gpu_pod(schedulingGates=[{"name": "a"}]), [with_gpus(RESERVED)], {}, []),
    of_a_daemonset=(gpu_pod(), [with_gpus(RESERVED)], {"made_by_daemonset": True}, []),
)
def test_nodes_whose_taints_it_does_not_tolerate(
    document: JSON, states: list[NodeState], tweaks: dict[str, Any], want: list[str]
) -> None:
    nodes = node_facts(
        frozenset({"zone", "accelerator"}), [((("zone", f"{at}"),), each) for at, each in enumerate(states)]
    )
    given = context(Phase.MUTATE, nodes=nodes, **tweaks)

    assert [each.sentence() for each in mutate(PodPatch(view(document)), DEFAULTS, given)] == want
