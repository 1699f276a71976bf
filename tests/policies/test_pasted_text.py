"""What a sentence tells people to set is text where the field is text, also if YAML would read a number, a bool or null."""

import pytest
import yaml

from policies.finding import Edit

TEXT = (
    "true", "Yes", "off", "null", "~", "", "1", "-1", "1.5", "1e3", "0x10", "0o17", "0b1", "1_000", "12:30", "2026-11-28", ".inf",
    "8h", "70b", "1.5h", "12d", "nvidia-t4", "1g.10gb", "a: b", "a #b", "- a", "{a}", "*a", "hf://a/b", "y", "n",
)  # fmt: skip


@pytest.mark.parametrize("value", TEXT)
@pytest.mark.parametrize(
    "path",
    [
        "metadata.annotations[example.com/a]",
        "spec.nodeSelector[example.com/a]",
        "metadata.labels[example.com/a]",
        "spec.containers[0].env[1].value",
    ],
)
def test_text_stays_text(path: str, value: str) -> None:
    words = Edit(path, value).words.removeprefix("set ").removeprefix("label ")

    assert list(yaml.safe_load(words).values()) == [value]


@pytest.mark.parametrize(
    ("edit", "want"),
    [
        (Edit("spec.nodeSelector[nvidia.com/gpu.count]", "8"), 'set nvidia.com/gpu.count: "8"'),
        (Edit("metadata.annotations[a/runtime]", "8h"), "set a/runtime: 8h"),
        (Edit("spec.containers[0].resources.limits[nvidia.com/gpu]", "1"), "set nvidia.com/gpu: 1"),
        (
            Edit("spec.tolerations[-]", ({"key": "a", "value": "1"},)),
            'add [{key: a, value: "1"}] to spec.tolerations',
        ),
    ],
)
def test_only_what_yaml_would_misread_has_quotes(edit: Edit, want: str) -> None:
    assert edit.words == want
