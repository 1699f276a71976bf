"""The model of the line (tests/model/waiting.pml) describes this code: the code decides, counts, holds and gives back alike.

Runs that spin draws at random are replayed. The model leaves open whose turn it is; a replay puts that pod first in line.
"""

import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec.structs import replace

from policies.quota.amounts import Amounts, positive_difference
from policies.quota.ledger.decide import Line, ReservationRequest, decide
from policies.quota.ledger.keeping_objects import KEPT_MS, Keeper
from policies.quota.ledger.keeps import DemandOfObject, Ended, Rooms, with_keeps
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, Reconciled, StoredObject, reconcile
from policies.quota.ledger.reservations import Reservation, keep_id, lift_id
from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueSpec, Standing, Waiter
from tests.builders import listing, quota_ledger
from tests.models import INSTANCE, MAX_RUNS, WAITING, facts_of, run, written
from tests.policies.quota.turns import next_to_start

CATALOGUE = "c"
KEEPER = Keeper("v1", "Web", "web", "web-uid", "Web")
JOINED, GATED, FREE, GONE = 1, 1, 2, 3


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed")
@pytest.mark.parametrize("instance", INSTANCE.findall(WAITING.read_text()))
def test_the_code_does_what_the_model_does(instance: str, tmp_path: Path) -> None:
    lines, kinds = [], set[str]()
    for seed in range(1, MAX_RUNS):
        lines += run(WAITING, instance, seed, tmp_path)
        kinds = {line.split()[0] for line in lines}
        if seed >= settings().max_examples // 8 and kinds == {"decide", "settle", "turn"}:
            break

    assert kinds == {"decide", "settle", "turn"}
    for line in lines:
        {"decide": replay_decision, "settle": replay_count, "turn": replay_turn}[line.split()[0]](line)


def replay_decision(line: str) -> None:
    facts, kind = facts_of(line), Line[line.split()[1]]
    pod, version = uid(int(facts["pod"])), int(facts["version"])
    ids = {
        Line.LIFTS: lift_request(pod, facts["version"], facts.get("again", "0")),
        Line.BEHIND: f"{pod}/own" if version else pod,
        Line.JOINS: pod,
    }
    requested = ReservationRequest(
        reservation=Reservation(ids[kind], gpus(facts["demand"]), version),
        catalogue_versions=frozenset({CATALOGUE}),
        line=kind,
    )

    (verdict,) = decide(ledger_of(facts), [requested]).verdicts

    assert verdict.reason.name == facts["verdict"], line


def replay_count(line: str) -> None:
    state, after = line.split(" then ")
    facts, expected = facts_of(state), ledger_of(facts_of(after))
    before, (shown, expired) = ledger_of(facts), listed(facts)

    result = reconcile(before, shown, expired)
    if facts["replaces"] == "1" and isinstance(result, Reconciled):
        result = replace(result, ledger=with_what_is_kept(facts, result.ledger))
    assert written(before, result) == expected, line


def with_what_is_kept(facts: dict[str, str], counted: QuotaLedger) -> QuotaLedger:
    """Return the count with what the object of pods 0 and 1 keeps. Pod 0 ended since the count before if that has it."""
    (code, *_), *_ = parts(facts["shown"])
    (used, *_), *_ = parts(facts["pods"])
    has_ended = code == GONE and used and facts["succeeded"] == "0"
    ended = [Ended(uid(0), gpus(1), KEEPER)] if has_ended else []
    rooms: Rooms = {KEEPER.uid: DemandOfObject(1, Fraction(1)) if facts["asks"] == "1" else None}
    late = KEPT_MS if facts["late"] == "1" else 0
    found = with_keeps(replace(counted, keepers=(replace(KEEPER, spent=((0, late),)),)), ended, rooms, 0)
    return replace(found, keepers=())


