"""The cards that are known without any configuration: their slices, and how many a node has."""

from fractions import Fraction

import pytest

from policies.placement.nodes import NodeFacts
from policies.pods.annotations import GPU_CLASS, MODEL_HEAD_SIZE, MODEL_KV_HEADS, MODEL_LAYERS, MODEL_PARAMS
from policies.pods.patch import PodPatch
from policies.rule import Context
from policies.rules import gpu_class
from policies.rules.gpu_requests import GPURequestsOptions, check
from tests.builders import context, gpu_container, pod, view
from tests.cases import cases
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None)


def given(nodes: NodeFacts | None = None) -> Context:
    return context(classes=BUILT_IN.classes, resource_mapping=BUILT_IN.resource_mapping, nodes=nodes)


def sentences(resource: str, count: int = 1, name: str = "") -> list[str]:
    selector = {"accelerator": name} if name else {}
    document = pod(gpu_container(str(count), resource=resource), nodeSelector=selector)
    return [finding.sentence() for finding in check(view(document), GPURequestsOptions(), given())]


@cases(
    ("name", "profile", "weight"),
    rtx_pro_6000_quarter=("nvidia-rtx-pro-6000", "1g.24gb", Fraction(1, 4)),
    rtx_pro_6000_with_graphics=("nvidia-rtx-pro-6000", "1g.24gb.gfx", Fraction(1, 4)),
    rtx_pro_6000_no_media=("nvidia-rtx-pro-6000", "1g.24gb-me", Fraction(1, 4)),
    b300=("nvidia-b300", "1g.34gb", Fraction(1, 7)),
    h800_nvl=("nvidia-h800-94gb", "1g.24gb", Fraction(1, 4)),
    a_seventh_by_compute=("nvidia-a100-80gb", "1g.10gb", Fraction(1, 7)),
    a_quarter_by_memory=("nvidia-a100-80gb", "1g.20gb", Fraction(1, 4)),
    half_by_memory=("nvidia-a100-80gb", "3g.40gb", Fraction(1, 2)),
    four_sevenths_by_compute=("nvidia-a100-80gb", "4g.40gb", Fraction(4, 7)),
    the_whole_card=("nvidia-a100-80gb", "7g.80gb", Fraction(1)),
    as_the_resource_is_named=("nvidia-a100-80gb", "1g.10gb.me", Fraction(1, 7)),
    a30_has_four_slices=("nvidia-a30", "1g.6gb", Fraction(1, 4)),
    stated_because_the_name_is_rounded=("nvidia-h200", "3g.71gb", Fraction(1, 2)),
)
def test_slices(name: str, profile: str, weight: Fraction) -> None:
    (found,) = BUILT_IN.classes.resolve(name)

    assert BUILT_IN.classes.mig_weight(found, profile) == weight
    assert sentences(f"nvidia.com/mig-{profile}") == []
    assert sentences(f"nvidia.com/mig-{profile}", name=name) == []


@cases(
    ("name", "resource", "most"),
    dgx_2=("nvidia-v100-32gb", "nvidia.com/gpu", 16),
    a2_megagpu_16g=("nvidia-a100-40gb", "nvidia.com/gpu", 16),
    ten_pcie_cards=("nvidia-h100-80gb", "nvidia.com/gpu", 10),
    hgx_b200=("nvidia-b200", "nvidia.com/gpu", 8),
    hgx_b300=("nvidia-b300", "nvidia.com/gpu", 8),
    compute_tray=("nvidia-gb300", "nvidia.com/gpu", 4),
    amd=("amd-mi350x", "amd.com/gpu", 8),
    gaudi=("intel-gaudi3", "habana.ai/gaudi", 8),
)
def test_cards_of_a_node(name: str, resource: str, most: int) -> None:
    assert sentences(resource, most, name) == []
    [found] = sentences(resource, 64, name)
    assert f"must be at most {most}: no node of {name} (nodeSelector accelerator={name}) has more" in found


@pytest.mark.parametrize("name", ["nvidia-t4", "nvidia-l40s", "nvidia-rtx-pro-6000"])
def test_pcie_cards_of_which_chassis_hold_any_number(name: str) -> None:
    assert sentences("nvidia.com/gpu", 20, name) == []


