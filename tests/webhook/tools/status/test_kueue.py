"""The words about what Kueue queues. What is read for them: tests/webhook/tools/why/test_kueue.py."""

from datetime import UTC, datetime
from typing import Any

from tests.cases import cases
from webhook.tools.status.kueue import KueueState, QueueState, Reserved

AT = datetime(2026, 11, 22, 8, 2, tzinfo=UTC)
RESERVED = (Reserved(flavor="h100", resource="nvidia.com/gpu", reserved="6", nominal="8"),)
HAS_RESERVED = "ClusterQueue gpus has reserved 6 of 8 nvidia.com/gpu of flavor h100"


def state(local_queue: str = "team-a", **fields: Any) -> KueueState:
    return KueueState(workload="job-train", local_queue=local_queue, owner="Job/train", **fields)


PENDING: dict[str, Any] = {"place": 3, "pending": 5, "message": "2 more needed"}
PENDING_WITH_AMOUNTS = state(**PENDING, cluster_queue="gpus", reserved=RESERVED)
CHECKED = "AdmissionCheck budget is Pending: wait"


@cases(
    ("known", "standing", "waits_for"),
    pending=(
        state(**PENDING),
        "LocalQueue team-a, place 3 of 5",
        "waits in LocalQueue team-a of Kueue, place 3 of 5: 2 more needed",
    ),
    pending_with_amounts=(
        PENDING_WITH_AMOUNTS,
        "LocalQueue team-a, place 3 of 5",
        f"waits in LocalQueue team-a of Kueue, place 3 of 5: 2 more needed; {HAS_RESERVED}",
    ),
    in_a_stopped_queue=(
        state(place=1, pending=1, stopped="LocalQueue team-a and ClusterQueue gpus"),
        "LocalQueue team-a, place 1 of 1",
        "waits in LocalQueue team-a: stopPolicy of LocalQueue team-a and ClusterQueue gpus is set",
    ),
    in_no_such_queue=(
        state(place=1, pending=1, others=("team-b",)),
        "LocalQueue team-a, place 1 of 1",
        "waits for LocalQueue team-a, which does not exist",
    ),
    without_a_queue=(state("", others=()), "Workload job-train", "names no LocalQueue"),
    deactivated=(
        state(is_active=False, message="too many evictions"),
        "LocalQueue team-a, deactivated",
        "is deactivated: spec.active of Workload job-train is false: too many evictions",
    ),
    reserved=(
        state(reserved_at=AT, message=CHECKED),
        "LocalQueue team-a, quota reserved at 08:02 UTC",
        f"waits in LocalQueue team-a: Kueue has reserved quota, and has not admitted it: {CHECKED}",
    ),
    admitted=(state(reserved_at=AT, admitted_at=AT), "LocalQueue team-a, admitted at 08:02 UTC", ""),
)
def test_an_object(known: KueueState, standing: str, waits_for: str) -> None:
    assert (known.in_words(AT), known.waits_for) == (standing, waits_for)


def queue(**fields: Any) -> QueueState:
    known: dict[str, Any] = {"cluster_queue": "gpus", "pending": 2, "admitted": 1, "is_stopped": False}
    return QueueState(namespace="ml", name="team-a", **{**known, **fields})


@cases(
    ("known", "words"),
    with_amounts=(queue(reserved=RESERVED), f"LocalQueue team-a: 1 admitted, 2 pending; {HAS_RESERVED}"),
    stopped=(queue(is_stopped=True), "LocalQueue team-a: 1 admitted, 2 pending, stopped"),
    that_does_not_exist=(queue(exists=False), "LocalQueue team-a: 1 admitted, 2 pending, does not exist"),
)
def test_a_queue(known: QueueState, words: str) -> None:
    assert known.in_words == words


def test_a_text_names_the_first_objects_of_a_queue() -> None:
    known = queue(objects=tuple(PENDING_WITH_AMOUNTS for _ in range(12)))
    assert list(known.lines(AT)) == [*["Job/train: place 3 of 5: 2 more needed"] * 10, "and 2 more"]
