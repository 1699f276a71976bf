"""Rule gpu-quota: what it says of each verdict of the ledger. What is charged and reserved: tests/policies/quota."""

from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.finding import Finding
from policies.pods.pod import Metadata, OwnerReference, Pod
from policies.pods.workload import PodCount, Workload, WorkloadPods
from policies.quota.ledger.decide import Reason, ReservationVerdict, Shortfall
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.quota_request import ReservationOutcome, quota_request_for_pod
from policies.rule import Mode
from policies.rules.gpu_quota import GPUQuotaOptions, check_reservation, needs_grant
from tests.builders import JSON, context, gpu_container, pod, quota_ledger, uid, view
from tests.cases import cases
from tests.policies.quota.test_fit import A100, granted, pods, said, workload
from tests.reservation_requests import creation_request

LEDGER = quota_ledger(hard={"gpus": Fraction(8)})


def short(key: str, requested: int, used: int, reserved: int, hard: int) -> Shortfall:
    return Shortfall(key, *(Fraction(amount) for amount in (requested, used, reserved, hard)))


def findings(
    reason: Reason,
    ledger: QuotaLedger = LEDGER,
    shortfalls: Iterable[Shortfall] = (),
    asking: Pod | None = None,
) -> list[Finding]:
    """Return what the rule says once the ledger has decided."""
    denied = Finding(
        rule="gpu-quota", message="quota team/default counts no pod without a class", remedy="pin one"
    )
    demand = creation_request(uid("pod"), {}, "catalogue")
    outcome = ReservationOutcome(
        ledger, replace(demand, denials=(denied,)), ReservationVerdict(reason, tuple(shortfalls))
    )
    request = quota_request_for_pod(uid("review"), asking or Pod(), None, context())
    now = datetime(2027, 1, 1, 12, tzinfo=UTC)
    return list(check_reservation(outcome, request, GPUQuotaOptions(), "team", now))


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value.replace(" ", "-"))
def test_every_verdict_that_denies_says_why_and_what_to_do(reason: Reason) -> None:
    exceeded = [short("gpus", 1, 8, 0, 8)] if reason is Reason.EXCEEDED else []
    found = findings(reason, shortfalls=exceeded)

    assert bool(found) is not ReservationVerdict(reason).allowed
    for finding in found:
        assert "team/default" in finding.message
        assert finding.remedy


@cases(
    ("required", "gpus", "want"),
    {
        "required": (
            True,
            "1",
            [
                "namespace team must have a GPUQuota for pods and claims that request GPUs; ask the platform team for a "
                "GPUQuota named default [gpu-quota]"
            ],
        ),
        "required-of-pods-with-gpus-only": (True, "0", []),
        "not-required": (False, "1", []),
    },
)
def test_without_a_quota(required: bool, gpus: str, want: list[str]) -> None:
    options, now = GPUQuotaOptions(required=required), datetime(2027, 1, 1, tzinfo=UTC)
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container(gpus))), None, context())

    found = check_reservation(ReservationOutcome(), request, options, "team", now)

    assert [each.sentence() for each in found] == want


COUNTED = replace(LEDGER, revisions=Revisions(pods=1))


