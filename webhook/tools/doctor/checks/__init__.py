"""All checks in the order in which they run and are printed: first those whose findings explain the findings of others."""

from collections.abc import Callable, Iterator

from webhook.tools.doctor.check import CheckResult, DoctorCheck, run_check
from webhook.tools.doctor.checks import (
    certificates,
    configurations,
    control_plane,
    documents,
    exported,
    kueue,
    neighbours,
    nodes,
    quota_use,
    references,
)
from webhook.tools.installed_cluster import InstalledCluster

CHECKS: tuple[DoctorCheck, ...] = (
    *configurations.CHECKS,
    *certificates.CHECKS,
    *documents.CHECKS,
    *control_plane.CHECKS,
    *neighbours.CHECKS,
    *exported.CHECKS,
    *nodes.CHECKS,
    *kueue.CHECKS,
    *references.CHECKS,
    *documents.QUOTA_CHECKS,
    *quota_use.CHECKS,
)


def run_checks(
    cluster: InstalledCluster, begins: Callable[[int, str], object] = lambda _number, _title: None
) -> Iterator[CheckResult]:
    """Run the checks in order, and none after the one that finds no installation. `begins` is called with number and title."""
    for number, check in enumerate(CHECKS, start=1):
        begins(number, check.title)
        result = run_check(check, cluster)
        yield result
        if is_not_installed(result):
            return


def is_not_installed(result: CheckResult) -> bool:
    return any(finding.id == configurations.NOT_INSTALLED for finding in result.findings)
