"""A status of a whole cluster, and how `gpu-admission status` prints it."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from webhook.cluster.capacity import ClassCapacity
from webhook.commands import status_text
from webhook.commands.output import Screen
from webhook.tools.doctor.check import failure, warning
from webhook.tools.pending_pods import PendingOwner
from webhook.tools.status.report import (
    ClassStatus,
    ClusterStatus,
    Health,
    InstallationPart,
    InstallationStatus,
    PolicyStatus,
    quota_totals,
)
from webhook.tools.status.summaries import DeniedOwner, QuotaHolder, QuotaRow, QuotaState, QuotaSummary

AT = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)

EARLIER = datetime(2026, 11, 22, 7, 13, tzinfo=UTC)

YESTERDAY = datetime(2026, 11, 21, 23, 50, tzinfo=UTC)


def amount(text: str) -> Fraction:
    return Fraction(text)


def plain(value: Any) -> Any:
    """Return what is printed of a value as JSON."""
    return msgspec.to_builtins(value, enc_hook=str)


INSTALLATION = InstallationStatus(
    parts=(
        InstallationPart(
            name="webhook", health=Health.OK, text="2 of 2 replicas ready, example.com/gpu-admission:0.1.0"
        ),
        InstallationPart(
            name="controller",
            health=Health.FAILED,
            text="Lease/gpu-admission-controller in gpu-admission " * 2,
        ),
        InstallationPart(name="canary", health=Health.UNKNOWN, text="you may not", for_administrators=True),
    ),
    findings=(
        warning("untainted-gpu-node", "Node a", "must have a taint", "taint it"),
        failure("crd-missing", "CustomResourceDefinition/x", "does not exist " * 8, "apply it"),
    ),
    not_checked=("canary: its policy only audits", "nodes: the API server says no"),
    checks_for_administrators=1,
)

MODES = {"enforce": ("gpu-class", "gpu-requests"), "audit": ("gpu-isolation",), "disabled": ("spot",)}

FIT = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def pending(
    owner: str, gpus: str, since: datetime, pods: int = 1, namespace: str = "ml-training"
) -> PendingOwner:
    return PendingOwner(
        namespace=namespace,
        owner=owner,
        pods=pods,
        held={"gpus": amount(gpus)},
        since=since,
        has_node=False,
        reason=FIT,
    )


POLICIES = (
    PolicyStatus(name="default", version="1", priority=0, where="*", in_force=True, since=AT, modes=MODES),
    PolicyStatus(
        name="research",
        version="2",
        priority=5,
        where="research-*",
        in_force=True,
        paused_until=datetime(2026, 11, 22, 12, 0, tzinfo=UTC),
        exemptions=("sandbox: every rule (experiments)",),
    ),
    PolicyStatus(
        name="broken", version="", priority=0, where="*", in_force=False, message="it is not in force:\nx"
    ),
)

QUOTAS = (
    QuotaSummary(
        namespace="ml-training",
        state=QuotaState.EXCEEDED,
        message="gpus: 10 used of 8, 2 too many",
        rows=(
            QuotaRow(key="gpus", hard=amount("8"), used=amount("10"), pending=amount("6")),
            QuotaRow(
                key="resources/nvidia.com/mig-1g.10gb",
                hard=amount("14"),
                used=amount("1/2"),
                reserved=amount("2/7"),
            ),
        ),
        holders=tuple(QuotaHolder(name=f"Job/{n}", held={"gpus": amount(n)}) for n in ("4", "3", "2", "1")),
        pending=(pending("Job/4", "4", YESTERDAY, pods=2), pending("Job/2", "2", EARLIER)),
        is_held_up=True,
        denied=12,
        denied_since=EARLIER,
    ),
    QuotaSummary(
        namespace="new",
        state=QuotaState.NOT_COUNTED,
        message="not counted yet: GPU pods are denied",
        rows=(QuotaRow(key="gpus", hard=amount("4"), used=None, pending=amount("0")),),
    ),
)

CLASSES = (
    ClassStatus(
        name="nvidia-a100-80gb",
        family="nvidia-a100",
        memory_gib=80,
        capacity=ClassCapacity(nodes=3, nodes_taking_pods=2, gpus=amount("24"), free=amount("5")),
    ),
    ClassStatus(name="", capacity=ClassCapacity(nodes=1, nodes_taking_pods=1, gpus=amount("8"), free=None)),
    ClassStatus(name="acme", capacity=None),
)

DENIED = (
    DeniedOwner(
        namespace="ml-training",
        owner="Job/big",
        count=12,
        first=EARLIER,
        last=AT,
        message="set nvidia.com/gpu: 2; exceeded quota: ml-training/default, requested 4 GPUs, 10 of 8 used "
        "[gpu-quota]",
        reason="QuotaExceeded",
    ),
)


def status(**tweaks: Any) -> ClusterStatus:
    return ClusterStatus(
        **{
            "at": AT,
            "version": "0.1.0",
            "kubernetes": "v1.37.2",
            "configuration": "abc",
            "namespaces": (),
            "installation": INSTALLATION,
            "policies": POLICIES,
            "quotas": QUOTAS,
            "quotas_are_known": True,
            "totals": msgspec.structs.replace(quota_totals(QUOTAS), nodes=amount("32"), free=amount("5")),
            "figures_until": None,
            "classes": CLASSES,
            "denials": DENIED,
            "denials_from": "Events",
            "omitted": ("list nodes",),
            **tweaks,
        }
    )


WHOLE = """\
gpu-admission 0.1.0  Kubernetes v1.37.2  2026-11-22 08:00 UTC
  webhook      ok       2 of 2 replicas ready, example.com/gpu-admission:0.1.0
  controller   failed   Lease/gpu-admission-controller in gpu-admission
                        Lease/gpu-admission-controller in gpu-admission

