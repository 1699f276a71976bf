"""The grammar of names that the API server gives or accepts."""

import pytest

from policies.pods.names import is_uid


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("5f0c7e1a-0000-4000-8000-0123456789ab", True, id="uuid"),
        pytest.param("", False, id="empty"),
        pytest.param("5f0c7e1a-0000-4000-8000-0123456789a", False, id="too-short"),
        pytest.param("5f0c7e1a-0000-4000-8000-0123456789ab\n", False, id="line-end"),
    ],
)
def test_is_uid(text: str, want: bool) -> None:
    assert is_uid(text) is want
