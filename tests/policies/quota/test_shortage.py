"""The denial of a full quota: read in ten seconds, and right when it is followed."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.finding import Edit, Finding, Reason
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path, path_parts, with_edit
from policies.pods.pod import Metadata, OwnerReference, Pod, PodSpec
from policies.quota.amounts import GPUS, NOTHING
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import Shortfall
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.quota.ledger.team import Team, TeamState
from policies.quota.quota_request import ReservationOutcome, decide_by_own_catalogue, quota_request_for_pod
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED, exceeded
from policies.quota.shortage_facts import amounts_in_words
from policies.rules.gpu_class import GPUClassOptions
from policies.rules.gpu_quota import GPUQuotaOptions, check_reservation
from tests.builders import JSON, container, context, gpu_container, pod, quota_ledger, uid, view
from tests.cases import cases
from webhook.serving.admission_review import denial_message

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
A100, T4 = "classes/nvidia-a100", "classes/nvidia-t4"
ON_A100: JSON = {"nodeSelector": {"accelerator": "nvidia-a100"}}
ONLY_T4 = GPUClassOptions(allowed=("nvidia-t4",))


def outcome(
    document: JSON, hard: Mapping[str, int], used: Mapping[str, int], holders: Mapping[str, str] | None = None
) -> ReservationOutcome:
    """Return what the ledger decides on a pod; `holders` hold 6 each, or what stands behind their names, and since when idle."""
    catalogues = context()
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
    request = quota_request_for_pod(uid("review"), view(document), None, catalogues)
    return decide_by_own_catalogue(ledger, request, catalogues)


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


@cases(
    ("vector", "want"),
    one=({GPUS: 1}, "1 GPU"),
    a_class_that_says_the_same=({GPUS: 3, A100: 3}, "3 GPUs (nvidia-a100)"),
    a_class_that_says_less=({GPUS: 3, T4: 2}, "3 GPUs and 2 nvidia-t4"),
    classes_alone=({A100: 2, T4: 2}, "2 nvidia-a100 and nvidia-t4"),
    two_classes_that_say_the_same=({GPUS: 3, A100: 3, T4: 3}, "3 GPUs (nvidia-a100 and nvidia-t4)"),
    many_classes=({f"classes/c{n}": 2 for n in range(6)}, "2 c0 and c1 and 4 more"),
)
def test_amounts(vector: Mapping[str, int], want: str) -> None:
    assert amounts_in_words({key: Fraction(amount) for key, amount in vector.items()}) == want


@cases(
    ("document", "ledger", "reason", "want"),
    dimensions_with_the_same_figures_once=(
        pod(gpu_container("16"), **ON_A100),
        ({GPUS: 8, A100: 8}, {}),
        QUOTA_CAN_NEVER_FIT,
        "set nvidia.com/gpu: 8; exceeded quota: team/default, 16 GPUs (nvidia-a100) can never fit: the quota grants 8; or "
        "ask the platform team to raise spec.hard",
    ),
    what_is_left=(
        pod(gpu_container("3")),
        ({GPUS: 8}, {GPUS: 6}),
        QUOTA_EXCEEDED,
        "set nvidia.com/gpu: 2, or wait until others release 1 GPU; exceeded quota: team/default, requested 3 GPUs, 6 of 8 "
        "used; or ask the platform team to raise spec.hard.gpus",
    ),
    more_is_used_than_the_quota_has=(
        pod(gpu_container("3")),
        ({GPUS: 4}, {GPUS: 10}),
        QUOTA_EXCEEDED,
        "wait until others release 9 GPUs; exceeded quota: team/default, requested 3 GPUs, 10 of 4 used; or ask the platform "
        "team to raise spec.hard.gpus",
    ),
    no_part_of_a_gpu_is_offered_to_one_gpu=(
        pod(gpu_container("1")),
        ({GPUS: 1}, {GPUS: Fraction(4, 7)}),
        QUOTA_EXCEEDED,
        "wait until others release all that they hold; exceeded quota: team/default, requested 1 GPU, 0.57 of 1 used; or ask the "
        "platform team to raise spec.hard.gpus",
    ),
    larger_than_the_quota_and_the_quota_is_full=(
        pod(gpu_container("16")),
        ({GPUS: 8}, {GPUS: 8}),
        QUOTA_CAN_NEVER_FIT,
        "set nvidia.com/gpu: 8 or less, and wait until that much is free; exceeded quota: team/default, 16 GPUs can never "
        "fit: the quota grants 8; or ask the platform team to raise spec.hard.gpus",
    ),
    two_containers_share_it=(
        pod(gpu_container("2", name="a"), gpu_container("2", name="b")),
        ({GPUS: 3}, {}),
        QUOTA_CAN_NEVER_FIT,
        "request 3 GPUs or fewer; exceeded quota: team/default, 4 GPUs can never fit: the quota grants 3; or ask the "
        "platform team to raise spec.hard.gpus",
    ),
)
def test_the_first_line(document: JSON, ledger: tuple[Any, ...], reason: Reason, want: str) -> None:
    found = denial(document, *ledger)

    assert (found.reason, found.sentence()) == (reason, want)


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


def test_an_unpinned_pod_is_told_the_class_that_costs_nothing() -> None:
    found = denial(pod(gpu_container("3")), {GPUS: 8, A100: 2}, {})
    counted = found.details[-1]

    assert found.fix == (Edit(annotation_path(GPU_CLASS), "nvidia-t4"),)
    assert found.remedy == "set gpu-admission.dev/gpu-class: nvidia-t4"
    assert counted == "counted for nvidia-a100: it pins no GPU class"


@cases(
    ("document", "ledger"),
    pinned=(pod(gpu_container("3"), **ON_A100), ({GPUS: 8, A100: 2}, {})),
    all_of_it_is_used=(pod(gpu_container("3")), ({GPUS: 2, A100: 2}, {})),
    no_other_class_has_room=(
        pod(gpu_container("3")),
        ({GPUS: 8, A100: 2, "classes/nvidia-a10": 2, T4: 2}, {}),
    ),
)
def test_a_class_is_named_only_where_it_helps(document: JSON, ledger: tuple[Any, ...]) -> None:
    assert GPU_CLASS not in denial(document, *ledger).advice


def test_holders_of_several_dimensions_are_listed_once() -> None:
    holders = {GPUS: "Deployment/chat", A100: "Deployment/chat"}
    found = denial(pod(gpu_container("3"), **ON_A100), {GPUS: 8, A100: 8}, {GPUS: 6, A100: 6}, holders)

    assert found.details[0] == "largest holders of nvidia-a100 and GPUs: Deployment/chat 6"


LEDGER = quota_ledger(hard={"gpus": Fraction(8)})
COUNTED = replace(LEDGER, revisions=Revisions(pods=1))


def short(key: str, requested: int, used: int, reserved: int, hard: int) -> Shortfall:
    return Shortfall(key, Fraction(requested), Fraction(used), Fraction(reserved), Fraction(hard))


def denial_by(ledger: QuotaLedger, shortfalls: Sequence[Shortfall], author: Pod) -> Finding:
    request = quota_request_for_pod(uid("review"), author, None, context())
    return exceeded("team", ledger, shortfalls, "", request, NOW, lambda _pod: {})


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
    author = view(pod(gpu_container("2", name="a"), gpu_container("2", name="b")))
    assert denial_by(ledger, shortfalls, author).sentence() == want


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
    taken_by_others={"gpus": NOTHING},
    guaranteed_to_others={"gpus": NOTHING},
    taken={"team": {"gpus": Fraction(8)}},
)
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
    pods_that_do_not_end_by_themselves=(("DaemonSet", "train"), {"DaemonSet/train": "8"}, 8, {}, ""),
    pods_that_restart=(("RayCluster", "train"), {"RayCluster/train": "8"}, 8, {}, ""),
)
def test_who_holds_what_is_asked_decides_for_whom_to_wait(
    owner: tuple[str, str], holders: dict[str, str], used: int, fields: dict[str, Any], want: str
) -> None:
    held = tuple(Holder(name, amount) for name, amount in holders.items())
    amounts = {"hard": {"gpus": Fraction(8)}, "used": {"gpus": Fraction(used)}, "holders": {"gpus": held}}
    ledger = replace(COUNTED, **{**amounts, **fields})
    restarts = "Always" if owner[0] == "RayCluster" else "Never"
    author = Pod(
        metadata=Metadata(
            name="p", owner_references=(OwnerReference(kind=owner[0], name=owner[1], controller=True),)
        ),
        given_spec=PodSpec(restart_policy=restarts),
    )
    team, reserved = ("vision" if "team_state" in fields else ""), (8 if "reservations" in fields else 0)
    shortfall = replace(short("gpus", 1, used, reserved, 8), team=team)

    found = denial_by(ledger, [shortfall], author)

    assert found.remedy == want
    assert (found.awaits is None) == (not want)


AMOUNTS = st.integers(0, 12)
CLASS_LIMITS = st.dictionaries(
    st.sampled_from([A100, T4, "classes/nvidia-a10", "classes/nvidia-h100"]), AMOUNTS
)
CONTAINERS = st.lists(st.sampled_from(["1", "2", "3", "8", "16"]), min_size=1, max_size=2)


@given(
    amounts=CONTAINERS,
    resource=st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"]),
    is_pinned=st.booleans(),
    hard=st.tuples(st.dictionaries(st.just(GPUS), AMOUNTS), CLASS_LIMITS).map(
        lambda each: {**each[0], **each[1]}
    ),
    part=st.fractions(0, 1, max_denominator=7),
    name=st.text("abc-9", min_size=1, max_size=50),
)
def test_a_denial_is_short_and_its_fix_is_admitted(
    amounts: list[str], resource: str, is_pinned: bool, hard: dict[str, int], part: Fraction, name: str
) -> None:
    containers = [
        container(f"c{number}", resources={"limits": {resource: amount}})
        for number, amount in enumerate(amounts)
    ]
    document = pod(*containers, **(ON_A100 if is_pinned else {}))
    held = {key: amount * part for key, amount in hard.items()}
    ledger: tuple[Any, ...] = hard, held, dict.fromkeys(hard, f"Deployment/{name} 12")
    decided = outcome(document, *ledger)
    if decided.verdict is None or not decided.verdict.shortfalls:
        return
    found = denial(document, *ledger)

    sentence = found.of("", "#gpu-support").sentence()
    first, *_ = denial_message([sentence], f"pod {'n' * 15}/{name}", "#gpu-support").split("\n")
    assert len(first) <= 300
    if found.fix:
        fixed = document
        for edit in found.fix:
            fixed = with_edit(fixed, path_parts(edit.path), edit.value)
        if edit.path == annotation_path(GPU_CLASS):
            fixed["spec"]["nodeSelector"] = {"accelerator": edit.value}
        after = outcome(fixed, *ledger).verdict
        assert after is not None
        assert after.allowed, found.sentence()
