"""Commands print into a pipe: nothing is wrapped, whatever width the process of the tests was given."""

import pytest


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
