"""Whom the denial of a full quota names: those who must release something, those who are idle, the largest holders."""

from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from policies.pods.pod import Metadata, OwnerReference, Pod, PodSpec
from policies.quota.amounts import GPUS, ZERO
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.quota.ledger.team import Team, TeamState
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.policies.quota.shortages import A100, COUNTED, ON_A100, denial, denial_by, short

AT_SIX = "2027-01-01T06:00:00Z"
SLICES: JSON = pod(container(resources={"limits": {"nvidia.com/mig-1g.10gb": "3"}}))


@cases(
    ("document", "hard", "used", "holders", "want"),
    one_holder=(pod(gpu_container("3")), 8, 8, "Deployment/chat", "Deployment/chat releases 3 GPUs"),
    two_holders=(
        pod(gpu_container("8")),
        12,
        12,
        "Deployment/chat, Job/train, Job/eval 1",
        "Deployment/chat and Job/train release 8 GPUs",
    ),
    more_holders_than_a_line_has_room_for=(
        pod(gpu_container("3")),
        3,
        3,
        "Job/a 1, Job/b 1, Job/c 1",
        "others release 3 GPUs",
    ),
    holders_that_are_not_all=(pod(gpu_container("3")), 8, 8, "Job/a 1", "others release 3 GPUs"),
    slices_of_the_pods_own_profile=(
        SLICES,
        1,
        Fraction(5, 7),
        "Deployment/chat 5/7",
        "others release room for 1 nvidia.com/mig-1g.10gb",
    ),
    a_card_of_which_another_holds_slices=(
        pod(gpu_container("1")),
        1,
        Fraction(5, 7),
        "Deployment/chat 5/7",
        "Deployment/chat releases all that it holds",
    ),
    an_idle_holder_before_a_larger_one=(
        pod(gpu_container("2")),
        8,
        8,
        f"Job/train, Notebook/ana 2 {AT_SIX}",
        "Notebook/ana (idle for 6 h) releases 2 GPUs",
    ),
    an_idle_holder_and_the_largest=(
        pod(gpu_container("4")),
        8,
        8,
        f"Job/train, Notebook/ana 2 {AT_SIX}",
        "Notebook/ana (idle for 6 h) and Job/train release 4 GPUs",
    ),
    the_largest_where_idle_ones_hold_too_little=(
        pod(gpu_container("4")),
        8,
        8,
        f"Job/train, Notebook/ana 1 {AT_SIX}, Notebook/eve 1 {AT_SIX}",
        "Job/train releases 4 GPUs",
    ),
    cards_of_which_others_hold_parts=(
        pod(gpu_container("2")),
        4,
        Fraction(19, 7),
        "Job/train 1, Job/eval 1",
        "Job/train releases 1 GPU",
    ),
)
def test_who_must_release_what(document: JSON, hard: int, used: Fraction, holders: str, want: str) -> None:
    found = denial(document, {GPUS: hard}, {GPUS: used}, {GPUS: holders})

    assert found.advice.partition("wait until ")[2] == want


@cases(
    ("holders", "want"),
    nobody_is_known_to_be_idle=("Job/train", "largest holders of GPUs: Job/train 6"),
    one=(f"Job/train, Notebook/ana 2 {AT_SIX}", "Notebook/ana holds 2 GPUs, idle for 6 h"),
    the_largest_first=(
        f"Notebook/ana 1 {AT_SIX}, Job/train, Notebook/eve 4/7 2026-12-29T00:00:00Z, Notebook/bob 1.5 {AT_SIX}",
        "Notebook/bob holds 1.5 GPUs, idle for 6 h; Notebook/ana holds 1 GPU, idle for 6 h; Notebook/eve holds 0.57 GPUs, "
        "idle for 3 d",
    ),
    idle_since_a_moment_that_has_not_come=(
        "Notebook/ana 2 2027-01-01T13:00:00Z",
        "Notebook/ana holds 2 GPUs, idle for 0 min",
    ),
)
def test_idle_holders_come_first(holders: str, want: str) -> None:
    found = denial(pod(gpu_container("4")), {GPUS: 8}, {GPUS: 8}, {GPUS: holders})

    assert found.details[0] == want
    assert found.details[-1].startswith("largest holders of GPUs: ")


def test_holders_of_several_dimensions_are_listed_once() -> None:
    holders = {GPUS: "Deployment/chat", A100: "Deployment/chat"}
    found = denial(pod(gpu_container("3"), **ON_A100), {GPUS: 8, A100: 8}, {GPUS: 6, A100: 6}, holders)

    assert found.details[0] == "largest holders of nvidia-a100 and GPUs: Deployment/chat 6"


WAIT = "wait until Deployment/chat releases 2 GPUs"


