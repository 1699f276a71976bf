"""What checks see, what doctor says to do then, and what they see once it is done, by each alternative.

`tests/test_imperatives.py` names the sentences of doctor that are not followed here, and why.
"""

from typing import NamedTuple

from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.webhook.tools.doctor.objects import (
    COUNTED,
    GPU,
    LEADS,
    MUTATING,
    NAMESPACES,
    NVIDIA,
    OURS,
    POLICIES,
    QUOTAS,
    conditions,
    excluding,
    namespace,
    node,
    quota,
    stored,
)

NODES, MAPPINGS = "/api/v1/nodes", "/apis/gpu-admission.dev/v1alpha1/gpuresourcemappings"
CLASSES = "/apis/gpu-admission.dev/v1alpha1/gpuclasses"
RESOURCE_QUOTAS, LIMIT_RANGES = "/api/v1/resourcequotas", "/api/v1/limitranges"
PRODUCT, LABEL = "nvidia.com/gpu.product", "accelerator"
VIDEO = {"key": "dedicated", "value": "video", "effect": "NoSchedule"}
EXISTS = {"key": "ml", "operator": "Exists"}
SPOT = {"mode": "enforce", "nodeSelector": {"pool": "spot"}}


def policy(**rules: JSON) -> JSON:
    return {POLICIES: [stored({"priority": 1, "rules": rules})]}


def document(spec: JSON, name: str = "d") -> JSON:
    return {"metadata": {"name": name, "uid": name, "generation": 1}, "spec": spec}


