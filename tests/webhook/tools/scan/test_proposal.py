"""The configuration that a scan proposes: classes for unknown nodes, and a policy that what runs passes."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
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
from policies.policy import Labels, Policy
from policies.registry import RULES
from policies.rule import Mode
from policies.rules.gpu_toleration import GPUTolerationOptions
from tests.cases import cases
from tests.webhook.tools.scan.evaluated import BUILT_IN, UNKNOWN, evaluated_pod
from webhook.cluster.capacity import GPUNode
from webhook.commands import scan_text
from webhook.commands.output import Screen
from webhook.configuration.documents import POLICY, Document
from webhook.configuration.loader import Configuration, load_directory, load_objects
from webhook.configuration.yaml_documents import YamlDocument, load_documents
from webhook.quota.team_documents import decode_team
from webhook.tools.scan.proposal import Draft, named_classes, new_classes, proposed_teams, write
from webhook.tools.scan.scanning import enforced
from webhook.tools.scan.tally import TalliedNamespace, Tally

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
    said = "# gpu-class warns: it would deny what runs in team. Set mode: enforce once that is corrected."
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


def holds(namespace: str, gpus: str, largest: str = "1") -> tuple[str, TalliedNamespace]:
    return namespace, TalliedNamespace(used={"gpus": Fraction(gpus)}, largest=Fraction(largest))


def labelled(**values: str) -> dict[str, Labels]:
    """Return labels by namespace, each as `key=value key=value`."""
    return {
        name.replace("_", "-"): tuple(tuple(each.split("=")) for each in text.split())  # type: ignore[misc]
        for name, text in values.items()
    }


TWO = [holds("vision-cv", "5/2"), holds("vision-prod", "8", "4")]


@cases(
    ("holders", "labels", "want"),
    what_they_hold_and_the_largest_pod_once_more=(
        TWO,
        labelled(vision_cv="team=vision", vision_prod="team=vision"),
        {"vision": ({"team": "vision"}, "15")},
    ),
    the_key_may_have_a_prefix=(
        TWO,
        labelled(vision_cv="example.com/Cost-Center=4711", vision_prod="example.com/Cost-Center=4711"),
        {"4711": ({"example.com/Cost-Center": "4711"}, "15")},
    ),
    a_team_of_one_namespace_is_none=(TWO, labelled(vision_cv="team=vision", vision_prod="team=audio"), {}),
    a_label_that_names_no_team=(TWO, labelled(vision_cv="stage=dev", vision_prod="stage=dev"), {}),
    a_value_that_is_no_name=(TWO, labelled(vision_cv="team=Vision", vision_prod="team=Vision"), {}),
    labels_that_may_not_be_read=(TWO, {}, {}),
    of_two_labels_the_one_of_more_namespaces=(
        [*TWO, holds("audio-a", "1"), holds("audio-b", "1")],
        labelled(
            vision_cv="team=vision department=research",
            vision_prod="team=vision department=research",
            audio_a="department=sales",
            audio_b="department=sales",
        ),
        {
            "research": ({"department": "research"}, "15"),
            "sales": ({"department": "sales"}, "3"),
        },
    ),
)
def test_teams_by_a_label(
    holders: list[tuple[str, TalliedNamespace]],
    labels: dict[str, Labels],
    want: dict[str, tuple[dict[str, str], str]],
) -> None:
    found = proposed_teams(dict(holders), labels)

    assert {
        each.name: (each.spec["namespaces"]["selector"]["matchLabels"], each.spec["hard"]["gpus"])
        for each in found
    } == want


def holding(*namespaces: str) -> Tally:
    tally = Tally()
    for name in namespaces:
        evaluation = replace(evaluated_pod("train"), namespace=name)
        tally.add_pod(evaluation, {"gpus": Fraction(2)}, requests_gpus=True)
    return tally


LABELS = labelled(vision_cv="team=vision", vision_prod="team=vision")


def test_a_proposal_has_teams_in_a_file_that_can_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    draft = Draft(BUILT_IN, holding("vision-cv", "vision-prod"), (), (), labels=LABELS)

    found = draft.proposal(None)

    assert found.teams == {"vision": 6}
    text = found.files["clustergpuquotas.yaml"]
    assert text.splitlines()[0] == (
        "# What the namespaces with this label hold, rounded up, and the largest pod once more. Does it name teams?"
    )
    [document] = load_documents(text)
    assert isinstance(document, YamlDocument)
    record = decode_team(msgspec.json.encode(document.data))
    assert (record.name, record.problem, record.hard) == ("vision", "", {"gpus": Fraction(6)})
    scan_text._print_proposal(Screen(), found, None)
    assert "  1 ClusterGPUQuota: vision 6\n" in capsys.readouterr().out


@pytest.mark.parametrize("labels", [None, {}], ids=["there-are-teams-already", "nothing-in-common"])
def test_a_proposal_without_teams_has_no_file_of_them(labels: dict[str, Labels] | None) -> None:
    found = Draft(BUILT_IN, holding("vision-cv", "vision-prod"), (), (), labels=labels).proposal(None)

    assert found.teams == {}
    assert "clustergpuquotas.yaml" not in found.files


def test_a_quota_in_a_team_grants_no_more_than_the_team_leaves_it() -> None:
    team_limits = {"vision-cv": Fraction(3), "vision-prod": Fraction(64)}

    found = Draft(BUILT_IN, holding("vision-cv", "vision-prod"), (), (), team_limits=team_limits).proposal(
        None
    )

    assert found.quotas == {"vision-cv": 3, "vision-prod": 4}
    _, said, _ = found.files["gpuquotas.yaml"].split("\n", 2)
    assert said == "# Less in vision-cv: no more than their ClusterGPUQuota leaves them."
