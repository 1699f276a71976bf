"""Why a pod waits in line for quota, by what the status of the GPUQuota says, and what lets it start."""

from fractions import Fraction
from typing import Any

import msgspec

from policies.finding import PLATFORM_TEAM
from policies.pods.pod import Metadata, OwnerReference, Pod
from policies.quota.amounts import Hard
from policies.quota.spec import QuotaSpec
from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.why.situations import NOW, situation
from webhook.quota.documents import PlaceInLine, QuotaRecord, QuotaStatus, TeamView, WaitingPods
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Answer, Source
from webhook.tools.why.line import gang_keys, line_cause, place_in_line
from webhook.tools.why.reasons import answer_of

GPUS = {"gpus": Fraction(8)}
NEEDS = "needs 8 GPUs, 5 of 16 free; largest holders: Job/llama 8"
FIRST = PlaceInLine(name="first", place=1, demand=GPUS, reason="Next", message=f"next in line, {NEEDS}")
TRAIN = PlaceInLine(
    name="train-0",
    gang="Job/train",
    pods=8,
    place=2,
    demand=GPUS,
    reason="Behind",
    message=f"2nd in line, {NEEDS}",
)
LATER = tuple(
    PlaceInLine(name=f"pod-{place}", place=place, demand=GPUS, reason="Behind", message=f"{place}th in line")
    for place in (3, 4, 5)
)
LINE = WaitingPods(pods=37, next=(FIRST, TRAIN, *LATER))
RAISE = f"ask {PLATFORM_TEAM} to raise spec.hard.gpus"


def gated(name: str = "train-0", *gates: str) -> StoredPod:
    spec = {"schedulingGates": [{"name": each} for each in (GATE, *gates)]}
    blocked = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }
    document: JSON = {
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": "2026-11-22T08:10:00Z"},
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [blocked]},
    }
    return msgspec.convert(document, StoredPod)


def quota(waiting: WaitingPods | None) -> QuotaRecord:
    spec = QuotaSpec(hard=Hard(gpus=16))
    return QuotaRecord(namespace="team", uid="", version="", spec=spec, status=QuotaStatus(waiting=waiting))


def place(reason: str, message: str, **fields: Any) -> PlaceInLine:
    return PlaceInLine(name="train-0", demand=GPUS, reason=reason, message=message, **fields)


@cases(
    ("found", "message", "remedy"),
    next_in_line=(
        FIRST,
        f"next in line, {NEEDS}",
        f"it starts when enough of the quota is released: end what is not needed, or {RAISE}",
    ),
    a_gang_behind_another_one=(
        TRAIN,
        f"2nd in line, {NEEDS}; before it: Pod/first",
        f"it starts after those before it: end what is not needed, or {RAISE}",
    ),
    behind_many=(
        LATER[2],
        "5th in line; before it: Pod/first, Job/train (8 pods) and 2 more",
        f"it starts after those before it: end what is not needed, or {RAISE}",
    ),
    starting=(place("Starting", "it starts now"), "it starts now", ""),
    incomplete=(
        place("Incomplete", "2 of the 8 pods of its gang Job/train do not exist yet", gang="Job/train"),
        "2 of the 8 pods of its gang Job/train do not exist yet",
        "create the missing pods: gpu-admission why -n ml Job/train says why they are missing",
    ),
    a_gang_that_cannot_be_read=(
        place("UnreadGang", "its gang could not be read", gang="PodGroup/train"),
        "its gang could not be read",
        "create PodGroup/train if there is none; the log of the controller says what is wrong",
    ),
    other_gate=(
        place("OtherGate", "it has another scheduling gate"),
        "it has another scheduling gate",
        "see the controller that sets example.com/gate",
    ),
    denied=(
        place("Denied", "the removal of its scheduling gate was denied: no"),
        "the removal of its scheduling gate was denied: no",
        "correct what the denial says: the controller tries again within a minute",
    ),
    too_large=(
        place("TooLarge", "it exceeds the whole quota"),
        "it exceeds the whole quota",
        f"request less, or {RAISE}",
    ),
    too_many=(
        place("TooMany", "it has more pods than the quota counts"),
        "it has more pods than the quota counts",
        "use fewer pods with more GPUs each",
    ),
    budget_spent=(
        place("BudgetSpent", "the budget is spent"),
        "the budget is spent",
        f"it starts in the next period of the budget, or ask {PLATFORM_TEAM} to raise spec.budget",
    ),
    on_hold=(
        place("OnHold", "the line is on hold"),
        "the line is on hold",
        f"ask {PLATFORM_TEAM}, who set it in GPUQuota default",
    ),
    for_a_reason_of_a_later_version=(place("Sleeping", "it sleeps"), "it sleeps", ""),
    not_among_the_first=(None, "behind the first 5 places, needs 8 GPUs; 37 pods wait", f"wait, or {RAISE}"),
)
def test_why_it_waits_and_what_helps(found: PlaceInLine | None, message: str, remedy: str) -> None:
    cause = line_cause(gated("train-0", "example.com/gate"), quota(LINE), found, GPUS, PLATFORM_TEAM, NOW)

    before, _, said = cause.message.partition(": ")
    gang = f" with the other pods of its gang {found.gang}" if found and found.gang else ""
    assert before == f"waits in line for quota since 08:10 UTC{gang}"
    assert (said, cause.remedy, cause.source) == (message, remedy, Source.LINE)


