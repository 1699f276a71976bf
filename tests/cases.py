"""Tables of facts: `@cases(("amount", "want"), a_half=("500m", 0.5))` runs a test once for each narrative id, here `a-half`."""

from collections.abc import Mapping

import pytest


def cases(
    names: str | tuple[str, ...], table: Mapping[str, object] | None = None, /, **rows: object
) -> pytest.MarkDecorator:
    """Return the parametrization of a test by its rows. `table`: ids that are no names in Python, or rows of several tests."""
    facts = {**(table or {}), **{name.replace("_", "-"): values for name, values in rows.items()}}
    return pytest.mark.parametrize(names, list(facts.values()), ids=list(facts))