@cases(
    ("owner", "held", "want"),
    its_own_replicas_hold_all=(
        ("Deployment", "chat"),
        "4",
        "for an update set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1, or replicas: 1; "
        "else set replicas: 2, or wait until an old pod has ended",
    ),
    its_own_replicas_of_a_statefulset=(
        ("StatefulSet", "chat"),
        "4",
        "set replicas: 2 (its own pods hold the quota)",
    ),
    others_hold_what_it_lacks=(("StatefulSet", "chat"), "2", WAIT),
    all_is_held_by_another=(("Deployment", "train"), "4", WAIT),
    pods_of_a_job_end=(("Job", "chat"), "4", "wait until its own pods release 2 GPUs"),
    a_pod_without_controller=(None, "4", WAIT),
)
def test_nobody_waits_for_its_own_replicas(owner: tuple[str, str] | None, held: str, want: str) -> None:
    held_by = [Holder(name, held) for name in ("Deployment/chat", "Job/chat", "StatefulSet/chat")]
    ledger = replace(COUNTED, holders={"gpus": tuple(held_by)})
    owners = [OwnerReference(kind=owner[0], name=owner[1], controller=True)] if owner else []
    author = Pod(metadata=Metadata(name="chat-0", owner_references=tuple(owners)))

    found = denial_by(ledger, [short("gpus", 2, 4, 0, 4)], author)

    assert found.remedy == want
    names = ", ".join(f"{name} {held}" for name in ("Deployment/chat", "Job/chat", "StatefulSet/chat"))
    assert found.details == (f"largest holders of GPUs: {names}",)


OF_TEAM = TeamState(
    team=Team(name="vision", uid="t", generation=1, hard={"gpus": Fraction(8)}),
    taken_by_others={"gpus": ZERO},
    guaranteed_to_others={"gpus": ZERO},
    taken={"team": {"gpus": Fraction(8)}},
)
JOBSET = "jobset.sigs.k8s.io/jobset-name"
IN_CREATION = Reservations({}).plus(
    Reservation(str(number), {"gpus": Fraction(1)}, name=f"pods/train-{number}-abcde") for number in range(8)
)


@cases(
    ("owner", "holders", "used", "fields", "want"),
    a_job_alone=(("Job", "train"), {"Job/train": "8"}, 8, {}, "wait until its own pods release 1 GPU"),
    a_job_alone_whose_pods_are_being_created=(
        ("Job", "train"),
        {},
        0,
        {"reservations": IN_CREATION},
        "wait until its own pods release 1 GPU",
    ),
    pods_of_another_job_are_being_created=(
        ("Job", "eval"),
        {},
        0,
        {"reservations": IN_CREATION},
        "wait until others release 1 GPU",
    ),
    a_job_alone_in_its_team=(
        ("Job", "train"),
        {"Job/train": "8"},
        8,
        {"hard": {}, "team_state": OF_TEAM},
        "wait until its own pods release 1 GPU",
    ),
    another_holds_enough=(
        ("Job", "train"),
        {"Job/train": "6", "Job/eval": "2"},
        8,
        {},
        "wait until Job/eval releases 1 GPU",
    ),
    it_and_another_exceed_the_quota=(
        ("Job", "train"),
        {"Job/train": "8", "Job/eval": "9"},
        17,
        {},
        "wait until its own pods and others release 10 GPUs",
    ),
    another_job_of_its_jobset=(
        ("Job", "train-workers-1"),
        {"Job/train-workers-0": "8"},
        8,
        {"label": {JOBSET: "train"}},
        "wait until its own pods release 1 GPU",
    ),
    jobs_of_its_jobset_are_being_created=(
        ("Job", "train-workers-1"),
        {},
        0,
        {"reservations": IN_CREATION, "label": {JOBSET: "train"}},
        "wait until its own pods release 1 GPU",
    ),
    a_job_of_a_jobset_whose_name_begins_alike=(
        ("Job", "train-workers-1"),
        {"Job/training-workers-0": "8"},
        8,
        {"label": {JOBSET: "train"}},
        "wait until Job/training-workers-0 releases 1 GPU",
    ),
    leaders_of_its_leaderworkerset=(
        ("StatefulSet", "train-0"),
        {"StatefulSet/train": "8"},
        8,
        {"label": {"leaderworkerset.sigs.k8s.io/name": "train"}},
        "",
    ),
    pods_that_do_not_end_by_themselves=(("DaemonSet", "train"), {"DaemonSet/train": "8"}, 8, {}, ""),
    pods_that_restart=(("RayCluster", "train"), {"RayCluster/train": "8"}, 8, {}, ""),
)
def test_who_holds_what_is_asked_decides_for_whom_to_wait(
    owner: tuple[str, str], holders: dict[str, str], used: int, fields: dict[str, Any], want: str
) -> None:
    held = tuple(Holder(name, amount) for name, amount in holders.items())
    amounts = {"hard": {"gpus": Fraction(8)}, "used": {"gpus": Fraction(used)}, "holders": {"gpus": held}}
    label = fields.get("label", {})
    fields = {name: each for name, each in fields.items() if name != "label"}
    ledger = replace(COUNTED, **{**amounts, **fields})
    restarts = "Always" if owner[0] in {"RayCluster", "StatefulSet"} else "Never"
    author = Pod(
        metadata=Metadata(
            name="p",
            labels=label,
            owner_references=(OwnerReference(kind=owner[0], name=owner[1], controller=True),),
        ),
        given_spec=PodSpec(restart_policy=restarts),
    )
    team, reserved = ("vision" if "team_state" in fields else ""), (8 if "reservations" in fields else 0)
    shortfall = replace(short("gpus", 1, used, reserved, 8), team=team)

    found = denial_by(ledger, [shortfall], author)

    assert found.remedy == want
    assert (found.awaits is None) == (not want)
