"""Rule gpu-quota: what it says of each verdict of the ledger. What is charged and reserved: tests/policies/quota."""

from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.pods.pod import Metadata, OwnerReference, Pod
from policies.pods.workload import PodCount, Workload, WorkloadPods
from policies.quota.ledger.decide import ReservationVerdict, Shortfall, VerdictReason
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.quota_request import LedgerError, ReservationOutcome, quota_request_for_pod
from policies.reason import Reason
from policies.rule import Mode
from policies.rules.gpu_quota import GPUQuotaOptions, OnLedgerError, check_reservation, needs_grant
from tests.builders import JSON, context, gpu_container, pod, quota_ledger, uid, view
from tests.cases import cases
from tests.policies.quota.test_fit import A100, granted, pods, said, workload
from tests.reservation_requests import creation_request

LEDGER = quota_ledger(hard={"gpus": Fraction(8)})


def short(key: str, requested: int, used: int, reserved: int, hard: int) -> Shortfall:
    return Shortfall(key, *(Fraction(amount) for amount in (requested, used, reserved, hard)))


def findings(
    reason: VerdictReason,
    ledger: QuotaLedger = LEDGER,
    shortfalls: Iterable[Shortfall] = (),
    asking: Pod | None = None,
) -> list[Finding]:
    """Return what the rule says once the ledger has decided."""
    denied = Finding(
        rule="gpu-quota",
        reason=Reason.UNCLASSIFIED_POD,
        message="quota team/default counts no pod without a class",
        remedy="pin one",
    )
    demand = creation_request(uid("pod"), {}, "catalogue")
    outcome = ReservationOutcome(
        ledger, replace(demand, denials=(denied,)), ReservationVerdict(reason, tuple(shortfalls))
    )
    request = quota_request_for_pod(uid("review"), asking or Pod(), None, context())
    now = datetime(2027, 1, 1, 12, tzinfo=UTC)
    return list(check_reservation(outcome, request, GPUQuotaOptions(), "team", now))


@pytest.mark.parametrize("reason", VerdictReason, ids=lambda reason: reason.value.replace(" ", "-"))
def test_every_verdict_that_denies_says_why_and_what_to_do(reason: VerdictReason) -> None:
    exceeded = [short("gpus", 1, 8, 0, 8)] if reason is VerdictReason.EXCEEDED else []
    found = findings(reason, shortfalls=exceeded)

    assert bool(found) is not ReservationVerdict(reason).allowed
    for finding in found:
        assert "team/default" in finding.message
        assert finding.remedy


@cases(
    ("required", "gpus", "want"),
    required=(
        True,
        "1",
        [
            "namespace team must have a GPUQuota for pods and claims that request GPUs; ask the platform team for a "
            "GPUQuota named default [gpu-quota]"
        ],
    ),
    required_of_pods_with_gpus_only=(True, "0", []),
    not_required=(False, "1", []),
)
def test_without_a_quota(required: bool, gpus: str, want: list[str]) -> None:
    options, now = GPUQuotaOptions(required=required), datetime(2027, 1, 1, tzinfo=UTC)
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container(gpus))), None, context())

    found = check_reservation(ReservationOutcome(), request, options, "team", now)

    assert [each.sentence() for each in found] == want


COUNTED = replace(LEDGER, revisions=Revisions(pods=1))


@cases(
    ("ledger", "shortfalls", "want"),
    larger_than_the_quota_nobody_waits_for_it=(
        LEDGER,
        [short("gpus", 8, 0, 0, 4)],
        "request 4 GPUs or fewer; exceeded quota: team/default, 8 GPUs can never fit: the quota grants 4; or ask the "
        "platform team to raise spec.hard.gpus",
    ),
    two_dimensions_in_one_sentence=(
        LEDGER,
        [short("gpus", 8, 0, 0, 4), short("classes/nvidia-t4", 8, 0, 0, 0)],
        "exceeded quota: team/default, 8 GPUs can never fit: the quota grants 4; 8 nvidia-t4 can never fit: the quota "
        "grants 0; ask the platform team to raise spec.hard",
    ),
    full_and_nobody_counts=(
        LEDGER,
        [short("gpus", 2, 3, 1, 4)],
        "wait until others release 2 GPUs; exceeded quota: team/default, requested 2 GPUs, 4 of 4 used; "
        "or ask the platform team to raise spec.hard.gpus",
    ),
    some_is_left_and_some_is_being_created=(
        COUNTED,
        [short("gpus", 3, 1, 1, 4)],
        "request 2 GPUs or fewer, or wait until others release 1 GPU; exceeded quota: team/default, requested 3 GPUs, 1 of 4 "
        "used, 1 being created (until 12:00:50Z); or ask the platform team to raise spec.hard.gpus",
    ),
    one_never_and_one_later=(
        COUNTED,
        [short("gpus", 8, 0, 0, 4), short("classes/nvidia-t4", 1, 2, 0, 2)],
        "request 4 GPUs or fewer; exceeded quota: team/default, 8 GPUs can never fit: the quota grants 4; requested 1 "
        "nvidia-t4, 2 of 2 used; or ask the platform team to raise spec.hard",
    ),
    only_what_waits_for_creations_has_a_time=(
        COUNTED,
        [short("gpus", 1, 3, 1, 4), short("classes/nvidia-t4", 1, 0, 1, 0)],
        "exceeded quota: team/default, requested 1 GPU, 3 of 4 used, 1 being created (until 12:00:50Z); 1 nvidia-t4 can "
        "never fit: the quota grants 0; ask the platform team to raise spec.hard",
    ),
)
def test_waiting_is_named_where_it_helps(ledger: QuotaLedger, shortfalls: list[Shortfall], want: str) -> None:
    (found,) = findings(VerdictReason.EXCEEDED, ledger, shortfalls)

    assert found.sentence() == f"{want} [gpu-quota]"


