"""What a team's quota says to the author of a pod or workload: which level, whose namespaces, and whom to ask."""

from datetime import UTC, datetime
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason
from policies.placement.pinning import ClassPin
from policies.pods.pod import Pod
from policies.pods.workload import Workload
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import ReservationVerdict, Shortfall, VerdictReason
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger
from policies.quota.line_findings import queued_warning
from policies.quota.quota_request import ReservationOutcome, decide_alone, quota_request_for_pod
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED, exceeded_finding
from policies.quota.shortage_facts import shortage_facts
from policies.quota.waiting import OnExceeded
from policies.rule import Phase
from policies.rules.gpu_quota import GPUQuotaOptions, check_reservation, check_workload
from tests.builders import JSON, context, gpu_container, pod, uid, view
from tests.cases import cases
from tests.policies.quota.fits import pods, said, workload
from tests.policies.quota.team_denials import IDLE, LAB, OWN, PROD, USED, amounts, team_ledger
from tests.reservation_requests import creation_request
from webhook.serving.admission_review import denial_message

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


def denial(ledger: QuotaLedger, document: JSON) -> Finding:
    request = quota_request_for_pod(uid("review"), view(document), None, context())
    outcome = decide_alone(ledger, request.for_ledger(ledger, {}))
    [found] = check_reservation(outcome, request, GPUQuotaOptions(), OWN, NOW, lambda _: context())
    return found.with_origin("", "#gpu-support")


@cases(
    ("ledger", "gpus", "reason", "want"),
    the_team_alone=(
        team_ledger(USED),
        4,
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 2, or wait until others release 2 GPUs; exceeded quota: ClusterGPUQuota team-vision, requested 4 "
        "GPUs, 62 of 64 used; largest: vision-prod 40; or ask #vision-leads to raise spec.hard.gpus of ClusterGPUQuota "
        "team-vision",
    ),
    nobody_to_ask_is_named=(
        team_ledger(USED, contact=""),
        4,
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 2, or wait until others release 2 GPUs; exceeded quota: ClusterGPUQuota team-vision, requested 4 "
        "GPUs, 62 of 64 used; largest: vision-prod 40; or ask #gpu-support to raise spec.hard.gpus of ClusterGPUQuota "
        "team-vision",
    ),
    a_guarantee_that_idles=(
        team_ledger(IDLE, {LAB: {"gpus": 16}}),
        4,
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 1, or wait until others release 3 GPUs; exceeded quota: ClusterGPUQuota team-vision, requested 4 "
        "GPUs, 63 of 64 used or guaranteed; largest: vision-prod 40; "
        "or ask #vision-leads to raise spec.hard.gpus of ClusterGPUQuota team-vision",
    ),
    the_namespace_alone=(
        team_ledger(IDLE, own={"gpus": 8}),
        4,
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 1, or wait until others release 3 GPUs; exceeded quota: vision-cv/default, requested 4 GPUs, 7 of "
        "8 used; or ask #gpu-support to raise spec.hard.gpus",
    ),
    both_levels_once=(
        team_ledger(USED, own={"gpus": 8}),
        4,
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 1; exceeded quota: vision-cv/default, requested 4 GPUs, 7 of 8 used; ClusterGPUQuota team-vision, "
        "62 of 64 used; largest: vision-prod 40; "
        "or ask #gpu-support to raise spec.hard.gpus, and #vision-leads to raise the team's",
    ),
    both_levels_and_one_contact=(
        team_ledger(USED, own={"gpus": 8}, contact=""),
        4,
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 1, or wait until others release 3 GPUs; exceeded quota: vision-cv/default, requested 4 GPUs, 7 of "
        "8 used; ClusterGPUQuota team-vision, 62 of 64 used; largest: vision-prod 40; "
        "or ask #gpu-support to raise spec.hard.gpus, and the team's",
    ),
    larger_than_the_team=(
        team_ledger(USED),
        72,
        QUOTA_CAN_NEVER_FIT,
        "set nvidia.com/gpu: 2; exceeded quota: ClusterGPUQuota team-vision, 72 GPUs can never fit: it grants 64; or ask "
        "#vision-leads to raise spec.hard.gpus of ClusterGPUQuota team-vision",
    ),
    larger_than_what_is_not_guaranteed_to_others=(
        team_ledger({OWN: {}, PROD: {}}, {PROD: {"gpus": 16}}),
        50,
        QUOTA_CAN_NEVER_FIT,
        "set nvidia.com/gpu: 48; exceeded quota: ClusterGPUQuota team-vision, 50 GPUs can never fit: it grants 64, 16 of them "
        "guaranteed to other namespaces; or ask #vision-leads to raise spec.hard.gpus of ClusterGPUQuota team-vision",
    ),
    larger_than_what_is_not_guaranteed_to_others_and_all_is_used=(
        team_ledger({OWN: {"gpus": 40}, PROD: {}, LAB: {"gpus": 8}}, {PROD: {"gpus": 16}}),
        50,
        QUOTA_CAN_NEVER_FIT,
        "set nvidia.com/gpu: 48 or less, and wait until that much is free; exceeded quota: ClusterGPUQuota team-vision, 50 GPUs "
        "can never fit: it grants 64, 16 of them guaranteed to other namespaces; or ask #vision-leads to raise spec.hard.gpus "
        "of ClusterGPUQuota team-vision",
    ),
)
def test_a_denial_says_which_level_and_whom_to_ask(
    ledger: QuotaLedger, gpus: int, reason: Reason, want: str
) -> None:
    found = denial(ledger, pod(gpu_container(str(gpus))))

    assert (found.reason, found.sentence()) == (reason, f"{want}")
    first, *_ = denial_message([found.sentence()], "pod train-7f9c4-x2x8p", "#gpu-support").split("\n")
    assert len(first) <= 340


