"""The cards that are known without any configuration: their slices, and how many a node has."""

from fractions import Fraction

import pytest

from policies.finding import Severity
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
    {
        "rtx-pro-6000-all": ("nvidia-rtx-pro-6000", "4g.96gb", Fraction(1)),
        "rtx-pro-6000-half": ("nvidia-rtx-pro-6000", "2g.48gb", Fraction(1, 2)),
        "rtx-pro-6000-quarter": ("nvidia-rtx-pro-6000", "1g.24gb", Fraction(1, 4)),
        "rtx-pro-6000-with-graphics": ("nvidia-rtx-pro-6000", "1g.24gb.gfx", Fraction(1, 4)),
        "rtx-pro-6000-all-media": ("nvidia-rtx-pro-6000", "1g.24gb.me.all", Fraction(1, 4)),
        "rtx-pro-6000-no-media": ("nvidia-rtx-pro-6000", "1g.24gb-me", Fraction(1, 4)),
        "rtx-pro-5000": ("nvidia-rtx-pro-5000", "2g.24gb-me", Fraction(1, 2)),
        "b300": ("nvidia-b300", "1g.34gb", Fraction(1, 7)),
        "b300-all": ("nvidia-b300", "7g.269gb", Fraction(1)),
        "gb300": ("nvidia-gb300", "1g.35gb", Fraction(1, 7)),
        "gh200-144-all": ("nvidia-gh200-144gb", "7g.144gb", Fraction(1)),
        "gh200-144": ("nvidia-gh200-144gb", "1g.18gb", Fraction(1, 7)),
        "h20": ("nvidia-h20-96gb", "1g.12gb", Fraction(1, 7)),
        "a800": ("nvidia-a800-80gb", "3g.40gb", Fraction(1, 2)),
        "h800-nvl": ("nvidia-h800-94gb", "1g.24gb", Fraction(1, 4)),
    },
)
def test_slices_of_new_cards(name: str, profile: str, weight: Fraction) -> None:
    (found,) = BUILT_IN.classes.resolve(name)

    assert BUILT_IN.classes.mig_weight(found, profile) == weight
    assert sentences(f"nvidia.com/mig-{profile}") == []
    assert sentences(f"nvidia.com/mig-{profile}", name=name) == []


def test_the_next_card_is_not_an_outage() -> None:
    resource = "nvidia.com/mig-1g.48gb"
    document = pod(gpu_container("1", resource=resource))

    [finding] = check(view(document), GPURequestsOptions(), given())

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        f'spec.containers[0].resources.limits[{resource}] (container "main") = "1": request '
        "nvidia.com/mig-4g.48gb or nvidia.com/mig-3g.48gb; should be a slice that some GPU class has: none "
        "lists 1g.48gb [gpu-requests]"
    )


@cases(
    ("name", "resource", "most"),
    {
        "dgx-2": ("nvidia-v100-32gb", "nvidia.com/gpu", 16),
        "a2-megagpu-16g": ("nvidia-a100-40gb", "nvidia.com/gpu", 16),
        "ten-pcie-cards": ("nvidia-h100-80gb", "nvidia.com/gpu", 10),
        "hgx-b200": ("nvidia-b200", "nvidia.com/gpu", 8),
        "hgx-b300": ("nvidia-b300", "nvidia.com/gpu", 8),
        "compute-tray": ("nvidia-gb300", "nvidia.com/gpu", 4),
        "amd": ("amd-mi350x", "amd.com/gpu", 8),
        "gaudi": ("intel-gaudi3", "habana.ai/gaudi", 8),
    },
)
def test_cards_of_a_node(name: str, resource: str, most: int) -> None:
    assert sentences(resource, most, name) == []
    [found] = sentences(resource, 64, name)
    assert f"must be at most {most}: no node of {name} (nodeSelector accelerator={name}) has more" in found


@pytest.mark.parametrize("name", ["nvidia-t4", "nvidia-l40s", "nvidia-rtx-pro-6000"])
def test_pcie_cards_of_which_chassis_hold_any_number(name: str) -> None:
    assert sentences("nvidia.com/gpu", 20, name) == []


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
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
def test_labels_of_new_cards(key: str, value: str, name: str) -> None:
    assert [found.name for found in BUILT_IN.classes.matching_label(key, value)] == [name]


@cases(
    ("there", "want"),
    {
        "of-equal-cards-the-one-that-has-nodes": ("nvidia-h100-80gb", "nvidia-h100-80gb"),
        "a-larger-card-that-has-nodes": ("nvidia-h200", "nvidia-h200"),
        "or-one-that-holds-the-weights": ("nvidia-a100-40gb", "nvidia-a100-40gb"),
        "but-none-that-does-not": ("nvidia-t4", "nvidia-a100-80gb"),
    },
)
def test_an_estimate_by_rule_of_thumb(there: str, want: str) -> None:
    assert estimated({MODEL_PARAMS: "18b"}, there) == {"accelerator": want}


@cases(
    ("there", "pools", "want"),
    {
        "of-equal-cards-the-one-that-has-nodes": ("nvidia-l40s", (), "nvidia-l40s"),
        "no-larger-card-that-has-nodes": ("nvidia-a100-80gb", (), "nvidia-l20"),
        "of-equal-cards-the-one-made-on-demand": ("nvidia-a100-80gb", ("nvidia-l40s",), "nvidia-l40s"),
    },
)
def test_an_estimate_of_a_model_whose_cache_is_known(there: str, pools: tuple[str, ...], want: str) -> None:
    attention = {MODEL_LAYERS: "40", MODEL_KV_HEADS: "8", MODEL_HEAD_SIZE: "128"}

    assert estimated({MODEL_PARAMS: "22b", **attention}, there, pools) == {"accelerator": want}


def estimated(annotations: dict[str, str], there: str, pools: tuple[str, ...] = ()) -> dict[str, str] | None:
    """Return the nodeSelector that a pod with one GPU gets where all nodes are of one class."""
    nodes = NodeFacts(keys=BUILT_IN.classes.label_keys, label_sets=frozenset({(("accelerator", there),)}))
    patch = PodPatch(view(pod(gpu_container(), annotations=annotations)))
    options = gpu_class.GPUClassOptions(autoscaled_classes=pools)
    assert list(gpu_class.mutate(patch, options, given(nodes=nodes))) == []
    return patch.pod.spec.node_selector


def test_a_class_may_have_a_profile_that_no_class_lists() -> None:
    def denied(resource: str) -> list[str]:
        document = pod(gpu_container(resource=resource), annotations={GPU_CLASS: "nvidia-b300"})
        found = gpu_class.check(view(document), gpu_class.GPUClassOptions(), given())
        return [finding.message for finding in found]

    assert denied("nvidia.com/mig-1g.48gb") == []
    assert denied("nvidia.com/mig-1g.5gb") == ["must be a class with nvidia.com/mig-1g.5gb"]
