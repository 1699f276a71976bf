"""What one pod demands of its namespace's quota, for `why`."""

from collections.abc import Collection
from datetime import datetime

from msgspec.structs import asdict

from policies.placement.named_nodes import NodeIndex
from policies.pods.pod import Pod
from policies.quota.demand import Catalogue, pod_demand
from webhook.cluster.objects import timestamp
from webhook.quota.counted_records import LONG_PENDING_SECONDS
from webhook.quota.documents import QuotaRecord
from webhook.tools.status.summaries import IdleOwner, QuotaSummary
from webhook.tools.why.explanation import QuotaDemand, QuotaFit


def quota_fit(
    pod: Pod,
    quota: QuotaRecord,
    status: QuotaSummary,
    nodes: NodeIndex,
    catalogue: Catalogue,
    now: datetime,
    *,
    is_held: bool,
) -> QuotaFit | None:
    """Return the demand of the pod on the quota, and its status; None if its spec cannot be read."""
    if quota.spec is None:
        return None
    demand = pod_demand(pod, catalogue, quota.spec.unclassified_pods, nodes=nodes)
    rows = tuple(
        QuotaDemand(**asdict(row), requested=demand.vector[row.key])
        for row in status.rows
        if demand.vector.get(row.key)
    )
    created = (pod.metadata and pod.metadata.creation_timestamp) or timestamp(now)
    since = datetime.fromisoformat(created)
    is_long = is_held and not pod.spec.node_name and (now - since).total_seconds() > LONG_PENDING_SECONDS
    return QuotaFit(
        state=status.state,
        rows=rows,
        is_held=is_held,
        unbound_since=since if is_long else None,
        team=quota.status.team,
    )


def idle_owner(status: QuotaSummary | None, names: Collection[str]) -> IdleOwner | None:
    """Return the idle owner with one of these names, such as `Notebook/ana`; None if none is known to be idle."""
    owners = status.idle_owners if status else ()
    return next((owner for owner in owners if owner.owner in names), None)
