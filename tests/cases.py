"""Tables of facts: `@cases(("amount", "want"), {"one": (1, "1")})` runs a test once for each narrative id."""

from collections.abc import Mapping

import pytest


def cases(names: str | tuple[str, ...], table: Mapping[str, object]) -> pytest.MarkDecorator:
    """Return the parametrization of a test by a table: narrative id → the values of `names`."""
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))