@cases(
    ("on_error", "severity", "want"),
    denied=(
        OnLedgerError.DENY,
        Severity.DENIAL,
        "try again; the quota could not be checked: no answer; or ask the platform team if it persists [gpu-quota]",
    ),
    allowed=(
        OnLedgerError.ALLOW,
        Severity.WARNING,
        "admitted without a quota check, which failed: no answer [gpu-quota]",
    ),
)
def test_a_ledger_that_cannot_be_read(on_error: OnLedgerError, severity: Severity, want: str) -> None:
    error, options = LedgerError("no answer", transient=True), GPUQuotaOptions(on_ledger_error=on_error)
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container())), None, context())

    [found] = check_reservation(error, request, options, "team", datetime(2027, 1, 1, 12, tzinfo=UTC))

    assert (found.severity, found.sentence()) == (severity, want)


WAIT = "wait until Deployment/chat releases 2 GPUs"


@cases(
    ("owner", "held", "want"),
    its_own_replicas_hold_all=(
        ("Deployment", "chat"),
        "4",
        "set rollingUpdate.maxUnavailable: 1 for an update, or replicas: 2, or wait until one of its own pods has ended",
    ),
    others_hold_what_it_lacks=(("StatefulSet", "chat"), "2", WAIT),
    all_is_held_by_another=(("Deployment", "train"), "4", WAIT),
    pods_of_a_job_end=(("Job", "chat"), "4", WAIT),
    a_pod_without_controller=(None, "4", WAIT),
)
def test_nobody_waits_for_its_own_replicas(owner: tuple[str, str] | None, held: str, want: str) -> None:
    held_by = [Holder(name, held) for name in ("Deployment/chat", "Job/chat", "StatefulSet/chat")]
    ledger = replace(COUNTED, holders={"gpus": tuple(held_by)})
    owners = [OwnerReference(kind=owner[0], name=owner[1], controller=True)] if owner else []
    asking = Pod(metadata=Metadata(name="chat-0", owner_references=tuple(owners)))

    (found,) = findings(VerdictReason.EXCEEDED, ledger, [short("gpus", 2, 4, 0, 4)], asking)

    assert found.remedy == want
    names = ", ".join(f"{name} {held}" for name in ("Deployment/chat", "Job/chat", "StatefulSet/chat"))
    assert found.details == (f"largest holders of GPUs: {names}",)


@cases(
    ("subject", "used", "want"),
    nothing_starts=(
        workload(pods(1, running=1), kind="batch/Job"),
        16,
        [
            (
                "spec.template: needs 1 GPU; ml-training has 0 of 16 free; gpu-quota is in mode audit and denies nothing "
                "[gpu-quota]"
            )
        ],
    ),
    some_start_now=(
        workload(pods(1, running=8), kind="batch/Job"),
        15,
        [
            "spec.parallelism: set parallelism: 1; needs 8 GPUs; ml-training has 1 of 16 free; gpu-quota is in mode audit "
            "and denies nothing [gpu-quota]"
        ],
    ),
    what_does_not_fit=(
        workload(pods(1, running=20), kind="batch/Job"),
        0,
        [
            (
                "spec.parallelism: set parallelism: 16; needs 20 GPUs, which can never fit: the GPUQuota of "
                "ml-training grants 16 in all; gpu-quota is in mode audit and denies nothing; or ask the platform "
                "team to raise spec.hard.gpus [gpu-quota]"
            )
        ],
    ),
    updates=(
        workload(pods(1, on=A100, running=8), spec={"strategy": {"rollingUpdate": {"maxUnavailable": 0}}}),
        0,
        [],
    ),
)
def test_where_the_quota_denies_nothing(subject: Workload, used: int, want: list[str]) -> None:
    assert said(subject, granted({"gpus": used}), mode=Mode.AUDIT) == want


@cases(
    ("gpus", "metadata", "needs"),
    gpus=(1, {}, True),
    no_gpus=(0, {}, False),
    controlled=(1, {"ownerReferences": [{"kind": "Owner", "name": "o", "controller": True}]}, False),
)
def test_who_needs_to_know_what_the_quota_grants(gpus: int, metadata: JSON, needs: bool) -> None:
    containers = [gpu_container(gpus)] if gpus else []
    made = view(pod(*containers))
    written = WorkloadPods("spec.template", made, PodCount(running=1), made)

    assert needs_grant(workload(written, metadata=metadata), context().resource_mapping) is needs
