"""A check of an installation, and what it observes. What it cannot examine, it never reports as fine."""

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial

import msgspec

from webhook.cluster import errors
from webhook.cluster.objects import NAMESPACE, InstallationNames
from webhook.tools.installed_cluster import InstalledCluster, NoResult, Permission


class DoctorSeverity(Enum):
    ERROR = "error"
    """Something does not work, or will not work when it is needed."""
    WARNING = "warning"
    """Something works, with consequences that somebody may not expect."""


class DoctorFinding(msgspec.Struct, frozen=True):
    """What is wrong with which object, and how to fix it: one sentence or one command."""

    id: str
    object: str
    message: str
    remedy: str
    severity: DoctorSeverity


failure = partial(DoctorFinding, severity=DoctorSeverity.ERROR)
warning = partial(DoctorFinding, severity=DoctorSeverity.WARNING)


class NotChecked(msgspec.Struct, frozen=True):
    """Why something could not be examined; `for_administrators` if that needs permissions that tenants do not have."""

    why: str
    for_administrators: bool = False


Observation = DoctorFinding | NotChecked | str
"""A text is a note: an unusual way in which something was checked."""

_DEFAULT_NAMESPACE = re.compile(rf"(-n|--namespace) {NAMESPACE}\b(?!-)")

CheckFunction = Callable[[InstalledCluster], Iterator[Observation]]


class DoctorCheck(msgspec.Struct, frozen=True):
    id: str
    title: str
    run: CheckFunction
    reads: tuple[Permission, ...] = ()
    """What the caller must be allowed to do: if one is missing, the check does not run."""


class CheckResult(msgspec.Struct, frozen=True):
    check: DoctorCheck
    findings: tuple[DoctorFinding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    notes: tuple[str, ...] = ()


def doctor_check(identity: str, title: str, *reads: Permission) -> Callable[[CheckFunction], DoctorCheck]:
    return lambda run: DoctorCheck(identity, title, run, reads)


def _with_namespace(found: DoctorFinding, names: InstallationNames) -> DoctorFinding:
    """Return the finding with the namespace of the installation in its commands, which are written for the default one."""
    remedy = _DEFAULT_NAMESPACE.sub(rf"\1 {names.namespace}", found.remedy)
    return msgspec.structs.replace(found, remedy=remedy)


def run_check(check: DoctorCheck, cluster: InstalledCluster) -> CheckResult:
    observed: list[Observation] = []
    try:
        missing = [read.words for read in check.reads if not cluster.is_allowed(read)]
        if missing:
            observed.append(NotChecked(f"you may not {', '.join(missing)}", for_administrators=True))
        else:
            observed.extend(check.run(cluster))
    except NoResult as unknown:
        observed.append(NotChecked(str(unknown)))
    except errors.ApiError as error:
        is_forbidden = isinstance(error, errors.Forbidden)
        observed.append(NotChecked(f"the API server says: {error}", for_administrators=is_forbidden))
    except (msgspec.MsgspecError, ValueError) as error:
        observed.append(NotChecked(f"the API server's answer cannot be read: {error}"))
    return CheckResult(
        check,
        tuple(_with_namespace(seen, cluster.names) for seen in observed if isinstance(seen, DoctorFinding)),
        tuple(seen for seen in observed if isinstance(seen, NotChecked)),
        tuple(seen for seen in observed if isinstance(seen, str)),
    )
