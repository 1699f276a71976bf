"""The classes of the devices that claims may get: which they are, and the denial in a namespace that may not use them all."""

import gc
import weakref
from typing import Any

import msgspec

from policies.gpus.claimed_devices import DeviceQuery, GPUCount, decode_claim
from policies.gpus.classes import DeviceAttributeValues, GPUClass, GPUClasses
from policies.gpus.device_selectors import MAX_EVALUATIONS, MAX_SELECTOR_TEXT, possible_types
from policies.gpus.device_types import DeviceAttribute, DeviceType, DeviceTypes
from policies.gpus.mapping_spec import DerivedMappingSpec, DeviceClassPattern, Measure
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.claim_classes import NO_CLASS, ClaimedClasses
from policies.rules.gpu_class import GPUClassOptions, check, check_claim
from tests.builders import JSON, container, context, gpu_class, pod, view
from tests.cases import cases
from tests.policies.quota.claims import GPU
from tests.policies.quota.claims import H100 as LISTED
from tests.policies.quota.known_device_types import ATTRIBUTES, CATALOGUE, MIG, SLICES

DRIVER = "gpu.nvidia.com"
PRODUCT = f"{DRIVER}/productName"
A100, H100, T4 = "nvidia-a100-80gb", "nvidia-h100-80gb", "nvidia-t4"


def nvidia(name: str, *products: str, **tweaks: object) -> GPUClass:
    attributes = (DeviceAttributeValues(key=PRODUCT, values=products),) if products else ()
    return gpu_class(name, name.rpartition("-")[0], 80, device_attributes=attributes, **tweaks)


CLASSES = GPUClasses(
    (
        nvidia(A100, "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", mig_profiles=SLICES),
        nvidia(H100, "NVIDIA H100 80GB HBM3"),
        nvidia(T4, device_classes=("t4.example.com",)),
    )
)


def kind(product: str, type_: str = "gpu") -> DeviceType:
    stated = {PRODUCT: product, f"{DRIVER}/type": type_}
    return DeviceType(
        driver=DRIVER, attributes={key: DeviceAttribute(string=text) for key, text in stated.items()}
    )


KINDS = (
    kind("NVIDIA A100-SXM4-80GB"),
    kind("NVIDIA A100-SXM4-80GB", "mig"),
    kind("NVIDIA A100 80GB PCIe"),
    kind("NVIDIA H100 80GB HBM3"),
    kind("NVIDIA Thing"),
)
DEVICE_CLASSES = {
    DRIVER: (0, 2, 3),
    "mig.nvidia.com": (1,),
    "h100.example.com": (3,),
    "thing.example.com": (4,),
    "any.example.com": (0, 4),
    "t4.example.com": (),
    "absent.example.com": (),
}
MAPPING = ResourceMapping(
    (
        DerivedMappingSpec(
            device_classes=(
                *(DeviceClassPattern(pattern=name) for name in DEVICE_CLASSES),
                DeviceClassPattern(pattern="nic.example.com", measure=Measure.NOTHING),
            ),
            device_types=DeviceTypes(KINDS),
            types_by_class=DEVICE_CLASSES,
        ),
    )
)


def is_product(name: str) -> str:
    return f"device.attributes['{DRIVER}'].productName == '{name}'"


@cases(
    ("choices", "want"),
    all_of_a_device_class=([DeviceQuery(DRIVER)], {A100, H100}),
    of_one_product=([DeviceQuery(DRIVER, (is_product("NVIDIA H100 80GB HBM3"),))], {H100}),
    a_partition_is_of_the_class_of_its_card=([DeviceQuery("mig.nvidia.com")], {A100}),
    two_products_of_a_class=(
        [DeviceQuery(DRIVER, ('device.attributes["gpu.nvidia.com"].productName.contains("A100")',))],
        {A100},
    ),
    alternatives=([DeviceQuery("mig.nvidia.com"), DeviceQuery("h100.example.com")], {A100, H100}),
    a_product_that_no_class_has=([DeviceQuery("thing.example.com")], {NO_CLASS}),
    a_selector_that_cannot_be_evaluated=([DeviceQuery(DRIVER, ("device.unheard.of()",))], {A100, H100}),
    no_device_yet_and_a_class_names_it=([DeviceQuery("t4.example.com")], {T4}),
    no_device_yet=([DeviceQuery("absent.example.com")], None),
    one_of_two_is_not_known=([DeviceQuery("absent.example.com"), DeviceQuery("h100.example.com")], None),
    no_gpu=([DeviceQuery("nic.example.com")], set()),
    no_gpu_beside_one=([DeviceQuery("nic.example.com"), DeviceQuery("h100.example.com")], {H100}),
    nothing=([], set()),
)
def test_the_classes_of_devices(choices: list[DeviceQuery], want: set[str] | None) -> None:
    assert ClaimedClasses(MAPPING, CLASSES).of_claim(frozenset(choices)) == want


