"""The API server, a controller that leads, a canary that takes the whole path, and the permissions of ServiceAccounts."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from policies.rule import Need
from webhook.canary.probe import probe
from webhook.cluster.objects import (
    CA_SECRET,
    CATALOGUES_CONFIG_MAP,
    CONTROLLER,
    DEVICES,
    WEBHOOK,
    WEBHOOK_CONFIGURATION,
    InstallationNames,
)
from webhook.configuration.cluster_source import PLURALS
from webhook.configuration.workload_kinds import WorkloadKind, plural
from webhook.tools.doctor.check import NotChecked, Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.configurations import (
    APPLY_AGAIN,
    GROUP,
    KINDS,
    expected_objects,
    has_cert_manager,
)
from webhook.tools.installed_cluster import ADMISSION, InstalledCluster, NoResult, Permission
from webhook.workloads.autoscalers import SCALED_RESOURCES
from webhook.workloads.references import referred_kinds
from webhook.workloads.serving_workloads import LISTED_SERVING_KINDS

OLDEST_VERSION = (1, 35)
"""The oldest version with which gpu-admission is tested (`kubeVersion` of the chart)."""
MAX_RIGHTS = 6
"""Missing permissions that a finding names; without an installation all of some fifty are missing."""
LATE_DURATIONS = 6
"""After this many durations, 30 s, the Lease was certainly not renewed: the clocks of two machines differ by some seconds."""


@doctor_check("kubernetes-version", "The API server is new enough")
def _check_version(cluster: InstalledCluster) -> Iterator[Observation]:
    version = cluster.get("/version") or {}
    try:
        # Clouds write "30+".
        numbers = int(version["major"]), int(version["minor"].rstrip("+"))
    except (KeyError, ValueError):
        raise NoResult("the API server reports no version") from None
    if numbers < OLDEST_VERSION:
        where = f"API server {version.get('gitVersion', '')}"
        message = "must be 1.35 or newer: older ones are not tested"
        yield failure("kubernetes-too-old", where, message, "upgrade Kubernetes to 1.35 or newer")


@doctor_check("controller", "A controller leads")
def _check_controller(cluster: InstalledCluster) -> Iterator[Observation]:
    own, name = cluster.names.namespace, cluster.names.lease
    where = f"Lease/{name} in {own}"
    logs = f"kubectl -n {own} logs deployment/{CONTROLLER}"
    if cluster.lease is None:
        message = (
            "does not exist: no controller ever led, so quotas are not counted and certificates not renewed"
        )
        yield failure("controller-missing", where, message, f"start the controller: {logs}")
        return
    spec, age = cluster.lease.get("spec") or {}, controller_age(cluster)
    longest = timedelta(seconds=LATE_DURATIONS * (spec.get("leaseDurationSeconds") or 0))
    if not spec.get("holderIdentity") or age is None or age > longest:
        when = f"was last renewed {age.total_seconds():.0f} s ago" if age is not None else "was never renewed"
        holder = spec.get("holderIdentity") or "nobody"
        message = f"is held by {holder} and {when}: quotas are not counted, certificates not renewed"
        yield failure("controller-away", where, message, f"see why no controller leads: {logs}")


def controller_age(cluster: InstalledCluster) -> timedelta | None:
    """Return for how long no controller has renewed its Lease. None if none ever did."""
    renewed = ((cluster.lease or {}).get("spec") or {}).get("renewTime")
    return cluster.now - datetime.fromisoformat(renewed) if renewed else None


@doctor_check("canary", "A GPU pod passes through both webhooks and is changed as it must be")
def _check_canary(cluster: InstalledCluster) -> Iterator[Observation]:
    where = f"canary in {cluster.names.canary_namespace}"
    outcome = probe(cluster.api, cluster.names.canary_namespace)
    if outcome.ok:
        yield from (NotChecked(f"it is not proved {fact}") for fact in outcome.unproved)
    elif outcome.reason in {"api-server", "forbidden"}:
        yield NotChecked(f"{where}: {outcome.message}", for_administrators=outcome.reason == "forbidden")
    else:
        message = f"failed: {outcome.message}"
        yield failure(f"canary-{outcome.reason}", f"the {where}", message, outcome.remedy)


OUR_GROUP = "gpu-admission.dev"
POLICY_KINDS = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
CONTROLLER_POLICIES = {
    CONTROLLER: "send any request of the cluster anywhere",
    f"{CONTROLLER}-pods": "change any pod",
}
"""The admission policies by name, and what the controller may do without them."""
READ_VERBS = "get list watch"
AUTOSCALERS_WEBHOOK = "autoscalers.validate.gpu-admission.dev"
"""The webhook that reads the target of an autoscaler; the chart omits it with webhooks.workloads=false."""


def _permissions(
    verbs: str, resources: Iterable[str], group: str = "", namespace: str = "", name: str = ""
) -> list[Permission]:
    return [Permission(verb, each, group, namespace, name) for each in resources for verb in verbs.split()]


def needed_permissions(
    names: InstallationNames,
    *,
    karpenter: bool,
    cert_manager: bool,
    autoscalers: bool,
    owners: Iterable[WorkloadKind] = (),
    referred: Iterable[tuple[str, str]] = (),
) -> dict[str, list[Permission]]:
    """Return what each ServiceAccount must be allowed to do, for the CRDs that this version installs.

    owners: the kinds that the webhook reads where pods name them as their controllers. referred: API group and resource of
    those that it reads where workloads name them.
    """
    installed = {name.partition(".")[0] for name in expected_objects().crds}
    ours = [plural for plural in PLURALS.values() if plural in installed]
    own, secret = names.namespace, names.secret
    both = [
        *_permissions("get update", ["gpuquotaledgers"], OUR_GROUP, own),
        *_permissions(READ_VERBS, ours, OUR_GROUP),
        *_permissions(READ_VERBS, ["namespaces", "nodes"]),
        *_permissions(READ_VERBS, ["deviceclasses"], "resource.k8s.io"),
        *_permissions("create patch", ["events"]),
        *(() if cert_manager else _permissions(READ_VERBS, ["secrets"], namespace=own, name=secret)),
    ]
    configurations = _permissions(READ_VERBS, KINDS, GROUP, name=WEBHOOK_CONFIGURATION)
    certificates = [
        *_permissions("create", ["secrets"], namespace=own),
        *_permissions("patch", ["secrets"], namespace=own, name=secret),
        *_permissions(f"{READ_VERBS} patch", ["secrets"], namespace=own, name=CA_SECRET),
        *configurations,
        *_permissions("patch", KINDS, GROUP, name=WEBHOOK_CONFIGURATION),
    ]
    return {
        WEBHOOK: [
            *_permissions("get", ["gpuquotas"], OUR_GROUP),
            *_permissions("list", ["clustergpuquotas"], OUR_GROUP),
            *both,
            *_permissions(READ_VERBS, ["resourceclaims", "resourceclaimtemplates"], "resource.k8s.io"),
            *_permissions("list watch", ["limitranges"]),
            *(_permissions("list", ["nodepools"], "karpenter.sh") if karpenter else ()),
            *(Permission("get", name, group) for group, name in SCALED_RESOURCES if autoscalers),
            *(Permission("get", name, group) for group, name in referred if autoscalers),
            *(_permissions("list", map(plural, LISTED_SERVING_KINDS), "apps") if autoscalers else ()),
            *(Permission("get", owner.plural, owner.group) for owner in owners),
            *_permissions("get", ["configmaps"], namespace=own, name=CATALOGUES_CONFIG_MAP),
            *_permissions(READ_VERBS, ["configmaps"], namespace=own, name=DEVICES),
            *_permissions("get", ["leases"], "coordination.k8s.io", own, names.lease),
            *configurations,
        ],
        CONTROLLER: [
            *_permissions(READ_VERBS, ["gpuquotas", "clustergpuquotas"], OUR_GROUP),
            *_permissions("update", ["gpuquotas/status", "clustergpuquotas/status"], OUR_GROUP),
            *_permissions("list watch create delete", ["gpuquotaledgers"], OUR_GROUP, own),
            *both,
            *_permissions("patch", [f"{plural}/status" for plural in ours], OUR_GROUP),
            *_permissions(f"{READ_VERBS} patch", ["pods"]),
            *_permissions("list", ["limitranges"]),
            *_permissions(READ_VERBS, ["resourceclaims", "resourceslices"], "resource.k8s.io"),
            *_permissions("get patch", ["configmaps"], namespace=own, name=CATALOGUES_CONFIG_MAP),
            *_permissions(f"{READ_VERBS} patch", ["configmaps"], namespace=own, name=DEVICES),
            *_permissions("get update", ["leases"], "coordination.k8s.io", own, names.lease),
            *_permissions("create", ["leases"], "coordination.k8s.io", own),
            *(() if cert_manager else certificates),
            *_permissions("create", ["pods"], namespace=names.canary_namespace),
        ],
    }


@doctor_check(
    "service-accounts",
    "The ServiceAccounts may do what webhook and controller need",
    Permission("create", "subjectaccessreviews", "authorization.k8s.io"),
)
def _check_service_accounts(cluster: InstalledCluster) -> Iterator[Observation]:
    entries = cluster.webhooks("validatingwebhookconfigurations")
    configuration = cluster.usable_configuration
    kinds = configuration.workload_kinds
    reads_owners = Need.OWNER in configuration.policies.needs
    permissions_of = needed_permissions(
        cluster.names,
        karpenter=cluster.get("/apis/karpenter.sh") is not None,
        cert_manager=has_cert_manager(cluster),
        autoscalers=any(entry["name"] == AUTOSCALERS_WEBHOOK for entry in entries),
        referred=sorted(referred_kinds(kinds)),
        owners=[kind for kind in kinds.values() if kind.ends_pods and reads_owners],
    )
    for account, permissions in permissions_of.items():
        lacking = (each.words for each in permissions if not cluster.is_allowed(each, account))
        missing = list(dict.fromkeys(lacking))
        if missing:
            where = f"ServiceAccount/{account} in {cluster.names.namespace}"
            more = len(missing) - MAX_RIGHTS
            message = f"must be allowed to {'; '.join(missing[:MAX_RIGHTS])}"
            message += f"; and {more} more" if more > 0 else ""
            yield failure(
                "right-missing", where, message, f"{APPLY_AGAIN}, which has its ClusterRole and Role"
            )


def has_denying_policy(cluster: InstalledCluster, name: str) -> bool:
    """Whether there is an admission policy of this name, with a binding that denies."""
    policy, binding = (cluster.get(f"{ADMISSION}/{kind}/{name}") for kind in POLICY_KINDS)
    bound = (binding or {}).get("spec", {}).get("validationActions") or ()
    return policy is not None and "Deny" in bound


@doctor_check(
    "controller-policy",
    "Admission policies bound what the controller may write",
    *(Permission("get", kind, GROUP, name=name) for kind in POLICY_KINDS for name in CONTROLLER_POLICIES),
)
def _check_controller_policies(cluster: InstalledCluster) -> Iterator[Observation]:
    for name, otherwise in CONTROLLER_POLICIES.items():
        if not has_denying_policy(cluster, name):
            where = f"ValidatingAdmissionPolicy/{name}"
            message = f"must exist, with a binding that denies: without it the controller may {otherwise}"
            remedy = f"{APPLY_AGAIN}, with admissionPolicy.enabled of the chart"
            yield warning("controller-unbounded", where, message, remedy)


CHECKS = (
    _check_version,
    _check_controller,
    _check_canary,
    _check_service_accounts,
    _check_controller_policies,
)
