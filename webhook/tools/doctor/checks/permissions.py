"""The rights of both ServiceAccounts, asked of the API server by SubjectAccessReview."""

from collections.abc import Iterator

from webhook.cluster.objects import CONTROLLER, WEBHOOK, WEBHOOK_CONFIGURATION
from webhook.configuration.cluster_source import PLURALS
from webhook.tools.doctor.check import DoctorCheck, Observation, failure
from webhook.tools.doctor.checks.configurations import APPLY, GROUP, KINDS, has_cert_manager
from webhook.tools.doctor.cluster import InstalledCluster, Names, Right
from webhook.tools.doctor.expected import expected_objects

OURS = "gpu-admission.dev"
READING = ("get", "list", "watch")


def _rights(
    verbs: tuple[str, ...], resource: str, group: str = "", namespace: str = "", name: str = ""
) -> list[Right]:
    return [Right(verb, resource, group, namespace, name) for verb in verbs]


def needed(
    names: Names, kinds: frozenset[str], *, karpenter: bool, cert_manager: bool
) -> dict[str, list[Right]]:
    """Return what each ServiceAccount needs, where these kinds of ours are installed."""
    ours = [plural for plural in PLURALS.values() if plural in kinds]
    documents = [right for plural in ours for right in _rights(READING, plural, OURS)]
    statuses = [right for plural in ours for right in _rights(("patch",), f"{plural}/status", OURS)]
    ledgers = _rights(("update",), "gpuquotas/status", OURS)
    own = names.namespace
    configurations = [
        right for kind in KINDS for right in _rights(READING, kind, GROUP, name=WEBHOOK_CONFIGURATION)
    ]
    pools = _rights(("list",), "nodepools", "karpenter.sh") if karpenter else []
    secret = [] if cert_manager else _rights(READING, "secrets", namespace=own, name=names.secret)
    certificates = [
        *_rights(("create",), "secrets", namespace=own),
        *_rights(("patch",), "secrets", namespace=own, name=names.secret),
        *configurations,
        *(right for kind in KINDS for right in _rights(("patch",), kind, GROUP, name=WEBHOOK_CONFIGURATION)),
    ]
    return {
        WEBHOOK: [
            *_rights(("get",), "gpuquotas", OURS),
            *ledgers,
            *documents,
            *_rights(READING, "namespaces"),
            *_rights(READING, "nodes"),
            *pools,
            *secret,
            *configurations,
        ],
        CONTROLLER: [
            *_rights(READING, "gpuquotas", OURS),
            *ledgers,
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


def _permissions(cluster: InstalledCluster) -> Iterator[Observation]:
    names = cluster.names
    kinds = frozenset(name.partition(".")[0] for name in expected_objects().custom_resources)
    karpenter = cluster.get("/apis/karpenter.sh") is not None
    rights_of = needed(names, kinds, karpenter=karpenter, cert_manager=has_cert_manager(cluster))
    for account, rights in rights_of.items():
        missing = [
            right
            for right in rights
            if not cluster.rights.of_service_account(names.namespace, account, right)
        ]
        if missing:
            yield failure(
                "right-missing",
                f"ServiceAccount/{account} in {names.namespace}",
                f"must be allowed to {'; '.join(right.words for right in missing)}",
                f"{APPLY}, which has its ClusterRole and Role",
            )


CHECKS = (
    DoctorCheck(
        "service-accounts",
        "The ServiceAccounts may do what webhook and controller need",
        _permissions,
        (Right("create", "subjectaccessreviews", "authorization.k8s.io"),),
    ),
)
