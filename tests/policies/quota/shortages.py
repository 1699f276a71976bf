"""Denials of a full quota, by the ledger of one namespace."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from policies.finding import Finding
from policies.pods.pod import Pod
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import Shortfall
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.quota_request import ReservationOutcome, decide_by_own_catalogue, quota_request_for_pod
from policies.quota.shortage import exceeded_finding
from policies.rules.gpu_class import GPUClassOptions
from policies.rules.gpu_quota import GPUQuotaOptions, check_reservation
from tests.builders import JSON, context, quota_ledger, uid, view

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
A100, T4 = "classes/nvidia-a100", "classes/nvidia-t4"
ON_A100: JSON = {"nodeSelector": {"accelerator": "nvidia-a100"}}
ONLY_T4 = GPUClassOptions(allowed=("nvidia-t4",))


def outcome(
    document: JSON, hard: Mapping[str, int], used: Mapping[str, int], holders: Mapping[str, str] | None = None
) -> ReservationOutcome:
    """Return what the ledger decides on a pod; `holders` hold 6 each, or what stands behind their names, and since when idle."""
    catalogue = context()
    limits = {key: Fraction(amount) for key, amount in hard.items()}
    counted = {key: Fraction(amount) for key, amount in used.items()}
    ledger = replace(
        quota_ledger(hard=limits, unclassified_pods=UnclassifiedPods.MOST_EXPENSIVE).using(counted),
        revisions=Revisions(pods=1),
        holders={
            key: tuple(
                Holder(name, amount or "6", since)
                for name, amount, since in (f"{each}  ".split(" ")[:3] for each in names.split(", "))
            )
            for key, names in (holders or {}).items()
        },
    )
    request = quota_request_for_pod(uid("review"), view(document), None, catalogue)
    return decide_by_own_catalogue(ledger, request, catalogue)


def denial(document: JSON, *ledger: Any) -> Finding:
    request = quota_request_for_pod(uid("review"), view(document), None, context())
    (found,) = check_reservation(
        outcome(document, *ledger),
        request,
        GPUQuotaOptions(),
        "team",
        NOW,
        lambda _: context(options_of=lambda _: ONLY_T4),
    )
    return found


LEDGER = quota_ledger(hard={"gpus": Fraction(8)})
COUNTED = replace(LEDGER, revisions=Revisions(pods=1))


def short(key: str, requested: int, used: int, reserved: int, hard: int) -> Shortfall:
    return Shortfall(key, Fraction(requested), Fraction(used), Fraction(reserved), Fraction(hard))


def denial_by(ledger: QuotaLedger, shortfalls: Sequence[Shortfall], author: Pod) -> Finding:
    request = quota_request_for_pod(uid("review"), author, None, context())
    return exceeded_finding("team", ledger, shortfalls, "", request, NOW, lambda _pod: {})