@cases(
    ("ledger", "shortfalls", "want"),
    {
        "larger-than-the-quota-nobody-waits-for-it": (
            LEDGER,
            [short("gpus", 8, 0, 0, 4)],
            "request 4 GPUs or fewer; exceeded quota: team/default, 8 can never fit: the quota grants 4 in all; or ask the "
            "platform team to raise spec.hard.gpus",
        ),
        "two-dimensions-in-one-sentence": (
            LEDGER,
            [short("gpus", 8, 0, 0, 4), short("classes/nvidia-t4", 8, 0, 0, 0)],
            "request 4 GPUs or fewer; exceeded quota: team/default, 8 and 8 can never fit: the quota grants 4 and 0 in all; or "
            "ask the platform team to raise spec.hard.gpus and spec.hard.classes[nvidia-t4]",
        ),
        "full-and-nobody-counts": (
            LEDGER,
            [short("gpus", 2, 3, 1, 4)],
            "wait until others release 2 GPUs; exceeded quota: team/default, requested: gpus=2, used: gpus=4, limited: gpus=4; "
            "or ask the platform team to raise spec.hard.gpus",
        ),
        "some-is-left-and-some-is-being-created": (
            COUNTED,
            [short("gpus", 3, 1, 1, 4)],
            "request 2 GPUs or fewer, or wait until others release 1 GPU; exceeded quota: team/default, requested: gpus=3, used: "
            "gpus=1, being created: gpus=1 (until 12:00:50Z), limited: gpus=4; or ask the platform team to raise spec.hard.gpus",
        ),
        "one-never-and-one-later": (
            COUNTED,
            [short("gpus", 8, 0, 0, 4), short("classes/nvidia-t4", 1, 2, 0, 2)],
            "request 4 GPUs or fewer, and wait until others release 1 nvidia-t4; exceeded quota: team/default, 8 can never fit: "
            "the quota grants 4 in all; exceeded quota: team/default, requested: classes/nvidia-t4=1, used: "
            "classes/nvidia-t4=2, limited: classes/nvidia-t4=2; or ask the platform team to raise spec.hard.gpus and "
            "spec.hard.classes[nvidia-t4]",
        ),
    },
)
def test_waiting_is_named_only_where_it_helps(
    ledger: QuotaLedger, shortfalls: list[Shortfall], want: str
) -> None:
    (found,) = findings(Reason.EXCEEDED, ledger, shortfalls)

    assert found.sentence() == f"{want} [gpu-quota]"


WAIT = "wait until others release 2 GPUs"


@cases(
    ("controlled_by", "held", "want"),
    {
        "its-own-replicas-hold-all": (
            ("ReplicaSet", "chat"),
            "4",
            "set replicas: 2 (its own pods hold the quota)",
        ),
        "others-hold-what-it-lacks": (("StatefulSet", "chat"), "2", WAIT),
        "all-is-held-by-another": (("ReplicaSet", "train"), "4", WAIT),
        "pods-of-a-job-end": (("Job", "chat"), "4", WAIT),
        "a-pod-without-controller": (None, "4", WAIT),
    },
)
def test_nobody_waits_for_what_its_own_replicas_hold(
    controlled_by: tuple[str, str] | None, held: str, want: str
) -> None:
    holders = {
        "gpus": (Holder("ReplicaSet/chat", held), Holder("Job/chat", held), Holder("StatefulSet/chat", held))
    }
    ledger, shortfalls = replace(COUNTED, holders=holders), [short("gpus", 2, 4, 0, 4)]
    owners = (
        (OwnerReference(kind=controlled_by[0], name=controlled_by[1], controller=True),)
        if controlled_by
        else ()
    )
    asking = Pod(metadata=Metadata(name="chat-0", owner_references=owners))

    (found,) = findings(Reason.EXCEEDED, ledger, shortfalls, asking)

    assert found.remedy == want


@cases(
    ("subject", "used", "want"),
    {
        "nothing-starts": (
            workload(pods(1, running=1), kind="batch/Job"),
            16,
            [
                (
                    "spec.template: needs 1 GPU; ml-training has 0 of 16 free; gpu-quota is in mode audit and denies nothing "
                    "[gpu-quota]"
                )
            ],
        ),
        "what-does-not-fit": (
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
        "updates": (
            workload(
                pods(1, on=A100, running=8), spec={"strategy": {"rollingUpdate": {"maxUnavailable": 0}}}
            ),
            0,
            [],
        ),
    },
)
def test_where_the_quota_denies_nothing_that_is_said_instead(
    subject: Workload, used: int, want: list[str]
) -> None:
    assert said(subject, granted({"gpus": used}), mode=Mode.AUDIT) == want


@cases(
    ("gpus", "metadata", "needs"),
    {
        "gpus": (1, {}, True),
        "no-gpus": (0, {}, False),
        "made-by-a-controller": (
            1,
            {"ownerReferences": [{"kind": "Owner", "name": "o", "controller": True}]},
            False,
        ),
    },
)
def test_who_needs_to_know_what_the_quota_grants(gpus: int, metadata: JSON, needs: bool) -> None:
    containers = [gpu_container(gpus)] if gpus else []
    made = view(pod(*containers))
    written = WorkloadPods("spec.template", made, PodCount(running=1), made)

    assert needs_grant(workload(written, metadata=metadata), context().resource_mapping) is needs