def test_the_namespaces_with_the_most_stand_before_the_own_holders() -> None:
    held = {"gpus": (Holder("Job/train", "7"),)}
    found = denial(team_ledger(USED, holders=held), pod(gpu_container("4")))

    assert found.details == (
        "next largest namespaces of ClusterGPUQuota team-vision, GPUs: vision-lab 15, vision-cv 7",
        "largest holders of GPUs: Job/train 7",
    )


def test_a_guarantee_is_marked_and_the_most_said_once() -> None:
    found = denial(
        team_ledger({**IDLE, LAB: {"gpus": 17}}, {PROD: {"gpus": 40}, LAB: {"gpus": 16}}),
        pod(gpu_container("4")),
    )

    assert "; largest: vision-prod 40 (guaranteed)" in found.message
    assert found.details == (
        "next largest namespaces of ClusterGPUQuota team-vision, GPUs: vision-lab 17, vision-cv 7",
    )


ONE_OF_TWO = "requested 1 class-0, 0 of 2 used, 1 being created (until 12:00:50 UTC)"


@cases(
    ("limits", "want"),
    one=(2, f"{ONE_OF_TWO}; class-1, too"),
    several=(3, f"{ONE_OF_TWO}; and 2 more limits"),
)
def test_what_has_no_room_is_named_or_counted(limits: int, want: str) -> None:
    one, hard = Fraction(1), Fraction(2)
    found = [
        Shortfall(f"classes/class-{number}", one, Fraction(number), one, hard) for number in range(limits)
    ]

    assert shortage_facts(found, NOW) == want


def test_a_class_that_the_team_limits_is_not_offered() -> None:
    """Two classes could take the pod; the team has none left of the other one, either."""
    a100, t4 = "classes/nvidia-a100", "classes/nvidia-t4"
    ledger = team_ledger({OWN: {a100: 0, t4: 0}, PROD: {a100: 2, t4: 2}}, hard={"gpus": 64, a100: 2, t4: 2})
    ledger = replace(ledger, unclassified_pods=UnclassifiedPods.MOST_EXPENSIVE)
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container("1"))), None, context())
    shortfalls = decide_alone(
        ledger, creation_request(uid("pod"), amounts({a100: 1}), str(ledger.class_catalogue))
    )
    assert shortfalls.verdict is not None

    pins = {
        "nvidia-t4": ClassPin("accelerator", "nvidia-t4", Edit("spec.nodeSelector[accelerator]", "nvidia-t4"))
    }
    found = exceeded_finding(OWN, ledger, shortfalls.verdict.shortfalls, "", request, NOW, lambda _pod: pins)

    assert found.fix == ()


