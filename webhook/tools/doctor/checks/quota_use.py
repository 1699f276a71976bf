"""Teams and quotas as they are used: ClusterGPUQuotas, pods that wait in line or hold quota without a node, and budgets.

A ClusterGPUQuota must be counted, have namespaces, grant what the nodes have, and guarantee nothing that idles while others need
it. A spent budget is not a finding.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

import msgspec

from policies.quota.amounts import GPUS, ZERO, exceeded_limits, format_amount, total, total_granted, unit_name
from policies.quota.ledger.team import team_title
from policies.quota.shortage_facts import amounts_in_words
from policies.quota.waiting import STARVED_SECONDS
from policies.registry import QUOTA_RULE
from policies.rule import Mode
from policies.times import utc
from webhook.cluster.capacity import gpu_node, gpus_by_dimension
from webhook.cluster.nodes import readable_node_index
from webhook.cluster.objects import CONTROLLER, service_account
from webhook.quota.counted_records import LONG_PENDING_SECONDS
from webhook.quota.documents import UNREADABLE, PlaceInLine, QuotaRecord
from webhook.quota.ledger_objects import team_object_name
from webhook.quota.team_documents import TeamRecord
from webhook.tools.doctor.check import Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.configurations import APPLY_AGAIN, GROUP
from webhook.tools.doctor.checks.control_plane import (
    OUR_GROUP,
    POLICY_KINDS,
    controller_age,
    has_denying_policy,
)
from webhook.tools.doctor.checks.documents import findings_of_conditions, recount_remedy
from webhook.tools.doctor.checks.nodes import LIST_NODES, names_in_words
from webhook.tools.granted_text import overcommitted_text
from webhook.tools.installed_cluster import InstalledCluster, Permission
from webhook.tools.pending_pods import PendingOwner, pending_owners
from webhook.tools.stored_pod import StoredPod, decode_stored

POLICY = "gpu-admission-teams"
LIST_TEAMS = Permission("list", "clustergpuquotas", "gpu-admission.dev")


@doctor_check(
    "teams",
    "ClusterGPUQuotas are counted and have namespaces, and no guarantee idles while others need it",
    LIST_TEAMS,
    Permission("list", "namespaces"),
)
def _check_teams(cluster: InstalledCluster) -> Iterator[Observation]:
    for record in cluster.teams:
        title, edit = team_title(record.name), f"kubectl edit cgpuq {record.name}"
        if record.spec is None:
            remedy = f"correct it: {edit}; until then its last valid version stays in force"
            yield failure("team-unreadable", title, record.problem, remedy)
            continue
        names = cluster.members[record.name]
        remedies = {
            UNREADABLE: recount_remedy(cluster.names.namespace, team_object_name(record.name)),
            "Exceeded": "see which namespaces hold it: gpu-admission quota; nothing more is admitted",
            "TooManyNamespaces": "split the team, or match fewer namespaces",
            "TooLarge": "shorten spec.hard of the GPUQuotas of its namespaces, or split the team",
        }
        yield from findings_of_conditions("team", record, title, remedies, is_used=bool(names))
        if not names:
            message = "matches no namespace, or only those of other teams"
            yield warning("team-without-namespaces", title, message, f"correct spec.namespaces: {edit}")
        for namespace in sorted(set(record.spec.guarantees) - set(names)):
            amount = amounts_in_words(record.spec.guarantees[namespace])
            message = f"guarantees {amount} to {namespace}, which does not belong to it now: they stay free"
            yield warning("guarantee-of-no-namespace", title, message, f"remove the guarantee: {edit}")
        yield from _idle_guarantees(record)
        for key, hard in sorted(record.hard.items()):  # which is allowed
            if beyond := overcommitted_text(record.status.granted, {key: hard}):
                yield f"{title}: {beyond}"


def _idle_guarantees(record: TeamRecord) -> Iterator[Observation]:
    """Yield a guarantee that idles while nothing else of the team is free."""
    status, hard = record.status, record.hard
    held = total((status.used or {}, status.reserved))
    idle_amounts = {
        key: idle
        for key, idle in status.guaranteed_idle.items()
        if idle and key in hard and held.get(key, ZERO) + idle >= hard[key]
    }
    if idle_amounts:
        message = f"has nothing left but {amounts_in_words(idle_amounts)} that are guaranteed and not used"
        remedy = f"lower spec.guaranteed, if that is not meant: kubectl edit cgpuq {record.name}"
        yield warning("guarantee-idle", team_title(record.name), message, remedy)


@doctor_check(
    "team-capacity",
    "ClusterGPUQuotas, and GPUQuotas outside teams, grant no more than the nodes have",
    LIST_TEAMS,
    Permission("list", "gpuquotas", "gpu-admission.dev"),
    Permission("list", "namespaces"),
    LIST_NODES,
)
def _check_capacity(cluster: InstalledCluster) -> Iterator[Observation]:
    if not cluster.teams:
        return
    members = {name for names in cluster.members.values() for name in names}
    quotas = [quota for quota in cluster.quotas if quota.namespace not in members]
    granting = [record.spec.amounts for record in (*cluster.teams, *quotas) if record.spec is not None]
    nodes = cluster.decoded("/api/v1/nodes", partial(gpu_node, catalogue=cluster.usable_configuration))
    allocatable_by_key = gpus_by_dimension(nodes)
    where = "ClusterGPUQuotas and GPUQuotas outside teams" if quotas else "ClusterGPUQuotas"
    for key, amount in sorted(total_granted(granting, cluster.usable_configuration.classes).items()):
        if amount > (allocatable := allocatable_by_key.get(key, ZERO)):
            what = f"{format_amount(amount)} {unit_name(key)}"
            message = f"grant {what} together, and the nodes have {format_amount(allocatable)}"
            remedy = "lower spec.hard of some, unless an autoscaler adds nodes: pods beyond that find no node"
            yield warning("teams-exceed-nodes", where, message, remedy)


@doctor_check(
    "team-membership",
    "Only who may update a ClusterGPUQuota changes which namespaces it has",
    LIST_TEAMS,
    *(Permission("get", kind, GROUP, name=POLICY) for kind in POLICY_KINDS),
)
def _check_membership(cluster: InstalledCluster) -> Iterator[Observation]:
    if cluster.teams and not has_denying_policy(cluster, POLICY):
        message = "must exist, with a binding that denies: else users who may label a namespace can take it out of its team"
        remedy = f"{APPLY_AGAIN}, with admissionPolicy.enabled and teams.protectMembership of the chart"
        yield warning("membership-unprotected", f"ValidatingAdmissionPolicy/{POLICY}", message, remedy)


CONTROLLER_SELECTOR = {
    "labelSelector": "app.kubernetes.io/name=gpu-admission,app.kubernetes.io/component=controller"
}
PAUSE_COMMAND = "gpu-admission pause --for 1h --reason emergency"
STARTED_WITHIN = timedelta(minutes=2)
"""A pod that nothing makes wait has started within this time, or nobody starts it."""
COUNTED_WITHIN = timedelta(minutes=15)
"""A controller counts a budget every 5 minutes while GPUs are used."""


def _decode_waiting(raw: msgspec.Raw) -> StoredPod | None:
    pod = decode_stored(raw)
    return pod if pod.waits_in_line and not pod.has_ended else None


@doctor_check(
    "waiting-pods",
    "Pods that wait in line for quota have something to wait for, and a controller that starts them",
    Permission("list", "pods"),
    Permission("list", "gpuquotas", OUR_GROUP),
)
def _check_waiting_pods(cluster: InstalledCluster) -> Iterator[Observation]:
    by_namespace: dict[str, list[StoredPod]] = defaultdict(list)
    for pod in cluster.decoded("/api/v1/pods", _decode_waiting):
        by_namespace[pod.metadata.namespace].append(pod)
    if not by_namespace:
        return
    age = controller_age(cluster)
    if age is None or age > STARTED_WITHIN:
        names = names_in_words(pod.title for pods in by_namespace.values() for pod in pods)
        message = f"wait in line for quota ({names}), and no controller leads that would start them"
        remedy = f"start the controller ({CONTROLLER}); in an emergency: {PAUSE_COMMAND}, then gpu-admission release --all"
        yield failure("waiting-without-controller", "pods", message, remedy)
        return
    quotas = {record.namespace: record for record in cluster.quotas}
    for namespace, pods in sorted(by_namespace.items()):
        yield from _waiting_findings(cluster, namespace, pods, quotas.get(namespace))


@doctor_check(
    "controller-user",
    "The webhook knows the controller as the one that starts pods in line",
    Permission("list", "deployments", "apps"),
)
def _check_controller_user(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    expected = service_account(own, CONTROLLER)
    for controller in cluster.api.list(
        "/apis/apps/v1/deployments", msgspec.json.decode, query=CONTROLLER_SELECTOR
    ).items:
        name, namespace = controller["metadata"]["name"], controller["metadata"]["namespace"]
        spec = controller["spec"]["template"]["spec"]
        user = service_account(namespace, spec.get("serviceAccountName") or "default")
        if any(flag.startswith("--kubeconfig") for it in spec["containers"] for flag in it.get("args") or ()):
            user = "the user of its --kubeconfig"
        if user != expected:
            message = f"must run as {expected}: the webhook puts back the gates that {user} removes"
            remedy = f"run it in {own} with serviceAccountName: {CONTROLLER}, without --kubeconfig"
            yield failure("controller-user", f"Deployment/{name} in {namespace}", message, remedy)


def _waiting_findings(
    cluster: InstalledCluster, namespace: str, pods: list[StoredPod], quota: QuotaRecord | None
) -> Iterator[Observation]:
    where = f"pods in {namespace}"
    log = f"see the log of the controller; in an emergency: {PAUSE_COMMAND}, then gpu-admission release -n {namespace}"
    in_force = cluster.policy_of(namespace).in_force(QUOTA_RULE.id, cluster.now)
    is_enforced = in_force is not None and in_force[0].options.mode is Mode.ENFORCE
    if quota is None or not is_enforced:
        late = [
            pod.metadata.name
            for pod in pods
            if _age(cluster, pod.metadata.creation_timestamp) > STARTED_WITHIN
        ]
        if late:
            reason = "no GPUQuota" if quota is None else "no policy that enforces its GPUQuota"
            message = f"wait in line for quota ({names_in_words(late)}), although the namespace has {reason}"
            yield failure("waiting-for-nothing", where, message, log)
    elif not cluster.lets_wait(namespace):
        names = names_in_words(pod.metadata.name for pod in pods)
        message = f"wait in line for quota ({names}), which no new pod does: onExceeded is Deny"
        remedy = f"wait: they start in order; to start them now: {PAUSE_COMMAND}, then gpu-admission release -n {namespace}"
        yield warning("waiting-out-of-use", where, message, remedy)
    elif (first := _first_with_room(quota)) and _age(cluster, first.since) > timedelta(
        seconds=STARVED_SECONDS
    ):
        message = f"{first.owner} is first in line since {first.since}, although the quota has room for what it needs"
        yield warning("waiting-with-room", where, message, log)


def _first_with_room(quota: QuotaRecord) -> PlaceInLine | None:
    """Return what is first in line, if the quota has room for it."""
    status = quota.status
    first = next((each for each in status.waiting.next if each.place == 1), None) if status.waiting else None
    if first is None or status.used is None:
        return None
    over = exceeded_limits(total((status.used, status.reserved, first.demand)), status.hard)
    free = status.team.free if status.team else {}
    lacks = any(amount > free.get(key, amount) for key, amount in first.demand.items())
    return None if lacks or any(excess.key in first.demand for excess in over) else first


def _age(cluster: InstalledCluster, since: str | None) -> timedelta:
    return cluster.now - datetime.fromisoformat(since) if since else timedelta()


@doctor_check(
    "pending-pods",
    "Pods that hold quota find a node within 10 minutes",
    Permission("list", "pods"),
    Permission("list", "nodes"),
    Permission("list", "gpuquotas", OUR_GROUP),
)
def _check_pending_pods(cluster: InstalledCluster) -> Iterator[Observation]:
    counts_as = {quota.namespace: quota.spec.unclassified_pods for quota in cluster.quotas if quota.spec}
    if not counts_as:
        return
    configuration, began = cluster.usable_configuration, cluster.now - timedelta(seconds=LONG_PENDING_SECONDS)
    nodes = readable_node_index(cluster.api, configuration.classes.label_keys)
    by_namespace: dict[str, list[PendingOwner]] = defaultdict(list)
    for pending_owner in pending_owners(cluster.api, configuration, counts_as, nodes, ""):
        if not pending_owner.has_node and pending_owner.since < began:
            by_namespace[pending_owner.namespace].append(pending_owner)
    for namespace, owners in sorted(by_namespace.items()):
        first, gpus = owners[0], sum((owner.gpus or ZERO for owner in owners), ZERO)
        more = f"; and {len(owners) - 1} more" if len(owners) > 1 else ""
        yield warning(
            "pending-with-quota",
            f"pods in {namespace}",
            f"hold {format_amount(gpus)} {unit_name(GPUS, gpus)} of the quota and have no node: {first.owner} since "
            f"{utc(first.since)}, {first.reason}{more}",
            f"gpu-admission why {first.owner} -n {namespace} says what each node lacks; delete what is not needed",
        )


@doctor_check("budgets", "Budgets of GPU-hours are counted", Permission("list", "gpuquotas", OUR_GROUP))
def _check_budgets(cluster: InstalledCluster) -> Iterator[Observation]:
    with_budget = [
        quota for quota in cluster.quotas if quota.spec is not None and quota.spec.budget is not None
    ]
    if not with_budget:
        return
    age = controller_age(cluster)
    leads = age is not None and age <= COUNTED_WITHIN
    for quota in with_budget:
        if (problem := _why_not_counted(cluster, quota, leads=leads)) is not None:
            message = f"has a budget of GPU-hours, and {problem}"
            remedy = f"start the controller ({CONTROLLER}) of this version, and see its log"
            yield failure("budget-not-counted", f"GPUQuota in {quota.namespace}", message, remedy)


def _why_not_counted(cluster: InstalledCluster, quota: QuotaRecord, *, leads: bool) -> str | None:
    """Return why the budget is not counted, None if it is."""
    budget, used = quota.status.budget, (quota.status.used or {}).get(GPUS)
    if not leads:
        return "no controller leads that counts them: a spent budget denies until the end of its period, and no other one does"
    if budget is None:
        return "the controller that leads has not counted them"
    late = cluster.now - datetime.fromisoformat(budget.until)
    return f"the last count is of {budget.until}" if used and late > COUNTED_WITHIN else None


CHECKS = (
    _check_teams,
    _check_capacity,
    _check_membership,
    _check_waiting_pods,
    _check_controller_user,
    _check_pending_pods,
    _check_budgets,
)