def limit_range(**amounts: str) -> JSON:
    item = {"type": "Container", **{field: {"nvidia.com/gpu": amount} for field, amount in amounts.items()}}
    return {LIMIT_RANGES: [{"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"limits": [item]}}]}


def mutating(name: str, *resources: str) -> JSON:
    rule = {"apiGroups": [""], "resources": resources, "operations": ["CREATE"]}
    return {
        MUTATING: [{"metadata": {"name": name}, "webhooks": [{"name": "x.example.com", "rules": [rule]}]}]
    }


def job(**spec: str) -> JSON:
    pod = {"containers": [{"name": "a", "resources": {"limits": GPU}}], **spec}
    metadata = {"name": "train", "namespace": "team", "uid": "u"}
    return {"/apis/batch/v1/jobs": [{"metadata": metadata, "spec": {"template": {"spec": pod}}}]}


def nodes(*items: JSON) -> JSON:
    return {NODES: list(items)}


def mapping(measure: str) -> JSON:
    resources = [{"pattern": "example.com/npu", "measure": measure}]
    return {MAPPINGS: [document({"resources": resources})]}


CLEAN, DIRTY = node("a", {LABEL: "nvidia-t4"}), node("a", {LABEL: "nvidia-t4"}, [])
UNLABELLED, NPU = node("a", {PRODUCT: "NVIDIA-L4"}), node("a", {}, None, **{"example.com/npu": "4"})
TAINTED = node("a", {LABEL: "nvidia-t4"}, [NVIDIA, VIDEO])
L4 = {"gpu-class": {"default": "nvidia-l4"}}
EXCLUDED = {OURS: excluding("kube-system", "gpu-operator"), NAMESPACES: []}
UNSEEN = {OURS: excluding("team"), NAMESPACES: [namespace("team")], QUOTAS: [quota(COUNTED)]}
TOLERATES_VIDEO = {"key": "dedicated", "operator": "Equal", "value": "video", "effect": "NoSchedule"}
T4 = {"resource": "nvidia.com/gpu", "memoryGiB": 16, "tolerations": [TOLERATES_VIDEO]}
TEAMS, PODS = "/apis/gpu-admission.dev/v1alpha1/clustergpuquotas", "/api/v1/pods"
CLAIM = {"metadata": {"name": "cache", "namespace": "team", "uid": "c"}}
SEE_LOG = "kubectl -n gpu-admission logs deployment/gpu-admission-controller"
EMERGENCY = "gpu-admission pause --for 1h --reason emergency, then gpu-admission release"


def unreadable() -> JSON:
    found = quota(("Ready", "False", "requests are denied"))
    found["status"]["conditions"][0]["reason"] = "Unreadable"
    return found


def exemption(until: str) -> JSON:
    return {"priority": 1, "exemptions": [{"namespaces": ["legacy"], "reason": "old", "until": until}]}


def warmed(**annotations: str) -> JSON:
    (made,) = job()["/apis/batch/v1/jobs"]
    named = {f"gpu-admission.dev/model-{key.replace('_', '-')}": value for key, value in annotations.items()}
    spec = {**made["spec"]["template"], "metadata": {"annotations": named}}
    return {
        "/apis/batch/v1/jobs": [{**made, "spec": {"template": spec}}],
        "/api/v1/namespaces/team": namespace("team"),
        **policy(**{"model-warming": {"mode": "enforce"}}),
    }


def team(used: str = "0", **spec: JSON) -> JSON:
    status = {"hard": {"gpus": "64"}, "reserved": {}, "guaranteedIdle": {"gpus": "16"}}
    stored_team = {
        "metadata": {"name": "vision", "uid": "t", "resourceVersion": "1", "generation": 1},
        "spec": {"namespaces": {"names": ["vision-*"]}, "hard": {"gpus": 64}, **spec},
        "status": {"conditions": conditions(COUNTED), **status, "used": {"gpus": used}},
    }
    return {TEAMS: [stored_team], NAMESPACES: [namespace("vision-cv")]}


def waiting(*gates: str, on_exceeded: str = "Queue") -> JSON:
    held = {
        "metadata": {"name": "a", "namespace": "team", "creationTimestamp": "2027-01-31T11:00:00Z"},
        "spec": {"containers": [{"name": "a"}], "schedulingGates": [{"name": each} for each in gates]},
        "status": {"phase": "Pending"},
    }
    counted = quota(COUNTED)
    counted["status"] |= {"hard": {"gpus": "4"}, "used": {"gpus": "4"}}
    return {PODS: [held], QUOTAS: [counted], **policy(**{"gpu-quota": {"onExceeded": on_exceeded}})}


def renamed(**spec: str) -> JSON:
    """Return a quota whose manifest has a field that was renamed."""
    found = quota(COUNTED, **spec)
    entry = {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:hard": {}, "f:unpinned": {}}}}
    return {**found, "metadata": {**found["metadata"], "managedFields": [entry]}}


def budgeted() -> JSON:
    found = quota(COUNTED, budget={"gpuHours": 100})
    found["status"]["budget"] = {
        "period": "month",
        "start": "2027-01-01T00:00:00Z",
        "end": "2027-02-01T00:00:00Z",
        "until": "2027-01-31T11:55:00Z",
        "granted": {"gpus": "100"},
        "used": {"gpus": "4"},
    }
    return found


def pending() -> JSON:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    return {
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": "a",
            "creationTimestamp": "2027-01-31T11:00:00Z",
        },
        "spec": {"containers": [{"name": "a", "resources": {"limits": GPU}}]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


OF_TWO = node("a", {LABEL: "nvidia-l4", PRODUCT: "Tesla-T4"})
NOT_REVIEWED = {NAMESPACES: [namespace("team")], "/api/v1/namespaces/team/pods": [pending()]}


class Row(NamedTuple):
    """What a check sees, what doctor says to do, and what the check sees once each alternative is done."""

    check: str
    before: JSON
    remedy: str
    after: tuple[JSON, ...]


FOLLOWED = {
    "a node without a taint": Row(
        "untainted-nodes",
        nodes(DIRTY),
        "kubectl taint nodes a nvidia.com/gpu=present:NoSchedule",
        (nodes(CLEAN),),
    ),
    "a taint that nobody tolerates": Row(
        "taints",
        nodes(TAINTED),
        "add {key: dedicated, operator: Equal, value: video, effect: NoSchedule} to gpu-toleration.tolerations of a policy, "
        "or to the class",
        (
            {**nodes(TAINTED), **policy(**{"gpu-toleration": {"tolerations": [TOLERATES_VIDEO]}})},
            {
                **nodes(TAINTED),
                CLASSES: [
                    document({**T4, "nodeLabels": [{"key": LABEL, "values": ["nvidia-t4"]}]}, "nvidia-t4")
                ],
            },
        ),
    ),
    "a toleration of no taint": Row(
        "taints",
        {**nodes(CLEAN), **policy(**{"gpu-toleration": {"tolerations": [EXISTS]}})},
        "correct its spelling, taint the intended nodes, or remove it",
        (
            {
                **nodes(CLEAN),
                **policy(**{"gpu-toleration": {"tolerations": [{**EXISTS, "key": "nvidia.com/gpu"}]}}),
            },
            {
                **nodes(node("a", {}, [NVIDIA, {"key": "ml", "effect": "NoSchedule"}])),
                **policy(**{"gpu-toleration": {"tolerations": [EXISTS]}}),
            },
            nodes(CLEAN),
        ),
    ),
    "a node without the label of its class": Row(
        "class-labels",
        nodes(UNLABELLED),
        "kubectl label nodes a accelerator=nvidia-l4, or set gpu-class.labelKey to a label that the nodes have",
        (
            nodes(node("a", {PRODUCT: "NVIDIA-L4", LABEL: "nvidia-l4"})),
            {**nodes(UNLABELLED), **policy(**{"gpu-class": {"labelKey": PRODUCT}})},
        ),
    ),
    "a class without nodes": Row(
        "class-labels",
        {**nodes(CLEAN), **policy(**L4)},
        "label the intended nodes, or, if nodes are created on demand, name the class in gpu-class.autoscaledClasses of the "
        "policy",
        (
            {**nodes(node("a", {LABEL: "nvidia-l4"})), **policy(**L4)},
            {
                **nodes(CLEAN),
                **policy(**{"gpu-class": {**L4["gpu-class"], "autoscaledClasses": ["nvidia-l4"]}}),
            },
        ),
    ),
    "a node of no known class": Row(
        "unknown-classes",
        nodes(node("a", {PRODUCT: "X"})),
        "write a GPUClass with nodeLabels [{key: nvidia.com/gpu.product, values: [X]}]",
        (
            {
                **nodes(node("a", {PRODUCT: "X"})),
                CLASSES: [
                    document(
                        {
                            "resource": "nvidia.com/gpu",
                            "memoryGiB": 8,
                            "nodeLabels": [{"key": PRODUCT, "values": ["X"]}],
                        }
                    )
                ],
            },
        ),
    ),
    "a node that no label names": Row(
        "unknown-classes",
        nodes(node("a", {})),
        "install GPU Feature Discovery, or kubectl label nodes a accelerator=CLASS",
        (nodes(UNLABELLED), nodes(CLEAN)),
    ),
    "a resource that nothing counts": Row(
        "unmapped",
        nodes(NPU),
        "name it in a GPUResourceMapping: measure devices if these are GPUs, nothing if not",
        ({**nodes(NPU), **mapping("devices")}, {**nodes(NPU), **mapping("nothing")}),
    ),
    "a spot pool without nodes": Row(
        "spot-pools",
        {**nodes(CLEAN), **policy(spot=SPOT)},
        "set rules.spot.nodeSelector to the labels of your spot nodes, or disable the rule",
        (
            {**nodes(CLEAN), **policy(spot={**SPOT, "nodeSelector": {LABEL: "nvidia-t4"}})},
            {**nodes(CLEAN), **policy(spot={**SPOT, "mode": "disabled"})},
        ),
    ),
    "an excluded namespace that does not exist": Row(
        "excluded-namespaces",
        EXCLUDED,
        "remove gpu-operator from webhooks.excludedNamespaces of the chart until it exists, or create it",
        (
            {**EXCLUDED, OURS: excluding("kube-system")},
            {**EXCLUDED, NAMESPACES: [namespace("gpu-operator")]},
        ),
    ),
    "a quota that the webhook does not see": Row(
        "unseen-quotas",
        UNSEEN,
        "give the namespace the labels of webhooks.namespaceSelector of the chart, or take it from excludedNamespaces",
        ({**UNSEEN, OURS: excluding("kube-system")},),
    ),
    "a webhook after ours": Row(
        "later-webhooks",
        mutating("zzz", "pods"),
        "give it a name that sorts before zz-gpu-admission, or make sure that it does not change tolerations, node selectors "
        "and containers of GPU pods",
        (mutating("istio", "pods"), mutating("zzz", "services")),
    ),
    "a RuntimeClass that does not exist": Row(
        "references",
        job(runtimeClassName="nvidia"),
        "create RuntimeClass nvidia (the GPU operator brings nvidia), or remove runtimeClassName",
        (
            {
                **job(runtimeClassName="nvidia"),
                "/apis/node.k8s.io/v1/runtimeclasses/nvidia": {"metadata": {"name": "nvidia", "uid": "r"}},
            },
            job(),
        ),
    ),
    "a LimitRange that gives GPUs": Row(
        "limit-ranges",
        limit_range(default="1"),
        "set default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0",
        (limit_range(default="0", defaultRequest="0"),),
    ),
    "a paused policy": Row(
        "documents",
        {POLICIES: [stored({"priority": 1, "pausedUntil": "2027-02-01T00:00:00Z"})]},
        "remove spec.pausedUntil as soon as its reason is gone: gpu-admission resume",
        ({POLICIES: [stored({"priority": 1})]},),
    ),
    "an exemption that ended": Row(
        "documents",
        {POLICIES: [stored(exemption("2027-01-30"))]},
        "remove it, or extend it",
        ({POLICIES: [stored({"priority": 1})]}, {POLICIES: [stored(exemption("2027-03-01"))]}),
    ),
    "a document with a mistake": Row(
        "documents",
        {POLICIES: [stored({"priorty": 1})]},
        "correct it: until then the last good version stays in force",
        ({POLICIES: [stored({"priority": 1})]},),
    ),
    "a quota that nobody can read": Row(
        "gpu-quotas",
        {QUOTAS: [quota(COUNTED, hard={"gpus": "many"})]},
        "correct it: kubectl -n team edit gpuquota default; until then its last valid version stays in force, and the GPUs of "
        "ended pods are not released",
        ({QUOTAS: [quota(COUNTED)]},),
    ),
    "a quota that was never counted": Row(
        "gpu-quotas",
        {QUOTAS: [quota()]},
        f"wait ten seconds; after that see {SEE_LOG}",
        ({QUOTAS: [quota(COUNTED)]},),
    ),
    "a quota whose ledger cannot be read": Row(
        "gpu-quotas",
        {QUOTAS: [unreadable()]},
        f"wait a minute; after that see {SEE_LOG}",
        ({QUOTAS: [quota(COUNTED)]},),
    ),
    "a claim for models that does not exist": Row(
        "references",
        warmed(uri="s3://bucket/m", cache_claim="cache"),
        "create PersistentVolumeClaim cache in team, or remove gpu-admission.dev/model-cache-claim",
        (
            {
                **warmed(uri="s3://bucket/m", cache_claim="cache"),
                "/api/v1/namespaces/team/persistentvolumeclaims/cache": CLAIM,
            },
            warmed(uri="s3://bucket/m"),
        ),
    ),
    "a team of no namespace": Row(
        "teams",
        {**team(), NAMESPACES: []},
        "correct spec.namespaces: kubectl edit cgpuq vision",
        (team(),),
    ),
    "a guarantee for no namespace": Row(
        "teams",
        team(guaranteed={"vision-old": {"gpus": 16}}),
        "remove the guarantee: kubectl edit cgpuq vision",
        (team(),),
    ),
    "a guarantee that idles": Row(
        "teams",
        team("48", guaranteed={"vision-cv": {"gpus": 16}}),
        "lower spec.guaranteed, if that is not meant: kubectl edit cgpuq vision",
        (team("32", guaranteed={"vision-cv": {"gpus": 8}}),),
    ),
    "a line without a controller": Row(
        "waiting-pods",
        waiting(GATE),
        f"start the controller (gpu-admission-controller); in an emergency: {EMERGENCY} --all",
        ({**waiting(GATE), **LEADS}, waiting()),
    ),
    "a line that no new pod joins": Row(
        "waiting-pods",
        {**waiting(GATE, on_exceeded="Deny"), **LEADS},
        f"wait: they start in order; to start them now: {EMERGENCY} -n team",
        ({**waiting(on_exceeded="Deny"), **LEADS},),
    ),
    "a field that the API server dropped": Row(
        "gpu-quotas",
        {QUOTAS: [renamed()]},
        "set spec.unclassifiedPods in its manifest, and apply it",
        ({QUOTAS: [renamed(unclassifiedPods="Deny")]},),
    ),
    "a budget without a controller": Row(
        "budgets",
        {QUOTAS: [quota(COUNTED, budget={"gpuHours": 100})]},
        "start the controller (gpu-admission-controller) of this version, and see its log",
        ({QUOTAS: [budgeted()], **LEADS},),
    ),
    "a node of two classes": Row(
        "unknown-classes",
        nodes(OF_TWO),
        "name a label in nodeLabels of one class only; a GPUClass with the name of a built-in class replaces it",
        (
            {
                **nodes(OF_TWO),
                CLASSES: [document({**T4, "nodeLabels": [{"key": LABEL, "values": ["t4"]}]}, "nvidia-t4")],
            },
        ),
    ),
    "a pod that holds quota without a node": Row(
        "pending-pods",
        {QUOTAS: [quota(COUNTED)], NODES: [], PODS: [pending()]},
        "gpu-admission why Pod/a -n team says what each node lacks; delete what is not needed",
        ({QUOTAS: [quota(COUNTED)], NODES: [], PODS: []},),
    ),
    "teams that are granted more than there is": Row(
        "team-capacity",
        {**team(hard={"gpus": 9}), **nodes(CLEAN)},
        "lower spec.hard of some, unless an autoscaler adds nodes: pods beyond that find no node",
        ({**team(hard={"gpus": 8}), **nodes(CLEAN)},),
    ),
    "GPU pods that are not reviewed": Row(
        "excluded-namespaces",
        {OURS: excluding("kube-system", "team"), **NOT_REVIEWED},
        "remove team from the selector (webhooks.excludedNamespaces of the chart), unless it is the GPU stack; or apply "
        "deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict",
        ({OURS: excluding("kube-system"), **NOT_REVIEWED},),
    ),
}
