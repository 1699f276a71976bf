"""Reads the status of a cluster, or of some namespaces. What the caller may not read is left out and named."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import TypeVar

import msgspec

from policies.placement.nodes import NodeIndex
from policies.policy import Exemption, Policy, PolicySet, end_of_pause
from policies.quota.amounts import ZERO
from policies.registry import RULES
from policies.rule import Mode
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.capacity import NO_CAPACITY, ClassCapacity, capacity_by_class
from webhook.cluster.objects import TRUE, WEBHOOK, InstallationNames, decode_version
from webhook.configuration.cluster_source import EvaluatedDocuments, statuses
from webhook.configuration.documents import CLASS, GROUP, POLICY
from webhook.configuration.loader import Configuration
from webhook.quota.documents import PLURAL, QUOTAS, QuotaRecord, decode_quota
from webhook.quota.team_documents import TeamRecord
from webhook.tools.doctor.check import CheckResult
from webhook.tools.doctor.checks import is_not_installed, run_checks
from webhook.tools.doctor.checks.certificates import stored_certificate
from webhook.tools.installed_cluster import InstalledCluster
from webhook.tools.pending_pods import PENDING_AFTER, PendingOwner, pending_owners
from webhook.tools.status.denials import FROM_EVENTS, FROM_LOGS, LoggedPods, denials_in_events
from webhook.tools.status.freshness import figures_until
from webhook.tools.status.kueue import read_queues
from webhook.tools.status.listed_capacity import node_index
from webhook.tools.status.quotas import quota_status
from webhook.tools.status.report import (
    ClassStatus,
    ClusterStatus,
    ClusterTotals,
    Health,
    InstallationPart,
    InstallationStatus,
    PolicyStatus,
    quota_totals,
)
from webhook.tools.status.summaries import DeniedOwner, QuotaSummary
from webhook.tools.status.teams import read_teams, team_of_namespace, team_summary
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.version import VERSION

CHECKED_SECONDS = 60.0
"""Seconds between two runs of doctor's checks: they send many requests, and findings change slowly."""

QUOTA_KIND = f"{PLURAL}.{GROUP}"
T = TypeVar("T")
N = TypeVar("N", DeniedOwner, PendingOwner)


def read_status(
    api: ApiClient,
    *,
    now: datetime,
    namespaces: Sequence[str] = (),
    home: str = "",
    names: InstallationNames | None = None,
    config: Path | None = None,
    installation: InstallationStatus | None = None,
    logged: LoggedPods | None = None,
) -> ClusterStatus:
    """Return the status now.

    namespaces: if empty, all namespaces; `home` alone if the caller may not list quotas of all namespaces.
    config: a directory of documents in place of the cluster's.
    installation: an earlier result, since its checks take seconds.
    logged: pods of audit logs (`pods_in_logs`); their denials stand in place of Events.

    Raises `errors.ApiError` for everything but a lack of rights, ConfigurationError.
    """
    reader = TolerantReader(api)
    if config is None:
        documents = reader.documents()
        configuration, policies = documents.configuration, tuple(_policy_statuses(documents, now))
    else:
        configuration = reader.configuration(config)
        in_force = configuration.policies
        policies = tuple(
            _policy_status(policy, _rules_by_mode(in_force, policy), None, now)
            for policy in in_force.policies
        )
    shown, quotas = _read_quotas(reader, tuple(namespaces), home)
    nodes = reader.class_nodes(configuration, now, any_age=True)
    index = None if nodes is None else node_index(nodes, configuration)
    denials: ByNamespace[DeniedOwner] = {"": logged and logged.denied}
    if logged is None:
        denials = reader.by_namespace("events", shown, lambda each: denials_in_events(api, each, now))
    records = [record for of_namespace in quotas for record in of_namespace or ()]
    names = names or InstallationNames()
    if installation is None:
        installation = read_installation(InstalledCluster(api, names, config=config, now=now))
    summaries, until = read_summaries(reader, configuration, shown, records, index, names, now, denials)
    without_quota = [each for each, of_namespace in zip(shown, quotas, strict=False) if of_namespace == []]
    teams = _teams_of_namespaces(reader, without_quota) if shown else read_teams(reader)
    capacities = None if nodes is None else capacity_by_class(nodes)
    of_kueue = (read_queues(reader, each, configuration.resource_mapping) or () for each in shown or ("",))
    queues = tuple(chain.from_iterable(of_kueue))  # before what is omitted is named
    return ClusterStatus(
        at=now,
        version=VERSION,
        kubernetes=decode_version(api.get("/version")).git_version,
        configuration=configuration.version,
        namespaces=shown,
        installation=installation,
        policies=policies if reader.knows_policies else None,
        quotas=summaries,
        quotas_are_known=None not in quotas,
        totals=_totals(summaries, capacities),
        teams=None if teams is None else tuple(map(team_summary, teams)),
        figures_until=until,
        classes=_class_statuses(configuration, capacities),
        denials=_recent_denials(denials),
        denials_from=FROM_EVENTS if logged is None else FROM_LOGS,
        audited=logged and logged.audited,
        omitted=tuple(reader.omitted),
        nodes_from=reader.nodes_from,
        queues=queues,
    )


