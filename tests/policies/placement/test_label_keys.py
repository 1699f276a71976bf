"""Keys of labels by name and by glob."""

import pytest

from policies.placement.hardware import ALWAYS_KEPT, HARDWARE_LABELS, LabelKeys, kept_label_keys
from policies.pods.names import is_qualified_name
from tests.cases import cases


@cases(
    ("globs", "key", "want"),
    none=((), "a", False),
    by_name=((), "named", True),
    a_name_before_any_glob=(("!*",), "named", True),
    a_glob=(("a*",), "ab", True),
    the_whole_key=(("a*",), "ba", False),
    upper_and_lower_case=(("A*",), "ab", False),
    a_dot_is_a_dot=(("a.b",), "aXb", False),
    an_exception=(("!ab", "a*"), "ab", False),
    beside_an_exception=(("!ab", "a*"), "ac", True),
    the_first_that_fits=(("a*", "!ab"), "ab", True),
    an_exception_between_others=(("x", "!a*", "y", "ab"), "ab", False),
    what_is_no_pattern_stands_for_itself=(("[",), "[", True),
    longer_than_any_key=(("*",), "a" * 318, False),
    a_pattern_that_could_take_long=(("*a*a*a*a*a*a*a*a*b",), "a" * 300, False),
)
def test_which_keys_are_in(globs: tuple[str, ...], key: str, want: bool) -> None:
    assert (key in LabelKeys(frozenset({"named"}), globs)) is want


@pytest.mark.parametrize("glob", [*HARDWARE_LABELS, *ALWAYS_KEPT])
def test_a_built_in_glob_fits_keys_that_there_can_be(glob: str) -> None:
    key = glob.removeprefix("!").replace("[-_]", "-").replace("[-.]", "-").replace("?", "0").replace("*", "x")

    assert is_qualified_name(key)


def test_hostnames_are_not_kept_of_every_node() -> None:
    keys = kept_label_keys(frozenset({"accelerator"}), ("rack", "!zone", *HARDWARE_LABELS))

    known = ["accelerator", "rack", "agentpool", "nvidia.com/gpu.memory", "kubernetes.io/hostname", "zone"]
    assert [key in keys for key in known] == [True, True, True, True, False, False]
    assert "kubernetes.io/hostname" in kept_label_keys(frozenset({"kubernetes.io/hostname"}), ()), (
        "of a class"
    )
