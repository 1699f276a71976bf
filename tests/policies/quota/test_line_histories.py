"""The line and the ledger together, in random histories of one namespace: a small API server, serve and the controller.

Pods come, grow, end and are deleted, `hard` changes, and the removal of a gate fails. After every step:

  - what is used or reserved grew only within `hard`;
  - nobody is before those for whom quota is newly held, but pods that cannot start;
  - a gang is held whole, until one of its pods has started;
  - what an admitted removal of a gate reserves stays, until its pod is counted.
"""

import random
from collections.abc import Mapping
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.amounts import GPUS, Vector, exceeds, total
from policies.quota.ledger.decide import Line, ReservationRequest, decide
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, Reconciled, StoredObject, reconcile
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.line import Gang, Standing, Turn, Waiter, take_turn
from policies.quota.waiting import QueueSpec
from tests.builders import quota_ledger

HISTORIES, STEPS = 1000, 40
CATALOGUE = "c"
A100 = "classes/nvidia-a100"


class Pod:
    def __init__(self, number: int, draw: random.Random) -> None:
        self.uid = f"pod-{number:03}"
        self.gpus, self.is_a100 = draw.choice([1, 1, 2, 4]), draw.random() < 0.3
        self.since = f"2026-01-01T00:00:{number // 2:02}Z"
        self.priority = draw.choice([0, 0, 0, 10])
        self.gang = draw.choice(["", "", "", "one", "two"])
        self.waits, self.version = True, 1

    @property
    def demand(self) -> Vector:
        amount = Fraction(self.gpus)
        return {GPUS: amount, A100: amount} if self.is_a100 else {GPUS: amount}

    @property
    def place(self) -> tuple[int, str, str]:
        return -self.priority, self.since, self.uid


