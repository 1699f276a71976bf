"""What the quota says of workloads, pods and claims where pods wait in line."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import Edit
from policies.gpus.claimed_devices import ResourceClaim, decode_claim_template
from policies.pods.workload import Workload
from policies.quota.ledger.decide import Line, ReservationVerdict, Shortfall, VerdictReason
from policies.quota.quota_request import (
    QuotaRequest,
    ReservationOutcome,
    quota_request_for_claim,
    quota_request_for_pod,
)
from policies.quota.waiting import OnExceeded
from policies.rule import Mode
from policies.rules.gpu_quota import GPUQuotaOptions, check_claim_template, check_reservation
from tests.builders import context, gpu_container, pod, quota_ledger, uid, view
from tests.cases import cases
from tests.policies.quota.fits import NEVER, RAISE, granted, pods, said, workload
from tests.reservation_requests import creation_request

QUEUE = GPUQuotaOptions(on_exceeded=OnExceeded.QUEUE)
CLAIMS = {"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}]}
PILE_UP = (
    "spec.concurrencyPolicy: set concurrencyPolicy: Forbid; Jobs that wait in line for quota pile up, because each "
    "schedule adds one"
)

DEADLINE = "spec.activeDeadlineSeconds: 60"
TOPOLOGY = "metadata.annotations[alpha.jobset.sigs.k8s.io/exclusive-topology]"
LEADER = "spec.launcherCreationPolicy"
WAITS = Edit(LEADER, "WaitForWorkersReady")
launcher = pods(0, "spec.mpiReplicaSpecs.Launcher.template", running=1)
denied = replace(pods(1, running=2), denied=True)


def groups(number: int) -> Workload:
    """Return a LeaderWorkerSet of groups of a leader with 2 GPUs and a worker with 4."""
    place = "spec.leaderWorkerTemplate."
    return workload(
        pods(2, f"{place}leaderTemplate", running=number, gang=1),
        pods(4, f"{place}workerTemplate", running=number, gang=1),
        kind="leaderworkerset.x-k8s.io/LeaderWorkerSet",
    )


@cases(
    ("subject", "held", "waiting", "want"),
    some_start=(
        workload(pods(1, running=8)),
        12,
        0,
        [
            "spec.template: needs 8 GPUs; ml-training has 4 of 16 free: 4 of 8 pods will start, and the others will wait in line"
        ],
    ),
    none_starts=(
        workload(pods(2, running=1), kind="batch/Job", deadline=DEADLINE),
        16,
        0,
        [
            "spec.template: needs 2 GPUs; ml-training has 0 of 16 free: its pods will wait in line; "
            "spec.activeDeadlineSeconds: 60 counts meanwhile"
        ],
    ),
    others_wait=(
        workload(pods(1, running=8)),
        12,
        3,
        [
            "spec.template: needs 8 GPUs; ml-training has 4 of 16 free: its pods will wait in line, 3 pods before them"
        ],
    ),
    it_fits_and_others_wait=(
        workload(pods(1, running=2), kind="batch/Job", deadline=DEADLINE),
        12,
        3,
        [
            "spec.template: its pods will wait in line, 3 pods before them; spec.activeDeadlineSeconds: 60 counts meanwhile"
        ],
    ),
    a_launcher_without_gpus_fails_meanwhile=(
        workload(pods(1, running=2), launcher, kind="kubeflow.org/MPIJob", leader_edit=WAITS),
        0,
        0,
        [
            f"{LEADER}: set launcherCreationPolicy: WaitForWorkersReady; its pods without GPUs start at once, "
            "and fail while the others wait in line for quota"
        ],
    ),
    a_launcher_with_gpus_waits_as_well=(
        workload(pods(1, running=2), pods(1, running=1), kind="kubeflow.org/MPIJob", leader_edit=WAITS),
        0,
        0,
        [],
    ),
    a_launcher_that_waits=(workload(pods(1, running=2), launcher, kind="kubeflow.org/MPIJob"), 0, 0, []),
    without_gpus_nothing_waits=(workload(launcher, kind="kubeflow.org/MPIJob", leader_edit=WAITS), 0, 0, []),
    pods_in_stages_may_wait_for_each_other=(
        workload(pods(1, running=8), kind="jobset.x-k8s.io/JobSet", stage_field=TOPOLOGY),
        0,
        0,
        [
            f"{TOPOLOGY}: its pods start in stages, which wait in line for quota one after the other: two such objects may hold "
            "a part of the quota each, and wait for each other"
        ],
    ),
    a_single_pod_waits_for_no_other=(
        workload(pods(1, running=1), kind="jobset.x-k8s.io/JobSet", stage_field=TOPOLOGY),
        0,
        0,
        [],
    ),
    without_gpus_no_stage_waits=(workload(pods(0, running=8), stage_field=TOPOLOGY), 0, 0, []),
    it_would_be_denied=(workload(denied), 12, 3, []),
    one_of_a_gang_would_be_denied=(
        workload(denied, pods(1, running=1), kind="jobset.x-k8s.io/JobSet", starts_together=True),
        12,
        3,
        [],
    ),
    one_of_several_would_be_denied=(
        workload(denied, pods(1, running=1)),
        12,
        3,
        ["spec.template: its pods will wait in line, 3 pods before them"],
    ),
    it_fits=(workload(pods(1, running=2), kind="batch/Job", deadline=DEADLINE), 12, 0, []),
    a_gang=(
        workload(pods(1, running=8, gang=8), kind="kubeflow.org/PyTorchJob"),
        12,
        0,
        [
            "spec.template: needs 8 GPUs; ml-training has 4 of 16 free: its pods will wait in line until enough of them "
            "fit to run together"
        ],
    ),
    a_gang_that_never_fits=(
        workload(pods(1, running=17), kind="jobset.x-k8s.io/JobSet", starts_together=True),
        0,
        0,
        [f"spec.template: 17 pods that must run together need 17 GPUs, {NEVER}; {RAISE}"],
    ),
    groups_of_which_one_starts=(
        groups(3),
        8,
        0,
        [
            "needs 18 GPUs, which can never fit: the GPUQuota of ml-training grants 16 in all; 2 of 6 pods will start, and the "
            f"others will wait in line; {RAISE}"
        ],
    ),
    groups_of_which_two_could_start=(
        groups(2),
        8,
        0,
        [
            "needs 12 GPUs; ml-training has 8 of 16 free: 2 of 4 pods will start, and the others will wait in line"
        ],
    ),
    groups_of_which_none_starts=(
        groups(2),
        11,
        0,
        ["needs 12 GPUs; ml-training has 5 of 16 free: its pods will wait in line"],
    ),
    one_group=(
        groups(1),
        12,
        0,
        [
            "needs 6 GPUs; ml-training has 4 of 16 free: its pods will wait in line until enough of them fit to run together"
        ],
    ),
    a_gang_that_needs_only_some=(
        workload(pods(1, running=6, gang=4), kind="batch.volcano.sh/Job"),
        11,
        0,
        [
            "spec.template: needs 6 GPUs; ml-training has 5 of 16 free: 5 of 6 pods will start, and the others will wait in line"
        ],
    ),
    not_all_of_them_ever=(
        workload(pods(1, running=20), kind="batch/Job"),
        0,
        0,
        [
            f"spec.parallelism: set parallelism: 16; needs 20 GPUs, {NEVER}; 16 of 20 pods will start, and the others will "
            f"wait in line; or {RAISE}"
        ],
    ),
    a_pod_that_never_fits=(
        workload(pods(17, running=1)),
        0,
        0,
        [f"spec.template: set nvidia.com/gpu: 16; a pod needs 17 GPUs, {NEVER}; or {RAISE}"],
    ),
    a_rolling_update=(
        workload(pods(4, running=3)),
        4,
        0,
        [
            "spec.strategy: set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1, or replicas: 2; an "
            "update needs 4 GPUs for a pod beside the others, which will wait in line: ml-training will have 0 of 16 free"
        ],
    ),
    jobs_of_a_schedule=(workload(pods(1, running=1), kind="batch/CronJob"), 0, 0, [PILE_UP]),
    jobs_of_a_schedule_one_at_a_time=(
        workload(pods(1, running=1), kind="batch/CronJob", spec={"concurrencyPolicy": "Forbid"}),
        0,
        0,
        [],
    ),
    jobs_that_end_by_a_deadline=(
        workload(
            pods(1, running=1),
            kind="batch/CronJob",
            spec={"jobTemplate": {"spec": {"activeDeadlineSeconds": 60}}},
        ),
        0,
        0,
        [],
    ),
    a_suspended_schedule=(workload(pods(1, running=0), kind="batch/CronJob"), 0, 0, []),
    with_resource_claims=(
        workload(pods(1, running=1, spec=CLAIMS)),
        0,
        0,
        [
            "resourceClaims: pods with ResourceClaims do not wait in line: they are denied while the "
            "quota has no room"
        ],
    ),
)
def test_a_workload_where_pods_wait_in_line(
    subject: Workload, held: int, waiting: int, want: list[str]
) -> None:
    grant = replace(granted({"gpus": held}), waiting=waiting)

    found = said(subject, grant, on_exceeded=OnExceeded.QUEUE)

    assert found == [f"{each}" for each in want]


def test_a_rule_that_only_warns_lets_no_pod_wait() -> None:
    found = said(
        workload(pods(1, running=8)), granted({"gpus": 12}), mode=Mode.WARN, on_exceeded=OnExceeded.QUEUE
    )

    assert found == [
        "spec.replicas: set replicas: 4; needs 8 GPUs; ml-training has 4 of 16 free; gpu-quota is in mode warn and denies "
        "nothing"
    ]


def requested(line: Line, **spec: Any) -> QuotaRequest:
    return quota_request_for_pod(
        uid("review"), view(pod(gpu_container(), **spec)), None, context(), line=line
    )


@cases(
    ("asked", "options", "want"),
    of_a_daemonset=(
        requested(Line.NEVER_WAITS),
        QUEUE,
        ["a pod of a DaemonSet does not wait in line for quota"],
    ),
    with_claims=(
        requested(Line.NEVER_WAITS, **CLAIMS),
        QUEUE,
        ["a pod with ResourceClaims does not wait in line for quota"],
    ),
    a_claim=(
        quota_request_for_claim(uid("review"), ResourceClaim(), "ana", context()),
        QUEUE,
        ["a ResourceClaim does not wait in line for quota"],
    ),
    one_that_could_wait=(requested(Line.BEHIND), QUEUE, []),
    where_none_waits=(requested(Line.NEVER_WAITS), GPUQuotaOptions(), []),
)
def test_a_denial_says_what_never_waits(
    asked: QuotaRequest, options: GPUQuotaOptions, want: list[str]
) -> None:
    """The largest holders, which are unknown here, would be in other lines."""
    shortfall = Shortfall("gpus", Fraction(1), Fraction(8), Fraction(0), Fraction(8))
    verdict = ReservationVerdict(VerdictReason.EXCEEDED, (shortfall,))
    outcome = ReservationOutcome(
        quota_ledger(hard={"gpus": Fraction(8)}), creation_request(uid("pod"), {}, "c"), verdict
    )

    (found,) = check_reservation(
        outcome, asked, options, "team", datetime(2027, 1, 1, tzinfo=UTC), lambda _: context()
    )

    assert list(found.details) == want


@cases(
    ("lets_wait", "want"),
    claims_never_wait=(
        True,
        [
            "spec.spec.devices.requests: claims do not wait in line for quota: while it has no room, they are denied and "
            "their pods stay pending"
        ],
    ),
    no_pod_waits=(False, []),
)
def test_a_claim_template(lets_wait: bool, want: list[str]) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    document = {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": {"requests": [request]}}}}
    template = decode_claim_template(msgspec.json.encode(document))

    found = check_claim_template(template, context(ledger=granted({}), lets_wait=lets_wait))

    assert [each.sentence() for each in found] == want
