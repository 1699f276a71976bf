"""LimitRanges: what they say together, and what the API server's annotation says it took from them."""

import json

import pytest

from policies.pods.defaults_annotation import LONGEST_DEFAULTS, annotated_defaults, default_text
from policies.pods.limit_ranges import ResourceBounds, decode_limit_range, namespace_limits
from policies.pods.quantity import parse_quantity
from tests.builders import JSON, container, pod, view
from tests.cases import cases

NONE = ResourceBounds()
ONE, TWO, FOUR, EIGHT = map(parse_quantity, (1, 2, 4, 8))


def of(*items: JSON) -> bytes:
    return json.dumps({"spec": {"limits": list(items)}}).encode()


def in_container(**amounts: JSON) -> JSON:
    return {"type": "Container", **amounts}


@cases(
    ("documents", "cpu", "memory"),
    none=([], NONE, NONE),
    without_a_spec=([b"{}", b'{"spec": null}', b'{"spec": {"limits": null}}'], NONE, NONE),
    of_a_container=(
        [of(in_container(min={"cpu": 1}, max={"cpu": 8}, default={"cpu": 4}, defaultRequest={"cpu": "2"}))],
        ResourceBounds(defaults=frozenset({TWO, FOUR}), container_min=ONE, container_max=EIGHT),
        NONE,
    ),
    of_a_pod=(
        [of({"type": "Pod", "min": {"memory": "1"}, "max": {"memory": "8"}})],
        NONE,
        ResourceBounds(pod_min=ONE, pod_max=EIGHT),
    ),
    all_of_several_hold=(
        [
            of(in_container(max={"cpu": 8}, min={"cpu": 1}), in_container(max={"cpu": 4})),
            of(in_container(min={"cpu": 2})),
        ],
        ResourceBounds(defaults=frozenset({TWO, FOUR, EIGHT}), container_min=TWO, container_max=FOUR),
        NONE,
    ),
    what_is_stored_elsewhere=(
        [of({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi", "cpu": "1"}})],
        NONE,
        NONE,
    ),
    an_amount_that_is_no_quantity=([of(in_container(max={"cpu": "many", "memory": "1"}))], None,
        ResourceBounds(defaults=frozenset({ONE}), container_max=ONE)),
    a_ratio_in_the_pod=([of({"type": "Pod", "maxLimitRequestRatio": {"memory": "2"}})], NONE, ResourceBounds(has_ratio=True)),
    a_ratio_in_a_container=([of(in_container(maxLimitRequestRatio={"memory": "2"}))], NONE, NONE),
)  # fmt: skip
def test_what_holds(
    documents: list[bytes], cpu: ResourceBounds | None, memory: ResourceBounds | None
) -> None:
    found = namespace_limits(map(decode_limit_range, documents))

    assert (found.of("cpu"), found.of("memory")) == (cpu, memory)


@cases(
    ("annotation", "want"),
    as_the_api_server_writes_it=(
        "LimitRanger plugin set: cpu, memory request for container main; cpu limit for container main; "
        "memory request for init container warm",
        {
            "cpu request for container main",
            "memory request for container main",
            "cpu limit for container main",
            "memory request for init container warm",
        },
    ),
    of_somebody_else=("set: cpu request for container main", set()),
    too_long=(f"LimitRanger plugin set: {'x' * LONGEST_DEFAULTS}", set()),
)
def test_stated_defaults(annotation: str, want: set[str]) -> None:
    document = pod(container(), annotations={"kubernetes.io/limit-ranger": annotation})

    assert annotated_defaults(view(document)) == want


@pytest.mark.parametrize(
    "annotation", ["", "LimitRanger plugin set: ", "LimitRanger plugin set: ; for ; a for b"]
)
def test_nonsense_lists_no_default_of_a_container(annotation: str) -> None:
    document = view(pod(container(), annotations={"kubernetes.io/limit-ranger": annotation}))
    (place,) = document.places

    assert default_text(place, "request", "cpu") not in annotated_defaults(document)
