"""The configuration that a scan proposes: classes for unknown nodes, and a policy that what runs passes."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from policies.gpus.device_classes import (
    CELSelector,
    ClusterDevices,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
)
from policies.pods.pod import Metadata, Toleration
from policies.policy import Policy
from policies.registry import RULES
from policies.rule import Mode
from policies.rules.gpu_toleration import GPUTolerationOptions
from tests.cases import cases
from tests.webhook.tools.scan.built_in import BUILT_IN
from tests.webhook.tools.scan.evaluated import UNKNOWN, evaluated_pod
from webhook.cluster.capacity import GPUNode
from webhook.configuration.documents import POLICY, Document
from webhook.configuration.loader import Configuration, load_directory, load_objects
from webhook.tools.scan.proposal import Draft, named_classes, new_classes, write
from webhook.tools.scan.scanning import enforced
from webhook.tools.scan.tally import Tally

X900 = {"nvidia.com/gpu.product": "NVIDIA-X900", "nvidia.com/gpu.memory": "97887"}


def node(
    labels: dict[str, str],
    *resources: str,
    classes: tuple[str, ...] = (),
    taints: tuple[Toleration, ...] = (),
    name: str = "n",
) -> GPUNode:
    return GPUNode(
        name=name,
        classes=classes,
        labels=labels,
        taints=taints,
        is_ready=True,
        is_schedulable=True,
        allocatable={name: Fraction(8) for name in resources or ("nvidia.com/gpu",)},
        used=None,
        weights={},
    )


@cases(
    ("nodes", "want"),
    gpu_feature_discovery=([node(X900)], {"nvidia-x900": (96, "nvidia.com/gpu", ["NVIDIA-X900"])}),
    time_sliced_nodes_are_of_the_same_class=(
        [node(X900), node({**X900, "nvidia.com/gpu.product": "NVIDIA-X900-SHARED"})],
        {"nvidia-x900": (96, "nvidia.com/gpu", ["NVIDIA-X900", "NVIDIA-X900-SHARED"])}),
    the_labeller_of_rocm=(
        [node({"amd.com/gpu.product-name": "AMD_Instinct_MI999_OAM", "amd.com/gpu.vram": "256G"}, "amd.com/gpu")],
        {"amd-instinct-mi999-oam": (256, "amd.com/gpu", ["AMD_Instinct_MI999_OAM"])}),
    karpenter=(
        [node({"karpenter.k8s.aws/instance-gpu-name": "x1", "karpenter.k8s.aws/instance-gpu-memory": "24576"})],
        {"x1": (24, "nvidia.com/gpu", ["x1"])}),
    unknown_memory_is_not_guessed=([node({"nvidia.com/gpu.product": "NVIDIA-X900"})], {}),
    slices_in_place_of_cards=([node({**X900, "nvidia.com/gpu.product": "NVIDIA-X900-MIG-1g.12gb"})], {}),
    a_class_is_known=([node(X900, classes=("nvidia-l4",))], {}),
    a_class_has_the_name=([node({**X900, "nvidia.com/gpu.product": "nvidia-l4"})], {}),
    two_vendors_on_a_node=([node(X900, "nvidia.com/gpu", "amd.com/gpu")], {}),
)  # fmt: skip
def test_classes_for_nodes_of_no_known_class(nodes: list[GPUNode], want: dict[str, Any]) -> None:
    found = {each.name: each.spec for each in new_classes(nodes, BUILT_IN)}

    assert {
        name: (spec["memoryGiB"], spec["resource"], spec["nodeLabels"][0]["values"])
        for name, spec in found.items()
    } == want
    load_objects(new_classes(nodes, BUILT_IN))


def test_the_slices_of_a_card() -> None:
    slices = ("nvidia.com/mig-1g.12gb", "nvidia.com/mig-1g.12gb.me", "nvidia.com/mig-2g.48gb")

    (found,) = new_classes([node(X900, "nvidia.com/gpu", *slices)], BUILT_IN)

    assert found.spec["migProfiles"] == {
        "1g.12gb": {"sevenths": 1, "memoryGiB": 12, "perGPU": 7},
        "1g.12gb+me": {"sevenths": 1, "memoryGiB": 12, "perGPU": 1},
        "2g.48gb": {"sevenths": 2, "memoryGiB": 48, "perGPU": 2},
    }


@cases(
    ("expression", "want"),
    one_product=(
        'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].productName == "NVIDIA A100-SXM4-80GB"',
        {"nvidia-a100-80gb": ["big"]},
    ),
    any_product=('device.driver == "gpu.nvidia.com"', {}),
    one_of_two_products=(
        "device.driver == 'gpu.nvidia.com' && (device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L4'"
        " || device.attributes['gpu.nvidia.com'].productName == 'NVIDIA A10')",
        {},
    ),
    unknown_product=(
        'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].productName == "NVIDIA X900"',
        {},
    ),
)
def test_device_classes_of_one_product(expression: str, want: dict[str, list[str]]) -> None:
    selectors = (DeviceSelector(cel=CELSelector(expression=expression)),)
    big = DeviceClass(metadata=Metadata(name="big"), spec=DeviceClassSpec(selectors=selectors))
    configuration = load_objects([], ClusterDevices((big,)))

    found = list(named_classes([big], configuration))

    assert {each.name: each.spec["deviceClasses"] for each in found} == want
    for each in found:
        before, after = (
            configuration.classes.get(each.name),
            load_objects([each], ClusterDevices((big,))).classes.get(each.name),
        )
        assert before is not None
        assert after == replace(before, device_classes=("big",))
    assert list(named_classes([big], load_objects(found, ClusterDevices((big,))))) == []


def refusing(owner: str = "") -> Tally:
    tally = Tally()
    evaluation = evaluated_pod("typo", owner=owner, annotations=UNKNOWN)
    tally.add_pod(evaluation, {"gpus": Fraction(5, 2)}, requests_gpus=True)
    return tally


def policy_of(configuration: Configuration) -> Policy:
    (policy,) = configuration.policies.policies
    return policy


def test_a_rule_that_refuses_what_a_team_runs_warns() -> None:
    draft = Draft(BUILT_IN, refusing(), (), ())

    assert policy_of(draft.configuration()).spec.rules["gpu-class"].mode is Mode.WARN
    said = "# gpu-class warns: it would refuse what runs in team. Set mode: enforce once that is corrected."
    assert draft.proposal(None).files["gpupolicy.yaml"].splitlines()[0] == said


def test_the_gpu_stack_is_exempted() -> None:
    draft = Draft(BUILT_IN, refusing("DaemonSet/agent"), (), ())

    assert draft.proposal(None).exemptions == {"team": ("gpu-class",)}
    policy = policy_of(draft.configuration())
    assert policy.spec.rules["gpu-class"].mode is Mode.ENFORCE
    (reason,) = {each.reason for each in policy.spec.exemptions if "team" in each.namespaces}
    assert reason == "GPU stack: device plugins, exporters and other pods of DaemonSets"


def test_a_rule_that_refuses_others_too_warns_and_exempts_nothing() -> None:
    tally = refusing("DaemonSet/agent")
    tally.add_pod(evaluated_pod("typo", annotations=UNKNOWN), {}, requests_gpus=True)
    proposal = Draft(BUILT_IN, tally, (), ()).proposal(None)

    assert (proposal.exemptions, proposal.relaxed) == ({}, ("gpu-class",))


def test_every_rule_has_its_mode_since_apply_keeps_what_a_stored_policy_says_besides() -> None:
    """`kubectl apply` merges, and values-first-install.yaml stores a policy of this name in which every rule only audits."""
    rules = policy_of(Draft(BUILT_IN, refusing(), (), ()).configuration()).spec.rules

    want = {rule.id: rule.options().mode for rule in RULES} | {"gpu-class": Mode.WARN}
    assert {rule: options.mode for rule, options in rules.items()} == want


def test_quotas_grant_what_is_held_and_the_largest_pod_once_more() -> None:
    assert Draft(BUILT_IN, refusing(), (), ()).proposal(None).quotas == {"team": 5}
    assert Draft(BUILT_IN, refusing(), (), {"team"}).proposal(None).quotas == {}


def test_where_a_policy_holds_none_is_proposed() -> None:
    stated = load_objects([Document(POLICY, "ours", {"rules": {"gpu-class": {"mode": "audit"}}})])
    draft = Draft(stated, refusing(), [node(X900)], ())

    assert list(draft.proposal(None).files) == ["gpuclasses.yaml", "gpuquotas.yaml"]
    assert policy_of(draft.configuration()).name == "ours"


def test_classes_are_pinned_by_the_label_that_most_nodes_have() -> None:
    few = [node({"accelerator": "nvidia-l4"})]
    many = [node({"nvidia.com/gpu.product": "NVIDIA-L4"})] * 2

    assert (
        "labelKey: nvidia.com/gpu.product"
        in Draft(BUILT_IN, Tally(), [*few, *many], ()).proposal(None).files["gpupolicy.yaml"]
    )
    assert "labelKey" not in Draft(BUILT_IN, Tally(), few, ()).proposal(None).files["gpupolicy.yaml"]


def test_taints_that_nothing_tolerates() -> None:
    """One of all GPU nodes is tolerated, since no GPU pod could run otherwise; a pool of others is named."""
    usual = Toleration(key="nvidia.com/gpu", value="present", effect="NoSchedule")
    lost = Toleration(key="node.kubernetes.io/unreachable", effect="NoExecute")
    ml = Toleration(key="dedicated", value="ml", effect="NoSchedule")
    video = Toleration(key="video", effect="NoExecute")
    nodes = [
        node({}, taints=(usual, ml, lost), name="a"),
        node({}, taints=(ml, video), name="b"),
        node({}, taints=(ml, video), name="c"),
    ]
    draft = Draft(BUILT_IN, Tally(), nodes, ())

    options = policy_of(draft.configuration()).spec.rules["gpu-toleration"]
    assert isinstance(options, GPUTolerationOptions)
    assert options.tolerations == (replace(ml, operator="Equal"),)
    (comment,) = (
        line for line in draft.proposal(0).files["gpupolicy.yaml"].splitlines() if line.startswith("#")
    )
    assert comment == (
        "# b, c: no pod gets a toleration of the taint video:NoExecute. If all GPU pods may run there, add "
        "{key: video, operator: Exists, effect: NoExecute} to gpu-toleration.tolerations."
    )


def test_the_files_read_back_as_the_configuration_that_was_tried(tmp_path: Path) -> None:
    draft = Draft(BUILT_IN, refusing(), [node(X900)], ())

    proposal = draft.proposal(0)
    write(proposal, tmp_path / "new")

    assert [proposal.files[f"gpu{kind}.yaml"].splitlines()[0] for kind in ("quotas", "classes")] == [
        "# The GPUs that are held now, rounded up, and the largest pod once more, so that an update can begin.",
        "# From labels of nodes, and DeviceClasses. memoryGiB of a new class is as reported: write what the vendor sells.",
    ]
    read, tried = load_directory(tmp_path / "new"), draft.configuration()
    assert read.policies.policies[0].spec == tried.policies.policies[0].spec
    assert list(read.classes) == list(tried.classes)
    assert read.quotas == tried.quotas
    with pytest.raises(FileExistsError) as error:
        write(proposal, tmp_path / "new")
    said = f"{tmp_path / 'new'} must be empty: what is in it would be read with the proposal"
    assert str(error.value) == said


def test_enforced_takes_every_rule_in_its_word_but_those_that_are_disabled() -> None:
    rules = {"gpu-class": {"mode": "audit"}, "model-warming": {"mode": "disabled"}}
    spec = {"match": {"namespaces": ["team"]}, "pausedUntil": "2999-01-01T00:00:00Z", "rules": rules}
    policies = enforced(load_objects([Document(POLICY, "ours", spec)])).policies

    modes = {each.rule.id: each.options.mode for each in policies.for_namespace("team").bound_rules}
    assert set(modes.values()) == {Mode.ENFORCE}
    assert modes.keys() >= {"gpu-class", "gpu-isolation"}
    assert "model-warming" not in modes
    assert policies.for_namespace("team").paused_until is None
    assert {each.options.mode for each in policies.for_namespace("other").bound_rules} == {Mode.ENFORCE}
    assert policies.for_namespace("kube-system").exemptions
