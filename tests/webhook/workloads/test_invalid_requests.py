"""Requests of ResourceClaims that the API server rejects, by version."""

from typing import Any

import yaml

from tests.cases import cases
from webhook.workloads.misplaced import invalid_requests

ONE = "spec.devices.requests[0]"
ELSEWHERE = "must be set, or firstAvailable: resource.k8s.io/{} reads no device anywhere else"
CARD = "deviceClassName: gpu.nvidia.com"


def found(version: str, *requests: str) -> list[tuple[str, list[str]]]:
    """Return the sentences and choices for the requests of a claim, each in YAML."""
    spec = {"devices": {"requests": [yaml.safe_load(f"{{name: gpu, {each}}}") for each in requests]}}
    data: dict[str, Any] = {"apiVersion": f"resource.k8s.io/{version}", "spec": spec}
    return [
        (each.sentence(), [edit.words for choice in each.choices for edit in choice])
        for each in invalid_requests(data, ("spec",))
    ]


@cases(
    ("version", "request_"),
    exact=("v1", f"exactly: {{{CARD}}}"),
    alternatives=("v1", f"firstAvailable: [{{name: a, {CARD}}}]"),
    in_the_request=("v1beta1", f"{CARD}, count: 2"),
    alternatives_of_v1beta1=("v1beta1", f"firstAvailable: [{{name: a, {CARD}}}]"),
    exact_of_v1beta2=("v1beta2", f"exactly: {{{CARD}}}"),
    a_version_that_is_not_known=("v2", CARD),
    a_value_of_a_tool=("v1", "exactly: '{{ .Values.gpu }}'"),
)
def test_requests_that_are_where_their_version_reads_them(version: str, request_: str) -> None:
    assert found(version, request_) == []


@cases(
    ("version", "request_", "sentence", "choice"),
    fields_of_v1beta1_in_v1=(
        "v1",
        f"{CARD}, count: 2",
        f"{ONE}.exactly: write its fields below exactly; {ELSEWHERE.format('v1')}",
        [
            "remove deviceClassName",
            "remove count",
            "set exactly: {deviceClassName: gpu.nvidia.com, count: 2}",
        ],
    ),
    fields_of_v1beta1_in_v1beta2=(
        "v1beta2",
        CARD,
        f"{ONE}.exactly: write its fields below exactly; {ELSEWHERE.format('v1beta2')}",
        ["remove deviceClassName", "set exactly: {deviceClassName: gpu.nvidia.com}"],
    ),
    fields_of_v1_in_v1beta1=(
        "v1beta1",
        f"exactly: {{{CARD}, count: 2}}",
        f"{ONE}.deviceClassName: write the fields of exactly into the request; {ELSEWHERE.format('v1beta1')}",
        ["remove exactly", "set deviceClassName: gpu.nvidia.com", "set count: 2"],
    ),
    nothing_in_v1=("v1", "count: 2", f"{ONE}.exactly: {ELSEWHERE.format('v1')}", []),
    nothing_in_v1beta1=("v1beta1", "count: 2", f"{ONE}.deviceClassName: {ELSEWHERE.format('v1beta1')}", []),
    both=(
        "v1",
        f"exactly: {{{CARD}}}, firstAvailable: [{{name: a, {CARD}}}]",
        f"{ONE}.exactly: remove exactly; must not be set beside firstAvailable",
        ["remove exactly"],
    ),
    both_in_v1beta1=(
        "v1beta1",
        f"{CARD}, firstAvailable: [{{name: a, {CARD}}}]",
        f"{ONE}.deviceClassName: remove deviceClassName; must not be set beside firstAvailable",
        ["remove deviceClassName"],
    ),
    an_exact_request_without_a_class=(
        "v1",
        "exactly: {count: 2}",
        f"{ONE}.exactly.deviceClassName: must be set",
        [],
    ),
    an_alternative_without_a_class=(
        "v1beta1",
        f"firstAvailable: [{{name: a, {CARD}}}, {{name: b}}]",
        f"{ONE}.firstAvailable[1].deviceClassName: must be set",
        [],
    ),
)
def test_requests_that_the_api_server_refuses(
    version: str, request_: str, sentence: str, choice: list[str]
) -> None:
    assert found(version, request_) == [(f"{sentence} [ineffective-fields]", choice)]
