"""All checks, in the order in which they are run and told: what explains other findings comes first."""

from webhook.tools.doctor.check import Check
from webhook.tools.doctor.checks import (
    certificates,
    configurations,
    control_plane,
    documents,
    neighbours,
    nodes,
    permissions,
    quotas,
    references,
)

CHECKS: tuple[Check, ...] = (
    *configurations.CHECKS,
    *certificates.CHECKS,
    *documents.CHECKS,
    *control_plane.CHECKS,
    *permissions.CHECKS,
    *neighbours.CHECKS,
    *nodes.CHECKS,
    *references.CHECKS,
    *quotas.CHECKS,
)
