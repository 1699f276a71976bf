"""The grammar of names that the API server gives or accepts."""

from collections.abc import Callable

from policies.pods import names
from policies.pods.names import is_uid
from tests.cases import cases


@cases(
    ("text", "want"),
    uuid=("5f0c7e1a-0000-4000-8000-0123456789ab", True),
    empty=("", False),
    too_short=("5f0c7e1a-0000-4000-8000-0123456789a", False),
    line_end=("5f0c7e1a-0000-4000-8000-0123456789ab\n", False),
)
def test_is_uid(text: str, want: bool) -> None:
    assert is_uid(text) is want


@cases(
    ("is_name", "longest", "other_end"),
    {
        "namespace": (names.is_dns_label, "a" * 63, "-"),
        "object": (names.is_dns_subdomain, "a" * 253, "-"),
        "class": (names.is_class_name, "a" * 63, "-"),
        "key-of-a-label": (names.is_qualified_name, "a" * 63, "-"),
        "resource": (names.is_resource_name, "example.com/" + "a" * 63, "-"),
        "value-of-a-label": (names.is_label_value, "a" * 63, "-"),
        "kind": (names.is_kind, "A" + "a" * 62, "-"),
        "key-of-a-secret": (names.is_data_key, "a" * 253, "/"),
    },
)
def test_longest_names(is_name: Callable[[str], bool], longest: str, other_end: str) -> None:
    assert is_name(longest)
    assert not is_name(longest + "a")
    assert not is_name(longest[:-1] + other_end)
