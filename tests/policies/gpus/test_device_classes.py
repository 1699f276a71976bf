"""Which DeviceClasses have GPUs, read from their selectors, and by which names pods ask for those."""

import msgspec

from policies.gpus.device_classes import (
    DeviceClass,
    decode_device_class,
    device_class_mapping,
    unmapped_device_classes,
)
from policies.gpus.device_types import DeviceType, DeviceTypes
from policies.gpus.mapping_spec import DeviceClassPattern, Measure, ResourceMappingSpec, UnknownDeviceClasses
from policies.gpus.resource_mapping import ResourceMapping
from tests.cases import cases
from webhook.configuration.loader import load_directory

BUILT_IN = load_directory(None).resource_mapping
NO_DOCUMENTS = ResourceMapping(())
ATTRIBUTES = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"


def device_class(*expressions: str, name: str = "mine", extended: str | None = None) -> DeviceClass:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    spec = {"selectors": selectors, "extendedResourceName": extended}
    return decode_device_class(msgspec.json.encode({"metadata": {"name": name}, "spec": spec}))


OTHER, UNKNOWN = (Measure.NOTHING, None), (None, None)
NVIDIA, AMD, ANY_GPU = ((Measure.DEVICES, resource) for resource in ("nvidia.com/gpu", "amd.com/gpu", None))


@cases(
    ("expressions", "want"),
    {
        "single-quotes": (["device.driver == 'gpu.nvidia.com'"], NVIDIA),
        "double-quotes": (['device.driver == "gpu.amd.com"'], AMD),
        "other-way-round": (["'gpu.nvidia.com'==device.driver"], NVIDIA),
        "in": (["device.driver in ['dra.net', 'gpu.nvidia.com']"], NVIDIA),
        "as-nvidia-writes-it": ([ATTRIBUTES], NVIDIA),
        "an-attribute": (["device.attributes['gpu.nvidia.com'].productName == 'A10'"], NVIDIA),
        "of-two-vendors": (["device.driver in ['gpu.amd.com', 'gpu.nvidia.com']"], ANY_GPU),
        "gpu-in-front": (["device.driver == 'gpu.example.com'"], ANY_GPU),
        "second": (["true", "device.driver == 'gpu.nvidia.com'"], NVIDIA),
        "another-driver": (["device.driver == 'nic.example.com'"], OTHER),
        "other-drivers": (["device.driver in ['a.example', \"b.example\"]"], OTHER),
        "a-known-other-driver": (["device . driver=='dra.net'"], OTHER),
        "or-any-other": (["device.driver == 'a.example' || device.driver.startsWith('gpu.')"], UNKNOWN),
        "one-driver-and-more": (
            ["(device.driver == 'a.example') && device.attributes['a.example'].x > 1"],
            OTHER,
        ),
        "one-of-two-drivers": (
            ["device.driver == 'a.example' || ('b.example' == device.driver && true)"],
            OTHER,
        ),
        "beside-a-selector-of-all": (["true", "device.driver == 'a.example'"], OTHER),
        "a-default": (
            ["device.driver == 'a.example' && device.attributes['a.example'].?x.orValue(1) == 1"],
            OTHER,
        ),
        "no-other": (["!(device.driver == 'a.example')"], UNKNOWN),
        "not-among": (["!(device.driver in ['a.example'])"], UNKNOWN),
        "among-parts-of-names": (["device.driver in ['a.example', 'gpu' + '.nvidia.' + 'com']"], UNKNOWN),
        "equals-false": (["(device.driver == 'a.example') == false"], UNKNOWN),
        "equals-false-without-parentheses": (["device.driver == 'a.example' == false"], UNKNOWN),
        "two-in-parentheses": (["(device.driver == 'a.example') != (device.driver == 'b.example')"], UNKNOWN),
        "a-condition": (["device.driver == 'a.example' && true ? false : true"], UNKNOWN),
        "or-true": (["device.driver == 'a.example' && true || true"], UNKNOWN),
        "a-comment": (["true //\n|| false && device.driver == 'a.example'"], UNKNOWN),
        "a-macro": (["[1].exists(i, i == 2 || device.driver == 'a.example' && i == 1) || true"], UNKNOWN),
        "a-string-with-an-operator": (["device.driver == 'a.example' && ' || ' == ' || '"], OTHER),
        "a-string-that-ends-later": ([r"'\' && device.driver == \'a.example\' && \'' != ''"], UNKNOWN),
        "empty-strings": (["device.driver == 'a.example' && '' == '' || ' ' == ' '"], UNKNOWN),
        "on-several-lines": (["device.driver == 'a.example' &&\n  true\n"], OTHER),
        "three-quotes": (['device.driver == \'a.example\' && """a""" == \'a\''], OTHER),
        "many-parentheses": (["(" * 2_000 + "device.driver == 'a.example'" + ")" * 2_000], UNKNOWN),
        "a-part-of-a-name": (["device.driver.endsWith('nvidia.com')"], UNKNOWN),
        "no-driver": (["device.allowMultipleAllocations"], UNKNOWN),
        "no-selectors": ([], UNKNOWN),
    },
)
def test_what_selectors_say(expressions: list[str], want: tuple[Measure | None, str | None]) -> None:
    (found,) = device_class_mapping([device_class(*expressions)], NO_DOCUMENTS, BUILT_IN).device_classes

    assert (found.pattern, found.extended_resource_name) == ("mine", "")
    assert (found.measure, found.resource) == want


