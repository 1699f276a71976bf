"""Field paths and JSON pointers: as Kubernetes prints them, and as RFC 6901 escapes them."""

from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import Parts, annotation_path, field_path, json_pointer, path_parts
from tests.cases import cases


@cases(
    ("parts", "text"),
    {
        "nothing": ((), ""),
        "index": (("spec", "rules", "gpu-class", "allowed", 0), "spec.rules.gpu-class.allowed[0]"),
        "resource-name": (("limits", "nvidia.com/gpu"), "limits[nvidia.com/gpu]"),
        "label": (("items", 3, "metadata", "labels", "a.b"), "items[3].metadata.labels[a.b]"),
        "profile": (("migProfiles", "1g.10gb", "perGPU"), "migProfiles[1g.10gb].perGPU"),
        "indices-only": ((0, 1), "[0][1]"),
    },
)
def test_paths_as_people_write_them(parts: Parts, text: str) -> None:
    assert field_path(parts) == text
    assert path_parts(text) == parts


def test_annotation_path() -> None:
    assert annotation_path(GPU_CLASS) == "metadata.annotations[gpu-admission.dev/gpu-class]"
    assert path_parts(annotation_path(GPU_CLASS)) == ("metadata", "annotations", GPU_CLASS)


@cases(
    ("parts", "want"),
    {
        "plain": (("spec", "tolerations", "-"), "/spec/tolerations/-"),
        "slash": (("limits", "nvidia.com/gpu"), "/limits/nvidia.com~1gpu"),
        "tilde-first-then-slash": (("a~b", "c~1d"), "/a~0b/c~01d"),
        "index": (("containers", 0), "/containers/0"),
        "whole-document": ((), ""),
    },
)
def test_pointer(parts: tuple[str | int, ...], want: str) -> None:
    assert json_pointer(*parts) == want