def undecided(
    ledger: QuotaLedger, reason: VerdictReason, on_exceeded: OnExceeded = OnExceeded.DENY
) -> list[str]:
    outcome = ReservationOutcome(
        ledger, creation_request(uid("pod"), amounts({"gpus": 1}), "catalogue"), ReservationVerdict(reason)
    )
    request = quota_request_for_pod(uid("review"), Pod(), None, context())
    found = check_reservation(
        outcome, request, GPUQuotaOptions(on_exceeded=on_exceeded), OWN, NOW, lambda _: context()
    )
    return [each.sentence() for each in found]


IF_IT_PERSISTS = "if it persists, see its conditions and the log of `gpu-admission controller`"


@cases(
    ("ledger", "reason", "on_exceeded", "want"),
    pods_of_another_namespace_wait=(
        team_ledger(USED, waiting=3),
        VerdictReason.OTHERS_WAIT,
        OnExceeded.DENY,
        "try again when they have started; 3 pods of other namespaces in line for ClusterGPUQuota team-vision must start "
        "first; or ask the platform team if it persists",
    ),
    pods_of_another_namespace_wait_and_it_may_join=(
        team_ledger(USED, waiting=1),
        VerdictReason.OTHERS_WAIT,
        OnExceeded.QUEUE,
        "create the pod again: it then waits, too; 1 pod of other namespaces in line for ClusterGPUQuota team-vision must "
        "start first; or ask the platform team if it persists",
    ),
    the_line_of_a_namespace_with_a_quota=(
        team_ledger(USED, own={"gpus": 8}, waiting=3),
        VerdictReason.QUEUE_FULL,
        OnExceeded.QUEUE,
        "create it again when some of them have started; the line for quota vision-cv/default is full: 0 pods in it; or ask the "
        "platform team to raise spec.queue.maxWaiting of the GPUQuota",
    ),
    the_line_of_a_namespace_without_a_quota=(
        team_ledger(USED),
        VerdictReason.QUEUE_FULL,
        OnExceeded.QUEUE,
        "create it again when some of them have started; the line for ClusterGPUQuota team-vision is full: 0 pods in it; or ask "
        "the platform team to create a GPUQuota with a larger spec.queue.maxWaiting",
    ),
    its_creations_are_never_stored=(
        team_ledger(USED),
        VerdictReason.NOT_STORED,
        OnExceeded.DENY,
        "request less, and find out what rejects pods of this namespace, such as a name that is taken, or a ResourceQuota; "
        "ClusterGPUQuota team-vision admitted some in the last 10 min that were never stored: now those in creation may take "
        "half of what is free; if it persists, see `gpu-admission doctor`",
    ),
    never_counted=(
        replace(team_ledger(USED), used=None),
        VerdictReason.UNCOUNTED,
        OnExceeded.DENY,
        "try again in some seconds; ClusterGPUQuota team-vision has not been counted yet: it, or a dimension of it, is new; "
        + IF_IT_PERSISTS,
    ),
    its_own_quota_never_counted=(
        replace(team_ledger(USED, own={"gpus": 8}), used=None),
        VerdictReason.UNCOUNTED,
        OnExceeded.DENY,
        "try again in some seconds; quota vision-cv/default has not been counted yet: it, or a dimension of it, is new; "
        + IF_IT_PERSISTS,
    ),
    its_own_quota_without_limits_never_counted=(
        replace(team_ledger(USED, own={}), used=None),
        VerdictReason.UNCOUNTED,
        OnExceeded.DENY,
        "try again in some seconds; quota vision-cv/default has not been counted yet: it, or a dimension of it, is new; "
        + IF_IT_PERSISTS,
    ),
    it_joins_or_leaves_a_team=(
        replace(team_ledger(USED), used=None, team_state=None),
        VerdictReason.UNCOUNTED,
        OnExceeded.DENY,
        "try again in some seconds; namespace vision-cv joins or leaves a ClusterGPUQuota, and has not been counted yet; if it "
        "persists, see the log of `gpu-admission controller`",
    ),
    another_namespace_of_the_team_not_counted=(
        team_ledger(USED, own={"gpus": 8}),
        VerdictReason.UNCOUNTED,
        OnExceeded.DENY,
        "try again in some seconds; ClusterGPUQuota team-vision has not been counted yet: it, or a dimension of it, is new; "
        + IF_IT_PERSISTS,
    ),
)
def test_a_team_that_cannot_decide(
    ledger: QuotaLedger, reason: VerdictReason, on_exceeded: OnExceeded, want: str
) -> None:
    assert undecided(ledger, reason, on_exceeded) == [want]


