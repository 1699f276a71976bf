"""Moments as people read them, in one form on every surface. The values of fields have the form of Kubernetes instead."""

from datetime import UTC, datetime


def utc(moment: datetime, now: datetime | None = None) -> str:
    """Return `2026-11-28 07:13:20 UTC`: seconds unless they are 0, the day unless it is that of `now`."""
    moment = moment.astimezone(UTC)
    day = "" if now and moment.date() == now.astimezone(UTC).date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:{'%H:%M:%S' if moment.second else '%H:%M'}} UTC"
