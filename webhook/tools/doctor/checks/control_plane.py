"""The processes: an API server that is new enough, a controller that leads, and the whole path, by a canary."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from webhook.cluster.objects import CONTROLLER
from webhook.controller.canary import probe
from webhook.tools.doctor.check import DoctorCheck, NotChecked, Observation, failure
from webhook.tools.doctor.cluster import InstalledCluster, Unknown

OLDEST = (1, 30)
"""matchConditions are GA from there on; before, every pod of the cluster would have to come to the webhook."""
LATE = 2
"""Durations of the Lease after which it was certainly not renewed."""


def _version(cluster: InstalledCluster) -> Iterator[Observation]:
    version = cluster.get("/version") or {}
    try:
        # Clouds write "30+".
        found = int(version["major"]), int(version["minor"].rstrip("+"))
    except (KeyError, ValueError):
        raise Unknown("the API server reports no version") from None
    if found < OLDEST:
        yield failure(
            "kubernetes-too-old",
            f"API server {version.get('gitVersion', '')}",
            "must be 1.30 or newer: older ones may ask the webhook about every pod",
            "upgrade Kubernetes to 1.30 or newer",
        )


def _controller(cluster: InstalledCluster) -> Iterator[Observation]:
    names = cluster.names
    where = f"Lease/{names.lease} in {names.namespace}"
    logs = f"kubectl -n {names.namespace} logs deployment/{CONTROLLER}"
    lease = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{names.namespace}/leases/{names.lease}")
    if lease is None:
        yield failure(
            "controller-missing",
            where,
            "does not exist: no controller ever led, so quotas are not counted and certificates not renewed",
            f"start the controller: {logs}",
        )
        return
    spec = lease.get("spec") or {}
    renewed, seconds = spec.get("renewTime"), spec.get("leaseDurationSeconds") or 0
    age = cluster.now - datetime.fromisoformat(renewed) if renewed else None
    if not spec.get("holderIdentity") or age is None or age > timedelta(seconds=LATE * seconds):
        when = f"was last renewed {age.total_seconds():.0f} s ago" if age is not None else "was never renewed"
        holder = spec.get("holderIdentity") or "nobody"
        yield failure(
            "controller-away",
            where,
            f"is held by {holder} and {when}: quotas are not counted, certificates not renewed",
            f"see why no controller leads: {logs}",
        )


def _canary(cluster: InstalledCluster) -> Iterator[Observation]:
    namespace = cluster.names.canary_namespace
    outcome = probe(cluster.api, namespace)
    if outcome.ok:
        yield from (NotChecked(each) for each in outcome.open)
    elif outcome.reason in {"api-server", "forbidden"}:
        yield NotChecked(f"canary in {namespace}: {outcome.message}")
    else:
        where, identity = f"the canary in {namespace}", f"canary-{outcome.reason}"
        yield failure(identity, where, f"failed: {outcome.message}", outcome.remedy)


CHECKS = (
    DoctorCheck("kubernetes-version", "The API server is new enough", _version),
    DoctorCheck("controller", "A controller leads", _controller),
    DoctorCheck("canary", "A GPU pod passes through both webhooks and is changed as it must be", _canary),
)
