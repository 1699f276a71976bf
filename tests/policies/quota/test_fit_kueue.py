"""What the quota says at apply of workloads that Kueue starts: they name a LocalQueue, and mostly are suspended then."""

from policies.pods.workload import PodCount, Workload
from policies.quota.waiting import OnExceeded
from policies.rule import Mode
from policies.rules.gpu_quota import GPUQuotaOptions, Kueue
from tests.cases import cases
from tests.policies.quota.fits import NEVER, RAISE, granted, pods, said, workload

QUEUED = {"labels": {"kueue.x-k8s.io/queue-name": "main"}}
ALL_THE_SAME = "Kueue may admit it by LocalQueue main all the same: pods that do not fit are then denied"


def suspended(number: int, metadata: dict[str, dict[str, str]]) -> Workload:
    made = pods(1, running=0, resumed=PodCount(number))
    return workload(made, kind="batch/Job", metadata=metadata)


SUSPENDED, RUNNING = suspended(8, QUEUED), workload(pods(1, running=8), kind="batch/Job", metadata=QUEUED)
WAIT = "wait until others release 4 GPUs"
LACKS = "needs 8 GPUs; ml-training has 4 of 16 free: 4 of 8 pods will start"


@cases(
    ("subject", "held", "want"),
    it_may_be_resumed_at_once=(SUSPENDED, 12, [f"spec.template: {WAIT}; {LACKS}; {ALL_THE_SAME}"]),
    it_fits_now=(SUSPENDED, 8, []),
    without_a_queue_nobody_knows_when=(suspended(8, {}), 12, []),
    it_never_fits=(
        suspended(17, QUEUED),
        0,
        [f"spec.template: needs 17 GPUs, {NEVER}; 16 of 17 pods will start; {ALL_THE_SAME}; {RAISE}"],
    ),
    it_is_not_suspended=(
        RUNNING, 12, [f"spec.parallelism: set parallelism: 4; {LACKS}; {ALL_THE_SAME}"]
    ),
)  # fmt: skip
def test_a_workload_that_names_a_queue(subject: Workload, held: int, want: list[str]) -> None:
    assert said(subject, granted({"gpus": held})) == want


def test_where_pods_wait_in_line_these_may_wait_too() -> None:
    assert said(SUSPENDED, granted({"gpus": 12}), on_exceeded=OnExceeded.QUEUE) == [
        "spec.template: needs 8 GPUs; ml-training has 4 of 16 free: 4 of 8 pods will start, and the others will wait in line; "
        f"{ALL_THE_SAME} or wait in line"
    ]


def test_what_denies_nothing_says_no_more() -> None:
    assert said(SUSPENDED, granted({"gpus": 12}), mode=Mode.AUDIT) == [
        f"spec.template: {WAIT}; needs 8 GPUs; ml-training has 4 of 16 free; gpu-quota is in mode audit and denies nothing"
    ]


def test_where_the_quota_respects_kueue_nothing_is_denied() -> None:
    for subject in (SUSPENDED, RUNNING, suspended(17, QUEUED)):
        ledger = granted({"gpus": 12})
        assert not said(subject, ledger, on_exceeded=OnExceeded.QUEUE, kueue=Kueue.RESPECT)


@cases(
    ("on_exceeded", "kueue", "want"),
    respected_where_pods_wait=(OnExceeded.QUEUE, Kueue.RESPECT, []),
    respected_where_they_do_not=(
        OnExceeded.DENY,
        Kueue.RESPECT,
        [("kueue", "must be limit without onExceeded: Queue: the controller starts what Kueue has admitted")],
    ),
    limited=(OnExceeded.DENY, Kueue.LIMIT, []),
)
def test_which_options_go_together(
    on_exceeded: OnExceeded, kueue: Kueue, want: list[tuple[str, str]]
) -> None:
    assert [*GPUQuotaOptions(on_exceeded=on_exceeded, kueue=kueue).problems()] == want
