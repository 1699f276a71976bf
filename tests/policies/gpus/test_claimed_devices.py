"""What the claims of a pod ask for, and which of them rules do not see."""

from collections.abc import Sequence
from typing import Any

import msgspec

from policies.gpus.claimed_devices import (
    CLAIM,
    TEMPLATE,
    ClaimName,
    ClaimRequest,
    ClaimSpec,
    DeviceQuery,
    DeviceRequest,
    Devices,
    RequestedDevices,
    accelerator_classes,
    claim_request,
    decode_claim,
    devices_by_claim,
    requested_devices,
    without_other_claims,
)
from policies.gpus.mapping_spec import DeviceClassPattern, Measure, ResourceMappingSpec, UnknownDeviceClasses
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Pod, Toleration
from tests.builders import JSON, container, pod, view
from tests.cases import cases

GPU_CLASS, NIC_CLASS, WHAT_CLASS = "gpu.example.com", "nic.example.com", "what.example.com"
Known = dict[str, RequestedDevices]
GPU = DeviceClassPattern(pattern=GPU_CLASS, resource="example.com/gpu")
NIC = DeviceClassPattern(pattern=NIC_CLASS, measure=Measure.NOTHING)
MAPPING = ResourceMapping((ResourceMappingSpec(device_classes=(GPU, NIC)),))


def classes(*names: str) -> RequestedDevices:
    return frozenset(map(DeviceQuery, names))


@cases(
    ("owner", "made_for"),
    of_a_pod=({"apiVersion": "v1", "kind": "Pod", "controller": True}, "Pod"),
    of_a_pod_group=(
        {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "controller": True}, "PodGroup",
    ),
    of_a_pod_that_does_not_control_it=({"apiVersion": "v1", "kind": "Pod"}, ""),
    of_a_job=({"apiVersion": "batch/v1", "kind": "Job", "controller": True}, ""),
    of_a_pod_of_an_unknown_group=({"apiVersion": "example.com/v1", "kind": "Pod", "controller": True}, ""),
    of_a_pod_group_of_another_project=(
        {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "controller": True}, "",
    ),
)  # fmt: skip
def test_records_of_claims_and_templates(owner: JSON, made_for: str) -> None:
    metadata = {"name": "c", "namespace": "team", "uid": "u", "ownerReferences": [{"name": "o", **owner}]}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}

    for kind, written in ((CLAIM, spec), (TEMPLATE, {"spec": spec})):
        found = claim_request(kind, msgspec.json.encode({"metadata": metadata, "spec": written}))
        name = ClaimName(kind, "team", "c")
        assert found == ClaimRequest("u", name, classes("gpu.example.com"), made_for)
        assert found.namespace == "team"
    assert claim_request(TEMPLATE, b"{}") == ClaimRequest("", ClaimName(TEMPLATE, "", ""), classes())


def test_what_a_pod_requests_by_claims() -> None:
    known = {
        ClaimName(TEMPLATE, "team", "t"): classes("gpu.example.com"),
        ClaimName(CLAIM, "team", "c"): classes("nic.example.com"),
        ClaimName(CLAIM, "elsewhere", "far"): classes("gpu.example.com"),
    }
    written: list[JSON] = [
        {"name": "by-template", "resourceClaimTemplateName": "t"},
        {"name": "by-claim", "resourceClaimName": "c"},
        {"name": "of-another-namespace", "resourceClaimName": "far"},
        {"name": "a-template-of-that-name", "resourceClaimTemplateName": "c"},
        {"name": "nameless"},
    ]

    found = devices_by_claim(view(pod(resourceClaims=written)), "team", known.get)

    assert found == {"by-template": classes("gpu.example.com"), "by-claim": classes("nic.example.com")}


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
    v1=([exactly(GPU_CLASS)], {GPU_CLASS}),
    v1beta1=([{"name": "flat", "deviceClassName": GPU_CLASS}], {GPU_CLASS}),
    two_requests=([exactly(GPU_CLASS), exactly(NIC_CLASS)], {GPU_CLASS, NIC_CLASS}),
    either=([{"firstAvailable": [{"deviceClassName": "a"}, {"deviceClassName": "b"}]}], {"a", "b"}),
    a_kind_of_request_that_nobody_knows=([{"name": "new", "byMagic": {}}], None),
    one_of_them_is_unknown=([exactly(NIC_CLASS), {"name": "new"}], None),
    as_many_as_are_read=(
        [exactly(f"c{number}") for number in range(8)],
        {f"c{number}" for number in range(8)},
    ),
    one_more=([exactly(f"c{number}") for number in range(9)], None),
    nothing=([], set()),
)
def test_the_device_classes_of_a_claim(requests: list[JSON], named: set[str] | None) -> None:
    claim = decode_claim(msgspec.json.encode({"spec": {"devices": {"requests": requests}}}))

    assert requested_devices(claim.spec) == (None if named is None else classes(*named))


