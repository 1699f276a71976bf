"""Option types that several commands take."""

from datetime import UTC, datetime
from typing import Any

import click


class Moment(click.ParamType[datetime]):
    """A point in time, ISO 8601 with its time zone."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f'"{value}" is no time; write it as 2027-01-31T18:00:00Z.', param, ctx)
        if moment.tzinfo is None:
            self.fail(f'"{value}" has no time zone; write it as 2027-01-31T18:00:00Z.', param, ctx)
        return moment.astimezone(UTC)


def now() -> datetime:
    return datetime.now(UTC)


def moment(value: datetime) -> str:
    """Return a point in time as people write it: 2027-01-31T18:00:00Z."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