def _teams_of_namespaces(reader: TolerantReader, namespaces: Iterable[str]) -> list[TeamRecord]:
    teams = (team_of_namespace(reader, namespace) for namespace in namespaces)
    return list({team.name: team for team in teams if team}.values())


def status_reader(read: Callable[[ClusterStatus | None], ClusterStatus]) -> Callable[[], ClusterStatus]:
    """Return a function that reads the status whenever it is called.

    `read` gets the previous status, and reuses what is expensive to read. It gets None when that must be read again.
    """
    before: ClusterStatus | None = None
    checked = 0.0

    def read_again() -> ClusterStatus:
        nonlocal before, checked
        is_due = before is None or monotonic() - checked >= CHECKED_SECONDS
        before = read(None if is_due else before)
        checked = monotonic() if is_due else checked
        return before

    return read_again


def _read_quotas(
    reader: TolerantReader, namespaces: tuple[str, ...], home: str
) -> tuple[tuple[str, ...], list[list[QuotaRecord] | None]]:
    """Return the shown namespaces, empty for all, and the quotas of each, None where they are forbidden."""

    def listed(namespace: str) -> list[QuotaRecord]:
        records = reader.api.list(QUOTAS.path(namespace), decode_quota).items
        return sorted(records, key=lambda record: record.namespace)

    try:
        if not namespaces:
            everywhere = reader.attempt_list(QUOTA_KIND, "", partial(listed, ""))
            if everywhere is not None:
                return (), [everywhere]
            namespaces = (home,) if home else ()
        of_namespaces = [reader.attempt_list(QUOTA_KIND, each, partial(listed, each)) for each in namespaces]
    except errors.NotFound:  # their kind is not installed; doctor says so
        return namespaces, []
    return namespaces, of_namespaces or [None]


ByNamespace = dict[str, tuple[T, ...] | None]
"""Denials or pending pods by namespace, under "" for all namespaces; None where the caller may not read them."""


def read_summaries(
    reader: TolerantReader,
    configuration: Configuration,
    namespaces: Sequence[str],
    quotas: Sequence[QuotaRecord],
    nodes: NodeIndex | None,
    names: InstallationNames,
    now: datetime,
    denials: ByNamespace[DeniedOwner],
) -> tuple[tuple[QuotaSummary, ...], datetime | None]:
    """Return the status of these quotas, and `figures_until` of ClusterStatus."""
    counts_as = {quota.namespace: quota.spec.unclassified_pods for quota in quotas if quota.spec is not None}
    read = partial(pending_owners, reader.api, configuration, counts_as, nodes)
    pending = reader.by_namespace("pods", namespaces, read) if counts_as else {}
    until = figures_until(reader, names, now)
    summaries = (
        quota_status(
            quota,
            _of_namespace(denials, quota.namespace),
            _of_namespace(pending, quota.namespace),
            now - PENDING_AFTER,
            is_stale=until is not None,
        )
        for quota in quotas
    )
    return tuple(summaries), until


