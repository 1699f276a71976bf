"""What the author of an object sees, on nodes and under a quota."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from policies.placement.nodes import Labels, NodeGroup, NodeState, node_facts
from policies.pods.pod import Toleration
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.builders import JSON, gpu_container, pod
from webhook.configuration.documents import Document
from webhook.configuration.loader import keys_to_know, load_objects
from webhook.evaluation.decision import Outcome, Violation
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.stored_objects import evaluate

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLASS = "gpu-admission.dev/gpu-class"
LIMIT = 'spec.containers[0].resources.limits[{}] (container "main") = "1": '
PENDING = "no schedulable node has {} now, but nvidia.com/gpu: the pod stays pending [gpu-requests]"
ZONE = "topology.kubernetes.io/zone"
T4: Labels = (("accelerator", "nvidia-t4"),)
A100: Labels = (("accelerator", "nvidia-a100-80gb"),)
RESERVED = Toleration(key="reserved", value="team-a", effect="NoSchedule")
GPU_TAINT = Toleration(key="nvidia.com/gpu", effect="NoSchedule")
DEDICATED = {"key": "reserved", "operator": "Exists"}
NODE_1 = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
ON_NODE_1 = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [NODE_1]}]}
    }
}
Node = tuple[Labels, NodeState | None]


def node(
    labels: Labels,
    *resources: str,
    taints: tuple[Toleration, ...] = (),
    cordoned: bool = False,
    usable: bool = True,
    **amounts: int,
) -> Node:
    named = frozenset(resources or ("nvidia.com/gpu",))
    known = tuple((name, amounts["each"]) for name in sorted(named) if amounts)
    return labels, NodeState(not cordoned, taints, named, known, usable)


def on(gpu_class: str, **spec: Any) -> JSON:
    return pod(gpu_container(), annotations={CLASS: gpu_class}, **spec)


def seen(
    document: JSON,
    rules: JSON,
    nodes: Sequence[Node],
    pools: tuple[NodeGroup, ...] = (),
    ledger: QuotaLedger | None = None,
) -> list[Violation]:
    """Return what the author sees. Without nodes, they are not known."""
    configuration = load_objects([Document("GPUPolicy", "cluster-default", {"rules": rules})])
    facts = node_facts(keys_to_know(configuration), nodes, pools) if nodes else None
    quota = ReadOnlyQuota(ledger, configuration, is_unused=True)
    by = Evaluator(
        cache=DecisionCache(configuration),
        now=NOW,
        facts=Facts(nodes=lambda: facts),
        quota_of=lambda _: quota,
    )
    group = document["apiVersion"].rpartition("/")[0]
    found = evaluate(group, document["kind"], "team", msgspec.json.encode(document), by).findings()
    return [each for each in found if each.outcome is not Outcome.AUDITED]


def warned(document: JSON, *nodes: Node, pools: tuple[NodeGroup, ...] = (), **rules: JSON) -> list[str]:
    names = {name.replace("_", "-"): options for name, options in rules.items()}
    found = seen(document, names, nodes, pools)
    assert all(each.outcome is Outcome.WARNED for each in found)
    return [each.finding.sentence() for each in found]
