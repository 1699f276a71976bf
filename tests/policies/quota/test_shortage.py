"""The denial of a full quota: read in ten seconds, and right when it is followed."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.finding import Edit, Reason
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path, path_parts, with_edit
from policies.quota.amounts import GPUS
from policies.quota.ledger.decide import Shortfall
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.quota.shortage_facts import amounts_in_words
from tests.builders import JSON, container, gpu_container, pod, view
from tests.cases import cases
from tests.policies.quota.shortages import (
    A100,
    COUNTED,
    LEDGER,
    ON_A100,
    T4,
    denial,
    denial_by,
    outcome,
    short,
)
from webhook.serving.admission_review import denial_message


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
    beside_a_part_of_a_gpu=(
        pod(gpu_container("2"), annotations={"gpu-fraction": "0.5"}),
        ({GPUS: 2}, {}),
        QUOTA_CAN_NEVER_FIT,
        "set nvidia.com/gpu: 1; exceeded quota: team/default, 2.5 GPUs can never fit: the quota grants 2; or ask the platform "
        "team to raise spec.hard.gpus",
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
        "used, 1 being created (until 12:00:50 UTC); or ask the platform team to raise spec.hard.gpus",
    ),
    one_never_and_one_later=(
        COUNTED,
        [short("gpus", 8, 0, 0, 4), short("classes/nvidia-t4", 1, 2, 0, 2)],
        "request 4 GPUs or fewer, and wait until that much is free; exceeded quota: team/default, 8 GPUs can never fit: the "
        "quota grants 4; requested 1 nvidia-t4, 2 of 2 used; or ask the platform team to raise spec.hard",
    ),
    only_what_waits_for_creations_has_a_time=(
        COUNTED,
        [short("gpus", 1, 3, 1, 4), short("classes/nvidia-t4", 1, 0, 1, 0)],
        "exceeded quota: team/default, requested 1 GPU, 3 of 4 used, 1 being created (until 12:00:50 UTC); 1 nvidia-t4 can "
        "never fit: the quota grants 0; ask the platform team to raise spec.hard",
    ),
)
def test_waiting_is_named_where_it_helps(ledger: QuotaLedger, shortfalls: list[Shortfall], want: str) -> None:
    author = view(pod(gpu_container("2", name="a"), gpu_container("2", name="b")))
    assert denial_by(ledger, shortfalls, author).sentence() == want


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

    sentence = found.with_origin("", "#gpu-support").sentence()
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
