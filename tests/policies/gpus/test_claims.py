"""What the claims of a pod ask for, and which of them rules do not see."""

from typing import Any

import msgspec

from policies.gpus.claims import (
    as_rules_see_it,
    decode_claim,
    device_class_names,
)
from policies.gpus.resource_mapping import (
    DeviceClassPattern,
    Measure,
    ResourceMapping,
    ResourceMappingSpec,
    UnknownDeviceClasses,
)
from policies.pods.pod import Pod
from tests.builders import JSON, container, pod, view
from tests.cases import cases

GPU = DeviceClassPattern(pattern="gpu.example.com", resource="example.com/gpu")
NIC = DeviceClassPattern(pattern="nic.example.com", measure=Measure.NOTHING)
MAPPING = ResourceMapping((ResourceMappingSpec(device_classes=(GPU, NIC)),))


def classes(*names: str) -> frozenset[str]:
    return frozenset(names)


def claiming(*names: str) -> Pod:
    """Return a pod with the claims, which its init container and its container use."""
    uses = {"claims": [{"name": name} for name in names], "limits": {"cpu": "1"}}
    return view(
        pod(
            container(resources=uses),
            initContainers=[container("first", resources=uses)],
            resourceClaims=[
                {"name": name, "resourceClaimTemplateName": f"{name}-template"} for name in names
            ],
        )
    )


def exactly(name: str) -> JSON:
    return {"name": "wanted", "exactly": {"deviceClassName": name}}


@cases(
    ("requests", "named"),
    {
        "v1": ([exactly("gpu.example.com")], {"gpu.example.com"}),
        "v1beta1": ([{"name": "flat", "deviceClassName": "gpu.example.com"}], {"gpu.example.com"}),
        "two-requests": (
            [exactly("gpu.example.com"), exactly("nic.example.com")],
            {"gpu.example.com", "nic.example.com"},
        ),
        "alternatives": (
            [{"name": "any", "firstAvailable": [{"deviceClassName": "a"}, {"deviceClassName": "b"}]}],
            {"a", "b"},
        ),
        "a-kind-of-request-that-nobody-knows": ([{"name": "new", "byMagic": {}}], None),
        "one-of-them-is-unknown": ([exactly("nic.example.com"), {"name": "new"}], None),
        "nothing": ([], set()),
    },
)
def test_the_device_classes_of_a_claim(requests: list[JSON], named: set[str] | None) -> None:
    claim = decode_claim(msgspec.json.encode({"spec": {"devices": {"requests": requests}}}))

    assert device_class_names(claim.spec) == named


GPU_CLASS, NIC_CLASS, WHAT_CLASS = "gpu.example.com", "nic.example.com", "what.example.com"


@cases(
    ("known", "left", "claimed"),
    {
        "a-nic": ({"a": classes(NIC_CLASS)}, [], ()),
        "nothing-is-requested": ({"a": classes()}, [], ()),
        "a-gpu": ({"a": classes(GPU_CLASS)}, ["a"], (GPU_CLASS,)),
        "a-gpu-and-a-nic-in-one-claim": ({"a": classes(GPU_CLASS, NIC_CLASS)}, ["a"], (GPU_CLASS,)),
        "nobody-knows-the-claim": ({}, ["a"], ()),
        "nothing-says-what-the-device-class-has": ({"a": classes(WHAT_CLASS)}, ["a"], ()),
        "a-gpu-and-perhaps-more": ({"a": classes(GPU_CLASS, WHAT_CLASS)}, ["a"], (GPU_CLASS,)),
    },
)
def test_the_claims_that_rules_see(
    known: dict[str, frozenset[str]], left: list[str], claimed: tuple[str, ...]
) -> None:
    seen, found = as_rules_see_it(claiming("a"), known, MAPPING)

    assert found == claimed
    assert [each.name for each in seen.spec.resource_claims or ()] == left
    for place in seen.places:
        uses = place.container.resources
        assert uses is not None
        assert [each.name for each in uses.claims or ()] == left
        assert uses.limits == {"cpu": "1"}
    assert MAPPING.pod_asks(seen) == bool(left)


IGNORING = ResourceMapping(
    (ResourceMappingSpec(device_classes=(GPU, NIC), unknown_device_classes=UnknownDeviceClasses.IGNORE),)
)


@cases(
    ("mapping", "of_a", "of_b"),
    {
        "of-a-nic": (MAPPING, classes("nic.example.com"), classes("gpu.example.com")),
        "of-what-is-ignored": (
            IGNORING,
            classes("what.example.com"),
            classes("gpu.example.com", "what.example.com"),
        ),
    },
)
def test_a_claim_beside_one_of_a_gpu_is_not_seen(mapping: ResourceMapping, of_a: Any, of_b: Any) -> None:
    seen, claimed = as_rules_see_it(claiming("a", "b"), {"a": of_a, "b": of_b}, mapping)

    assert claimed == ("gpu.example.com",)
    assert seen == claiming("b")


def test_lists_of_containers_that_are_missing_stay_missing() -> None:
    """What a rule adds to an empty list is added behind its last item, and a list that is not there has none."""
    document = pod(resourceClaims=[{"name": "a", "resourceClaimName": "mine"}])

    seen, _ = as_rules_see_it(view(document), {"a": classes("nic.example.com")}, MAPPING)

    assert seen.spec.init_containers is None


def test_a_pod_without_claims_is_itself() -> None:
    plain = view(pod())

    assert as_rules_see_it(plain, {}, MAPPING) == (plain, ())
    assert as_rules_see_it(plain, {}, MAPPING)[0] is plain
