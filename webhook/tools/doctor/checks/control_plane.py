"""The processes: an API server that is new enough, a controller that leads, and the whole path, by a canary."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from webhook.cluster.objects import CONTROLLER
from webhook.controller.canary import probe
from webhook.tools.doctor.check import NotChecked, Observation, doctor_check, failure
from webhook.tools.doctor.cluster import InstalledCluster, Unknown

OLDEST = (1, 30)
"""The first version where matchConditions are GA: without them every pod of the cluster would come to the webhook."""
LATE = 2
"""After this many durations the Lease was certainly not renewed."""


@doctor_check("kubernetes-version", "The API server is new enough")
def _version(cluster: InstalledCluster) -> Iterator[Observation]:
    version = cluster.get("/version") or {}
    try:
        # Clouds write "30+".
        found = int(version["major"]), int(version["minor"].rstrip("+"))
    except (KeyError, ValueError):
        raise Unknown("the API server reports no version") from None
    if found < OLDEST:
        where = f"API server {version.get('gitVersion', '')}"
        message = "must be 1.30 or newer: older ones may ask the webhook about every pod"
        yield failure("kubernetes-too-old", where, message, "upgrade Kubernetes to 1.30 or newer")


@doctor_check("controller", "A controller leads")
def _controller(cluster: InstalledCluster) -> Iterator[Observation]:
    own, name = cluster.names.namespace, cluster.names.lease
    where = f"Lease/{name} in {own}"
    logs = f"kubectl -n {own} logs deployment/{CONTROLLER}"
    lease = cluster.get("/apis/coordination.k8s.io/v1", "namespaces", own, "leases", name)
    if lease is None:
        message = (
            "does not exist: no controller ever led, so quotas are not counted and certificates not renewed"
        )
        yield failure("controller-missing", where, message, f"start the controller: {logs}")
        return
    spec = lease.get("spec") or {}
    renewed, seconds = spec.get("renewTime"), spec.get("leaseDurationSeconds") or 0
    age = cluster.now - datetime.fromisoformat(renewed) if renewed else None
    if not spec.get("holderIdentity") or age is None or age > timedelta(seconds=LATE * seconds):
        when = f"was last renewed {age.total_seconds():.0f} s ago" if age is not None else "was never renewed"
        holder = spec.get("holderIdentity") or "nobody"
        message = f"is held by {holder} and {when}: quotas are not counted, certificates not renewed"
        yield failure("controller-away", where, message, f"see why no controller leads: {logs}")


@doctor_check("canary", "A GPU pod passes through both webhooks and is changed as it must be")
def _canary(cluster: InstalledCluster) -> Iterator[Observation]:
    where = f"canary in {cluster.names.canary_namespace}"
    outcome = probe(cluster.api, cluster.names.canary_namespace)
    if outcome.ok:
        yield from map(NotChecked, outcome.open)
    elif outcome.reason in {"api-server", "forbidden"}:
        yield NotChecked(f"{where}: {outcome.message}", for_administrators=outcome.reason == "forbidden")
    else:
        message = f"failed: {outcome.message}"
        yield failure(f"canary-{outcome.reason}", f"the {where}", message, outcome.remedy)


CHECKS = (_version, _controller, _canary)
