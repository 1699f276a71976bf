"""Field paths and JSON pointers: as Kubernetes prints them, and as RFC 6901 escapes them."""

import pytest

from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import Parts, annotation_path, field_path, json_pointer, path_parts


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        pytest.param((), "", id="nothing"),
        pytest.param(("spec", "rules", "gpu-class", "allowed", 0), "spec.rules.gpu-class.allowed[0]", id="index"),
        pytest.param(("limits", "nvidia.com/gpu"), "limits[nvidia.com/gpu]", id="resource-name"),
        pytest.param(("items", 3, "metadata", "labels", "a.b"), "items[3].metadata.labels[a.b]", id="label"),
        pytest.param(("migProfiles", "1g.10gb", "perGPU"), "migProfiles[1g.10gb].perGPU", id="profile"),
        pytest.param((0, 1), "[0][1]", id="indices-only"),
    ],
)  # fmt: skip
def test_paths_as_people_write_them(parts: Parts, text: str) -> None:
    assert field_path(parts) == text
    assert path_parts(text) == parts


def test_annotation_path() -> None:
    assert annotation_path(GPU_CLASS) == "metadata.annotations[gpu-admission.dev/gpu-class]"
    assert path_parts(annotation_path(GPU_CLASS)) == ("metadata", "annotations", GPU_CLASS)


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        pytest.param(("spec", "tolerations", "-"), "/spec/tolerations/-", id="plain"),
        pytest.param(("limits", "nvidia.com/gpu"), "/limits/nvidia.com~1gpu", id="slash"),
        pytest.param(("a~b", "c~1d"), "/a~0b/c~01d", id="tilde-first-then-slash"),
        pytest.param(("containers", 0), "/containers/0", id="index"),
        pytest.param((), "", id="whole-document"),
    ],
)
def test_pointer(parts: tuple[str | int, ...], want: str) -> None:
    assert json_pointer(*parts) == want
