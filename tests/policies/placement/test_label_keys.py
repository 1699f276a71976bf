"""Keys of labels by name and by glob."""

import pytest

from policies.placement.hardware import HARDWARE
from policies.placement.label_keys import KNOWN, LabelKeys, known_keys
from policies.pods.names import is_qualified_name


@pytest.mark.parametrize(
    ("globs", "key", "want"),
    [
        pytest.param((), "a", False, id="none"),
        pytest.param((), "named", True, id="by-name"),
        pytest.param(("!*",), "named", True, id="a-name-before-any-glob"),
        pytest.param(("a*",), "ab", True, id="a-glob"),
        pytest.param(("a*",), "ba", False, id="the-whole-key"),
        pytest.param(("A*",), "ab", False, id="upper-and-lower-case"),
        pytest.param(("a.b",), "aXb", False, id="a-dot-is-a-dot"),
        pytest.param(("!ab", "a*"), "ab", False, id="an-exception"),
        pytest.param(("!ab", "a*"), "ac", True, id="beside-an-exception"),
        pytest.param(("a*", "!ab"), "ab", True, id="the-first-that-fits"),
        pytest.param(("x", "!a*", "y", "ab"), "ab", False, id="an-exception-between-others"),
        pytest.param(("[",), "[", True, id="what-is-no-pattern-stands-for-itself"),
        pytest.param(("*",), "a" * 318, False, id="longer-than-any-key"),
        pytest.param(("*a*a*a*a*a*a*a*a*b",), "a" * 300, False, id="a-pattern-that-could-take-long"),
    ],
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
