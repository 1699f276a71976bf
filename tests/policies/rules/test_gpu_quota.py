"""Rule gpu-quota: what it says of each verdict of the ledger. What is charged and reserved: tests/policies/quota."""

from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.finding import Finding, Reason, Severity
from policies.pods.pod import Pod
from policies.pods.workload import PodCount, Workload, WorkloadPods
from policies.quota.ledger.decide import ReservationVerdict, Shortfall, VerdictReason
from policies.quota.quota_request import LedgerError, ReservationOutcome, quota_request_for_pod
from policies.quota.waiting import OnExceeded
from policies.rule import Mode
from policies.rules.gpu_quota import GPUQuotaOptions, OnLedgerError, check_reservation, needs_grant
from tests.builders import JSON, context, gpu_container, pod, quota_ledger, uid, view
from tests.cases import cases
from tests.policies.quota.test_fit import A100, granted, pods, said, workload
from tests.reservation_requests import creation_request

LEDGER = quota_ledger(hard={"gpus": Fraction(8)})


def findings(reason: VerdictReason, shortfalls: Iterable[Shortfall]) -> list[Finding]:
    """Return what the rule says once the ledger has decided."""
    denied = Finding(
        rule="gpu-quota",
        reason=Reason.UNCLASSIFIED_POD,
        message="quota team/default counts no pod without a class",
        remedy="pin one",
    )
    demand = creation_request(uid("pod"), {}, "catalogue")
    outcome = ReservationOutcome(
        LEDGER, replace(demand, denials=(denied,)), ReservationVerdict(reason, tuple(shortfalls))
    )
    request = quota_request_for_pod(uid("review"), Pod(), None, context())
    now = datetime(2027, 1, 1, 12, tzinfo=UTC)
    return list(check_reservation(outcome, request, GPUQuotaOptions(), "team", now))


@pytest.mark.parametrize("reason", VerdictReason, ids=lambda reason: reason.value.replace(" ", "-"))
def test_every_verdict_that_denies_says_why_and_what_to_do(reason: VerdictReason) -> None:
    exceeded = [Shortfall("gpus", *map(Fraction, (1, 8, 0, 8)))] if reason is VerdictReason.EXCEEDED else []
    found = findings(reason, exceeded)

    assert bool(found) is not ReservationVerdict(reason).allowed
    for finding in found:
        assert "team/default" in finding.message
        assert finding.remedy


@cases(
    ("on_exceeded", "is_update", "want"),
    it_would_wait_now=(OnExceeded.QUEUE, False, "create the pod again: it then waits, too"),
    nobody_joins_any_more=(OnExceeded.DENY, False, "try again when they have started"),
    growth_of_a_stored_pod=(OnExceeded.QUEUE, True, "try again when they have started"),
)
def test_others_wait(on_exceeded: OnExceeded, is_update: bool, want: str) -> None:
    reservation = creation_request(uid("pod"), {}, "catalogue")
    outcome = ReservationOutcome(
        replace(LEDGER, waiting=3), reservation, ReservationVerdict(VerdictReason.OTHERS_WAIT)
    )
    before = Pod() if is_update else None
    request = quota_request_for_pod(uid("review"), Pod(), before, context())
    options, now = GPUQuotaOptions(on_exceeded=on_exceeded), datetime(2027, 1, 1, 12, tzinfo=UTC)

    [found] = check_reservation(outcome, request, options, "team", now)

    facts = "3 pods wait in line for quota team/default, and go first"
    assert found.sentence() == f"{want}; {facts}; or ask the platform team if it persists [gpu-quota]"


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
