"""What an API server has stored in a situation: nodes and their pods, documents, the status of the quota, Events."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.placement.nodes import NodeGroup
from policies.quota.amounts import CLASSES, GPUS
from tests.oracle import JSON, Answer, World, oracle
from tests.oracle.worlds import NAMESPACE
from tests.remedies.situations import NOW, Quota, Situation, admitted
from tests.remedies.workloads import KINDS
from tests.webhook.cluster.apiserver import group
from tests.webhook.commands.checked_cluster import FORBIDDEN
from webhook.controller.quota_status import conditions
from webhook.quota.documents import BudgetStatus, QuotaStatus, TeamView, encode_status, quota_reference

DOCUMENTS = "/apis/gpu-admission.dev/v1alpha1"
DENIED = 'Error creating: admission webhook "validate.gpu-admission.dev" denied the request: {}'
UNREADY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


def _served(versions: Iterable[str]) -> JSON:
    def resource(plural: str, kind: str) -> JSON:
        return {"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced"}

    items = []
    for served in versions:
        found = [resource(each.plural, kind) for kind, each in KINDS.items() if each.version == served]
        found = found or [resource("pods", "Pod")]
        of, _, version = served.rpartition("/")
        items.append({"metadata": {"name": of}, "versions": [{"version": version, "resources": found}]})
    return {"items": items}


class Cluster(msgspec.Struct, frozen=True):
    """A situation with the pods on its nodes."""

    situation: Situation
    bound: tuple[JSON, ...]

    def placed(self, document: JSON) -> Answer:
        """Return what the API server and the scheduler say now of the pod, or of a pod of the object, once we admitted it."""
        situation = self.situation
        pod = admitted(situation, document, situation.evaluated(document, tries_choices=False))
        limits, nodes = list(situation.limit_ranges), list(situation.nodes or ())
        return oracle().ask(World(pod, NAMESPACE, limit_ranges=limits, nodes=nodes, bound=list(self.bound)))

    def objects(self, *, pods: Sequence[JSON] = (), events: Sequence[JSON] = ()) -> dict[str, Any]:
        """Return what an API server answers, by path; `pods` and `events` are those of the explained object."""
        situation, space = self.situation, f"/api/v1/namespaces/{NAMESPACE}"
        policy = {"metadata": {"name": "cluster-default", "uid": "p"}, "spec": {"rules": situation.rules}}
        classes = [
            {"metadata": {"name": name, "uid": name}, "spec": spec}
            for name, spec in situation.classes.items()
        ]
        return {
            f"{DOCUMENTS}/gpupolicies": [policy],
            f"{DOCUMENTS}/gpuclasses": classes,
            f"{DOCUMENTS}/gpuresourcemappings": [],
            f"{DOCUMENTS}/gpuquotas": [_quota(situation, situation.quota)] if situation.quota else [],
            **(
                {f"{DOCUMENTS}/namespaces/{NAMESPACE}/gpuquotas/default": _quota(situation, situation.quota)}
                if situation.quota
                else {}
            ),
            "/apis/karpenter.sh": group("v1"),
            "/apis/karpenter.sh/v1/nodepools": list(map(_pool, situation.pools)),
            "/apis/resource.k8s.io": {"versions": []},
            "/api": _served(["v1"]),
            "/apis": _served(sorted({each.version for each in KINDS.values()})),
            space: {"metadata": {"name": NAMESPACE, "uid": "n", "labels": {}}},
            "/api/v1/namespaces": [{"metadata": {"name": NAMESPACE, "uid": "n"}}],
            "/api/v1/nodes": FORBIDDEN if situation.nodes is None else list(map(_node, situation.nodes)),
            "/api/v1/pods": [*self.bound, *pods],
            f"{space}/pods": [
                each for each in (*self.bound, *pods) if each["metadata"]["namespace"] == NAMESPACE
            ],
            f"{space}/limitranges": list(situation.limit_ranges),
            "/api/v1/limitranges": list(situation.limit_ranges),
            f"{space}/events": list(events),
            **{f"{space}/pods/{each['metadata']['name']}": each for each in pods},
        }


def path_of(document: JSON) -> str:
    name = document["metadata"]["name"]
    if document["kind"] == "Pod":
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
    kind = KINDS[document["kind"]]
    return f"/apis/{kind.version}/namespaces/{NAMESPACE}/{kind.plural}/{name}"


def pending(document: JSON, answer: Answer, count: int) -> list[JSON]:
    """Return the pods of the object, which the scheduler could place on no node."""
    assert answer.pod is not None
    refused = [each.reasons for each in (answer.nodes or {}).values() if each]
    reasons = Counter(reason for reasons in refused for reason in reasons)
    said = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
    message = (
        f"0/{len(refused)} nodes are available: {said}." if refused else "no nodes available to schedule pods"
    )
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    found = []
    for number in range(count):
        metadata: JSON = {
            **answer.pod["metadata"],
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-11-21T11:50:00Z",
        }
        if document["kind"] == "Pod":
            metadata["uid"] = "u"
        else:
            owner = {
                "apiVersion": document["apiVersion"],
                "kind": document["kind"],
                "name": "train",
                "uid": "u",
            }
            metadata |= {
                "name": f"train-{number}",
                "uid": f"u-{number}",
                "ownerReferences": [{**owner, "controller": True}],
            }
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                **answer.pod,
                "metadata": metadata,
                "status": {"phase": "Pending", "conditions": [condition]},
            }
        )
    return found


def failed_create(document: JSON, message: str) -> JSON:
    about = {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": "train",
        "uid": "u",
        "namespace": NAMESPACE,
    }
    return {
        "metadata": {"name": "e", "namespace": NAMESPACE},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedCreate",
        "message": DENIED.format(message),
        "count": 3,
        "lastTimestamp": "2026-11-21T11:59:00Z",
    }


def _node(node: JSON) -> JSON:
    keys = {each["key"] for each in node["spec"].get("taints", ())}
    ready = {"type": "Ready", "status": "Unknown" if keys & UNREADY else "True"}
    metadata = {**node["metadata"], "uid": node["metadata"]["name"]}
    return {**node, "metadata": metadata, "status": {**node["status"], "conditions": [ready]}}


def _pool(pool: NodeGroup) -> JSON:
    requirements = [
        {
            "key": key,
            "operator": "In" if values else "Exists",
            **({"values": sorted(values)} if values else {}),
        }
        for key, values in pool.labels.items()
    ]
    return {
        "metadata": {"name": pool.pool, "uid": pool.pool},
        "spec": {
            "template": {
                "spec": {
                    "requirements": requirements,
                    "taints": msgspec.to_builtins(pool.taints),
                    "startupTaints": msgspec.to_builtins(pool.startup_taints),
                }
            }
        },
    }


def _quota(situation: Situation, quota: Quota) -> JSON:
    ledger = replace(quota.ledger(situation.configuration), generation=1)
    status = QuotaStatus(
        hard=ledger.hard,
        used=ledger.used,
        holders=ledger.holders,
        budget=BudgetStatus.of(ledger),
        team=TeamView.of(ledger),
        conditions=conditions(ledger, (), stale="", unmapped_resources=(), now=NOW),
        observed_generation=1,
    )
    written = msgspec.json.decode(encode_status(quota_reference(NAMESPACE, "q"), "1", status))
    classes = {key.removeprefix(CLASSES): str(amount) for key, amount in quota.hard.items() if key != GPUS}
    hard = {GPUS: str(quota.hard[GPUS]), **({"classes": classes} if classes else {})}
    spec: JSON = {"hard": hard, "unclassifiedPods": quota.counts_as.value}
    if quota.spent:
        spec["budget"] = {"gpuHours": 100}
    return {
        "metadata": {"name": "default", "namespace": NAMESPACE, "uid": "q", "generation": 1},
        "spec": spec,
        "status": written["status"],
    }