@cases(
    ("own", "waiting", "gpus", "want"),
    it_has_no_room=(0, 0, 4, "next in line, requested 4 GPUs, 62 of 64 used"),
    others_wait_for_it=(0, 3, 1, "3 pods of other namespaces of ClusterGPUQuota team-vision in line, too"),
    pods_of_its_namespace_wait=(2, 3, 1, "2 pods before it"),
)
def test_a_pod_waits_in_line_for_its_team(own: int, waiting: int, gpus: int, want: str) -> None:
    ledger = replace(team_ledger(USED, waiting=waiting), waiting=own)
    document = view(pod(gpu_container(str(gpus))))
    request = quota_request_for_pod(uid("review"), document, None, context())

    found = queued_warning(OWN, decide_alone(ledger, request.for_ledger(ledger, {})), NOW)

    assert found.message == f"waits in line for ClusterGPUQuota team-vision: {want}"


RAISE = "ask #vision-leads to raise spec.hard.gpus of ClusterGPUQuota team-vision"


@cases(
    ("ledger", "subject", "want"),
    the_team_has_less=(
        team_ledger(USED, own={"gpus": 16}),
        workload(pods(1, running=8), kind="batch/Job"),
        "spec.parallelism: set parallelism: 2; needs 8 GPUs; ClusterGPUQuota team-vision has 2 of 64 free: 2 of 8 pods will "
        "start",
    ),
    the_namespace_has_less=(
        team_ledger(USED, own={"gpus": 8}),
        workload(pods(1, running=8), kind="batch/Job"),
        "spec.parallelism: set parallelism: 1; needs 8 GPUs; ml-training has 1 of 8 free: 1 of 8 pods will start",
    ),
    larger_than_the_team=(
        team_ledger(USED),
        workload(pods(72, running=1), kind="batch/Job"),
        "spec.template: set nvidia.com/gpu: 64, and wait until that much is free; a pod needs 72 GPUs, which can never fit: "
        f"ClusterGPUQuota team-vision grants 64; or {RAISE}",
    ),
    larger_than_what_is_not_guaranteed_to_others=(
        team_ledger(IDLE, {LAB: {"gpus": 16}}, own={"gpus": 100}),
        workload(pods(50, running=1), kind="batch/Job"),
        "spec.template: set nvidia.com/gpu: 48, and wait until that much is free; a pod needs 50 GPUs, which can never fit: "
        f"ClusterGPUQuota team-vision grants 64, 16 of them guaranteed to other namespaces; or {RAISE}",
    ),
    a_pod_larger_than_its_own_quota_is_worse_than_too_little_of_the_team=(
        team_ledger(USED, own={"gpus": 8}),
        workload(pods(9, running=1), kind="batch/Job"),
        "spec.template: set nvidia.com/gpu: 8, and wait until that much is free; a pod needs 9 GPUs, which can never fit: "
        "the GPUQuota of ml-training grants 8 in all; or ask the platform team to raise spec.hard.gpus",
    ),
    an_update_for_which_the_team_has_no_room=(
        team_ledger({OWN: {"gpus": 0}, PROD: {"gpus": 62}}),
        workload(pods(1, running=2), spec={"strategy": {"rollingUpdate": {"maxUnavailable": 0}}}),
        "spec.strategy: set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1, or replicas: 1; an "
        "update needs 1 GPU for a pod beside the others, and will not finish: ClusterGPUQuota team-vision will have 0 of 64 free",
    ),
    what_fits_both=(team_ledger(USED, own={"gpus": 16}), workload(pods(1, running=2), kind="batch/Job"), ""),
)
def test_a_workload_fits_its_quota_and_its_team(ledger: QuotaLedger, subject: Workload, want: str) -> None:
    assert said(subject, ledger) == ([f"{want}"] if want else [])


