"""What a ResourceClaim costs where the kinds of devices of the cluster are known."""

from fractions import Fraction

import msgspec
import pytest

from policies.finding import VALUE_LENGTH
from policies.gpus.claimed_devices import decode_claim
from policies.gpus.device_selectors import MAX_EVALUATIONS, MAX_SELECTOR_TEXT
from policies.gpus.device_types import DeviceTypes
from policies.gpus.mapping_spec import DerivedMappingSpec, DeviceClassPattern, ResourceMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.amounts import amount_texts
from policies.quota.catalogue import PublishedCatalogue
from policies.quota.claim_demand import claim_demand, ignored_selectors
from policies.quota.demand import Demand, UnclassifiedPods, pod_demand
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases
from tests.policies.quota.charging import RESOURCE_MAPPING
from tests.policies.quota.claims import ANY, GPU, H100, claim, devices, exactly
from tests.policies.quota.known_device_types import (
    ATTRIBUTES,
    CATALOGUE,
    CLASSES,
    KINDS,
    MIG,
    NODES,
    PREFIX,
    SHARED,
    catalogue,
    product,
    selected,
)

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods


def counted(
    document: JSON, mode: UnclassifiedPods = TOTAL_ONLY, by: PublishedCatalogue = CATALOGUE
) -> Demand:
    return claim_demand(decode_claim(msgspec.json.encode(document)), by, mode)


SLICE = f'{ATTRIBUTES}.profile == "1g.10gb"'