def _totals(quotas: Sequence[QuotaSummary], capacities: dict[str, ClassCapacity] | None) -> ClusterTotals:
    totals, classes = quota_totals(quotas), (capacities or {}).values()
    free = [capacity.free for capacity in classes]
    return msgspec.structs.replace(
        totals,
        nodes=None if capacities is None else sum((capacity.gpus for capacity in classes), ZERO),
        free=None if capacities is None or None in free else sum((amount or ZERO for amount in free), ZERO),
    )


def _recent_denials(denials: ByNamespace[DeniedOwner]) -> tuple[DeniedOwner, ...] | None:
    """Return all denials, the most recent first; None if the caller may not read any."""
    known = [denial for denial in denials.values() if denial is not None]
    return tuple(sorted(chain.from_iterable(known), key=lambda owner: owner.order)) if known else None


def _of_namespace(by_namespace: ByNamespace[N], namespace: str) -> list[N] | None:
    """Return what was found in a namespace; None where it cannot be read."""
    known = by_namespace.get(namespace, by_namespace.get(""))
    return None if known is None else [owner for owner in known if owner.namespace == namespace]


def _policy_statuses(evaluated: EvaluatedDocuments, now: datetime) -> Iterator[PolicyStatus]:
    policies = evaluated.configuration.policies
    in_force = {policy.name: policy for policy in policies.policies}
    for record, status in statuses(evaluated, now):
        if record.document.kind != POLICY:
            continue
        condition = status.conditions[0]
        is_in_force = condition.status == TRUE
        written = any(present.status == condition.status for present in record.status.conditions)
        since = datetime.fromisoformat(condition.last_transition_time) if is_in_force and written else None
        policy = in_force.get(record.document.name)
        modes = _rules_by_mode(policies, policy) if policy else {}
        policy = policy or Policy(name=record.document.name, version="")
        yield _policy_status(policy, modes, since, now, "" if is_in_force else condition.message)


def _rules_by_mode(policies: PolicySet, policy: Policy) -> dict[str, tuple[str, ...]]:
    modes = {rule.id: policies.bound(rule, policy).options.mode for rule in RULES}
    by_mode = {mode.value: tuple(rule for rule, own in modes.items() if own is mode) for mode in Mode}
    return {mode: rules for mode, rules in by_mode.items() if rules}


def _policy_status(
    policy: Policy,
    modes: dict[str, tuple[str, ...]],
    since: datetime | None,
    now: datetime,
    message: str = "",
) -> PolicyStatus:
    spec = policy.spec
    return PolicyStatus(
        name=policy.name,
        version=policy.version,
        priority=spec.priority,
        where=str(spec.match),
        in_force=not message,
        since=since,
        message=message,
        paused_until=end_of_pause(spec.paused_until, now),
        exemptions=tuple(_exemption_text(each) for each in spec.exemptions if each.is_in_force(now)),
        modes=modes,
    )


def _exemption_text(exemption: Exemption) -> str:
    rules = ", ".join(exemption.rules) if exemption.rules is not None else "every rule"
    until = f" until the end of {exemption.until}" if exemption.until else ""
    return f"{exemption}: {rules}{until} ({exemption.reason})"


def _class_statuses(
    configuration: Configuration, capacities: dict[str, ClassCapacity] | None
) -> tuple[ClassStatus, ...]:
    """Return the classes of documents and the classes with nodes; at the end nodes of a family, or of no known class."""
    documented = {document.name for document in configuration.documents if document.kind == CLASS}
    by_class = capacities or {}
    known = [
        ClassStatus(
            name=gpu_class.name,
            family=gpu_class.family,
            memory_gib=gpu_class.memory_gib,
            capacity=None if capacities is None else by_class.get(gpu_class.name, NO_CAPACITY),
        )
        for gpu_class in configuration.classes
        if gpu_class.name in documented or gpu_class.name in by_class
    ]
    listed = {status.name for status in known}
    others = (name for name in sorted(by_class) if name not in listed)
    unclassified = (ClassStatus(name=name, family=name, capacity=by_class[name]) for name in others)
    return (*known, *unclassified)


