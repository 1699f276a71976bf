"""Keep nodes that end soon by themselves: pods that run to completion are not moved, and servers say how many may be.

Reads:   what max-runtime reads of a pod; of a workload spec.replicas, and the PodDisruptionBudgets of its namespace.
Adds:    to a GPU pod that runs to completion and has a deadline, its own or that of the object that makes it, the annotations
         `karpenter.sh/do-not-disrupt: "true"` and `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`, unless it has them.
Warns:   of a workload with several replicas of a server on GPUs that no PodDisruptionBudget selects; in every mode, of a
         PodDisruptionBudget that lets no pod of such a server be evicted, and of one that selects no pod.

Without a deadline nothing is added: a pod that hangs would keep its node forever. `mode` is disabled by default.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from policies.finding import Edit, Finding, Reason, one_choice, warning
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
BLOCKS_DRAINS = Reason("BlocksDrains", "a PodDisruptionBudget lets no pod of a server be evicted")
SELECTS_NO_POD = Reason("SelectsNoPod", "a PodDisruptionBudget selects no pod")

ID = "disruption"
_PERCENT = re.compile(r"([0-9]{1,4})%")
ADDED_ANNOTATIONS = {DO_NOT_DISRUPT: "true", SAFE_TO_EVICT: "false"}

SERVING_KINDS = frozenset(
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
CONTROLLER_LABELS = ("apps.kubernetes.io/", "leaderworkerset.sigs.k8s.io/", "statefulset.kubernetes.io/")
"""Prefixes of labels that controllers add to pods, so that a template does not show whether a budget selects them."""


class DisruptionOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.DISABLED


def mutate(patch: PodPatch, _options: DisruptionOptions, context: Context) -> Iterator[Finding]:
    pod = patch.pod
    has_deadline = (pod.spec.active_deadline_seconds or context.owner.deadline) is not None
    if has_deadline and context.surely_requests_gpus(pod) and runs_to_completion(pod, context):
        for key, value in ADDED_ANNOTATIONS.items():
            if key not in pod.annotations:
                patch.set_annotation(key, value)
    yield from ()


def check_workload(workload: Workload, _options: DisruptionOptions, context: Context) -> Iterator[Finding]:
    if context.pdb_selectors is None:
        return
    if not any(_may_select_pods_of(budget, workload) for budget in context.pdb_selectors):
        yield warning(
            reason=NO_DISRUPTION_BUDGET,
            path="spec.replicas",
            value=str(value_at(workload.data, ("spec", "replicas"))),
            message="a drain of nodes may stop all replicas at once: no PodDisruptionBudget selects them",
            remedy="create one with the labels of the pods and maxUnavailable: 1",
        )


def may_stop_at_once(workload: Workload, mapping: ResourceMapping) -> bool:
    """Whether the workload has several replicas of a server on GPUs, and no owner (which is checked instead)."""
    replicas = value_at(workload.data, ("spec", "replicas"))
    return (
        (workload.group, workload.kind) in SERVING_KINDS
        and type(replicas) is int
        and replicas > 1
        and not workload.metadata.controlled_by
        and _serves_on_gpus(workload, mapping)
    )


def may_select(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether the selector may match pods of a template with these labels. Controllers may add labels BY_CONTROLLERS."""

    def is_unknown(key: str) -> bool:
        return key not in labels and key.startswith(CONTROLLER_LABELS)

    return all(
        labels.get(key) == value or is_unknown(key) for key, value in selector.match_labels.items()
    ) and all(each.matches(labels) or is_unknown(each.key) for each in selector.match_expressions)


class PDBSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a PodDisruptionBudget. Without selector it selects no pod."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None

    @property
    def may_block_all(self) -> bool:
        """Whether none of some number of pods may be evicted."""
        return self.max_unavailable is None or self.keeps_all(1)

    def keeps_all(self, pods: int) -> bool:
        """Whether none of these healthy pods may be evicted (pkg/controller/disruption, getExpectedPodCount, v1.37)."""
        if self.max_unavailable is not None:
            return _pods_of_amount(self.max_unavailable, pods) == 0
        return _pods_of_amount(self.min_available or 0, pods) >= pods


