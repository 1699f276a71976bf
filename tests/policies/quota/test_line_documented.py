"""The order that docs/tenants/queue.md documents, written down a second time: gangs and single pods, under both orders.

Who can start is given by what is stored: the last pod of a gang is there, and no pod of it has started. So a judge of a history
takes what the count showed, by the revisions in the ledger, and not what was stored meanwhile.
"""

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction

import pytest
from hypothesis import settings

from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueOrder, QueueSpec, Waiter
from tests.builders import quota_ledger
from tests.policies.quota.turns import next_to_start

HISTORIES = settings().max_examples * 10
GANGS = ("one", "two", "three")


def drawn(draw: random.Random) -> tuple[list[Waiter], dict[str, Gang]]:
    waiters = [
        Waiter(
            uid=f"{draw.randrange(10**6):06}",
            demand={"gpus": Fraction(draw.choice([1, 1, 2]))},
            since=str(draw.randint(0, 4)),
            priority=draw.choice([0, 0, 0, 5]),
            gang=draw.choice(["", "", *GANGS]),
            replaces=draw.random() < 0.1,
        )
        for _ in range(draw.randint(1, 9))
    ]
    return waiters, {key: Gang(draw.choice([1, 2, 2, 3]), draw.choice([0, 0, 0, 1])) for key in GANGS}


def place(waiter: Waiter) -> tuple[bool, int, str, str]:
    return not waiter.replaces, -waiter.priority, waiter.since, waiter.uid


def units(waiters: list[Waiter], gangs: Mapping[str, Gang]) -> Iterator[list[Waiter]]:
    """Yield what starts together: single pods, the rest of a gang that has started one by one, and gangs that are complete."""
    yield from ([each] for each in waiters if not each.gang or gangs[each.gang].running)
    for key, gang in gangs.items():
        members = sorted((each for each in waiters if each.gang == key), key=place)
        if not gang.running and len(members) >= gang.size:
            yield members[: gang.size]


def documented(
    waiters: list[Waiter], gangs: Mapping[str, Gang], hard: int, free: int, *, strict: bool, starved: str
) -> set[str]:
    """Return who starts. A unit has the place of its first pod."""
    start: set[str] = set()
    for unit in sorted(units(waiters, gangs), key=lambda each: place(each[0])):
        needed = sum(each.demand["gpus"] for each in unit)
        if needed > hard:
            continue
        if needed <= free:
            free -= int(needed)
            start |= {each.uid for each in unit}
        elif strict or min(each.since for each in unit) < starved:
            break
    return start


@pytest.mark.parametrize("order", QueueOrder, ids=lambda order: order.value)
def test_who_starts_is_what_is_documented(order: QueueOrder) -> None:
    several = 0
    for seed in range(HISTORIES):
        draw = random.Random(seed)  # noqa: S311 - the same in every run
        hard = draw.choice([2, 4, 6, 8])
        used, starved = draw.randint(0, hard), draw.choice(["", "2"])
        waiters, gangs = drawn(draw)
        before = quota_ledger(
            hard={"gpus": Fraction(hard)}, used={"gpus": Fraction(used)}, class_catalogue="c"
        )

        turn = next_to_start(before, waiters, gangs, QueueSpec(order=order), starved)

        strict = order is QueueOrder.STRICT_FIFO
        want = documented(waiters, gangs, hard, hard - used, strict=strict, starved=starved)
        assert set(turn.ungate_uids) == want, seed
        several += len(want) > 1
    assert several > HISTORIES / 20
