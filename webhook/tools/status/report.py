"""The content of `status` as frozen structs. Amounts are exact; what the caller may not read is None."""

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from fractions import Fraction

import msgspec

from policies.quota.amounts import GPUS, ZERO
from webhook.cluster.capacity import ClassCapacity
from webhook.tools.doctor.check import DoctorFinding
from webhook.tools.json_struct import JsonStruct
from webhook.tools.pending_pods import PendingOwner
from webhook.tools.status import summaries
from webhook.tools.status.kueue import QueueState


class ClassStatus(JsonStruct, frozen=True):
    """A GPU class; a family, or "", for nodes without a class. `capacity` is None where nodes cannot be read."""

    name: str
    family: str = ""
    memory_gib: int | None = msgspec.field(name="memoryGiB", default=None)
    capacity: ClassCapacity | None = None


class PolicyStatus(JsonStruct, frozen=True):
    """A GPUPolicy. `since`: since when it is in force, if the controller wrote that. `message`: why it is not in force.

    where: the namespaces that it matches, in words. exemptions: the current exemptions, in words. modes: its rules by mode, from
    its document and the defaults of the rules; pauses and exemptions do not change them.
    """

    name: str
    version: str
    priority: int
    where: str
    in_force: bool
    since: datetime | None = None
    message: str = ""
    paused_until: datetime | None = None
    exemptions: tuple[str, ...] = ()
    modes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class ClusterTotals(JsonStruct, frozen=True):
    """GPUs of all quotas that limit them, and of all nodes, in whole cards.

    pending: the part of `used` that pending pods hold. None stands for what cannot be read.
    """

    quotas: int = 0
    granted: Fraction = ZERO
    used: Fraction = ZERO
    reserved: Fraction = ZERO
    pending: Fraction | None = None
    nodes: Fraction | None = None
    free: Fraction | None = None

    @property
    def row(self) -> summaries.QuotaRow:
        """The sum of the quotas."""
        return summaries.QuotaRow(
            key=GPUS, hard=self.granted, used=self.used, reserved=self.reserved, pending=self.pending
        )


def quota_totals(quotas: Iterable[summaries.QuotaSummary]) -> ClusterTotals:
    rows = [quota.row for quota in quotas if quota.row is not None]
    pending = [row.pending for row in rows]
    return ClusterTotals(
        quotas=len(rows),
        granted=sum((row.hard for row in rows), ZERO),
        used=sum((row.used or ZERO for row in rows), ZERO),
        reserved=sum((row.reserved for row in rows), ZERO),
        pending=None if None in pending else sum((amount or ZERO for amount in pending), ZERO),
    )


class Health(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class InstallationPart(JsonStruct, frozen=True):
    """A part of the installation: webhook, controller, canary, certificate. `text` describes it in one line.

    for_administrators: it is unknown because that needs rights that tenants do not have.
    """

    name: str
    health: Health
    text: str
    for_administrators: bool = False


class InstallationStatus(JsonStruct, frozen=True):
    """The parts of an installation and the findings of `doctor`.

    not_checked: why something was not checked, except missing rights. checks_for_administrators: the number of checks that need
    rights that the caller lacks.
    """

    parts: tuple[InstallationPart, ...] = ()
    findings: tuple[DoctorFinding, ...] = ()
    not_checked: tuple[str, ...] = ()
    checks_for_administrators: int = 0


class ClusterStatus(JsonStruct, frozen=True):
    """Everything that `status` shows at one moment.

    version: of this program. configuration: digest of the documents in force. namespaces: the shown ones, empty for all.
    policies: None where they cannot be read; empty where the built-in policy governs.
    quotas_are_known: whether the quotas of all these namespaces could be read. totals: of all of them. teams: None where they
    cannot be read; where some namespaces are shown, those that limit one without a GPUQuota. figures_until: when a controller
    last renewed its Lease; None while one leads. classes: with nodes, or in documents.
    denials: most recent first; `denials_from` names their source and its age limit. audited: None without audit logs.
    omitted: the missing rights, in the words of `kubectl auth can-i`: `list nodes`.
    nodes_from: what was read instead of the nodes, in words; "" if the caller may list them.
    """

    at: datetime
    version: str
    kubernetes: str
    configuration: str
    namespaces: tuple[str, ...]
    installation: InstallationStatus
    policies: tuple[PolicyStatus, ...] | None
    quotas: tuple[summaries.QuotaSummary, ...]
    quotas_are_known: bool
    totals: ClusterTotals
    figures_until: datetime | None
    classes: tuple[ClassStatus, ...]
    denials: tuple[summaries.DeniedOwner, ...] | None
    denials_from: str
    omitted: tuple[str, ...] = ()
    teams: tuple[summaries.TeamSummary, ...] | None = None
    nodes_from: str = ""
    audited: summaries.AuditedPods | None = None
    queues: tuple[QueueState, ...] = ()
    """Kueue's LocalQueues; none where it is not installed."""

    @property
    def denied_since(self) -> datetime | None:
        """The time of the first denial that was seen."""
        return min((denial.first for denial in self.denials or ()), default=None)

    @property
    def waiting(self) -> tuple[summaries.QuotaSummary, ...]:
        """The quotas that pods wait in line for, the longest wait first."""
        by_wait = ((quota.waiting.since, quota.namespace, quota) for quota in self.quotas if quota.waiting)
        return tuple(quota for _, _, quota in sorted(by_wait, key=lambda item: item[:2]))

    @property
    def idle_gpus(self) -> Fraction | None:
        """The GPUs of all quotas that do no work; None where none of them is measured."""
        return summaries.idle_gpus(self.quotas)

    @property
    def idle(self) -> tuple[summaries.IdleOwner, ...]:
        """The owners of GPUs that do no work, by GPU-hours lost, descending."""
        owners = (owner for quota in self.quotas for owner in quota.idle_owners)
        return tuple(sorted(owners, key=lambda owner: (-owner.lost(self.at), owner.namespace, owner.owner)))

    @property
    def not_measured(self) -> str:
        """Why the controller cannot measure the use of GPUs; "" if it can, or does not measure."""
        return next((quota.idle.measured for quota in self.quotas if quota.idle and quota.idle.measured), "")

    @property
    def pending(self) -> tuple[PendingOwner, ...]:
        """The owners of pending pods that hold quota, the longest first."""
        owners = (pending_owner for quota in self.quotas for pending_owner in quota.pending)
        return tuple(sorted(owners, key=lambda owner: owner.order))


def only_problems(status: ClusterStatus) -> ClusterStatus:
    installation = status.installation
    return msgspec.structs.replace(
        status,
        installation=msgspec.structs.replace(
            installation, parts=tuple(part for part in installation.parts if part.health is not Health.OK)
        ),
        policies=status.policies
        and tuple(policy for policy in status.policies if policy.paused_until or not policy.in_force),
        quotas=tuple(quota for quota in status.quotas if quota.has_problem),
        teams=status.teams and tuple(team for team in status.teams if team.has_problem),
        classes=tuple(each for each in status.classes if each.capacity and each.capacity.nodes_away),
        queues=tuple(queue for queue in status.queues if queue.is_stopped or not queue.exists),
    )
