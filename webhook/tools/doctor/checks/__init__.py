"""All checks in the order in which they run and are printed: first those whose findings explain the findings of others."""

from webhook.tools.doctor.check import DoctorCheck
from webhook.tools.doctor.checks import (
    callers,
    certificates,
    configurations,
    control_plane,
    documents,
    neighbours,
    nodes,
    references,
)

CHECKS: tuple[DoctorCheck, ...] = (
    *configurations.CHECKS,
    *certificates.CHECKS,
    *callers.CHECKS,
    *documents.CHECKS,
    *control_plane.CHECKS,
    *neighbours.CHECKS,
    *nodes.CHECKS,
    *references.CHECKS,
    *documents.QUOTA_CHECKS,
)