@cases(
    ("record", "message"),
    without_a_quota=(None, "its namespace has no GPUQuota that you may read"),
    before_its_first_count=(quota(None), "the controller has not given it a place yet"),
)
def test_without_a_line_a_controller_may_be_missing(record: QuotaRecord | None, message: str) -> None:
    cause = line_cause(gated(), record, None, GPUS, PLATFORM_TEAM, NOW)

    assert cause.message == f"waits in line for quota since 08:10 UTC: {message}"
    assert cause.remedy == f"if it stays so, ask {PLATFORM_TEAM} whether a controller runs"


TEAM = TeamView(
    name="team-vision", hard={"gpus": Fraction(64)}, free={"gpus": Fraction(7)}, contact="#vision-leads"
)


@cases(
    ("team", "remedy"),
    the_team_has_too_little=(
        TEAM,
        "ask #vision-leads to raise spec.hard.gpus of ClusterGPUQuota team-vision",
    ),
    the_team_names_nobody=(
        msgspec.structs.replace(TEAM, contact=""),
        f"ask {PLATFORM_TEAM} to raise spec.hard.gpus of ClusterGPUQuota team-vision",
    ),
    the_team_has_enough=(msgspec.structs.replace(TEAM, free=GPUS), RAISE),
    the_team_limits_something_else=(
        msgspec.structs.replace(TEAM, hard={"classes/nvidia-t4": Fraction(4)}, free={}),
        RAISE,
    ),
)
def test_who_can_raise_what_is_short(team: TeamView, remedy: str) -> None:
    record = msgspec.structs.replace(quota(LINE), status=QuotaStatus(waiting=LINE, team=team))

    assert line_cause(gated(), record, None, GPUS, PLATFORM_TEAM, NOW).remedy == f"wait, or {remedy}"


def test_both_are_asked_where_quota_and_team_have_too_little() -> None:
    status = QuotaStatus(used={"gpus": Fraction(12)}, waiting=LINE, team=TEAM)
    record = msgspec.structs.replace(quota(LINE), status=status)

    remedy = line_cause(gated(), record, None, GPUS, "#gpus", NOW).remedy
    assert remedy == "wait, or ask #gpus to raise spec.hard.gpus, and #vision-leads to raise the team's"


def pod(owner: str, **metadata: Any) -> Pod:
    kind, _, name = owner.partition("/")
    owners = (OwnerReference(api_version="batch/v1", kind=kind, name=name, controller=True),) if owner else ()
    return Pod(metadata=Metadata(owner_references=owners, **metadata))


INDEXED = {"annotations": {"batch.kubernetes.io/job-completion-index": "0"}}
GROUPED = {"annotations": {"scheduling.k8s.io/group-name": "train"}}


@cases(
    ("explained", "owners", "gang"),
    by_its_controller=(pod("Job/train", **INDEXED), set(), "Job/train"),
    by_the_object_above=(pod("Job/train-workers-0", **INDEXED), {"JobSet/train"}, "JobSet/train"),
    by_its_group_in_a_leader_worker_set=(
        pod("StatefulSet/chat-1", labels={"leaderworkerset.sigs.k8s.io/group-index": "1"}),
        {"LeaderWorkerSet/chat"},
        "LeaderWorkerSet/chat/1",
    ),
    by_its_pod_group=(pod("Job/other", **GROUPED), {"Job/other"}, "PodGroup/train"),
)
def test_a_pod_finds_the_place_of_its_gang(explained: Pod, owners: set[str], gang: str) -> None:
    wanted = msgspec.structs.replace(TRAIN, gang=gang)
    others = msgspec.structs.replace(TRAIN, gang="Job/other")
    line = WaitingPods(pods=16, next=(others, wanted))

    assert place_in_line(line, gang_keys(explained, owners)) == wanted


def test_a_pod_without_a_controller_is_in_no_gang() -> None:
    assert place_in_line(LINE, gang_keys(pod(""), set())) is None


def test_pods_that_wait_are_one_reason_and_no_node_is_blamed() -> None:
    pods = [gated("train-1"), gated("train-0")]
    cause = line_cause(pods[1], quota(LINE), TRAIN, GPUS, PLATFORM_TEAM, NOW)

    answer, summary, reasons = answer_of(situation(pods=pods, wanted=2, line=("train-0", cause), nodes=()))
    assert answer is Answer.WAITING
    assert len(reasons) == 1
    assert summary.startswith("0 of 2 pods run: Pod train-0 (and 1 more) waits in line for quota since ")


@cases(
    ("pods", "want"),
    beside_running_ones=(
        [gated(), msgspec.convert({"metadata": {"name": "a"}, "status": {"phase": "Running"}}, StoredPod)],
        Answer.WAITING,
    ),
    beside_pending_ones=(
        [gated(), msgspec.convert({"metadata": {"name": "a"}, "status": {"phase": "Pending"}}, StoredPod)],
        Answer.PENDING,
    ),
)
def test_the_answer_is_waiting_if_nothing_else_is_missing(pods: list[StoredPod], want: Answer) -> None:
    cause = line_cause(pods[0], quota(LINE), TRAIN, GPUS, PLATFORM_TEAM, NOW)

    assert answer_of(situation(pods=pods, wanted=2, line=("train-0", cause)))[0] is want