class World:
    """All of it at one revision: lists are never stale here, which the protocol's model and `tests/cluster` have."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - the same in every run
        self.pods: dict[str, Pod] = {}
        self.made = 0
        self.revision = 1
        self.in_flight: dict[str, Pod] = {}
        """Removals of gates that serve admitted, by the id of their reservation."""
        self.ledger = quota_ledger(
            hard=self.hard, used={GPUS: Fraction(0), A100: Fraction(0)}, class_catalogue=CATALOGUE
        )

    @property
    def hard(self) -> Vector:
        return {GPUS: Fraction(self.draw.choice([0, 4, 8])), A100: Fraction(self.draw.choice([2, 4]))}

    def step(self) -> None:
        act = self.draw.choice([self.come, self.come, self.end, self.end, self.grow, self.change, self.store])
        act()
        self.count()
        turn = self.turn()
        for uid in turn.lifts:
            if self.draw.random() < 0.8:
                self.lift(self.pods[uid])
        if self.draw.random() < 0.8:
            self.store()

    def come(self) -> None:
        pod = Pod(self.made, self.draw)
        self.made += 1
        reservation = Reservation(pod.uid, {}, name=f"pods/{pod.uid}")
        self.decide(reservation, Line.JOINS)
        self.pods[pod.uid] = pod
        self.revision += 1

    def end(self) -> None:
        if self.pods:
            gone = self.pods.pop(self.draw.choice(sorted(self.pods)))
            self.in_flight = {key: pod for key, pod in self.in_flight.items() if pod is not gone}
            self.revision += 1

    def grow(self) -> None:
        waiting = [uid for uid, pod in sorted(self.pods.items()) if pod.waits]
        if waiting:
            pod = self.pods[self.draw.choice(waiting)]
            pod.is_a100, pod.version = True, pod.version + 1
            self.revision += 1

    def change(self) -> None:
        self.ledger = replace(self.ledger, hard=self.hard)

    def store(self) -> None:
        """Store the removals of gates that were admitted, or lose them."""
        for key, pod in self.in_flight.items():
            _, version = key.rsplit("-", 1)
            if self.draw.random() < 0.8 and int(version) == pod.version:
                pod.waits, pod.version = False, pod.version + 1
            else:
                pod.version += 1
            self.revision += 1
        self.in_flight.clear()

    def lift(self, pod: Pod) -> None:
        key = lift_id(pod.uid, f"request-{pod.version}")
        if self.decide(Reservation(key, pod.demand, pod.version), Line.LIFTS):
            self.in_flight[key] = pod

    def decide(self, reservation: Reservation, line: Line) -> bool:
        before = self.ledger
        request = ReservationRequest(reservation=reservation, catalogues=frozenset({CATALOGUE}), line=line)
        decided = decide(before, [request])
        self.ledger = decided.ledger
        assert not grown(before, self.ledger)
        return decided.verdicts[0].allowed

    def count(self) -> None:
        stored = {
            pod.uid: StoredObject(
                {} if pod.waits else pod.demand, waits=pod.waits, version=pod.version, name=f"pods/{pod.uid}"
            )
            for pod in self.pods.values()
        }
        named = {each.object_uid for each in self.ledger.reservations}
        listing = Listing(
            used=total(each.demand for each in stored.values()),
            waiting=sum(each.waits for each in stored.values()),
            objects={uid: stored.get(uid, StoredObject({}, terminal=True)) for uid in named},
            revisions=Revisions(pods=self.revision),
            catalogue=CATALOGUE,
        )
        reconciled = reconcile(self.ledger, listing, frozenset())
        assert isinstance(reconciled, Reconciled)
        assert not grown(self.ledger, reconciled.ledger)
        self.ledger = reconciled.ledger

    def turn(self) -> Turn:
        before, waiting = self.ledger, [pod for pod in self.pods.values() if pod.waits]
        gangs = {
            name: Gang(2, sum(pod.gang == name and not pod.waits for pod in self.pods.values()))
            for name in ("one", "two")
        }
        waiters = [
            Waiter(uid=pod.uid, demand=pod.demand, since=pod.since, priority=pod.priority, gang=pod.gang)
            for pod in waiting
        ]
        turn = take_turn(before, waiters, gangs, QueueSpec())
        self.ledger = turn.ledger
        assert not grown(before, self.ledger)
        self.check_order(before, turn)
        self.check_held(turn, gangs)
        kept = {each.id for each in before.reservations if each.is_begun_lift}
        assert kept <= {each.id for each in self.ledger.reservations}
        again = take_turn(self.ledger, waiters, gangs, QueueSpec())
        assert again.ledger == self.ledger, "nothing more happens until something changes"
        return turn

    def check_order(self, before: QuotaLedger, turn: Turn) -> None:
        held = turn.ledger.reservations.lifts.keys() - before.reservations.lifts.keys()
        behind = [
            uid
            for uid, place in turn.places.items()
            if place.standing in {Standing.NEXT, Standing.BEHIND} and not self.pods[uid].gang
        ]
        new = [self.pods[uid] for uid in held if not self.pods[uid].gang]
        assert not [uid for uid in behind for pod in new if self.pods[uid].place < pod.place]

    def check_held(self, turn: Turn, gangs: Mapping[str, Gang]) -> None:
        lifts = turn.ledger.reservations.lifts
        for name, gang in gangs.items():
            of_gang = [uid for uid, pod in self.pods.items() if pod.gang == name and pod.waits]
            held = [uid for uid in of_gang if uid in lifts]
            has_begun = any(lifts[uid].is_begun_lift for uid in held)
            assert gang.running or has_begun or len(held) in {0, len(of_gang)}, "whole or not at all"
            assert gang.running or has_begun or not held or len(held) >= gang.size
        for uid in turn.lifts:
            assert lifts[uid].is_lift
            held_demand = lifts[uid].demand
            assert all(held_demand.get(key, 0) >= amount for key, amount in self.pods[uid].demand.items())


def grown(before: QuotaLedger, after: QuotaLedger) -> list[str]:
    """Return what is over `hard`, and less was before."""
    was, now = (total((each.used or {}, each.reserved)) for each in (before, after))
    return [each.key for each in exceeds(now, after.hard) if now[each.key] > was.get(each.key, 0)]


@pytest.mark.parametrize("part", range(10))
def test_the_line_in_random_histories(part: int) -> None:
    started = 0
    for seed in range(part, HISTORIES, 10):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        started += sum(not pod.waits for pod in world.pods.values())
    assert started > HISTORIES / 20
