"""What `status` says of a cluster, as frozen structs: amounts are exact, what the caller may not read is None.

`plain` makes of them what `-o json` prints: camelCase, amounts as text ("3", "2/7"), moments in RFC 3339.
"""

from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import Any

import msgspec

from policies.quota.amounts import NOTHING
from webhook.tools.doctor.check import DoctorFinding
from webhook.tools.status.capacity import ClassCapacity


class Shown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Common to all parts of a report."""


class QuotaState(Enum):
    """The state of a GPUQuota in one word, the most urgent that holds."""

    NOT_COUNTED = "NotCounted"
    """It was not counted yet, or cannot be read: every GPU pod of the namespace is denied."""
    EXCEEDED = "Exceeded"
    STALE = "Stale"
    READY = "Ready"


class QuotaRow(Shown, frozen=True):
    """One dimension of a quota: `gpus`, `classes/NAME` or `resources/NAME`. `used` is None before it was counted."""

    key: str
    hard: Fraction
    used: Fraction | None
    reserved: Fraction = NOTHING

    @property
    def held(self) -> Fraction:
        return (self.used or NOTHING) + self.reserved

    @property
    def free(self) -> Fraction:
        return max(self.hard - self.held, NOTHING)


class QuotaHolder(Shown, frozen=True):
    """An owner of pods (`Job/train`), or a pod or claim without one, and what it holds, by the keys of the quota's rows."""

    name: str
    held: dict[str, Fraction]


class DeniedOwner(Shown, frozen=True):
    """Pods of one owner that were denied: how often, when last, and the first line of the last message."""

    namespace: str
    owner: str
    count: int
    last: datetime
    message: str

    @property
    def order(self) -> tuple[float, str, str]:
        """By what denials are sorted: the most recent first."""
        return -self.last.timestamp(), self.namespace, self.owner


class QuotaSummary(Shown, frozen=True):
    """The GPUQuota of a namespace; `message` says why it is not Ready. Rows: `gpus` first, then classes, then resources.

    holders: the largest, as the controller wrote them last: at most five for each row.
    denied: how many pods of the namespace were denied, None where that cannot be read.
    """

    namespace: str
    state: QuotaState
    message: str = ""
    rows: tuple[QuotaRow, ...] = ()
    holders: tuple[QuotaHolder, ...] = ()
    denied: int | None = None


class ClassStatus(Shown, frozen=True):
    """A GPU class of the catalogue; a family or "" where nodes name no class. `capacity` is None where nodes cannot be read."""

    name: str
    family: str = ""
    memory_gib: int | None = msgspec.field(name="memoryGiB", default=None)
    capacity: ClassCapacity | None = None


class PolicyStatus(Shown, frozen=True):
    """A GPUPolicy. `in_force` since `since`, as far as the controller wrote that; `message` says what keeps it from that.

    where: the namespaces that it matches, in words. exemptions: those in force, in words. modes: its rules by mode, as its
    document and the defaults of the rules say; a pause or an exemption changes none of them.
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
    modes: dict[str, tuple[str, ...]] = {}


class Health(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Part(Shown, frozen=True):
    """A part of the installation: webhook, controller, canary, certificate. `text` says what it is like, in one line.

    for_administrators: it is unknown because it takes rights that tenants do not have.
    """

    name: str
    health: Health
    text: str
    for_administrators: bool = False


class InstallationStatus(Shown, frozen=True):
    """The parts of an installation and what `doctor` found.

    not_checked: why something was not checked, where that is not for want of rights. checks_for_administrators: how many of the
    checks take rights that the caller lacks.
    """

    parts: tuple[Part, ...] = ()
    findings: tuple[DoctorFinding, ...] = ()
    not_checked: tuple[str, ...] = ()
    checks_for_administrators: int = 0


class ClusterStatus(Shown, frozen=True):
    """Everything that `status` shows at one moment.

    version: of this program. configuration: digest of the documents in force. namespaces: those that are shown, none for all.
    policies: None where they cannot be read; empty where the built-in one governs.
    quotas_are_known: whether all of the namespaces could be read. classes: those with nodes, and those of documents.
    denials: most recent first; `denials_from` says from where they are and how far back that goes.
    omitted: what the caller may not read, as `kubectl auth can-i` takes it: `list nodes`.
    """

    at: datetime
    version: str
    kubernetes: str
    configuration: str
    namespaces: tuple[str, ...]
    installation: InstallationStatus
    policies: tuple[PolicyStatus, ...] | None
    quotas: tuple[QuotaSummary, ...]
    quotas_are_known: bool
    classes: tuple[ClassStatus, ...]
    denials: tuple[DeniedOwner, ...] | None
    denials_from: str
    omitted: tuple[str, ...] = ()


def plain(value: Any) -> Any:
    """Return a struct of this room as plain data for JSON."""
    return msgspec.to_builtins(value, enc_hook=str)