A100S = "nvidia-a100-40gb nvidia-a100-80gb"


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        # Of nodes; the label of a family selects a class, and single MIG is not a whole card.
        ("accelerator", "nvidia-t4", "nvidia-t4"),
        ("accelerator", "nvidia-a100", ""),
        ("nvidia.com/gpu.product", "Tesla-T4-SHARED", "nvidia-t4"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", ""),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100", "nvidia-a100-40gb"),
        ("karpenter.k8s.aws/instance-gpu-name", "a100", A100S),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "amd-mi300x"),
        ("nvidia.com/gpu.product", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "nvidia-rtx-pro-6000"),
        ("nvidia.com/gpu.product", "NVIDIA-RTX-PRO-4500-Blackwell-Server-Edition", "nvidia-rtx-pro-4500"),
        ("nvidia.com/gpu.product", "NVIDIA-B300-SXM6-AC", "nvidia-b300"),
        ("nvidia.com/gpu.product", "NVIDIA-GH200-144G-HBM3e", "nvidia-gh200-144gb"),
        ("nvidia.com/gpu.product", "NVIDIA-H20", "nvidia-h20-96gb"),
        ("nvidia.com/gpu.product", "NVIDIA-L20", "nvidia-l20"),
        ("cloud.google.com/gke-accelerator", "nvidia-rtx-pro-6000", "nvidia-rtx-pro-6000"),
        ("cloud.google.com/gke-accelerator", "nvidia-gb300", "nvidia-gb300"),
        ("karpenter.k8s.aws/instance-gpu-name", "rtx-pro-server-6000", "nvidia-rtx-pro-6000"),
        ("karpenter.k8s.aws/instance-gpu-name", "b300", "nvidia-b300"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI350_OAM", "amd-mi350x"),
    ],
)
def test_labels(key: str, value: str, names: str) -> None:
    assert [found.name for found in BUILT_IN.classes.matching_label(key, value)] == names.split()


ROUGH = {MODEL_PARAMS: "18b"}
KNOWN_CACHE = {MODEL_PARAMS: "22b", MODEL_LAYERS: "40", MODEL_KV_HEADS: "8", MODEL_HEAD_SIZE: "128"}


@cases(
    ("annotations", "there", "pools", "want"),
    of_equal_cards_the_one_that_has_nodes=(ROUGH, "nvidia-h100-80gb", (), "nvidia-h100-80gb"),
    a_larger_card_that_has_nodes=(ROUGH, "nvidia-h200", (), "nvidia-h200"),
    or_one_that_holds_the_weights=(ROUGH, "nvidia-a100-40gb", (), "nvidia-a100-40gb"),
    but_none_that_does_not=(ROUGH, "nvidia-t4", (), "nvidia-a100-80gb"),
    equal_cards_and_a_known_cache=(KNOWN_CACHE, "nvidia-l40s", (), "nvidia-l40s"),
    no_larger_card_where_the_cache_is_known=(KNOWN_CACHE, "nvidia-a100-80gb", (), "nvidia-l20"),
    made_on_demand=(KNOWN_CACHE, "nvidia-a100-80gb", ("nvidia-l40s",), "nvidia-l40s"),
)
def test_an_estimate_where_all_nodes_are_of_one_class(
    annotations: dict[str, str], there: str, pools: tuple[str, ...], want: str
) -> None:
    nodes = NodeFacts(keys=BUILT_IN.classes.label_keys, label_sets=frozenset({(("accelerator", there),)}))
    patch = PodPatch(view(pod(gpu_container(), annotations=annotations)))
    options = gpu_class.GPUClassOptions(autoscaled_classes=pools)

    assert list(gpu_class.mutate(patch, options, given(nodes=nodes))) == []
    assert patch.pod.spec.node_selector == {"accelerator": want}


def test_a_class_may_have_a_profile_that_no_class_lists() -> None:
    def denied(resource: str) -> list[str]:
        document = pod(gpu_container(resource=resource), annotations={GPU_CLASS: "nvidia-b300"})
        found = gpu_class.check(view(document), gpu_class.GPUClassOptions(), given())
        return [finding.message for finding in found]

    assert denied("nvidia.com/mig-1g.48gb") == []
    assert denied("nvidia.com/mig-1g.5gb") == ["must be a class with nvidia.com/mig-1g.5gb"]
