"""What must be alive: an API server that is new enough, a controller that leads, and the path as a whole, by a canary."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from webhook.controller.canary import probe
from webhook.tools.doctor.check import Check, Finding, NotChecked, Told
from webhook.tools.doctor.cluster import Cluster, Unknown

OLDEST = (1, 30)
"""matchConditions are GA from there on; before, every pod of the cluster would have to come to the webhook."""
LATE = 2
"""Durations of the Lease after which it was certainly not renewed."""


def _version(cluster: Cluster) -> Iterator[Told]:
    version = cluster.get("/version") or {}
    try:
        # Clouds write "30+".
        found = int(version["major"]), int(version["minor"].rstrip("+"))
    except (KeyError, ValueError):
        raise Unknown("the API server tells no version") from None
    if found < OLDEST:
        yield Finding(
            id="kubernetes-too-old",
            object=f"API server {version.get('gitVersion', '')}",
            message="is older than 1.30, where matchConditions are GA: it may ask the webhook about every pod",
            remedy="upgrade Kubernetes to 1.30 or newer",
        )


def _controller(cluster: Cluster) -> Iterator[Told]:
    names = cluster.names
    where = f"Lease/{names.lease} in {names.namespace}"
    logs = f"kubectl -n {names.namespace} logs deployment/gpu-admission-controller"
    lease = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{names.namespace}/leases/{names.lease}")
    if lease is None:
        yield Finding(
            id="controller-missing",
            object=where,
            message="is not there: no controller ever led, so quotas are not counted and certificates not renewed",
            remedy=f"start the controller: {logs}",
        )
        return
    spec = lease.get("spec") or {}
    renewed, seconds = spec.get("renewTime"), spec.get("leaseDurationSeconds") or 0
    age = cluster.now - datetime.fromisoformat(renewed) if renewed else None
    if not spec.get("holderIdentity") or age is None or age > timedelta(seconds=LATE * seconds):
        told = f"was last renewed {age.total_seconds():.0f} s ago" if age is not None else "was never renewed"
        holder = spec.get("holderIdentity") or "nobody"
        yield Finding(
            id="controller-away",
            object=where,
            message=f"is held by {holder} and {told}: quotas are not counted, certificates not renewed",
            remedy=f"see why no controller leads: {logs}",
        )


def _canary(cluster: Cluster) -> Iterator[Told]:
    namespace = cluster.names.canary_namespace
    outcome = probe(cluster.api, namespace)
    if outcome.ok:
        yield from (NotChecked(each) for each in outcome.open)
        return
    if outcome.reason in {"api-server", "forbidden"}:
        yield NotChecked(f"canary in {namespace}: {outcome.message}")
        return
    yield Finding(
        id=f"canary-{outcome.reason}",
        object=f"the canary in {namespace}",
        message=f"failed: {outcome.message}",
        remedy=outcome.remedy,
    )


CHECKS = (
    Check(id="kubernetes-version", title="The API server is new enough", run=_version),
    Check(id="controller", title="A controller leads", run=_controller),
    Check(id="canary", title="A GPU pod goes through both webhooks and comes back as it should", run=_canary),
)
