"""GPU classes: documents, look-ups, weights; and laws over all built-in classes."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from policies.gpus.classes import (
    SEVENTHS,
    GPUClass,
    GPUClasses,
    GPUClassSpec,
    MigProfile,
    NodeLabel,
    parse_share,
    problems,
)
from policies.gpus.device_types import DeviceAttribute, DeviceType
from tests.builders import gpu_class
from tests.cases import cases
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None).classes
SLICES = [
    pytest.param(built_in, name, id=f"{built_in.name}-{name}")
    for built_in in BUILT_IN
    for name in built_in.mig_profiles
]
A100S = ["nvidia-a100-40gb", "nvidia-a100-80gb"]
A100 = {"sevenths": 1, "memoryGiB": 10, "perGPU": 7}


def spec(**fields: Any) -> GPUClassSpec:
    return msgspec.convert({"memoryGiB": 80, **fields}, GPUClassSpec)


def test_a_document_reads_as_it_is_written() -> None:
    got = GPUClass.of(
        "nvidia-a100-80gb",
        spec(
            family="nvidia-a100",
            tolerations=[{"key": "a", "operator": "Exists", "tolerationSeconds": 5, "effect": "NoExecute"}],
            nodeLabels=[{"key": "accelerator", "values": ["nvidia-a100-80gb"]}],
            migProfiles={"1g.10gb": A100},
            equivalents={"nvidia.com/gpu": "1/4"},
        ),
    )

    assert (got.name, got.family) == ("nvidia-a100-80gb", "nvidia-a100")
    assert (got.memory_gib, got.resource) == (80, "nvidia.com/gpu")
    assert got.tolerations[0].toleration_seconds == 5
    assert got.node_labels == (NodeLabel(key="accelerator", values=("nvidia-a100-80gb",)),)
    assert got.mig_profiles == {"1g.10gb": MigProfile(sevenths=1, memory_gib=10, per_gpu=7)}
    assert got.equivalents == {"nvidia.com/gpu": "1/4"}


def test_a_class_without_family_is_its_own() -> None:
    assert GPUClass.of("nvidia-t4", spec()).family == "nvidia-t4"


@cases(
    ("fields", "want"),
    in_the_spec=({"memory": 80}, "unknown field `memory`"),
    in_a_profile=({"migProfiles": {"1g.10gb": {**A100, "sms": 14}}}, "unknown field `sms`"),
    in_a_label=({"nodeLabels": [{"name": "accelerator", "values": []}]}, "unknown field `name`"),
    decimal_share=({"equivalents": {"nvidia.com/gpu": 0.25}}, "Expected `int | str`, got `float`"),
)
def test_unknown_fields_and_wrong_types_are_refused(fields: dict[str, Any], want: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=want):
        spec(**fields)


LABELS = [{"key": "a", "values": ["x"]}, {"key": "a", "values": ["y"]}]
ALL_OF_90 = {"sevenths": 1, "memoryGiB": 90, "perGPU": 1}
EIGHT = {"sevenths": 8, "memoryGiB": 80, "perGPU": 1}
NO_SHARE = 'must be a share of a card such as "1/4" or "0.25", more than 0 and at most 1, not'
DEVICE_CLASS = "must be the name of a DeviceClass such as h100.example.com, not"


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"memoryGiB": 0}, "memoryGiB: must be at least 1, not 0"),
        ({"gpusPerNode": 0}, "gpusPerNode: must be at least 1, not 0"),
        (
            {"family": "NVIDIA A100"},
            'family: must be at most 63 of a-z, 0-9, "-" and ".", such as nvidia-t4, not "NVIDIA A100"',
        ),
        ({"resource": "gpu"}, 'resource: must be an extended resource such as nvidia.com/gpu, not "gpu"'),
        ({"tolerations": [{"value": "x"}]}, "tolerations[0].key: is required unless operator is Exists"),
        (
            {"nodeLabels": [{"key": "a/b/c", "values": ["x"]}]},
            'nodeLabels[0].key: must be a label key, not "a/b/c"',
        ),
        ({"nodeLabels": LABELS}, 'nodeLabels[1].key: duplicates "a": put all its values into one entry'),
        ({"nodeLabels": [{"key": "a", "values": []}]}, "nodeLabels[0].values: must not be empty"),
        (
            {"nodeLabels": [{"key": "a", "values": ["x", "NVIDIA T4"]}]},
            'nodeLabels[0].values[1]: must be a label value, not "NVIDIA T4"',
        ),
        ({"nodeLabels": [{"key": "a", "values": ["x", "x"]}]}, 'nodeLabels[0].values[1]: duplicates "x"'),
        (
            {"deviceAttributes": [{"key": "productName", "values": ["T4"]}]},
            'deviceAttributes[0].key: must be a qualified name such as gpu.example.com/productName, not "productName"',
        ),
        (
            {"deviceAttributes": [{"key": "a.b/c", "values": ["x"]}, {"key": "a.b/c", "values": ["y"]}]},
            'deviceAttributes[1].key: duplicates "a.b/c": put all its values into one entry',
        ),
        (
            {"deviceAttributes": [{"key": "a.b/c", "values": []}]},
            "deviceAttributes[0].values: must not be empty",
        ),
        (
            {"deviceAttributes": [{"key": "a.b/c", "values": ["NVIDIA T4", ""]}]},
            'deviceAttributes[0].values[1]: must be a value of 1 to 64 characters, not ""',
        ),
        (
            {"deviceAttributes": [{"key": "a.b/c", "values": ["x" * 65]}]},
            f'deviceAttributes[0].values[0]: must be a value of 1 to 64 characters, not "{"x" * 65}"',
        ),
        ({"deviceClasses": ["H100"]}, f'deviceClasses[0]: {DEVICE_CLASS} "H100"'),
        ({"deviceClasses": ["h100.example.com", ".com"]}, f'deviceClasses[1]: {DEVICE_CLASS} ".com"'),
        ({"deviceClasses": ["h100", "h100"]}, 'deviceClasses[1]: duplicates "h100"'),
        (
            {"migProfiles": {"1g-10gb": A100}},
            'migProfiles[1g-10gb]: must be a MIG profile such as 1g.10gb, 1g.10gb+me or 1c.2g.20gb, not "1g-10gb"',
        ),
        (
            {"migProfiles": {"2g.10gb": A100}},
            "migProfiles[2g.10gb].sevenths: must be 2, as in the name of the profile, not 1",
        ),
        (
            {"migProfiles": {"1g.20gb": A100}},
            "migProfiles[1g.20gb].memoryGiB: must be 20, as in the name of the profile, not 10",
        ),
        (
            {"migProfiles": {"1g.90gb": ALL_OF_90}},
            "migProfiles[1g.90gb].memoryGiB: must be from 1 to 80, not 90",
        ),
        (
            {"migProfiles": {"1g.10gb": {**A100, "perGPU": 8}}},
            "migProfiles[1g.10gb].perGPU: must be from 1 to 7, not 8",
        ),
        (
            {"migProfiles": {"1g.10gb": {**A100, "weight": "2"}}},
            f'migProfiles[1g.10gb].weight: {NO_SHARE} "2"',
        ),
        (
            {"equivalents": {"gpu": "1/4"}},
            'equivalents[gpu]: must be an extended resource such as nvidia.com/gpu, not "gpu"',
        ),
        ({"equivalents": {"nvidia.com/gpu": "0"}}, f'equivalents[nvidia.com/gpu]: {NO_SHARE} "0"'),
        ({"perGPU": {}}, "perGPU: must have cpu, memory, or both"),
        ({"perGPU": {"cpu": "0"}}, 'perGPU.cpu: must be a quantity such as 12, not "0"'),
        ({"perGPU": {"cpu": "12m"}}, 'perGPU.cpu: must be a quantity such as 12, not "12m"'),
        ({"perGPU": {"cpu": "-12"}}, 'perGPU.cpu: must be a quantity such as 12, not "-12"'),
        ({"perGPU": {"memory": 120}}, 'perGPU.memory: must be a quantity such as 120Gi, not "120"'),
        (
            {"perGPU": {"memory": "120GB"}},
            'perGPU.memory: must be a quantity such as 120Gi: "120GB" is not a Kubernetes quantity: expected a number '
            "and perhaps a suffix, such as 2, 500m or 16Gi",
        ),
    ],
)
def test_problems(fields: dict[str, Any], want: str) -> None:
    found = problems("nvidia-a100-80gb", spec(**fields))

    assert [f"{path}: {sentence}" for path, sentence in found] == [f"spec.{want}"]


def test_devices_are_of_the_classes_that_list_one_of_their_attributes() -> None:
    def of(**attributes: str) -> list[str]:
        named = {
            f"gpu.nvidia.com/{name}": DeviceAttribute(string=value) for name, value in attributes.items()
        }
        return [each.name for each in BUILT_IN.of_device(DeviceType("gpu.nvidia.com", named))]

    assert of(productName="NVIDIA A100-SXM4-40GB", profile="1g.5gb") == ["nvidia-a100-40gb"]
    assert of(productName="NVIDIA A100") == []
    assert of(model="NVIDIA A100-SXM4-40GB") == []


def test_built_in_products_are_the_same_by_label_and_by_device() -> None:
    """GPU Feature Discovery writes "-" for spaces. Names without NVIDIA are from drivers that are older than DRA."""
    keys = {
        "nvidia.com/gpu.product": "gpu.nvidia.com/productName",
        "amd.com/gpu.product-name": "gpu.amd.com/productName",
    }
    for built_in in BUILT_IN:
        labels = {
            keys[label.key]: {
                each for each in label.values if not each.startswith("A100") and not each.endswith("-SHARED")
            }
            for label in built_in.node_labels
            if label.key in keys
        }
        attributes = {
            each.key: {value.replace(" ", "-") for value in each.values}
            for each in built_in.device_attributes
        }
        attributes.pop("gaudi.intel.com/model", None)

        assert attributes == labels


def test_eight_sevenths() -> None:
    found = dict(problems("nvidia-a100-80gb", spec(migProfiles={"8g.80gb": EIGHT})))

    assert found["spec.migProfiles[8g.80gb].sevenths"] == "must be from 1 to 7, not 8"


def test_all_problems_at_once() -> None:
    broken = spec(family="F", resource="r", migProfiles={"x": {"sevenths": 0, "memoryGiB": 0, "perGPU": 0}})

    assert [path for path, _ in problems("N" * 64, broken)] == [
        "metadata.name",
        "spec.family",
        "spec.resource",
        "spec.migProfiles[x]",
        "spec.migProfiles[x].sevenths",
        "spec.migProfiles[x].memoryGiB",
        "spec.migProfiles[x].perGPU",
    ]


@pytest.mark.parametrize(
    "name", ["1g.10gb", "1g.10gb+me", "1c.1g.10gb", "1g.10gb+me.all", "1g.10gb-me", "1g.10gb+gfx"]
)
def test_profile_names(name: str) -> None:
    assert list(problems("nvidia-a100-80gb", spec(migProfiles={name: A100}))) == []


@cases(
    ("text", "want"),
    all=("1", Fraction(1)),
    number=(1, Fraction(1)),
    fraction=("1/4", Fraction(1, 4)),
    decimal=("0.25", Fraction(1, 4)),
)
def test_share(text: str | int, want: Fraction) -> None:
    assert parse_share(text) == want


@pytest.mark.parametrize(
    "text",
    ["", "0", 2, -1, "1.1", "5/4", "1/0", "-1/4", "1/-4", "25%", "1e-1", "1_0/40", "\u0661", " 1", "1\n"],
)
def test_no_share(text: str | int) -> None:
    with pytest.raises(ValueError, match="must be a share of a card"):
        parse_share(text)


@cases(
    ("name", "want"),
    {
        "class": ("nvidia-a100-80gb", ["nvidia-a100-80gb"]),
        "family": ("nvidia-a100", A100S),
        "class-that-is-its-own-family": ("nvidia-t4", ["nvidia-t4"]),
        "neither": ("a100", []),
    },
)
def test_resolve(name: str, want: list[str]) -> None:
    assert [found.name for found in BUILT_IN.resolve(name)] == want


@cases(
    ("word", "want"),
    family_without_vendor=("a100", "nvidia-a100"),
    upper_case=("A100-80GB", "nvidia-a100-80gb"),
    not_the_l4=("l40s", "nvidia-l40s"),
    suggested_name=("nvdia-l4", "nvidia-l4"),
    name_on_gke=("nvidia-tesla-t4", "nvidia-t4"),
    product_name=("Tesla-T4", "nvidia-t4"),
    label_of_the_family=("v100", "nvidia-v100"),
    amd=("mi300x", "amd-mi300x"),
    part_of_a_name=("gaudi2", "intel-gaudi2"),
    nothing_like_it=("banana", None),
    empty=("", None),
    very_long=("x" * 100_000, None),
)
def test_nearest(word: str, want: str | None) -> None:
    assert BUILT_IN.nearest(word) == want


def test_a_profile_that_the_class_does_not_have() -> None:
    (t4,) = BUILT_IN.resolve("nvidia-t4")

    assert BUILT_IN.mig_profile(t4, "1g.5gb") is None
    with pytest.raises(KeyError):
        BUILT_IN.mig_weight(t4, "1g.5gb")


def test_the_later_of_two_classes_with_one_name_holds() -> None:
    gpu_classes = GPUClasses([gpu_class("nvidia-t4", "nvidia-t4", 16), gpu_class("nvidia-t4", "mine", 15)])

    assert [(found.family, found.memory_gib) for found in gpu_classes] == [("mine", 15)]
    assert {each.family for each in gpu_classes} == {"mine"}


def test_a_label_of_several_families_suggests_none() -> None:
    shared = (NodeLabel(key="accelerator", values=("gpu-node",)),)
    gpu_classes = GPUClasses(
        [
            gpu_class("nvidia-t4", "nvidia-t4", 16, node_labels=shared),
            gpu_class("nvidia-l4", "nvidia-l4", 24, node_labels=shared),
        ]
    )

    found = gpu_classes.matching_label("accelerator", "gpu-node")
    assert [each.name for each in found] == ["nvidia-l4", "nvidia-t4"]
    assert gpu_classes.nearest("gpu-node") is None


def test_digest_depends_on_content_only() -> None:
    t4, l4 = gpu_class("nvidia-t4", "nvidia-t4", 16), gpu_class("nvidia-l4", "nvidia-l4", 24)

    assert GPUClasses([t4, l4]).digest == GPUClasses([l4, t4]).digest
    assert GPUClasses([t4, l4]).digest != GPUClasses([t4]).digest
    assert len({t4, l4, gpu_class("nvidia-t4", "nvidia-t4", 16)}) == 2


# Laws of the built-in classes


PROMISED = """
nvidia-t4 nvidia-v100-16gb nvidia-v100-32gb nvidia-a10g nvidia-l4 nvidia-l40s nvidia-a100-40gb nvidia-a100-80gb
nvidia-h100-80gb nvidia-h200 nvidia-b200 amd-mi300x
"""


def test_built_in_classes_cover_what_is_promised() -> None:
    assert set(PROMISED.split()) <= {each.name for each in BUILT_IN}


@pytest.mark.parametrize("built_in", list(BUILT_IN), ids=lambda built_in: built_in.name)
def test_built_in_class_is_sound(built_in: GPUClass) -> None:
    assert list(problems(built_in.name, built_in)) == []
    assert BUILT_IN.matching_label("accelerator", built_in.name) == (built_in,)
    assert built_in.name.startswith(built_in.family)


@pytest.mark.parametrize(("built_in", "name"), SLICES)
def test_slices_fit_their_card(built_in: GPUClass, name: str) -> None:
    profile = built_in.mig_profiles[name]
    weight = BUILT_IN.mig_weight(built_in, name)

    assert profile.per_gpu * profile.sevenths <= SEVENTHS
    # The memory in the name is rounded up to the next GB.
    assert profile.per_gpu * (profile.memory_gib - 1) < built_in.memory_gib
    assert Fraction(profile.sevenths, SEVENTHS) <= weight
    assert profile.per_gpu * weight <= 1
    assert name.endswith("+me") <= (profile.per_gpu == 1)


def test_the_a100_80gb_table_of_nvidia() -> None:
    (a100,) = BUILT_IN.resolve("nvidia-a100-80gb")

    assert {name: profile.per_gpu for name, profile in a100.mig_profiles.items()} == {
        "1g.10gb": 7,
        "1g.10gb+me": 1,
        "1g.20gb": 4,
        "2g.20gb": 3,
        "3g.40gb": 2,
        "4g.40gb": 1,
        "7g.80gb": 1,
    }


LABELS_OF_CLASSES = [
    (built_in, label.key, value)
    for built_in in BUILT_IN
    for label in built_in.node_labels
    for value in label.values
]
EXACT = {"accelerator", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"}


def test_a_label_value_never_spans_families_and_product_names_tell_the_very_class() -> None:
    for built_in, key, value in LABELS_OF_CLASSES:
        found = BUILT_IN.matching_label(key, value)
        assert {gpu_class.family for gpu_class in found} == {built_in.family}, value
        assert key not in EXACT or found == (built_in,)


def test_every_product_has_its_shared_form() -> None:
    products = {(c.name, value) for c, key, value in LABELS_OF_CLASSES if key == "nvidia.com/gpu.product"}
    plain = {(name, value) for name, value in products if not value.endswith("-SHARED")}
    assert {(name, f"{value}-SHARED") for name, value in plain} == products - plain