H100_ONLY = is_product("NVIDIA H100 80GB HBM3")


def test_the_selectors_of_one_review_are_bounded_however_many_claims_a_pod_names() -> None:
    claimed = ClaimedClasses(MAPPING, CLASSES)
    few, many = ([f"{n} > -1" for n in range(number)] for number in (10, MAX_EVALUATIONS // len(KINDS)))

    only, every = frozenset({H100}), frozenset({A100, H100})
    assert claimed.of_claim([DeviceQuery(DRIVER, (H100_ONLY, *few))]) == only
    assert claimed.of_claim([DeviceQuery(DRIVER, (H100_ONLY, *many))]) == every, "too many"
    long = f'{H100_ONLY} || "{"x" * MAX_SELECTOR_TEXT}" == ""'
    assert claimed.of_claim([DeviceQuery(DRIVER, (long,))]) == every, "too long"
    assert claimed.of_claim([DeviceQuery(DRIVER, (H100_ONLY, few[0]))]) == only, "seen before"
    texts = [f'{H100_ONLY} && "{n}{"x" * 100}" != ""' for n in range(500)]
    classes = [claimed.of_claim([DeviceQuery(DRIVER, (each,))]) for each in texts]
    number = classes.count(only)
    assert 0 < number < MAX_SELECTOR_TEXT // 100
    assert classes == [only] * number + [every] * (500 - number)


@cases(
    ("choices", "want"),
    cards=([DeviceQuery(GPU, device_count=2)], GPUCount(2)),
    a_slice=(
        [DeviceQuery(MIG, (f'{ATTRIBUTES}.profile == "1g.10gb"',), device_count=2)],
        GPUCount(1, "1g.10gb"),
    ),
    the_larger_of_two_slices=([DeviceQuery(MIG)], GPUCount(1, "3g.40gb")),
    a_card_or_a_slice=([DeviceQuery(LISTED)], GPUCount(1)),
    all_of_a_node=([DeviceQuery(GPU, device_count=None)], None),
    several_requests=([DeviceQuery(GPU), DeviceQuery(GPU, device_count=2)], None),
    no_device=([DeviceQuery("empty.example.com")], None),
    nothing=([], None),
)
def test_the_number_of_gpus(choices: list[DeviceQuery], want: GPUCount | None) -> None:
    assert ClaimedClasses(CATALOGUE.resource_mapping, CATALOGUE.classes).gpu_count(choices) == want


def test_nothing_of_a_claim_is_kept_and_so_no_former_catalogue() -> None:
    classes = GPUClasses((*CLASSES,))
    kept = weakref.ref(classes)
    for each in ((H100_ONLY,), ()):
        assert ClaimedClasses(MAPPING, classes).of_claim([DeviceQuery(DRIVER, each)])
    MAPPING.device_types.__dict__.clear()

    del classes
    gc.collect()

    assert kept() is None


A100_ONLY = GPUClassOptions(allowed=(A100,))
NOT_H100 = f"namespace ml-training may not use {H100}"
ASK = f"ask the platform team to allow {H100} in namespace ml-training"


def requesting(device_class: str = DRIVER, *expressions: str, **tweaks: Any) -> JSON:
    selectors = {"selectors": [{"cel": {"expression": each}} for each in expressions]} if expressions else {}
    return {"deviceClassName": device_class, **selectors, **tweaks}


def exactly(*args: str, **tweaks: Any) -> JSON:
    return {"name": "gpu", "exactly": requesting(*args, **tweaks)}


REQUEST = "spec.devices.requests[0]"
MUST = f"must select only devices of allowed classes: {NOT_H100}"
MUST_HAVE = f"must have devices of allowed classes: {NOT_H100}"
OF_A100 = (
    "device.attributes['gpu.nvidia.com'].productName in ['NVIDIA A100 80GB PCIe', 'NVIDIA A100-SXM4-80GB']"
)
SHORTER = (
    "write fewer or shorter selectors; must be few and short enough to be evaluated, 1024 characters in a claim: "
    f"{NOT_H100}"
)
OTHERS = "set deviceClassName: mig.nvidia.com"


@cases(
    ("request_", "options", "want"),
    unrestricted=(exactly(), GPUClassOptions(), []),
    any_card=(exactly(), A100_ONLY, [f"{REQUEST}.exactly.selectors: add cel.expression: {OF_A100}; {MUST}"]),
    any_card_of_v1beta1=(
        {"name": "gpu", **requesting()},
        A100_ONLY,
        [f"{REQUEST}.selectors: add cel.expression: {OF_A100}; {MUST}"],
    ),
    the_selector_that_was_advised=(exactly(DRIVER, OF_A100), A100_ONLY, []),
    a_family_is_allowed=(exactly(DRIVER, OF_A100), GPUClassOptions(allowed=("nvidia-a100",)), []),
    an_alternative=(
        {"name": "gpu", "firstAvailable": [requesting("mig.nvidia.com"), requesting(DRIVER)]},
        A100_ONLY,
        [f"{REQUEST}.firstAvailable[1].selectors: add cel.expression: {OF_A100}; {MUST}"],
    ),
    one_product_is_left=(
        exactly(
            DRIVER,
            'device.attributes["gpu.nvidia.com"].productName.endsWith("HBM3") || '
            'device.attributes["gpu.nvidia.com"].productName.endsWith("PCIe")',
        ),
        A100_ONLY,
        [f"{REQUEST}.exactly.selectors: add cel.expression: {is_product('NVIDIA A100 80GB PCIe')}; {MUST}"],
    ),
    none_of_an_allowed_class=(
        exactly("h100.example.com"),
        A100_ONLY,
        [f'{REQUEST}.exactly.deviceClassName = "h100.example.com": {OTHERS}; {MUST_HAVE}; or {ASK}'],
    ),
    selectors_exclude_the_allowed_class=(
        exactly(DRIVER, is_product("NVIDIA H100 80GB HBM3")),
        A100_ONLY,
        [
            f'{REQUEST}.exactly.deviceClassName = "{DRIVER}": {OTHERS}, without selectors; {MUST_HAVE}; or {ASK}'
        ],
    ),
    of_no_class=(
        exactly("thing.example.com"),
        A100_ONLY,
        [
            f'{REQUEST}.exactly.deviceClassName = "thing.example.com": {OTHERS}; must have devices of allowed classes: '
            "namespace ml-training may not use devices of no GPU class"
        ],
    ),
    nothing_is_allowed=(
        exactly("h100.example.com"),
        GPUClassOptions(allowed=("amd-*",)),
        [f'{REQUEST}.exactly.deviceClassName = "h100.example.com": {MUST_HAVE}; {ASK}'],
    ),
    without_devices_of_which_the_class_is_known=(exactly("absent.example.com"), A100_ONLY, []),
    selectors_that_are_too_long=(
        exactly(DRIVER, OF_A100, f'"{"x" * 1024}" != ""'),
        A100_ONLY,
        [f"{REQUEST}.exactly.selectors: {SHORTER}"],
    ),
    too_many_selectors=(
        exactly(DRIVER, OF_A100, *(f"{n}>-1" for n in range(MAX_EVALUATIONS // len(KINDS)))),
        A100_ONLY,
        [f"{REQUEST}.exactly.selectors: {SHORTER}"],
    ),
    too_long_with_the_selector_that_would_be_advised=(
        exactly(DRIVER, f'"{"x" * 980}" != ""'),
        A100_ONLY,
        [f"{REQUEST}.exactly.selectors: {SHORTER}"],
    ),
    a_request_without_selectors_beside_long_ones=(
        {
            "name": "gpu",
            "firstAvailable": [requesting(), requesting("mig.nvidia.com", f'"{"x" * 1024}" != ""')],
        },
        A100_ONLY,
        [f'{REQUEST}.firstAvailable[0].deviceClassName = "{DRIVER}": {OTHERS}; {MUST_HAVE}; or {ASK}'],
    ),
    for_administrators=(exactly(adminAccess=True), A100_ONLY, []),
    no_gpu=(exactly("nic.example.com"), A100_ONLY, []),
)
def test_what_a_claim_may_request(request_: JSON, options: GPUClassOptions, want: list[str]) -> None:
    claim = decode_claim(msgspec.json.encode({"spec": {"devices": {"requests": [request_]}}}))

    found = list(check_claim(claim.spec, "spec", options, context(classes=CLASSES, resource_mapping=MAPPING)))

    assert [each.sentence() for each in found] == want


CLASS = "gpu-admission.dev/gpu-class"


def claiming(annotation: str | None = None, params: str | None = None, **tweaks: Any) -> JSON:
    uses = container(resources={"claims": [{"name": "gpu"}]})
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    stated = {CLASS: annotation, "gpu-admission.dev/model-params": params}
    annotations = {key: text for key, text in stated.items() if text}
    return pod(uses, annotations=annotations, resourceClaims=claims, **tweaks)


ANNOTATION = f"metadata.annotations[{CLASS}]"
MUST_PIN = "must pin the pod to a GPU class: namespace ml-training may not use every class"
PINNED: JSON = {"nodeSelector": {"accelerator": H100}}


@cases(
    ("document", "classes", "options", "want"),
    the_claim_has_it=(claiming(A100), {A100, H100}, GPUClassOptions(), []),
    the_claim_has_others=(
        claiming(T4),
        {A100, H100},
        GPUClassOptions(),
        [f'{ANNOTATION} = "{T4}": set {CLASS}: {A100} or {H100}; must be a class with devices for claim gpu'],
    ),
    some_of_its_devices_are_of_no_class=(claiming(T4), {A100, NO_CLASS}, GPUClassOptions(), []),
    its_claim_is_not_known=(claiming(T4), None, GPUClassOptions(), []),
    all_its_devices_are_allowed=(claiming(), {A100}, A100_ONLY, []),
    some_of_its_devices_are_not=(
        claiming(),
        {A100, H100},
        A100_ONLY,
        [f"spec: set {CLASS}: {A100}; {MUST_PIN}"],
    ),
    pinned_to_those_that_are=(claiming(nodeSelector={"accelerator": A100}), {A100, H100}, A100_ONLY, []),
    some_are_of_no_class=(
        claiming(),
        {A100, NO_CLASS},
        A100_ONLY,
        [f"spec: set {CLASS}: {A100}; {MUST_PIN}"],
    ),
    none_is_allowed=(
        claiming(),
        {H100},
        A100_ONLY,
        [
            f"spec: no class that namespace ml-training may use has devices for claim gpu; ask the platform team to allow {H100} "
            f"in namespace ml-training, then set {CLASS}: {H100}"
        ],
    ),
    pinned_to_other_nodes=(
        claiming(**PINNED),
        {A100},
        GPUClassOptions(),
        [
            "spec: remove the pod's own constraint, or name a claim with other devices; no device of its claims "
            f"({A100}) is on the nodes of {H100}, to which the pod pins itself (nodeSelector accelerator={H100}): "
            "the pod stays pending"
        ],
    ),
)
def test_a_pod_and_the_classes_of_its_claim(
    document: JSON, classes: set[str] | None, options: GPUClassOptions, want: list[str]
) -> None:
    known = {} if classes is None else {"gpu": frozenset(classes)}
    of = context(classes=CLASSES, resource_mapping=MAPPING, claim_classes=known)

    assert [each.sentence() for each in check(view(document), options, of)] == want


PARAMS = "metadata.annotations[gpu-admission.dev/model-params]"


@cases(
    ("params", "classes", "gpus", "want"),
    it_fits=("7b", {A100}, GPUCount(1), []),
    it_fits_several_cards=("70b", {A100}, GPUCount(4), []),
    no_card_holds_it=(
        "70b",
        {A100},
        GPUCount(1),
        [
            f'{PARAMS} = "70b": name a claim for 4 GPUs of 80 GiB; should fit on {A100} (80.0 GiB usable): the weights of '
            "70b bf16 serving take 130.4 GiB"
        ],
    ),
    no_slice_holds_it=(
        "7b",
        {A100},
        GPUCount(1, "1g.10gb"),
        [
            f'{PARAMS} = "7b": name a claim for a slice 3g.40gb or 1 GPU of 80 GiB; should fit on {A100} (10.0 GiB usable): '
            "the weights of 7b bf16 serving take 13.1 GiB"
        ],
    ),
    one_of_the_classes_is_not_known=("70b", {A100, NO_CLASS}, GPUCount(1), []),
    the_number_is_not_known=("70b", {A100}, None, []),
)
def test_a_model_and_the_devices_of_its_claim(
    params: str, classes: set[str], gpus: GPUCount | None, want: list[str]
) -> None:
    known = {"gpu": frozenset(classes)}
    of = context(classes=CLASSES, resource_mapping=MAPPING, claim_classes=known, claimed_gpus=gpus)

    found = [each.sentence() for each in check(view(claiming(params=params)), GPUClassOptions(), of)]

    assert found == want


@cases(
    ("product", "want"),
    plain=("NVIDIA Thing", "'NVIDIA Thing'"),
    with_a_quote=("Ada's", '"Ada\'s"'),
    with_a_backslash=("a\\b", '"a\\\\b"'),
)
def test_the_advised_selector_is_valid_for_any_product(product: str, want: str) -> None:
    other = nvidia("nvidia-odd-1", product)
    mapping = ResourceMapping(
        (
            DerivedMappingSpec(
                device_types=DeviceTypes((kind(product), KINDS[3])), types_by_class={DRIVER: (0, 1)}
            ),
        )
    )
    of = context(classes=GPUClasses((*CLASSES, other)), resource_mapping=mapping)
    claim = decode_claim(msgspec.json.encode({"spec": {"devices": {"requests": [exactly()]}}}))

    (found,) = check_claim(claim.spec, "spec", GPUClassOptions(allowed=(other.name,)), of)

    expression = f"device.attributes['{DRIVER}'].productName == {want}"
    assert found.remedy == f"add cel.expression: {expression}"
    assert possible_types([expression], mapping.device_types) == {0}
