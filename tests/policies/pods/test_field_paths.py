"""Field paths and JSON pointers: as Kubernetes prints them, and as RFC 6901 escapes them."""

from typing import Any

from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import (
    Parts,
    annotation_path,
    field_path,
    json_pointer,
    path_parts,
    value_at,
    with_value,
)
from tests.cases import cases


@cases(
    ("parts", "text"),
    nothing=((), ""),
    index=(("spec", "rules", "gpu-class", "allowed", 0), "spec.rules.gpu-class.allowed[0]"),
    resource_name=(("limits", "nvidia.com/gpu"), "limits[nvidia.com/gpu]"),
    label=(("items", 3, "metadata", "labels", "a.b"), "items[3].metadata.labels[a.b]"),
    profile=(("migProfiles", "1g.10gb", "perGPU"), "migProfiles[1g.10gb].perGPU"),
    indices_only=((0, 1), "[0][1]"),
)
def test_paths_as_people_write_them(parts: Parts, text: str) -> None:
    assert field_path(parts) == text
    assert path_parts(text) == parts


@cases(
    ("parts", "want"),
    in_place=(("a", 0, "b"), {"a": [{"b": 9}, 2], "c": {}}),
    new=(("c", "d"), {"a": [{"b": 1}, 2], "c": {"d": 9}}),
    at_the_top=(("a",), {"a": 9, "c": {}}),
    everything=((), 9),
)
def test_a_value_in_a_copy(parts: Parts, want: Any) -> None:
    data = {"a": [{"b": 1}, 2], "c": {}}

    copied = with_value(data, parts, 9)

    assert (copied, value_at(copied, parts)) == (want, 9)
    assert data == {"a": [{"b": 1}, 2], "c": {}}


def test_annotation_path() -> None:
    assert annotation_path(GPU_CLASS) == "metadata.annotations[gpu-admission.dev/gpu-class]"
    assert path_parts(annotation_path(GPU_CLASS)) == ("metadata", "annotations", GPU_CLASS)


@cases(
    ("parts", "want"),
    plain=(("spec", "tolerations", "-"), "/spec/tolerations/-"),
    slash=(("limits", "nvidia.com/gpu"), "/limits/nvidia.com~1gpu"),
    tilde_first_then_slash=(("a~b", "c~1d"), "/a~0b/c~01d"),
    index=(("containers", 0), "/containers/0"),
    whole_document=((), ""),
)
def test_pointer(parts: tuple[str | int, ...], want: str) -> None:
    assert json_pointer(*parts) == want
