"""What the pieces of CEL say, read back: their regular expressions are those of Python, too, and their lists are plain."""

import ast
import re
from fnmatch import fnmatchcase

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.gpus.mapping_spec import Measure, ResourceMappingSpec, ResourcePattern
from policies.gpus.resource_mapping import ResourceMapping
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.tools.export.facts import common_facts
from webhook.tools.export.templates import NAME_CHARACTERS, glob_cel, glob_regex, text


@cases(
    ("value", "want"),
    plain=("plain", "'plain'"),
    quote=("it's", r"'it\'s'"),
    backslash=("a\\b", r"'a\\b'"),
    control_characters=("a\nb\x00", r"'a\nb\U00000000'"),
    other_letters=("größer …", "'größer …'"),
)
def test_literals(value: str, want: str) -> None:
    assert text(value) == want


@cases(
    ("globs", "want"),
    bracket_that_is_never_closed=(["a[b"], r"n.matches(r'^(a\[b)$')"),
    everything_among_others=(["a", "*", "b-*"], "true"),
    names=(["ml", "web", "ml"], "n in ['ml', 'web']"),
    quote=(["it's-*"], r"n.matches(r'^(it\x27s-.*)$')"),
    line_ends=(["a\nb\r*"], r"n.matches(r'^(a\nb\r.*)$')"),
    glob=(["ml-*"], "n.matches(r'^(ml-.*)$')"),
    characters=(["[c-e]*", "['a]-*"], "n.matches(r'^([cde].*|[a]-.*)$')"),
    range_of_nothing=(["[z-a]*"], f"n.matches(r'^([^{NAME_CHARACTERS}].*)$')"),
    both=(["a", "b?"], "n in ['a'] || n.matches(r'^(b.)$')"),
    nothing=([], "false"),
)
def test_globs(globs: list[str], want: str) -> None:
    assert glob_cel("n", globs) == want


GLOBS = st.lists(
    st.sampled_from(
        ["*", "?", "[a-b]", "[b-a]", "[!a]", "[!-]", "[]a]", "'", "]", "!", "a", "b", "-", ".", "^", "\\"]
    ),
    max_size=6,
).map("".join)


@given(GLOBS, st.text(NAME_CHARACTERS, max_size=6) | st.text("ab-.", max_size=6))
def test_a_glob_fits_what_fnmatch_fits(glob: str, name: str) -> None:
    assert bool(re.fullmatch(glob_regex(glob), name)) is fnmatchcase(name, glob)


# ---- resource names


def meaning(mapping: ResourceMapping, name: str) -> tuple[str, str]:
    """Return what the name counts and its card, as `fitting` of shared.yaml has it. A CEL list of texts is one of Python."""
    facts = common_facts(msgspec.structs.replace(load_directory(None), resource_mapping=mapping))
    meanings = ast.literal_eval(facts["meanings"])
    fitting = [
        found
        for *found, head, tail in ast.literal_eval(facts["patterns"]).get(name.partition("/")[0], ())
        if name.startswith(head) and name.endswith(tail) and len(name) > len(head + tail)
    ]
    counts, card = meanings.get(name, (*fitting, ("", ""))[0])
    return counts, name if card == "*" else card


NAMES = """
nvidia.com/gpu nvidia.com/gpux nvidia.com/gpumem nvidia.com/mig-1g.10gb nvidia.com/mig-1g.10gb.shared nvidia.com/mig-
nvidia-com/gpu amd.com/cpx_nps4 aws.amazon.com/neuroncore gpu.intel.com/i915 gpu.intel.com/i915_monitoring
gpu.intel.com/monitoring gpu.intel.com/memory.max huawei.com/Ascend910-memory huawei.com/Ascend910 volcano.sh/vgpu-cores
deviceclass.resource.kubernetes.io/big rdma/hca cpu
"""


@pytest.mark.parametrize("name", ["", *NAMES.split()])
def test_gpu_names_are_those_of_the_vocabulary(name: str) -> None:
    resource_mapping = load_directory(None).resource_mapping
    resource = resource_mapping.resource(name)
    counts, card = meaning(resource_mapping, name)

    assert (counts in {"number", "part", "percent"}) is (resource is not None)
    assert (counts == "number") is (resource is not None and resource.measure.is_count)
    assert card == (resource_mapping.whole_card_resource(name) or "")


PATTERNS = st.lists(
    st.builds(
        lambda pattern, measure: ResourcePattern(pattern=pattern, measure=measure),
        st.sampled_from(["g/a", "g/*", "g/a*", "g/*b", "g/ab", "h/*", "g/a*b"]),
        st.sampled_from([Measure.DEVICES, Measure.NOTHING, Measure.MEMORY_MIB]),
    ),
    max_size=6,
)


@given(PATTERNS, st.sampled_from(["g/a", "g/ab", "g/aab", "g/b", "g/c", "h/a", "g/"]))
def test_the_first_pattern_that_fits_decides(patterns: list[ResourcePattern], name: str) -> None:
    resource_mapping = ResourceMapping([ResourceMappingSpec(resources=tuple(patterns))])
    resource = resource_mapping.resource(name)
    counts, _ = meaning(resource_mapping, name)

    assert (counts == "number") is (resource is not None and resource.measure is Measure.DEVICES)
    assert (counts == "part") is (resource is not None and resource.measure is Measure.MEMORY_MIB)
