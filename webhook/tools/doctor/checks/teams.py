"""ClusterGPUQuotas: whether they are counted, have namespaces, and grant what the nodes have; and guarantees that idle."""

from collections.abc import Iterator
from functools import partial

from policies.quota.amounts import NOTHING, format_amount, granted_together, total, unit
from policies.quota.ledger.team import team_title
from policies.quota.shortage_facts import amounts_in_words
from webhook.cluster.capacity import gpu_node, gpus_by_dimension
from webhook.quota.documents import UNREADABLE
from webhook.quota.ledger_objects import team_object_name
from webhook.quota.team_documents import TeamRecord
from webhook.tools.doctor.check import Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.configurations import APPLY, GROUP
from webhook.tools.doctor.checks.control_plane import POLICY_KINDS, denies
from webhook.tools.doctor.checks.documents import recount_remedy, true_conditions
from webhook.tools.doctor.checks.nodes import READ
from webhook.tools.granted_text import granted_beyond
from webhook.tools.installed_cluster import InstalledCluster, Permission

POLICY = "gpu-admission-teams"
READ_TEAMS = Permission("list", "clustergpuquotas", "gpu-admission.dev")


@doctor_check(
    "teams",
    "ClusterGPUQuotas are counted and have namespaces, and no guarantee idles while others need it",
    READ_TEAMS,
    Permission("list", "namespaces"),
)
def _teams(cluster: InstalledCluster) -> Iterator[Observation]:
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
        yield from true_conditions("team", record, title, remedies, is_used=bool(names))
        if not names:
            message = "matches no namespace, or only those of other teams"
            yield warning("team-without-namespaces", title, message, f"correct spec.namespaces: {edit}")
        for namespace in sorted(set(record.spec.guarantees) - set(names)):
            amount = amounts_in_words(record.spec.guarantees[namespace])
            message = f"guarantees {amount} to {namespace}, which does not belong to it now: they stay free"
            yield warning("guarantee-of-no-namespace", title, message, f"remove the guarantee: {edit}")
        yield from _idle(record)
        for key, hard in sorted(record.hard.items()):  # which is allowed
            if beyond := granted_beyond(record.status.granted, {key: hard}):
                yield f"{title}: {beyond}"


def _idle(record: TeamRecord) -> Iterator[Observation]:
    """Yield a guarantee that idles while nothing else of the team is free."""
    status, hard = record.status, record.hard
    held = total((status.used or {}, status.reserved))
    short = {
        key: idle
        for key, idle in status.guaranteed_idle.items()
        if idle and key in hard and held.get(key, NOTHING) + idle >= hard[key]
    }
    if short:
        message = f"has nothing left but {amounts_in_words(short)} that are guaranteed and not used"
        remedy = f"lower spec.guaranteed, if that is not meant: kubectl edit cgpuq {record.name}"
        yield warning("guarantee-idle", team_title(record.name), message, remedy)


@doctor_check(
    "team-capacity",
    "ClusterGPUQuotas, and GPUQuotas outside teams, grant no more than the nodes have",
    READ_TEAMS,
    Permission("list", "gpuquotas", "gpu-admission.dev"),
    Permission("list", "namespaces"),
    READ,
)
def _capacity(cluster: InstalledCluster) -> Iterator[Observation]:
    if not cluster.teams:
        return
    members = {name for names in cluster.members.values() for name in names}
    quotas = [quota for quota in cluster.quotas if quota.namespace not in members]
    granting = [each.spec.amounts for each in (*cluster.teams, *quotas) if each.spec is not None]
    nodes = cluster.decoded("/api/v1/nodes", partial(gpu_node, catalogue=cluster.usable_configuration))
    has = gpus_by_dimension(nodes)
    where = "ClusterGPUQuotas and GPUQuotas outside teams" if quotas else "ClusterGPUQuotas"
    for key, amount in sorted(granted_together(granting, cluster.usable_configuration.classes).items()):
        if amount > (allocatable := has.get(key, NOTHING)):
            what = f"{format_amount(amount)} {unit(key)}"
            message = f"grant {what} together, and the nodes have {format_amount(allocatable)}"
            remedy = "lower spec.hard of some, unless an autoscaler adds nodes: pods beyond that find no node"
            yield warning("teams-exceed-nodes", where, message, remedy)


@doctor_check(
    "team-membership",
    "Only who may update a ClusterGPUQuota changes which namespaces it has",
    READ_TEAMS,
    *(Permission("get", kind, GROUP, name=POLICY) for kind in POLICY_KINDS),
)
def _membership(cluster: InstalledCluster) -> Iterator[Observation]:
    if cluster.teams and not denies(cluster, POLICY):
        message = "must exist, with a binding that denies: else users who may label a namespace can take it out of its team"
        remedy = f"{APPLY}, with admissionPolicy.enabled and teams.protectMembership of the chart"
        yield warning("membership-unprotected", f"ValidatingAdmissionPolicy/{POLICY}", message, remedy)


CHECKS = (_teams, _capacity, _membership)
