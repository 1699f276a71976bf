"""What a ResourceClaim costs, in every version of its API, and which claims cost nothing because their pod does already."""

from fractions import Fraction

import msgspec
import pytest

from policies.finding import Severity
from policies.gpus.mapping_spec import DeviceClassPattern, ResourceMappingSpec, UnknownDeviceClasses
from policies.gpus.resource_mapping import ResourceMapping
from policies.quota.amounts import amount_texts, total
from policies.quota.catalogue import PublishedCatalogue
from policies.quota.claim_demand import beyond_pod, claim_demand
from policies.quota.claim_protection import SCHEDULER
from policies.quota.demand import UnclassifiedPods, pod_demand
from policies.quota.quota_request import quota_request_for_claim
from tests.builders import JSON, container, context, pod, view
from tests.cases import cases
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING, counted_claim
from tests.policies.quota.claims import ANY, GPU, H100, LARGE, claim, decoded, devices, exactly

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods

PREFIX = "resources/deviceclass.resource.kubernetes.io/"


@cases(
    ("document", "want"),
    no_requests=(claim(), {}),
    no_devices=({"kind": "ResourceClaim", "spec": {}}, {}),
    no_spec=({"kind": "ResourceClaim"}, {}),
    one_by_default=(claim(exactly(GPU)), {"gpus": "1", PREFIX + GPU: "1"}),
    many=(claim(exactly(GPU, allocationMode="ExactCount", count=3)), {"gpus": "3", PREFIX + GPU: "3"}),
    flat=(claim(devices(GPU, allocationMode="ExactCount", count=3)), {"gpus": "3", PREFIX + GPU: "3"}),
    all_is_the_most=(claim(exactly(GPU, allocationMode="All")), {"gpus": "32", PREFIX + GPU: "32"}),
    requests_add_up=(claim(exactly(GPU, count=2), exactly(GPU)), {"gpus": "3", PREFIX + GPU: "3"}),
    administrators_take_nothing=(claim(exactly(GPU, adminAccess=True)), {}),
    no_gpu=(claim(exactly("nic.vendor.com", count=8)), {}),
    no_gpu_whatever_its_mode=(claim(exactly("nic.vendor.com", allocationMode="Later")), {}),
    a_device_class_of_one_gpu_class=(
        claim(exactly(H100, count=2)),
        {"classes/nvidia-h100": "2", "gpus": "2", PREFIX + H100: "2"},
    ),
    a_device_class_of_two_families=(
        claim(exactly(LARGE)),
        {"classes/nvidia-h100": "1", "classes/nvidia-h200": "1", "gpus": "1", PREFIX + LARGE: "1"},
    ),
    of_alternatives_the_most_of_each=(
        claim({"firstAvailable": [devices(H100), devices(GPU, count=4), devices(H100, count=2)]}),
        {"classes/nvidia-h100": "2", "gpus": "4", PREFIX + GPU: "4", PREFIX + H100: "2"},
    ),
    alternatives_and_one_more=(
        claim({"firstAvailable": [devices(GPU), devices("nic.vendor.com")]}, exactly(GPU)),
        {"gpus": "2", PREFIX + GPU: "2"},
    ),
)
def test_claims(document: JSON, want: dict[str, str]) -> None:
    demand = counted_claim(document)

    assert amount_texts(demand.vector) == want
    assert demand.denials == ()


MODE = "must be ExactCount or All"


@cases(
    ("document", "path", "message"),
    unknown_mode=(claim(exactly(GPU, allocationMode="Half")), "[0].exactly.allocationMode", MODE),
    mode_flat=(claim(exactly(GPU), devices(GPU, allocationMode="Half")), "[1].allocationMode", MODE),
    unknown_mode_of_an_alternative=(
        claim({"firstAvailable": [devices(GPU), devices(GPU, allocationMode="Half")]}),
        "[0].firstAvailable[1].allocationMode",
        MODE,
    ),
    unknown_kind=(claim({"anyOf": []}), "[0]", "must be a kind of request that a quota can count"),
    negative_count=(claim(exactly(GPU, count=-1)), "[0].exactly.count", "must be at least 1"),
    negative_amount=(
        claim(exactly(GPU, capacity={"requests": {"memory": "-800Gi"}})),
        "[0].exactly.capacity.requests[memory]",
        "must not be negative",
    ),
)
def test_what_cannot_be_counted_is_a_denial(document: JSON, path: str, message: str) -> None:
    denials = counted_claim(document).denials

    assert [(each.path, each.message, each.severity) for each in denials] == [
        (f"spec.devices.requests{path}", message, Severity.DENIAL)
    ]


