"""Commands print into a pipe: nothing is wrapped, whatever width the process of the tests was given."""

import pytest


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def eighty_columns(no_width: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - sets what that removes
    monkeypatch.setenv("COLUMNS", "80")
