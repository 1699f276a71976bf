"""Keys of labels by name and by glob."""

import pytest

from policies.placement.hardware import HARDWARE
from policies.placement.label_keys import KNOWN, LabelKeys, known_keys
from policies.pods.names import is_qualified_name
from tests.cases import cases


@cases(
    ("globs", "key", "want"),
    {
        "none": ((), "a", False),
        "by-name": ((), "named", True),
        "a-name-before-any-glob": (("!*",), "named", True),
        "a-glob": (("a*",), "ab", True),
        "the-whole-key": (("a*",), "ba", False),
        "upper-and-lower-case": (("A*",), "ab", False),
        "a-dot-is-a-dot": (("a.b",), "aXb", False),
        "an-exception": (("!ab", "a*"), "ab", False),
        "beside-an-exception": (("!ab", "a*"), "ac", True),
        "the-first-that-fits": (("a*", "!ab"), "ab", True),
        "an-exception-between-others": (("x", "!a*", "y", "ab"), "ab", False),
        "what-is-no-pattern-stands-for-itself": (("[",), "[", True),
        "longer-than-any-key": (("*",), "a" * 318, False),
        "a-pattern-that-could-take-long": (("*a*a*a*a*a*a*a*a*b",), "a" * 300, False),
    },
)
def test_which_keys_are_in(globs: tuple[str, ...], key: str, want: bool) -> None:
    assert (key in LabelKeys(frozenset({"named"}), globs)) is want


@pytest.mark.parametrize("glob", [*HARDWARE, *KNOWN])
def test_a_built_in_glob_fits_keys_that_there_can_be(glob: str) -> None:
    key = glob.removeprefix("!").replace("[-_]", "-").replace("[-.]", "-").replace("?", "0").replace("*", "x")

    assert is_qualified_name(key)


def test_hostnames_are_not_kept_of_every_node() -> None:
    keys = known_keys(frozenset({"accelerator"}), ("rack", "!zone", *HARDWARE))

    known = ["accelerator", "rack", "agentpool", "nvidia.com/gpu.memory", "kubernetes.io/hostname", "zone"]
    assert [key in keys for key in known] == [True, True, True, True, False, False]
    assert "kubernetes.io/hostname" in known_keys(frozenset({"kubernetes.io/hostname"}), ()), "of a class"
