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
    with_edit,
)
from tests.cases import cases

DOCUMENT = {"spec": {"containers": [{"image": "x"}], 1: {"a": 2}}}


@cases(
    ("parts", "text"),
    nothing=((), ""),
    index=(("spec", "rules", "gpu-class", "allowed", 0), "spec.rules.gpu-class.allowed[0]"),
    resource_name=(("limits", "nvidia.com/gpu"), "limits[nvidia.com/gpu]"),
    label=(("items", 3, "metadata", "labels", "a.b"), "items[3].metadata.labels[a.b]"),
    behind_the_last_item=(("spec", "tolerations", "-"), "spec.tolerations[-]"),
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

    copied = with_edit(data, parts, 9)

    assert (copied, value_at(copied, parts)) == (want, 9)
    assert data == {"a": [{"b": 1}, 2], "c": {}}


@cases(
    ("path", "value", "want"),
    everything=("", 9, 9),
    replaced=("spec.containers[0].image", "y", {"spec": {"containers": [{"image": "y"}], 1: {"a": 2}}}),
    added_with_its_parents=(
        "spec.a.b",
        9,
        {"spec": {"containers": [{"image": "x"}], 1: {"a": 2}, "a": {"b": 9}}},
    ),
    appended=(
        "spec.containers[-]",
        {"a": 1},
        {"spec": {"containers": [{"image": "x"}, {"a": 1}], 1: {"a": 2}}},
    ),
    the_first_item=(
        "spec.b.c[-]",
        9,
        {"spec": {"containers": [{"image": "x"}], 1: {"a": 2}, "b": {"c": [9]}}},
    ),
    an_item_removed=("spec.containers[0]", None, {"spec": {"containers": [], 1: {"a": 2}}}),
    a_member_removed=("spec.containers[0].image", None, {"spec": {"containers": [{}], 1: {"a": 2}}}),
    under_a_number=("spec.1.a", 3, {"spec": {"containers": [{"image": "x"}], 1: {"a": 3}}}),
    nothing_there_to_remove=("spec.limits.a", None, DOCUMENT),
    no_list_to_remove_from=("spec.volumes[0]", None, DOCUMENT),
    beyond_the_list=("spec.containers[1]", 9, DOCUMENT),
    an_index_of_a_map=("spec[0]", 9, DOCUMENT),
    under_a_text=("spec.containers[0].image.a", 9, DOCUMENT),
)
def test_an_edit(path: str, value: Any, want: Any) -> None:
    assert with_edit(DOCUMENT, path_parts(path), value) == want


@cases(("path", "want"), optional=("spec.nodeSelector.a", {}), required=("spec.selector.a", {"selector": {}}))
def test_optional_fields_go_once_they_are_empty(path: str, want: Any) -> None:
    added = with_edit({"spec": {}}, path_parts(path), "b")

    assert with_edit(added, path_parts(path), None) == {"spec": want}


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