A100S = {"nvidia-a100", "nvidia-a100-40gb", "nvidia-a100-80gb"}
NVIDIA = {*A100S, "nvidia-h100", "nvidia-h200", "nvidia-t4", "t4-shared"}


@cases(
    ("device_class", "mode", "want", "denials"),
    total_only=(GPU, TOTAL_ONLY, set(), 0),
    denied=(GPU, DENY, set(), 1),
    denied_knows_this_one=(H100, DENY, {"nvidia-h100"}, 0),
    most_expensive_is_all_of_the_vendor=(GPU, MOST_EXPENSIVE, NVIDIA, 0),
    most_expensive_of_nobody_knows_whose=(ANY, MOST_EXPENSIVE, {*NVIDIA, "amd-mi300x"}, 0),
)
def test_claims_of_no_class(device_class: str, mode: UnclassifiedPods, want: set[str], denials: int) -> None:
    demand = counted_claim(claim(exactly(device_class)), mode)

    assert set(demand.classes) == want
    assert len(demand.denials) == denials
    if denials:
        assert demand.denials[0].sentence() == (
            'spec.devices.requests[0].exactly.deviceClassName = "gpu.nvidia.com": must name a GPU class, by the nodeSelector '
            "of a pod or the DeviceClass or selectors of a claim, because the quota of this namespace "
            "counts GPUs by class: device class gpu.nvidia.com is of no GPU class in particular"
        )


@pytest.mark.parametrize("mode", UnclassifiedPods)
def test_requests_weigh_together_what_each_weighs_alone(mode: UnclassifiedPods) -> None:
    names = (GPU, H100, LARGE, ANY, "other.example.com", "nic.vendor.com")
    requests = [exactly(name, count=count) for name in names for count in (1, 3)]
    alone = [counted_claim(claim(request), mode=mode) for request in requests]
    together = counted_claim(claim(*requests), mode=mode)

    assert together.vector == total(each.vector for each in alone)
    assert together.because == (
        "device class gpu.nvidia.com is of no GPU class in particular and device class h100.example.com and device class "
        "large.example.com and device class any.example.com is of no GPU class in particular and device class "
        "other.example.com is of no GPU class in particular"
    )
    assert [denial.message for denial in together.denials] == [
        denial.message for each in alone for denial in each.denials
    ]


def test_a_field_of_the_wrong_type_is_told_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.devices\.requests\[0\]\.exactly\.count"):
        counted_claim(claim(exactly(GPU, count="two")))


FAST = "fast.example.com"
LISTED = ResourceMapping(
    (
        *RESOURCE_MAPPING.specs,
        ResourceMappingSpec(
            device_classes=(
                DeviceClassPattern(pattern=GPU, extended_resource_name=""),
                DeviceClassPattern(pattern=FAST, extended_resource_name="example.com/fastgpu"),
            )
        ),
    )
)


