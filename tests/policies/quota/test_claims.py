"""What a ResourceClaim costs, in every version of its API, and which claims cost nothing because their pod does already."""

from typing import Any

import msgspec
import pytest

from policies.finding import Severity
from policies.quota.amounts import parse_vector, texts
from policies.quota.charge import Unpinned
from policies.quota.claims import (
    EXTENDED_RESOURCE_CLAIM,
    decode_claim,
    decode_claim_template,
    is_charged_with_its_pod,
    template_findings,
)
from tests.builders import JSON, context
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING, charged_claim

PREFIX = "resources/deviceclass.resource.kubernetes.io/"
GPU, H100, LARGE, ANY = "gpu.nvidia.com", "h100.example.com", "large.example.com", "any.example.com"


def claim(*requests: JSON) -> JSON:
    named = [{"name": f"request-{index}", **request} for index, request in enumerate(requests)]
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": named}}}


def devices(device_class: str, **more: Any) -> JSON:
    return {"deviceClassName": device_class, **more}


def exactly(device_class: str, **more: Any) -> JSON:
    return {"exactly": devices(device_class, **more)}


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(claim(), {}, id="no-requests"),
        pytest.param({"kind": "ResourceClaim", "spec": {}}, {}, id="no-devices"),
        pytest.param({"kind": "ResourceClaim"}, {}, id="no-spec"),
        pytest.param(claim(exactly(GPU)), {"gpus": "1", PREFIX + GPU: "1"}, id="one-by-default"),
        pytest.param(
            claim(exactly(GPU, allocationMode="ExactCount", count=3)),
            {"gpus": "3", PREFIX + GPU: "3"},
            id="exact-count",
        ),
        pytest.param(
            claim(devices(GPU, allocationMode="ExactCount", count=3)),
            {"gpus": "3", PREFIX + GPU: "3"},
            id="flat-as-in-v1beta1",
        ),
        pytest.param(
            claim(exactly(GPU, allocationMode="All")),
            {"gpus": "32", PREFIX + GPU: "32"},
            id="all-is-the-most",
        ),
        pytest.param(
            claim(devices(GPU, allocationMode="All")),
            {"gpus": "32", PREFIX + GPU: "32"},
            id="all-flat",
        ),
        pytest.param(
            claim(exactly(GPU, count=2), exactly(GPU)), {"gpus": "3", PREFIX + GPU: "3"}, id="requests-add-up"
        ),
        pytest.param(claim(exactly(GPU, adminAccess=True)), {}, id="administrators-take-nothing"),
        pytest.param(claim(devices(GPU, adminAccess=True)), {}, id="administrators-flat"),
        pytest.param(claim(exactly("nic.vendor.com", count=8)), {}, id="no-gpu"),
        pytest.param(
            claim(exactly("nic.vendor.com", allocationMode="Later")), {}, id="no-gpu-whatever-its-mode"
        ),
        pytest.param(
            claim(exactly(H100, count=2)),
            {"classes/nvidia-h100": "2", "gpus": "2", PREFIX + H100: "2"},
            id="a-device-class-of-one-gpu-class",
        ),
        pytest.param(
            claim(exactly(LARGE)),
            {"classes/nvidia-h100": "1", "classes/nvidia-h200": "1", "gpus": "1", PREFIX + LARGE: "1"},
            id="a-device-class-of-two-families",
        ),
        pytest.param(
            claim({"firstAvailable": [devices(H100), devices(GPU, count=4), devices(H100, count=2)]}),
            {"classes/nvidia-h100": "2", "gpus": "4", PREFIX + GPU: "4", PREFIX + H100: "2"},
            id="of-alternatives-the-most-of-each",
        ),
        pytest.param(
            claim({"firstAvailable": [devices(GPU), devices("nic.vendor.com")]}, exactly(GPU)),
            {"gpus": "2", PREFIX + GPU: "2"},
            id="alternatives-and-one-more",
        ),
    ],
)
def test_claims(document: JSON, want: dict[str, str]) -> None:
    charge = charged_claim(document)

    assert texts(charge.vector) == want
    assert charge.denials == ()


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        pytest.param(
            claim(exactly(GPU, allocationMode="Half")),
            "spec.devices.requests[0].exactly.allocationMode",
            "must be ExactCount or All",
            id="unknown-mode",
        ),
        pytest.param(
            claim(exactly(GPU), devices(GPU, allocationMode="Half")),
            "spec.devices.requests[1].allocationMode",
            "must be ExactCount or All",
            id="unknown-mode-flat",
        ),
        pytest.param(
            claim({"firstAvailable": [devices(GPU), devices(GPU, allocationMode="Half")]}),
            "spec.devices.requests[0].firstAvailable[1].allocationMode",
            "must be ExactCount or All",
            id="unknown-mode-of-an-alternative",
        ),
        pytest.param(
            claim({"anyOf": []}),
            "spec.devices.requests[0]",
            "must be a kind of request that a quota can count",
            id="unknown-kind-of-request",
        ),
        pytest.param(
            claim(exactly(GPU, count=-1)),
            "spec.devices.requests[0].exactly.count",
            "must be at least 1",
            id="negative-count",
        ),
    ],
)
def test_what_cannot_be_counted_is_a_denial(document: JSON, path: str, message: str) -> None:
    denials = charged_claim(document).denials

    assert [(each.path, each.message, each.severity) for each in denials] == [
        (path, message, Severity.DENIAL)
    ]


