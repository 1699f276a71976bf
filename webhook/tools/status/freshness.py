"""How old the figures of quotas are: while no controller leads, their status does not change."""

from datetime import datetime, timedelta

import msgspec

from policies.times import utc
from webhook.cluster.api import api_path
from webhook.cluster.objects import InstallationNames
from webhook.tools.doctor.checks.control_plane import LATE_DURATIONS
from webhook.tools.status.tolerant_reader import TolerantReader

_AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(moment: datetime, now: datetime) -> str:
    seconds = max(int((now - moment).total_seconds()), 0)
    return next((f"{seconds // size} {unit} ago" for size, unit in _AGES if seconds >= size), "now")


def figures_until(reader: TolerantReader, names: InstallationNames, now: datetime) -> datetime | None:
    """Return when a controller last renewed its Lease: the status of quotas is as old, or older.

    None while a controller leads, or if no Lease can be read.
    """
    path = api_path("/apis/coordination.k8s.io/v1", "namespaces", names.namespace, "leases", names.lease)
    lease = reader.get(f"get leases/{names.lease} -n {names.namespace}", path)
    spec = msgspec.json.decode(lease)["spec"] if lease else {}
    if not spec.get("renewTime"):
        return None
    renewed = datetime.fromisoformat(spec["renewTime"])
    return (
        renewed
        if now - renewed > LATE_DURATIONS * timedelta(seconds=spec.get("leaseDurationSeconds", 0))
        else None
    )


def stale_figures(until: datetime, now: datetime) -> str:
    """Return what every surface says of figures that `figures_until` dates."""
    why = "not counted now: no controller leads; gpu-admission doctor says why"
    return f"quotas as of {ago(until, now)} ({utc(until, now)}), {why}"
