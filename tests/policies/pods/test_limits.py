"""Pods that are longer than any rule reads."""

from typing import Any

import msgspec
import pytest

from policies.pods import annotations
from policies.pods.limits import check_size, excesses
from policies.pods.pod import Metadata, OwnerReference
from tests.builders import JSON, container, gpu_container, pod, view
from tests.cases import cases
from tests.webhook.serving.long_objects import LISTS, Long

COUNTED = {
    "affinity-values": "values in all terms",
    "excluded-affinity-values": "values in all terms",
    "requirements": "requirements in all terms",
    "preferences": "requirements in all terms",
    "amounts-of-the-same-slices": "amounts of resources in all containers",
    "amounts-of-slices-of-each-container": "amounts of resources in all containers",
    "a-model-uri": "characters",
    "volumes-of-devices": "with a hostPath",
    "long-paths": "characters in all hostPaths",
    "variables-of-all-containers": "items of env, envFrom and volumeMounts in all containers",
    "names-of-resources": "characters of resource names in all containers",
}
"""What has a limit that is not the length of a list, by the name of the long object."""
STEPS = {
    "amounts-of-the-same-slices": 16,
    "amounts-of-slices-of-each-container": 16,
    "variables-of-all-containers": 16,
    "long-paths": 8,
    "names-of-resources": 8,
}
"""How many there are more in the next longer object."""


@pytest.mark.parametrize("long", [pytest.param(each, id=each[0]) for each in LISTS])
def test_every_list_has_a_limit_that_is_named_with_its_path(long: Long) -> None:
    name, make, limit, path = long
    what = COUNTED.get(name, "items")
    step = STEPS.get(name, 1)

    assert excesses(view(make(limit))) == []
    above = [found for found in excesses(view(make(limit + step))) if found.path == path]
    assert len(above) == 1
    assert above[0].message == f"must have at most {limit} {what}, not {limit + step}"


LONG_NAME = "nvidia.com/" + "a" * 307


@cases(
    ("document", "want"),
    the_name_of_a_resource=(
        pod(gpu_container(resource=LONG_NAME)),
        "spec.containers[0].resources: must have at most 317 characters in a name, not 318 [limits]",
    ),
    the_name_of_a_resource_of_the_pod=(
        pod(gpu_container(), resources={"limits": {LONG_NAME: "1"}}),
        "spec.resources: must have at most 317 characters in a name, not 318 [limits]",
    ),
    the_name_of_a_container=(
        pod(container("c" * 400)),
        "spec.containers[0].name: must have at most 317 characters, not 400 [limits]",
    ),
    overhead=(
        pod(gpu_container(), overhead={f"example.com/r{number}": "1" for number in range(65)}),
        "spec.overhead: must have at most 64 items, not 65 [limits]",
    ),
    ephemeral_containers=(
        pod(gpu_container(), ephemeralContainers=[container(f"e{number}") for number in range(129)]),
        "spec.ephemeralContainers: must have at most 128 items, not 129 [limits]",
    ),
    an_annotation_that_a_rule_reads=(
        pod(gpu_container(), annotations={annotations.GPU_CLASS: "x" * 5000}),
        "metadata.annotations[gpu-admission.dev/gpu-class]: must have at most 4096 characters, not 5000 [limits]",
    ),
)
def test_lengths_above_their_limit(document: JSON, want: str) -> None:
    assert [found.sentence() for found in excesses(view(document))] == [want]


def test_the_name_of_a_controller_is_cut() -> None:
    owner = OwnerReference(kind="Job", name="n" * 1000, controller=True)

    assert len(Metadata(owner_references=(owner,)).controlled_by) == 256


@cases(
    "metadata",
    of_others={"kubectl.kubernetes.io/last-applied-configuration": "x" * 200_000},
    written_by_us={annotations.INJECTED: "x" * 200_000},
)
def test_annotations_that_no_rule_reads_may_be_long(metadata: dict[str, str]) -> None:
    assert excesses(view(pod(gpu_container(), annotations=metadata))) == []


@cases(
    ("value", "want"),
    as_many_values_as_are_read=([0] * 20_001, None),
    one_more=([0] * 20_002, "must have at most 20000 values, not 20001 (its commas)"),
    a_million=([{}] * 1_000_000, "must have at most 20000 values, not 999999 (its commas)"),
)
def test_an_object_of_too_many_values_is_not_decoded(value: Any, want: str | None) -> None:
    document = msgspec.Raw(msgspec.json.encode(value))
    if want is None:
        assert check_size(document) is document
        return
    with pytest.raises(msgspec.ValidationError) as refused:
        check_size(document)
    assert str(refused.value) == want