def test_selectors_cost_no_more_than_their_length() -> None:
    """The API server bounds them: 32 selectors of 10 KiB; an expression that backtracks would never end here."""
    hostile = ["device.driver in [" + " " * 10_000, "'" * 10_240, "device.driver == '" + "a" * 10_000] * 10

    (found,) = device_class_mapping([device_class(*hostile)], NO_DOCUMENTS, BUILT_IN).device_classes

    assert found.measure is None


def test_a_document_holds_against_the_selectors() -> None:
    says = ResourceMapping(
        (ResourceMappingSpec(device_classes=(DeviceClassPattern(pattern="m*", measure=Measure.NOTHING),)),)
    )
    gpus = device_class("device.driver == 'gpu.nvidia.com'", extended="example.com/mine")

    (found,) = device_class_mapping([gpus], says, BUILT_IN).device_classes

    assert (found.measure, found.extended_resource_name) == (Measure.NOTHING, "example.com/mine")


def test_a_class_that_is_known_by_name_needs_no_selectors() -> None:
    (found,) = device_class_mapping(
        [device_class(name="gpu.nvidia.com", extended="nvidia.com/gpu")], NO_DOCUMENTS, BUILT_IN
    ).device_classes

    assert (found.measure, found.resource) == (Measure.DEVICES, "nvidia.com/gpu")


def test_two_device_classes_with_one_extended_name() -> None:
    """The scheduler takes the newest; which one that is may change, so one with GPUs is enough."""
    nic = device_class("device.driver == 'dra.net'", name="a-nic", extended="example.com/card")
    gpu = device_class("device.driver == 'gpu.nvidia.com'", name="b-gpu", extended="example.com/card")

    derived = device_class_mapping([nic, gpu], NO_DOCUMENTS, BUILT_IN)

    assert ResourceMapping((derived,)).resource("example.com/card") is not None


@cases(
    ("expressions", "unknown", "want"),
    gpus=(["device.driver == 'gpu.nvidia.com'"], UnknownDeviceClasses.IGNORE, ()),
    known_to_be_none=(["device.driver == 'dra.net'"], UnknownDeviceClasses.COUNT, ()),
    other_driver=(["device.driver == 'x.example'"], UnknownDeviceClasses.COUNT, ("mine",)),
    unknown_and_counted=([], UnknownDeviceClasses.COUNT, ()),
    unknown_and_ignored=([], UnknownDeviceClasses.IGNORE, ("mine",)),
)
def test_device_classes_that_nothing_charges(
    expressions: list[str], unknown: UnknownDeviceClasses, want: tuple[str, ...]
) -> None:
    classes = [device_class(*expressions)]
    derived = device_class_mapping(classes, NO_DOCUMENTS, BUILT_IN)
    policy = ResourceMappingSpec(unknown_device_classes=unknown)
    in_force = ResourceMapping((policy, derived, *BUILT_IN.specs))

    assert unmapped_device_classes(classes, BUILT_IN, in_force) == want


def test_the_kinds_that_each_device_class_may_select() -> None:
    kinds = DeviceTypes(tuple(DeviceType(driver=driver) for driver in ("gpu.amd.com", "gpu.nvidia.com")))
    classes = [
        device_class("device.driver == 'gpu.amd.com'", name="a"),
        device_class(name="any"),
        device_class("device.driver == 'x.com'", name="b"),
    ]
    found = device_class_mapping(classes, NO_DOCUMENTS, BUILT_IN, kinds)
    assert (found.device_types, found.types_by_class) == (kinds, {"a": (0,), "any": (0, 1), "b": ()})
    assert device_class_mapping(classes, NO_DOCUMENTS, BUILT_IN).types_by_class == {}
