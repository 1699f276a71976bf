"""The grammar of names that the API server gives or accepts."""

from policies.pods.names import is_uid
from tests.cases import cases


@cases(
    ("text", "want"),
    {
        "uuid": ("5f0c7e1a-0000-4000-8000-0123456789ab", True),
        "empty": ("", False),
        "too-short": ("5f0c7e1a-0000-4000-8000-0123456789a", False),
        "line-end": ("5f0c7e1a-0000-4000-8000-0123456789ab\n", False),
    },
)
def test_is_uid(text: str, want: bool) -> None:
    assert is_uid(text) is want
