"""The installation as `status` shows it: its parts, and what the checks of `doctor` found."""

from collections.abc import Sequence

from webhook.cluster import errors
from webhook.cluster.objects import WEBHOOK
from webhook.tools.doctor.check import CheckResult, DoctorCheck, run_check
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.doctor.checks.certificates import stored_certificate
from webhook.tools.doctor.cluster import InstalledCluster
from webhook.tools.status.report import Health, InstallationStatus, Part

CANARY = ("canary",)
CONTROLLER = ("controller",)
CERTIFICATE = ("ca-bundle", "certificate", "certificate-secret")
"""Ids of the checks for each part."""


def read_installation(
    cluster: InstalledCluster, checks: Sequence[DoctorCheck] = CHECKS
) -> InstallationStatus:
    """Run the checks, which takes some seconds, and read the state of the parts. Raises nothing that a check can report."""
    results = [run_check(check, cluster) for check in checks]
    return InstallationStatus(
        parts=(
            _webhook(cluster),
            _part("controller", CONTROLLER, results, _leader(cluster)),
            _part("canary", CANARY, results, "a GPU pod passes both webhooks on a dry run"),
            _part("certificate", CERTIFICATE, results, _trusted(cluster)),
        ),
        findings=tuple(finding for result in results for finding in result.findings),
        not_checked=tuple(
            f"{result.check.title}: {missed.why}"
            for result in results
            for missed in result.not_checked
            if not missed.for_administrators
        ),
        checks_for_administrators=sum(
            any(missed.for_administrators for missed in result.not_checked) for result in results
        ),
    )


def _part(name: str, ids: Sequence[str], results: Sequence[CheckResult], text: str) -> Part:
    """Return a part by the results of its checks; `text` describes it if they found nothing."""
    own = [result for result in results if result.check.id in ids]
    for result in own:
        for finding in result.findings:
            return Part(name=name, health=Health.FAILED, text=f"{finding.object} {finding.message}")
    for result in own:
        for missed in result.not_checked:
            return Part(
                name=name,
                health=Health.UNKNOWN,
                text=missed.why,
                for_administrators=missed.for_administrators,
            )
    return Part(name=name, health=Health.OK, text=text)


def _webhook(cluster: InstalledCluster) -> Part:
    try:
        found = cluster.get("/apis/apps/v1", "namespaces", cluster.names.namespace, "deployments", WEBHOOK)
    except errors.ApiError as error:
        is_forbidden = isinstance(error, errors.Forbidden)
        return Part(name="webhook", health=Health.UNKNOWN, text=str(error), for_administrators=is_forbidden)
    if found is None:
        text = f"Deployment/{WEBHOOK} in {cluster.names.namespace} does not exist"
        return Part(name="webhook", health=Health.UNKNOWN, text=text)
    wanted, ready = found["spec"].get("replicas", 1), (found.get("status") or {}).get("readyReplicas", 0)
    image = found["spec"]["template"]["spec"]["containers"][0].get("image", "")
    text = f"{ready} of {wanted} replicas ready, {image}"
    return Part(name="webhook", health=Health.OK if ready else Health.FAILED, text=text)


def _trusted(cluster: InstalledCluster) -> str:
    trusted = "API servers trust what is served"
    try:
        leaf = stored_certificate(cluster)
    except errors.ApiError:
        leaf = None
    # Without the Secret the certificate comes from files, and only the handshake of the check has seen it.
    return f"{trusted}; the Secret's is valid until {leaf.not_valid_after_utc:%Y-%m-%d}" if leaf else trusted


def _leader(cluster: InstalledCluster) -> str:
    names = cluster.names
    try:
        lease = cluster.get(
            "/apis/coordination.k8s.io/v1", "namespaces", names.namespace, "leases", names.lease
        )
    except errors.ApiError as error:
        return str(error)
    spec = (lease or {}).get("spec") or {}
    if not spec.get("renewTime"):
        return "nobody leads"
    return f"{spec.get('holderIdentity') or 'nobody'} leads"