@cases(
    ("document", "want"),
    a_slice_of_a_class_is_a_slice=(
        claim({"exactly": selected(MIG, SLICE, count=7)}),
        {"classes/nvidia-h100": "1", "gpus": "1", PREFIX + MIG: "7"},
    ),
    flat_as_in_v1beta1=(
        claim(selected(MIG, SLICE)),
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + MIG: "1"},
    ),
    the_dearest_slice_without_a_selector=(
        claim(exactly(MIG)),
        {"classes/nvidia-h100": "1/2", "gpus": "1/2", PREFIX + MIG: "1"},
    ),
    a_product=(
        claim({"exactly": selected(GPU, product("A100 40GB"), count=2)}),
        {"classes/nvidia-a100": "2", "classes/nvidia-a100-40gb": "2", "gpus": "2", PREFIX + GPU: "2"},
    ),
    two_products_of_a_family=(
        claim({"exactly": selected(GPU, f'{ATTRIBUTES}.productName.startsWith("A100")')}),
        {"classes/nvidia-a100": "1", "gpus": "1", PREFIX + GPU: "1"},
    ),
    all_selectors_hold=(
        claim({"exactly": selected(MIG, f'{ATTRIBUTES}.type == "mig"', SLICE)}),
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + MIG: "1"},
    ),
    a_product_of_no_class=(
        claim({"exactly": selected(GPU, product("RTX 5090"))}),
        {"gpus": "1", PREFIX + GPU: "1"},
    ),
    any_product=(claim(exactly(GPU)), {"gpus": "1", PREFIX + GPU: "1"}),
    the_class_that_names_the_device_class=(
        claim({"exactly": selected(H100, SLICE)}),
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + H100: "1"},
    ),
    no_present_kind_is_a_card=(
        claim({"exactly": selected(MIG, product("H200"), count=2)}),
        {"gpus": "2", PREFIX + MIG: "2"},
    ),
    a_device_class_without_kinds=(
        claim(exactly("empty.example.com")),
        {"gpus": "1", PREFIX + "empty.example.com": "1"},
    ),
    a_share_is_a_share=(
        claim(exactly(SHARED, capacity={"requests": {"memory": "20Gi"}})),
        {
            "classes/nvidia-a100": "1/4",
            "classes/nvidia-a100-80gb": "1/4",
            "gpus": "1/4",
            PREFIX + SHARED: "1",
        },
    ),
    more_than_a_device_has=(
        claim(exactly(SHARED, capacity={"requests": {"memory": "81Gi"}})),
        {"gpus": "1", PREFIX + SHARED: "1"},
    ),
    all_that_one_node_has=(
        claim({"exactly": selected(GPU, product("A100 40GB"), allocationMode="All")}),
        {"classes/nvidia-a100": "8", "classes/nvidia-a100-40gb": "8", "gpus": "8", PREFIX + GPU: "8"},
    ),
    all_of_several_kinds=(
        claim(exactly(H100, allocationMode="All")),
        {"classes/nvidia-h100": "4", "gpus": "4", PREFIX + H100: "16"},
    ),
    all_is_at_most_what_a_claim_can_get=(
        claim(exactly(GPU, allocationMode="All")),
        {"gpus": "32", PREFIX + GPU: "32"},
    ),
    all_where_no_node_has_one_now=(
        claim({"exactly": selected(MIG, f'{ATTRIBUTES}.profile == "3g.40gb"', allocationMode="All")}),
        {"classes/nvidia-h100": "16", "gpus": "16", PREFIX + MIG: "32"},
    ),
    of_alternatives_those_that_devices_serve=(
        claim({"firstAvailable": [selected(GPU, product("H200"), count=8), selected(MIG, SLICE)]}),
        {"classes/nvidia-h100": "1/7", "gpus": "1/7", PREFIX + MIG: "1"},
    ),
    of_served_alternatives_the_most=(
        claim({"firstAvailable": [selected(GPU, product("H100")), selected(MIG, SLICE)]}),
        {"classes/nvidia-h100": "1", "gpus": "1", PREFIX + GPU: "1", PREFIX + MIG: "1"},
    ),
    if_none_is_served_each_may_come=(
        claim({"firstAvailable": [selected(GPU, product("H200"), count=8), selected(MIG, product("H200"))]}),
        {"gpus": "8", PREFIX + GPU: "8", PREFIX + MIG: "1"},
    ),
    an_alternative_of_an_unknown_device_class_counts=(
        claim({"firstAvailable": [devices("new.example.com", count=2), selected(MIG, SLICE)]}),
        {
            "classes/nvidia-h100": "1/7",
            "gpus": "2",
            PREFIX + MIG: "1",
            PREFIX + "new.example.com": "2",
        },
    ),
    an_alternative_without_gpus_does_not_serve=(
        claim({"firstAvailable": [devices("nic.vendor.com"), selected(GPU, product("H200"))]}),
        {"gpus": "1", PREFIX + GPU: "1"},
    ),
    administrators_take_nothing=(claim(exactly(MIG, adminAccess=True)), {}),
    selectors_too_long_allow_every_kind=(
        claim({"exactly": selected(MIG, SLICE, "x" * MAX_SELECTOR_TEXT)}),
        {"classes/nvidia-h100": "1/2", "gpus": "1/2", PREFIX + MIG: "1"},
    ),
    so_do_too_many=(
        claim(
            *(
                {"exactly": selected(MIG, f"{SLICE} && {n} > -1")}
                for n in range(MAX_EVALUATIONS // len(KINDS) + 1)
            )
        )
        if MAX_EVALUATIONS // len(KINDS) < 32
        else claim(
            {"exactly": selected(MIG, SLICE, *(f"{n}>-1" for n in range(MAX_EVALUATIONS // len(KINDS))))}
        ),
        {"classes/nvidia-h100": "1/2", "gpus": "1/2", PREFIX + MIG: "1"},
    ),
)
def test_a_request_counts_the_dearest_kind_that_it_may_get(document: JSON, want: dict[str, str]) -> None:
    demand = counted(document)

    assert amount_texts(demand.vector) == want
    assert demand.denials == ()


@cases(
    ("document", "because"),
    by_a_selector=(claim({"exactly": selected(MIG, SLICE)}), "device class mig.nvidia.com"),
    of_no_class=(
        claim({"exactly": selected(GPU, product("RTX 5090"))}),
        "no GPU class lists the attributes of a device that device class gpu.nvidia.com may give",
    ),
    of_no_present_kind=(
        claim({"exactly": selected(MIG, product("H200"))}),
        "device class mig.nvidia.com is of no GPU class in particular",
    ),
)
def test_a_demand_says_why_it_counts_for_its_classes(document: JSON, because: str) -> None:
    assert counted(document).because == because


@cases(
    ("device_class", "mode", "want", "denials"),
    a_class_is_known=(MIG, DENY, {"nvidia-h100"}, 0),
    of_no_class_is_denied=(ANY, DENY, set(), 1),
    of_no_class_may_be_any=(
        ANY,
        MOST_EXPENSIVE,
        {"nvidia-h100", "nvidia-a100", "nvidia-a100-40gb", "nvidia-a100-80gb", "amd-mi300x"},
        0,
    ),
    of_no_class_may_be_any_of_the_vendor=(
        GPU,
        MOST_EXPENSIVE,
        {"nvidia-h100", "nvidia-a100", "nvidia-a100-40gb", "nvidia-a100-80gb"},
        0,
    ),
)
def test_devices_of_no_class_count_as_unclassified(
    device_class: str, mode: UnclassifiedPods, want: set[str], denials: int
) -> None:
    demand = counted(claim(exactly(device_class)), mode)

    assert set(demand.classes) == want
    assert [each.sentence() for each in demand.denials] == [
        f'spec.devices.requests[0].exactly.deviceClassName = "{device_class}": must name a GPU class, by the nodeSelector of a '
        "pod or the DeviceClass or selectors of a claim, because the quota of this namespace counts GPUs by class: no GPU class "
        f"lists the attributes of a device that device class {device_class} may give"
    ] * denials


IGNORED = "write it shorter, or with fewer functions; must be a selector that a quota evaluates: else devices count as the "


@cases(
    ("document", "want"),
    all_are_evaluated=(claim({"exactly": selected(MIG, SLICE)}), []),
    one_is_not=(
        claim(
            {"exactly": selected(MIG, SLICE, 'string(1) == "1"')},
            {"exactly": selected(MIG, 'string(1) == "1"')},
        ),
        [f"""spec.devices.requests = "string(1) == "1"": {IGNORED}largest of DeviceClass mig.nvidia.com"""],
    ),
    an_alternative=(
        claim({"firstAvailable": [selected(GPU, "1.0 > 0.5"), selected(MIG, SLICE)]}),
        [f'spec.devices.requests = "1.0 > 0.5": {IGNORED}largest of DeviceClass gpu.nvidia.com'],
    ),
    nothing_depends_on_it=(claim({"exactly": selected("empty.example.com", "1.0 > 0.5")}), []),
    too_long_together=(
        claim(*({"exactly": selected(MIG, "x" * (MAX_SELECTOR_TEXT // 2 - n))} for n in range(-1, 1))),
        [
            f'spec.devices.requests = "{"x" * (VALUE_LENGTH - 1)}…": {IGNORED}largest of DeviceClass mig.nvidia.com',
        ]
        * 2,
    ),
)
def test_selectors_that_are_not_evaluated_are_named(document: JSON, want: list[str]) -> None:
    read = decode_claim(msgspec.json.encode(document))

    assert [each.sentence() for each in ignored_selectors(read, CATALOGUE, "spec")] == want


def test_an_invalid_alternative_is_a_denial_though_no_device_serves_it() -> None:
    half = selected(GPU, product("H200"), allocationMode="Half")
    demand = counted(claim({"firstAvailable": [half, selected(MIG, SLICE)]}), DENY)

    assert [each.sentence() for each in demand.denials] == [
        'spec.devices.requests[0].firstAvailable[0].allocationMode = "Half": set allocationMode ExactCount with a count, or '
        "All; must be ExactCount or All"
    ]


def test_each_class_counts_its_own_dearest_kind() -> None:
    either = f'{ATTRIBUTES}.type == "mig" && {SLICE} || {product("A100 40GB")}'
    document = claim({"exactly": selected("both.example.com", either)})
    kinds = DerivedMappingSpec(
        device_types=DeviceTypes(KINDS, NODES), types_by_class={"both.example.com": tuple(range(len(KINDS)))}
    )
    by = PublishedCatalogue(CLASSES, ResourceMapping((kinds, *RESOURCE_MAPPING.specs)))
    demand = counted(document, by=by)

    assert demand.vector["classes/nvidia-h100"] == Fraction(1, 7)
    assert demand.vector["classes/nvidia-a100-40gb"] == 1


@pytest.mark.parametrize("nodes", [(), ({3: 8},)], ids=["too-many-combinations", "other-nodes"])
def test_all_counts_as_the_most_of_a_claim_if_no_node_is_known(nodes: tuple[dict[int, int], ...]) -> None:
    document = claim({"exactly": selected(MIG, SLICE, allocationMode="All")})

    assert counted(document, by=catalogue(nodes)).vector["gpus"] == Fraction(32, 7)


NAMED = PublishedCatalogue(
    CLASSES,
    ResourceMapping(
        (
            ResourceMappingSpec(
                device_classes=(
                    DeviceClassPattern(pattern=MIG, extended_resource_name="example.com/slice"),
                    DeviceClassPattern(pattern=GPU, extended_resource_name="example.com/card"),
                    DeviceClassPattern(pattern=H100, extended_resource_name="nvidia.com/gpu"),
                )
            ),
            *CATALOGUE.resource_mapping.specs,
        )
    ),
)


@cases(
    ("name", "catalogue", "want"),
    parts_by_the_implicit_name=(f"deviceclass.resource.kubernetes.io/{MIG}", NAMED, "1"),
    parts_by_the_extended_name=("example.com/slice", NAMED, "1"),
    cards_by_the_extended_name=("example.com/card", NAMED, "2"),
    a_name_that_device_plugins_have=("nvidia.com/gpu", NAMED, "2"),
    no_such_device=("deviceclass.resource.kubernetes.io/empty.example.com", NAMED, "2"),
    kinds_are_not_known=(
        f"deviceclass.resource.kubernetes.io/{MIG}",
        PublishedCatalogue(CLASSES, ResourceMapping(NAMED.resource_mapping.specs[:1])),
        "2",
    ),
)
def test_two_devices_that_a_pod_requests_by_a_resource_name(
    name: str, catalogue: PublishedCatalogue, want: str
) -> None:
    """The largest slice of the DeviceClass is half a card."""
    demand = pod_demand(view(pod(gpu_container("2", resource=name))), catalogue, UnclassifiedPods.TOTAL_ONLY)

    assert amount_texts(demand.vector) == {"gpus": want, f"resources/{name}": "2"}