def test_a_workload_is_told_who_has_the_most_of_its_team() -> None:
    ledger, subject = team_ledger(USED), workload(pods(1, running=8), kind="batch/Job")

    [found] = check_workload(subject, GPUQuotaOptions(), context(Phase.TEMPLATE, ledger=ledger))

    assert found.details == (
        "largest namespaces of ClusterGPUQuota team-vision: vision-prod 40, vision-lab 15, vision-cv 7",
    )


@cases(
    ("ledger", "most", "free"),
    the_team_is_the_bound=(team_ledger(USED, own={"gpus": 100}), 64, 2),
    its_quota_is_the_bound=(team_ledger(USED, own={"gpus": 8}), 8, 1),
    guaranteed_to_another=(team_ledger(IDLE, {LAB: {"gpus": 16}}), 48, 1),
    more_is_used_than_granted=(team_ledger({OWN: {"gpus": 7}, PROD: {"gpus": 60}}), 64, 0),
)
def test_what_a_namespace_can_have(ledger: QuotaLedger, most: int, free: int) -> None:
    assert (ledger.maximum_hard, ledger.left) == (amounts({"gpus": most}), amounts({"gpus": free}))


GPUS_HELD = st.integers(0, 20)


@given(
    request=st.integers(1, 24),
    own=st.none() | st.integers(0, 20),
    hard=st.integers(0, 20),
    held=st.tuples(GPUS_HELD, GPUS_HELD, GPUS_HELD),
    guaranteed=st.tuples(GPUS_HELD, GPUS_HELD),
)
def test_what_a_denial_says_to_write_is_admitted(
    request: int, own: int | None, hard: int, held: tuple[int, int, int], guaranteed: tuple[int, int]
) -> None:
    used = {name: {"gpus": each} for name, each in zip((OWN, PROD, LAB), held, strict=True)}
    guarantees = {name: {"gpus": each} for name, each in zip((PROD, LAB), guaranteed, strict=True)}
    ledger = team_ledger(used, guarantees, own=None if own is None else {"gpus": own}, hard={"gpus": hard})
    outcome = outcome_of(ledger, request)
    assert outcome.verdict is not None
    assert outcome.verdict.allowed is granted_room(ledger, request)
    if outcome.verdict.allowed:
        return
    found = denial(ledger, pod(gpu_container(str(request))))

    levels = {each.team for each in outcome.verdict.shortfalls}
    assert ("vision-cv/default" in found.message) is ("" in levels)
    assert ("ClusterGPUQuota team-vision" in found.message) is ("team-vision" in levels)
    for edit in found.fix:
        fixed = outcome_of(ledger, int(edit.value or 0)).verdict
        assert fixed is not None
        assert fixed.allowed, found.sentence()


def outcome_of(ledger: QuotaLedger, gpus: int) -> ReservationOutcome:
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container(str(gpus)))), None, context())
    return decide_alone(ledger, request.for_ledger(ledger, {}))


def granted_room(ledger: QuotaLedger, gpus: int) -> bool:
    """Whether as many GPUs are free by what the commands compute."""
    return ledger.left["gpus"] >= gpus