@cases(
    ("counts", "number"),
    one=([3], 3),
    many_that_differ_only_in_it=(range(1, 33), None),
    several_that_are_equal=([2, 2], None),
)
def test_requests_that_differ_only_in_number_are_one_query(counts: Sequence[int], number: int | None) -> None:
    requests = tuple(DeviceRequest(device_class_name=GPU_CLASS, count=each) for each in counts)

    found = requested_devices(ClaimSpec(devices=Devices(requests=requests)))

    assert found == frozenset({DeviceQuery(GPU_CLASS, device_count=number)})


def tolerating(number: int, length: int = 63) -> tuple[Toleration, ...]:
    return tuple(Toleration(key=f"example.com/{index}".ljust(length, "x")) for index in range(number))


@cases(
    ("tolerations", "kept"),
    few=(tolerating(16, 20), tolerating(16, 20)),
    more_than_are_kept=(tolerating(16, 300), (Toleration(operator="Exists"),)),
)
def test_a_claim_is_kept_with_few_tolerations(
    tolerations: tuple[Toleration, ...], kept: tuple[Toleration, ...]
) -> None:
    """Each process keeps the claims of all namespaces."""
    request = DeviceRequest(device_class_name=GPU_CLASS, tolerations=tolerations)
    claim = ClaimSpec(devices=Devices(requests=(request,)))

    assert requested_devices(claim) == frozenset({DeviceQuery(GPU_CLASS, tolerations=kept)})


@cases(
    ("known", "left", "claimed"),
    a_nic=({"a": classes(NIC_CLASS)}, [], ()),
    nothing_is_requested=({"a": classes()}, [], ()),
    a_gpu=({"a": classes(GPU_CLASS)}, ["a"], (GPU_CLASS,)),
    a_gpu_and_a_nic_in_one_claim=({"a": classes(GPU_CLASS, NIC_CLASS)}, ["a"], (GPU_CLASS,)),
    nobody_knows_the_claim=({}, ["a"], ()),
    nothing_says_what_the_device_class_has=({"a": classes(WHAT_CLASS)}, ["a"], ()),
    a_gpu_and_perhaps_more=({"a": classes(GPU_CLASS, WHAT_CLASS)}, ["a"], (GPU_CLASS,)),
)
def test_the_claims_that_rules_see(known: Known, left: list[str], claimed: tuple[str, ...]) -> None:
    seen = without_other_claims(claiming("a"), known, MAPPING)

    assert accelerator_classes(claiming("a"), known, MAPPING) == claimed
    assert [each.name for each in seen.spec.resource_claims or ()] == left
    for place in seen.places:
        uses = place.container.resources
        assert uses is not None
        assert [each.name for each in uses.claims or ()] == left
        assert uses.limits == {"cpu": "1"}
    assert MAPPING.pod_requests_gpus(seen) == bool(left)


IGNORING = ResourceMapping(
    (ResourceMappingSpec(device_classes=(GPU, NIC), unknown_device_classes=UnknownDeviceClasses.IGNORE),)
)


@cases(
    ("mapping", "of_a", "of_b"),
    of_a_nic=(MAPPING, classes(NIC_CLASS), classes(GPU_CLASS)),
    ignored=(IGNORING, classes(WHAT_CLASS), classes(GPU_CLASS, WHAT_CLASS)),
)
def test_a_claim_beside_one_of_a_gpu_is_not_seen(mapping: ResourceMapping, of_a: Any, of_b: Any) -> None:
    known = {"a": of_a, "b": of_b}
    seen = without_other_claims(claiming("a", "b"), known, mapping)

    assert accelerator_classes(claiming("a", "b"), known, mapping) == (GPU_CLASS,)
    assert seen == claiming("b")


def test_lists_of_containers_that_are_missing_stay_missing() -> None:
    """What a rule adds to an empty list is added behind its last item, and a list that is not there has none."""
    document = pod(resourceClaims=[{"name": "a", "resourceClaimName": "mine"}])

    seen = without_other_claims(view(document), {"a": classes(NIC_CLASS)}, MAPPING)

    assert seen.spec.init_containers is None


def test_a_pod_without_claims_is_itself() -> None:
    plain = view(pod())

    assert accelerator_classes(plain, {}, MAPPING) == ()
    assert without_other_claims(plain, {}, MAPPING) is plain
