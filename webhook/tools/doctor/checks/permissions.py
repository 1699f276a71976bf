"""What the two ServiceAccounts must be allowed to do, asked of the API server by SubjectAccessReview."""

from collections.abc import Iterator

from webhook.configuration.cluster_source import PLURALS
from webhook.tools.doctor.check import Check, Finding, Told
from webhook.tools.doctor.checks.configurations import APPLY, GROUP, KINDS
from webhook.tools.doctor.cluster import ADMISSION, CONFIGURATION, Cluster, Names
from webhook.tools.doctor.expected import wanted
from webhook.tools.doctor.rights import Right

OURS = "gpu-admission.dev"
READING = ("get", "list", "watch")
CERT_MANAGER = "cert-manager.io/inject-ca-from"
WEBHOOK, CONTROLLER = "gpu-admission-webhook", "gpu-admission-controller"


def _rights(
    verbs: tuple[str, ...], resource: str, group: str = "", namespace: str = "", name: str = ""
) -> list[Right]:
    return [Right(verb, resource, group, namespace, name) for verb in verbs]


def needed(
    names: Names, kinds: frozenset[str], *, karpenter: bool, cert_manager: bool
) -> dict[str, list[Right]]:
    """Return what each ServiceAccount needs, where these kinds of ours are installed."""
    documents = [
        right for plural in PLURALS.values() if plural in kinds for right in _rights(READING, plural, OURS)
    ]
    statuses = [
        right
        for plural in PLURALS.values()
        if plural in kinds
        for right in _rights(("patch",), f"{plural}/status", OURS)
    ]
    rows = _rights(("update",), "gpuquotas/status", OURS)
    own = names.namespace
    configurations = [right for kind in KINDS for right in _rights(READING, kind, GROUP, name=CONFIGURATION)]
    pools = _rights(("list",), "nodepools", "karpenter.sh") if karpenter else []
    secret = [] if cert_manager else _rights(READING, "secrets", namespace=own, name=names.secret)
    certificates = [
        *_rights(("create",), "secrets", namespace=own),
        *_rights(("patch",), "secrets", namespace=own, name=names.secret),
        *configurations,
        *(right for kind in KINDS for right in _rights(("patch",), kind, GROUP, name=CONFIGURATION)),
    ]
    return {
        WEBHOOK: [
            *_rights(("get",), "gpuquotas", OURS),
            *rows,
            *documents,
            *_rights(READING, "namespaces"),
            *_rights(READING, "nodes"),
            *pools,
            *secret,
            *configurations,
        ],
        CONTROLLER: [
            *_rights(READING, "gpuquotas", OURS),
            *rows,
            *documents,
            *statuses,
            *_rights(READING, "pods"),
            *_rights(READING, "nodes"),
            *_rights(READING, "resourceclaims", "resource.k8s.io"),
            *_rights(("get", "update"), "leases", "coordination.k8s.io", own, names.lease),
            *_rights(("create",), "leases", "coordination.k8s.io", own),
            *secret,
            *([] if cert_manager else certificates),
            *_rights(("create",), "pods", namespace=names.canary_namespace),
        ],
    }


def _has_cert_manager(cluster: Cluster) -> bool:
    """Whether cert-manager makes the certificate and publishes its authority; the controller then has no right to."""
    documents = (cluster.get(f"{ADMISSION}/{kind}/{CONFIGURATION}") or {} for kind in KINDS)
    return any(CERT_MANAGER in (each.get("metadata", {}).get("annotations") or ()) for each in documents)


def _permissions(cluster: Cluster) -> Iterator[Told]:
    names = cluster.names
    kinds = frozenset(name.partition(".")[0] for name in wanted().custom_resources)
    karpenter = cluster.get("/apis/karpenter.sh") is not None
    rights_of = needed(names, kinds, karpenter=karpenter, cert_manager=_has_cert_manager(cluster))
    for account, rights in rights_of.items():
        missing = [
            right
            for right in rights
            if not cluster.rights.of_service_account(names.namespace, account, right)
        ]
        if missing:
            yield Finding(
                id="right-missing",
                object=f"ServiceAccount/{account} in {names.namespace}",
                message=f"may not {'; '.join(right.words for right in missing)}",
                remedy=f"{APPLY}, which has its ClusterRole and Role",
            )


CHECKS = (
    Check(
        id="service-accounts",
        title="The ServiceAccounts may do what webhook and controller need",
        reads=(Right("create", "subjectaccessreviews", "authorization.k8s.io"),),
        run=_permissions,
    ),
)
