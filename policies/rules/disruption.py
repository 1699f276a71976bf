"""Keep nodes that end soon by themselves: pods that run to completion are not moved, and servers say how many may be.

Reads:   what max-runtime reads of a pod; of a workload spec.replicas, and the PodDisruptionBudgets of its namespace.
Adds:    to a GPU pod that runs to completion and has a deadline, its own or that of the object that makes it, the annotations
         `karpenter.sh/do-not-disrupt: "true"` and `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`, unless it has them.
Warns:   of a workload with several replicas of a server on GPUs that no PodDisruptionBudget selects.

Without a deadline nothing is added: a pod that hangs would keep its node forever. `mode` is disabled by default.
"""

from collections.abc import Iterator, Mapping

from policies.finding import Finding, Reason, Severity
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.annotations import DO_NOT_DISRUPT, SAFE_TO_EVICT
from policies.pods.field_paths import value_at
from policies.pods.label_selector import LabelSelector
from policies.pods.patch import PodPatch
from policies.pods.pod import Metadata
from policies.pods.workload import Workload
from policies.rule import Context, Mode, Need, Rule, RuleOptions
from policies.rules.max_runtime import runs_to_completion
from policies.rules.spot import may_serve

NO_DISRUPTION_BUDGET = Reason("NoDisruptionBudget", "no PodDisruptionBudget selects the replicas of a server")

ID = "disruption"
ADDED = {DO_NOT_DISRUPT: "true", SAFE_TO_EVICT: "false"}

SERVERS = frozenset(
    {
        ("", "ReplicationController"),
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("apps.kruise.io", "CloneSet"),
        ("apps.kruise.io", "StatefulSet"),
        ("argoproj.io", "Rollout"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    }
)
"""Kinds whose pods have the labels of the template. Other controllers set their own labels, or create the budgets."""
BY_CONTROLLERS = ("apps.kubernetes.io/", "leaderworkerset.sigs.k8s.io/", "statefulset.kubernetes.io/")
"""Prefixes of labels that controllers add to pods, so that a template does not show whether a budget selects them."""


class DisruptionOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.DISABLED


def mutate(patch: PodPatch, _options: DisruptionOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    is_bounded = (pod.spec.active_deadline_seconds or context.owner.deadline) is not None
    if is_bounded and context.surely_requests_gpus(pod) and runs_to_completion(pod, context):
        for key, value in ADDED.items():
            if key not in pod.annotations:
                patch.set_annotation(key, value)
    yield from ()


def check_workload(workload: Workload, _options: DisruptionOptions, context: Context) -> Iterator[Finding]:
    if context.budgets is None:
        return
    labels = [(each.pod.metadata or Metadata()).labels or {} for each in workload.pods]
    if not any(may_select(budget, each) for budget in context.budgets for each in labels):
        yield Finding(
            reason=NO_DISRUPTION_BUDGET,
            severity=Severity.WARNING,
            path="spec.replicas",
            value=str(value_at(workload.data, ("spec", "replicas"))),
            message="a drain of nodes may stop all replicas at once: no PodDisruptionBudget selects them",
            remedy="create one with the labels of the pods and maxUnavailable: 1",
        )


def may_stop_at_once(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether the workload has several replicas of a server on GPUs, and no owner (which is checked instead)."""
    replicas = value_at(workload.data, ("spec", "replicas"))
    return (
        (workload.group, workload.kind) in SERVERS
        and type(replicas) is int
        and replicas > 1
        and not workload.metadata.controlled_by
        and any(may_serve(each.pod) and mapping.pod_requests_gpus(each.pod) for each in workload.pods)
    )


def may_select(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether the selector may match pods of a template with these labels. Controllers may add labels BY_CONTROLLERS."""

    def is_unknown(key: str) -> bool:
        return key not in labels and key.startswith(BY_CONTROLLERS)

    return all(
        labels.get(key) == value or is_unknown(key) for key, value in selector.match_labels.items()
    ) and all(each.matches(labels) or is_unknown(each.key) for each in selector.match_expressions)


RULE = Rule(
    id=ID,
    reasons=(NO_DISRUPTION_BUDGET,),
    summary="pods that end by themselves are not moved before, and servers have a PodDisruptionBudget",
    options=DisruptionOptions,
    mutate=mutate,
    check_workload=check_workload,
    metadata_keys=(DO_NOT_DISRUPT, SAFE_TO_EVICT),
    needs=frozenset({Need.OWNER, Need.BUDGETS}),
    concerns=may_stop_at_once,
    not_exported="it depends on the object that makes the pod, and CEL cannot look anything up",
)