@cases(
    ("document", "own", "want"),
    its_pod_is_counted_nothing=(claim(exactly(GPU, count=3)), {}, "3"),
    by_the_implicit_name=(claim(exactly(GPU, count=3)), {PREFIX + GPU: 3}, "0"),
    flat_as_in_v1beta1=(claim(devices(GPU, count=3)), {PREFIX + GPU: 3}, "0"),
    by_the_extended_name=(claim(exactly(FAST, count=3)), {"resources/example.com/fastgpu": 3}, "0"),
    made_again_with_more=(claim(exactly(FAST, count=3)), {"resources/example.com/fastgpu": 1}, "2"),
    both=(claim(exactly(FAST, count=3)), {"resources/example.com/fastgpu": 1, PREFIX + FAST: 1}, "1"),
    each_unit_is_taken_off_once=(
        claim(exactly(FAST, count=2), exactly(FAST, count=2)),
        {"resources/example.com/fastgpu": 3},
        "1",
    ),
    charged_for_other_names=(claim(exactly(FAST, count=3)), {"resources/nvidia.com/gpu": 3}, "3"),
    no_exact_count_is_none_of_the_schedulers=(
        claim(exactly(FAST, allocationMode="All")),
        {"resources/example.com/fastgpu": 8},
        "32",
    ),
    alternatives_are_none_of_the_schedulers=(
        claim({"firstAvailable": [devices(FAST)]}),
        {"resources/example.com/fastgpu": 8},
        "1",
    ),
)
def test_what_a_claim_counts_beyond_its_pod(document: JSON, own: dict[str, int], want: str) -> None:
    names = {key.removeprefix("resources/"): Fraction(amount) for key, amount in own.items()}
    rest = beyond_pod(decoded(document), names, LISTED)
    demand = claim_demand(rest, PublishedCatalogue(CLASSES, LISTED), TOTAL_ONLY)

    assert demand.vector.get("gpus", Fraction(0)) == Fraction(want)


def test_classes_are_counted_once_for_a_pod_and_the_claim_that_the_scheduler_made_for_it() -> None:
    """A claim could be of every class; its pod is bound, and charged for one."""
    document = pod(container(resources={"limits": {"example.com/fastgpu": 2}}))
    own = pod_demand(view(document), PublishedCatalogue(CLASSES, LISTED), MOST_EXPENSIVE)
    names = {key.removeprefix("resources/"): amount for key, amount in own.vector.items()}
    rest = beyond_pod(decoded(claim(exactly(FAST, count=2))), names, LISTED)

    assert claim_demand(rest, PublishedCatalogue(CLASSES, LISTED), MOST_EXPENSIVE).vector == {}


@cases(
    ("device_class", "username", "mapping", "wants_gpus"),
    its_pod_was_counted_by_the_extended_name=(FAST, SCHEDULER, LISTED, False),
    its_pod_was_counted_by_the_implicit_name=(GPU, SCHEDULER, LISTED, False),
    a_device_class_that_was_not_seen_yet=(FAST, SCHEDULER, RESOURCE_MAPPING, True),
    somebody_elses=(FAST, "tenant", LISTED, True),
)
def test_the_schedulers_claim_is_free_where_its_pod_was_counted(
    device_class: str, username: str, mapping: ResourceMapping, wants_gpus: bool
) -> None:
    catalogue = context(classes=CLASSES, resource_mapping=mapping)
    request = quota_request_for_claim("r", decoded(claim(exactly(device_class))), username, catalogue)

    assert request.requests_gpus is wants_gpus


@cases(
    ("unknown", "want", "denials"),
    counted_by_default=(None, "2", []),
    ignored=(UnknownDeviceClasses.IGNORE, "0", []),
    denied=(
        UnknownDeviceClasses.DENY,
        "2",
        [
            'spec.devices.requests[0].exactly.deviceClassName = "nobody-knows": use another DeviceClass; must '
            "not ask for devices of DeviceClass nobody-knows: nothing says whether they are GPUs; or ask the "
            "platform team to name this one in deviceClasses of a GPUResourceMapping"
        ],
    ),
)
def test_unknown_device_classes(unknown: UnknownDeviceClasses | None, want: str, denials: list[str]) -> None:
    mapping = ResourceMapping((*LISTED.specs, ResourceMappingSpec(unknown_device_classes=unknown)))
    document = decoded(claim(exactly("nobody-knows", count=2)), None)
    demand = claim_demand(document, PublishedCatalogue(CLASSES, mapping), TOTAL_ONLY)

    assert demand.vector.get("gpus", Fraction(0)) == Fraction(want)
    assert [each.sentence() for each in demand.denials] == denials


def test_a_negative_amount_says_what_to_write() -> None:
    (denial,) = counted_claim(claim(exactly(GPU, capacity={"requests": {"memory": "-1"}}))).denials

    assert denial.sentence() == (
        'spec.devices.requests[0].exactly.capacity.requests[memory] = "-1": set an amount such as 10Gi; must not be negative'
    )