policies                   configuration abc
  default                  in force since 08:00 UTC; priority 0, matches *;
                           rules: 2 enforce, 1 audit, 1 disabled
  research                 PAUSED until 12:00 UTC, every rule only audits;
                           priority 5, matches research-*
                           exempt: sandbox: every rule (experiments)
  broken                   not in force: x; priority 0, matches *

GPUs
  of 2 quotas              ████████▄▄▄▄▄▄▄▄▄▄▄▄···· 10 + 0 of 12, 6 pending
  of nodes                 ████████████████████···· 5 free of 32

quotas                     ▄ pending ▒ reserved     used + reserved of hard
  new  NotCounted
    not counted yet: GPU pods are denied
    gpus                   ························ ? + 0 of 4
  ml-training  Exceeded, 12 denied since 07:13 UTC
    gpus: 10 used of 8, 2 too many
    gpus                   ██████▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄ 10 + 0 of 8, 6 pending
    resources/nvidia.com/… █▒······················ 0.5 + 0.29 of 14
    held by Job/4 4, Job/3 3, Job/2 2 and 1 more

pending pods hold 6 used GPUs in 1 namespace
  the longest first; gpu-admission why KIND/NAME -n NAMESPACE says why
  ml-training Job/4, 4 GPUs, 2 pods since 2026-11-21 23:50 UTC
    0/3 nodes are available: 3 Insufficient nvidia.com/gpu.
  ml-training Job/2, 2 GPUs, 1 pod since 07:13 UTC
    0/3 nodes are available: 3 Insufficient nvidia.com/gpu.

classes                      memory   nodes    GPUs    free
  nvidia-a100-80gb           80 GiB       3      24       5
    1 node not Ready or cordoned
  unknown class                           1       8       ?

denied since 07:13 UTC
  from Events; gpu-admission why KIND/NAME -n NAMESPACE says more
  ml-training Job/big: QuotaExceeded, 12 times, last at 08:00 UTC
    set nvidia.com/gpu: 2; exceeded quota: ml-training/default, requested 4
    GPUs, 10 of 8 used [gpu-quota]

doctor
  error    crd-missing: CustomResourceDefinition/x does not exist does not exis…
  warning  untainted-gpu-node: Node a must have a taint
  2 results are missing: gpu-admission doctor says why

not shown: what needs 3 rights that you lack; --verbose lists them
"""


def printed(found: ClusterStatus, capsys: pytest.CaptureFixture[str]) -> str:
    status_text.show(Screen(), found)
    return capsys.readouterr().out


def quotas(number: int, **tweaks: Any) -> tuple[QuotaSummary, ...]:
    rows = (QuotaRow(key="gpus", hard=amount("4"), used=amount("2/7"), reserved=amount("1/2")),)
    return tuple(
        QuotaSummary(**{"namespace": f"team-{each:03}", "state": QuotaState.READY, "rows": rows, **tweaks})
        for each in range(number)
    )