@pytest.mark.parametrize(
    ("device_class", "unpinned", "want", "denials"),
    [
        pytest.param(GPU, Unpinned.TOTAL_ONLY, set(), 0, id="total-only"),
        pytest.param(GPU, Unpinned.DENY, set(), 1, id="refuse"),
        pytest.param(H100, Unpinned.DENY, {"nvidia-h100"}, 0, id="refuse-knows-this-one"),
        pytest.param(
            GPU,
            Unpinned.MOST_EXPENSIVE,
            {
                "nvidia-a100",
                "nvidia-a100-40gb",
                "nvidia-a100-80gb",
                "nvidia-h100",
                "nvidia-h200",
                "nvidia-t4",
                "t4-shared",
            },
            0,
            id="dearest-is-all-of-the-vendor",
        ),
        pytest.param(
            ANY,
            Unpinned.MOST_EXPENSIVE,
            {
                "amd-mi300x",
                "nvidia-a100",
                "nvidia-a100-40gb",
                "nvidia-a100-80gb",
                "nvidia-h100",
                "nvidia-h200",
                "nvidia-t4",
                "t4-shared",
            },
            0,
            id="dearest-of-nobody-knows-whose",
        ),
    ],
)
def test_claims_of_no_class_in_particular(
    device_class: str, unpinned: Unpinned, want: set[str], denials: int
) -> None:
    charge = charged_claim(claim(exactly(device_class)), unpinned)

    assert set(charge.classes) == want
    assert len(charge.denials) == denials
    if denials:
        assert charge.denials[0].sentence() == (
            'spec.devices.requests[0].exactly.deviceClassName = "gpu.nvidia.com": must name a GPU class, because '
            "the quota of this namespace counts GPUs by class: device class gpu.nvidia.com is of no GPU class in "
            "particular; set the nodeSelector of the pod or the deviceClassName of the claim [gpu-quota]"
        )


def test_a_claim_says_why() -> None:
    charge = charged_claim(claim(exactly(H100), exactly(LARGE)))

    assert charge.classes == ("nvidia-h100", "nvidia-h200")
    assert charge.because == "device class h100.example.com and device class large.example.com"


def test_a_field_of_the_wrong_type_is_told_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.devices\.requests\[0\]\.exactly\.count"):
        charged_claim(claim(exactly(GPU, count="two")))


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "pod-1", "controller": True}


@pytest.mark.parametrize(
    ("annotation", "owner", "by_scheduler", "want"),
    [
        pytest.param("true", OWNER, True, True, id="the-schedulers-own"),
        pytest.param("true", OWNER, False, False, id="anybodys-with-the-same-words"),
        pytest.param("false", OWNER, True, False, id="annotated-otherwise"),
        pytest.param(None, OWNER, True, False, id="not-annotated"),
        pytest.param("true", None, True, False, id="nobodys"),
        pytest.param("true", {**OWNER, "uid": "pod-2"}, True, False, id="of-a-pod-that-is-not-charged"),
        pytest.param("true", {**OWNER, "controller": False}, True, False, id="owned-but-not-controlled"),
        pytest.param("true", {**OWNER, "kind": "Job"}, True, False, id="of-another-kind"),
        pytest.param("true", {**OWNER, "apiVersion": "x/v1"}, True, False, id="of-another-api"),
    ],
)
def test_claims_that_are_charged_with_their_pod(
    annotation: str | None, owner: JSON | None, by_scheduler: bool, want: bool
) -> None:
    annotations = {} if annotation is None else {EXTENDED_RESOURCE_CLAIM: annotation}
    metadata = {"annotations": annotations, "ownerReferences": [owner] if owner else None}
    decoded = decode_claim(msgspec.json.encode({**claim(exactly(GPU)), "metadata": metadata}))

    assert is_charged_with_its_pod(decoded, by_scheduler=by_scheduler, charged_pods={"pod-1"}) is want


@pytest.mark.parametrize(
    ("requests", "hard", "unpinned", "want"),
    [
        pytest.param([exactly(GPU, count=4)], {"gpus": "4"}, Unpinned.TOTAL_ONLY, [], id="just-fits"),
        pytest.param(
            [exactly(GPU, count=40)], {"classes/nvidia-t4": "1"}, Unpinned.TOTAL_ONLY, [], id="unlimited"
        ),
        pytest.param(
            [exactly(H100, count=4), exactly(H100)],
            {"gpus": "4", "classes/nvidia-h100": "2"},
            Unpinned.TOTAL_ONLY,
            [
                "spec.spec.devices.requests: exceeds the quota, so no claim can be made from this template, "
                "requested: classes/nvidia-h100=5, gpus=5, limited: classes/nvidia-h100=2, gpus=4; "
                "request fewer devices [gpu-quota]"
            ],
            id="never-fits",
        ),
        pytest.param(
            [exactly(GPU, allocationMode="Half")],
            {"gpus": "4"},
            Unpinned.TOTAL_ONLY,
            [
                'spec.spec.devices.requests[0].exactly.allocationMode = "Half": must be ExactCount or All; set '
                "allocationMode ExactCount with a count, or All [gpu-quota]"
            ],
            id="would-be-denied",
        ),
    ],
)
def test_templates(requests: list[JSON], hard: dict[str, str], unpinned: Unpinned, want: list[str]) -> None:
    document = {"kind": "ResourceClaimTemplate", "spec": {"spec": claim(*requests)["spec"]}}
    found = list(
        template_findings(
            decode_claim_template(msgspec.json.encode(document)),
            parse_vector(hard),
            context(classes=CLASSES, resource_mapping=RESOURCE_MAPPING),
            unpinned,
        )
    )

    assert [finding.sentence() for finding in found] == want
    assert all(finding.severity is Severity.WARNING for finding in found)