def replay_turn(line: str) -> None:
    facts = facts_of(line)
    before, turned = ledger_of(facts), int(facts["pod"])
    priority = -1 if facts["gives_back"] == "1" else 1
    shown = parts(facts["shown"])
    in_gang = range(int(facts["gang"]))
    waiters = {
        uid(number): Waiter(
            uid=uid(number),
            demand=gpus(demand),
            since="now",
            priority=priority * (turned in {number, 0} if number in in_gang else number == turned),
            gang="gang" if number in in_gang else "",
            keeper=KEEPER.uid if number == 1 and facts["replaces"] == "1" else "",
        )
        for number, (code, demand, *_) in enumerate(shown)
        if code == GATED
    }
    running = sum(shown[number][0] == FREE for number in in_gang)

    turn = next_to_start(before, waiters.values(), {"gang": Gang(len(in_gang), running)}, QueueSpec())

    held, places = turn.ledger.reservations.lifts, turn.places
    for pod in [waiter.uid for waiter in waiters.values() if waiter.priority]:
        enough = pod in held and not positive_difference(waiters[pod].demand, held[pod].demand)
        if priority < 0:
            assert enough or pod not in held, line
        else:  # the rest of a gang of which a pod has started goes first
            is_behind = places[pod].standing is Standing.BEHIND
            assert enough or (is_behind and pod not in {uid(number) for number in in_gang}), line


def uid(number: int) -> str:
    return f"pod-{number}"


def lift_request(pod: str, version: int | str, again: int | str) -> str:
    return lift_id(pod, f"{version}-{again}")


def gpus(amount: int | str) -> Amounts:
    return {"gpus": Fraction(amount)} if int(amount) else {}


def parts(text: str) -> list[list[int]]:
    return [[int(part) for part in each.split("/")] for each in text.split(",") if each]


def ledger_of(facts: dict[str, str]) -> QuotaLedger:
    pods = parts(facts["pods"])
    keeps = [Reservation(keep_id(uid(0), KEEPER.uid), gpus(1))] if facts["kept"] == "1" else []
    return quota_ledger(
        *keeps,
        *(each for number, pod in enumerate(pods) for each in reservations(uid(number), pod)),
        hard={"gpus": Fraction(facts["hard"])},
        used={"gpus": Fraction(sum(used for used, *_ in pods))},
        waiting=sum(waiting for _, waiting, *_ in pods),
        revisions=Revisions(pods=int(facts["revision"])),
        class_catalogue=CATALOGUE,
    )


def reservations(pod: str, numbers: list[int]) -> Iterator[Reservation]:
    creation, held, begun, changed, begun_version, own_version, again = numbers[2:]
    if creation:
        yield Reservation(pod, {} if creation == JOINED else gpus(1))
    if held:
        yield Reservation(lift_id(pod), gpus(held))
    if begun:
        yield Reservation(lift_request(pod, begun_version, again), gpus(begun), begun_version)
    if changed:
        yield Reservation(f"{pod}/own", gpus(changed), own_version)


def listed(facts: dict[str, str]) -> tuple[Listing, frozenset[str]]:
    """Return what the list shows, and the ids that have expired."""
    objects, expired = {}, set[str]()
    begun = [(pod[6], pod[8]) for pod in parts(facts["pods"])]
    for number, (code, demand, version, *ripe) in enumerate(parts(facts["shown"])):
        pod = uid(number)
        if code:
            needed = gpus(demand) if code == FREE else {}
            objects[pod] = StoredObject(needed, terminal=code == GONE, waits=code == GATED, version=version)
        ids = (pod, lift_request(pod, *begun[number]), f"{pod}/own")
        expired.update(each for each, is_ripe in zip(ids, ripe, strict=True) if is_ripe)
    waiting = sum(each.waits for each in objects.values())
    revisions = Revisions(pods=int(facts["listed"]))
    return listing(objects, revisions, waiting=waiting, catalogue=CATALOGUE), frozenset(expired)