def _pods_of_amount(amount: int | str, pods: int) -> int:
    """Return the amount in pods. Percentages round up; another text is 1, and the API server rejects it."""
    if isinstance(amount, int):
        return amount
    percent = _PERCENT.fullmatch(amount)
    return -(-int(percent[1]) * pods // 100) if percent else 1


class ServingWorkload(msgspec.Struct, frozen=True):
    """A workload, and the fewest pods that it has while it serves: the least of its autoscaler (kind and name), if it has one."""

    workload: Workload
    min_pods: int | None = None
    autoscaler: str = ""

    @property
    def title(self) -> str:
        return f"{self.workload.kind} {self.workload.name}"

    @property
    def pods(self) -> int:
        written = sum(pod.count.running or 0 for pod in self.workload.pods)
        return written if self.min_pods is None else max(self.min_pods, 1)


def check_pdb(
    budget: PDBSpec,
    servers: Iterable[ServingWorkload],
    mapping: ResourceMapping,
    *,
    no_other_pods: bool,
) -> Iterator[Finding]:
    """Warn, in every mode, of a PodDisruptionBudget by the workloads of its namespace. no_other_pods: it can mean no others."""
    servers = [server for server in servers if (server.workload.group, server.workload.kind) in SERVING_KINDS]
    on_gpus = [server for server in servers if _serves_on_gpus(server.workload, mapping)]
    selected = [
        server
        for server in servers
        if budget.selector and _may_select_pods_of(budget.selector, server.workload)
    ]
    if not selected and on_gpus and (no_other_pods or budget.selector is None):
        yield warning(
            rule=ID,
            reason=SELECTS_NO_POD,
            path="spec.selector",
            message=f"selects no pod, so it protects none: {on_gpus[0].title} has other labels",
            remedy="set the labels of the pods",
        )
    pods, is_minimum = sum(workload.pods for workload in selected), budget.max_unavailable is None
    if not (pods and budget.keeps_all(pods) and any(workload in on_gpus for workload in selected)):
        return
    field, value = (
        ("minAvailable", budget.min_available) if is_minimum else ("maxUnavailable", budget.max_unavailable)
    )
    titles = " and ".join(workload.title for workload in selected)
    least = (f"at the least, by {each.autoscaler}" for each in selected if each.autoscaler and is_minimum)
    replacement = Edit("spec.maxUnavailable", 1)
    yield warning(
        rule=ID,
        reason=BLOCKS_DRAINS,
        path=f"spec.{field}",
        value=str(value),
        message=f"a drain of a node never ends: no pod of {titles} may be evicted ({pods} {next(least, 'in all')})",
        choices=one_choice(Edit(f"spec.{field}"), replacement) if is_minimum else one_choice(replacement),
    )


def _serves_on_gpus(workload: Workload, mapping: ResourceMapping) -> bool:
    return any(may_serve(pod.pod) and mapping.pod_requests_gpus(pod.pod) for pod in workload.pods)


def _may_select_pods_of(selector: LabelSelector, workload: Workload) -> bool:
    labels = ((pod.pod.metadata or Metadata()).labels or {} for pod in workload.pods)
    return any(may_select(selector, label) for label in labels)


RULE = Rule(
    id=ID,
    reasons=(NO_DISRUPTION_BUDGET, BLOCKS_DRAINS, SELECTS_NO_POD),
    summary="pods that end by themselves are not moved before, and servers have a PodDisruptionBudget",
    options=DisruptionOptions,
    mutate=mutate,
    check_workload=check_workload,
    metadata_keys=(DO_NOT_DISRUPT, SAFE_TO_EVICT),
    needs=frozenset({Need.OWNER, Need.PDBS}),
    concerns=may_stop_at_once,
    not_exported="it depends on the object that makes the pod, and CEL cannot look anything up",
)