CERTIFICATE_CHECKS = ("ca-bundle", "certificate", "certificate-secret")
"""Ids of the checks of the certificate. The check of another part has the name of that part."""


def read_installation(cluster: InstalledCluster) -> InstallationStatus:
    """Run the checks, which takes some seconds, and read the state of the parts. Raises nothing that a check can report."""
    results = list(run_checks(cluster))
    if is_not_installed(results[-1]):
        findings = results[-1].findings
        text = f"{findings[0].object} {findings[0].message}: no policy and no quota has an effect"
        webhook = InstallationPart(name="webhook", health=Health.FAILED, text=text)
        return InstallationStatus(parts=(webhook,), findings=findings)
    missed = [(result.check.title, checked) for result in results for checked in result.not_checked]
    return InstallationStatus(
        parts=(
            _webhook_part(cluster),
            _part_by_checks(
                "controller", results, lambda: f"{cluster.lease['spec']['holderIdentity']} leads"
            ),
            _part_by_checks("canary", results, lambda: "a GPU pod passes both webhooks on a dry run"),
            _part_by_checks("certificate", results, partial(_certificate_text, cluster), CERTIFICATE_CHECKS),
        ),
        findings=tuple(finding for result in results for finding in result.findings),
        not_checked=tuple(f"{title}: {each.why}" for title, each in missed if not each.for_administrators),
        checks_for_administrators=len({title for title, checked in missed if checked.for_administrators}),
    )


def _part_by_checks(
    name: str, results: Sequence[CheckResult], text: Callable[[], str], ids: Sequence[str] = ()
) -> InstallationPart:
    """Return a part by the results of its checks; `text` describes it if they found nothing."""
    own = [result for result in results if result.check.id in (ids or (name,))]
    for finding in (finding for result in own for finding in result.findings):
        return InstallationPart(name=name, health=Health.FAILED, text=f"{finding.object} {finding.message}")
    for missed in (missed for result in own for missed in result.not_checked):
        return _unknown_part(name, missed.why, for_administrators=missed.for_administrators)
    return InstallationPart(name=name, health=Health.OK, text=text())


def _unknown_part(name: str, why: str, *, for_administrators: bool = False) -> InstallationPart:
    return InstallationPart(name=name, health=Health.UNKNOWN, text=why, for_administrators=for_administrators)


def _webhook_part(cluster: InstalledCluster) -> InstallationPart:
    try:
        deployment = cluster.get(
            "/apis/apps/v1", "namespaces", cluster.names.namespace, "deployments", WEBHOOK
        )
    except errors.ApiError as error:
        return _unknown_part("webhook", str(error), for_administrators=isinstance(error, errors.Forbidden))
    if deployment is None:
        return _unknown_part("webhook", f"Deployment/{WEBHOOK} in {cluster.names.namespace} does not exist")
    wanted, ready = (
        deployment["spec"].get("replicas", 1),
        (deployment.get("status") or {}).get("readyReplicas", 0),
    )
    image = deployment["spec"]["template"]["spec"]["containers"][0].get("image", "")
    text = f"{ready} of {wanted} replicas ready, {image}"
    return InstallationPart(name="webhook", health=Health.OK if ready else Health.FAILED, text=text)


def _certificate_text(cluster: InstalledCluster) -> str:
    trusted = "API servers trust what is served"
    try:
        leaf = stored_certificate(cluster)
    except errors.ApiError:
        leaf = None
    # Without the Secret the certificate comes from files, and only the handshake of the check has seen it.
    return f"{trusted}; the Secret's is valid until {leaf.not_valid_after_utc:%Y-%m-%d}" if leaf else trusted
