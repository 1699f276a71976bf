"""A namespace with pods, gangs and a line, in which all that may happen to them happens at random."""

import random
from collections.abc import Mapping
from fractions import Fraction

from hypothesis import settings
from msgspec import Struct
from msgspec.structs import replace

from policies.quota.amounts import GPUS, Amounts, exceeded_limits, total
from policies.quota.ledger.decide import Line, ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, Refused, StoredObject, initialise, reconcile
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.line import Turn
from policies.quota.queue_entries import Gang, InLine
from policies.quota.waiting import Standing, Waiter
from tests.builders import quota_ledger
from tests.policies.quota.turns import next_to_start

HISTORIES, STEPS = settings().max_examples * 4, 40

CATALOGUE = "c"
A100 = "classes/nvidia-a100"


class Pod(Struct, frozen=True):
    uid: str
    gpus: int
    is_a100: bool
    since: str
    priority: int
    gang: str
    waits: bool
    version: int

    @property
    def demand(self) -> Amounts:
        amount = Fraction(self.gpus)
        return {GPUS: amount, A100: amount} if self.is_a100 else {GPUS: amount}

    @property
    def place(self) -> tuple[int, str, str]:
        return -self.priority, self.since, self.uid


class Listed(Struct, frozen=True):
    """What a list showed, what the watch had shown as deleted, and the ids of what could not be stored any more when it began."""

    pods: Mapping[str, Pod]
    gone: frozenset[str]
    expired: frozenset[str]
    revision: int


class World:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - the same in every run
        self.pods: dict[str, Pod] = {}
        self.gone: set[str] = set()
        self.made, self.revision = 0, 1
        self.in_flight: dict[str, Pod] = {}
        """What serve admitted, by the id of its reservation: the pod as it will be stored."""
        self.failed: set[str] = set()
        self.ledger = quota_ledger(
            hard=self.hard, used={GPUS: Fraction(0), A100: Fraction(0)}, class_catalogue=CATALOGUE
        )
        self.lists = [self.list(), self.list()]

    @property
    def hard(self) -> Amounts:
        return {GPUS: Fraction(self.draw.choice([0, 4, 8])), A100: Fraction(self.draw.choice([2, 4]))}

    # ---- users and the API server

    def act(self) -> None:
        acts = [self.come, self.come, self.come, self.end, self.end, self.grow, self.change, self.store]
        self.draw.choice(acts)()

    def step(self) -> None:
        self.act()
        number = self.draw.randrange(2)
        if self.draw.random() < 0.7:
            self.lists[number] = self.list()
        for uid in self.count_and_turn(self.lists[number]).ungate_uids:
            if self.draw.random() < 0.8:
                self.lift(self.lists[number].pods[uid])
        if self.draw.random() < 0.8:
            self.store()
        self.check_known()

    def come(self) -> None:
        self.made += 1
        pod = Pod(
            uid=f"pod-{self.made:03}",
            gpus=self.draw.choice([1, 1, 2, 4]),
            is_a100=self.draw.random() < 0.3,
            since=f"2026-01-01T00:00:{self.made // 2:02}Z",
            priority=self.draw.choice([0, 0, 0, 10]),
            gang=self.draw.choice(["", "", "", "one", "two"]),
            waits=self.draw.random() < 0.7,
            version=1,
        )
        somebody_waits = any(each.waits for each in (*self.pods.values(), *self.in_flight.values()))
        reservation = Reservation(pod.uid, {} if pod.waits else pod.demand, name=f"pods/{pod.uid}")
        if self.admit(reservation, Line.JOINS if pod.waits else Line.BEHIND, pod):
            assert pod.waits or not somebody_waits, "nobody passes the line"

    def end(self) -> None:
        if self.pods:
            self.gone.add(self.pods.pop(self.draw.choice(sorted(self.pods))).uid)
            self.revision += 1

    def grow(self) -> None:
        waiting = [uid for uid, pod in sorted(self.pods.items()) if pod.waits]
        if waiting:
            pod = self.pods[self.draw.choice(waiting)]
            self.write(replace(pod, is_a100=True, version=pod.version + 1))

    def change(self) -> None:
        self.ledger = replace(self.ledger, hard=self.hard)

    def store(self, failures: float = 0.2) -> None:
        """Store what was admitted, or lose it."""
        for key, pod in self.in_flight.items():
            if self.comes(key, pod) and self.draw.random() >= failures:
                self.write(pod)
            else:
                self.failed.add(key)
        self.in_flight.clear()

    def write(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.revision += 1

    def comes(self, key: str, pod: Pod) -> bool:
        """Whether it can still be stored: a creation, or an update of the version that was reviewed."""
        stored = self.pods.get(pod.uid)
        return key == pod.uid or (stored is not None and stored.version == pod.version - 1)

    # ---- serve

    def lift(self, known: Pod) -> None:
        """Remove the gate, as a controller does that knows this version of the pod."""
        if self.pods.get(known.uid) == known:
            self.made += 1
            key = lift_id(known.uid, f"request-{self.made}")
            pod = replace(known, waits=False, version=known.version + 1)
            self.admit(Reservation(key, known.demand, known.version), Line.LIFTS, pod)

    def admit(self, reservation: Reservation, line: Line, pod: Pod) -> bool:
        before = self.ledger
        request = ReservationRequest(
            reservation=reservation, catalogue_versions=frozenset({CATALOGUE}), line=line
        )
        decided = decide(before, [request])
        self.ledger = decided.ledger
        assert not grown(before, self.ledger)
        if decided.verdicts[0].reason is not VerdictReason.RESERVED:
            return False
        self.in_flight[reservation.id] = pod
        over = exceeded_limits(self.committed(), before.hard)
        assert not any(each.key in reservation.demand for each in over), "what is admitted fits"
        return True

    def committed(self) -> Amounts:
        """Return the demand of what runs, and of what will."""
        coming = {pod.uid: pod for key, pod in self.in_flight.items() if self.comes(key, pod)}
        return total(pod.demand for pod in (*self.pods.values(), *coming.values()) if not pod.waits)

    def check_known(self) -> None:
        known = total((self.ledger.used or {}, self.ledger.reserved))
        assert not exceeded_limits(
            self.committed(), {key: known.get(key, Fraction(0)) for key in self.ledger.used or ()}
        )
        assert self.ledger.all_waiting >= sum(pod.waits for pod in self.pods.values())

    # ---- controllers

    def list(self) -> Listed:
        return Listed(dict(self.pods), frozenset(self.gone), frozenset(self.failed), self.revision)

    def count_and_turn(self, listed: Listed) -> Turn:
        counted = self.counted(listed)
        if counted is None:
            return Turn(self.ledger, (), {})
        turn = self.turn(counted, listed)
        self.check_started(listed, turn.ledger)
        self.ledger = turn.ledger
        return turn

    def counted(self, listed: Listed) -> QuotaLedger | None:
        """Return the ledger with this count. None if it is older than the last one."""
        stored = {
            pod.uid: StoredObject(
                {} if pod.waits else pod.demand, waits=pod.waits, version=pod.version, name=f"pods/{pod.uid}"
            )
            for pod in listed.pods.values()
        }
        listing = Listing(
            used=total(each.demand for each in stored.values()),
            waiting=sum(each.waits for each in stored.values()),
            objects={**stored, **dict.fromkeys(listed.gone, StoredObject({}, terminal=True))},
            revisions=Revisions(pods=listed.revision),
            catalogue=CATALOGUE,
        )
        gained = bool(self.ledger.uncounted)
        reconciled = (
            initialise(self.ledger, listing, listed.expired, waited=True)
            if gained
            else reconcile(self.ledger, listing, listed.expired)
        )
        if isinstance(reconciled, Refused):
            assert reconciled is Refused.OLDER
            return None
        assert gained or not grown(self.ledger, reconciled.ledger)
        return reconciled.ledger

    def check_started(self, listed: Listed, after: QuotaLedger) -> None:
        """Check that a gang that has started keeps what is held for its rest."""
        started = {pod.gang for pod in listed.pods.values() if not pod.waits} - {""}
        rest = [
            uid for uid in self.ledger.reservations.lifts if uid in listed.pods and listed.pods[uid].waits
        ]
        lost = [uid for uid in rest if uid not in after.reservations.lifts]
        assert not [uid for uid in lost if listed.pods[uid].gang in started]

    def in_line(self, listed: Listed) -> InLine:
        gangs = {
            name: Gang(2, sum(pod.gang == name and not pod.waits for pod in listed.pods.values()))
            for name in ("one", "two")
        }
        waiters = [
            Waiter(uid=pod.uid, demand=pod.demand, since=pod.since, priority=pod.priority, gang=pod.gang)
            for pod in listed.pods.values()
            if pod.waits
        ]
        return InLine(waiters, gangs)

    def turn(self, before: QuotaLedger, listed: Listed) -> Turn:
        line = self.in_line(listed)
        turn = next_to_start(before, line.waiters, line.gangs, line.queue)
        assert not grown(before, turn.ledger)
        check_order(before, turn, listed.pods)
        check_held(turn, line.gangs, listed.pods)
        kept = {each.id for each in before.reservations if each.is_begun_lift}
        assert kept <= {each.id for each in turn.ledger.reservations}
        again = next_to_start(turn.ledger, line.waiters, line.gangs, line.queue)
        assert again.ledger == turn.ledger, "nothing more happens until something changes"
        return turn

    def come_to_rest(self) -> None:
        """Let controllers go on until nothing happens any more."""
        self.store()
        turn = self.count_and_turn(self.list())
        for _ in range(STEPS):
            for uid in turn.ungate_uids:
                self.lift(self.pods[uid])
            self.store(failures=0)
            turn = self.count_and_turn(self.list())
            self.check_known()
        self.check_rest(turn)

    def check_rest(self, turn: Turn) -> None:
        used = total(pod.demand for pod in self.pods.values() if not pod.waits)
        assert self.ledger.used == {key: used.get(key, 0) for key in self.ledger.used or ()}
        assert self.ledger.all_waiting == sum(pod.waits for pod in self.pods.values())
        gangs_that_run = {pod.gang for pod in self.pods.values() if not pod.waits}
        for each in self.ledger.reservations:
            assert each.is_lift
            assert self.pods[each.object_uid].gang in gangs_that_run
        together = total((used, self.ledger.reserved))
        for uid in turn.places:
            place, lift = turn.places[uid], self.ledger.reservations.lifts.get(uid)
            if place.standing is Standing.NEXT and not place.for_team:
                over = exceeded_limits(total((together, place.needed)), self.ledger.hard)
                assert lift or [each for each in over if each.key in place.needed], "a pod that fits runs"


def check_order(before: QuotaLedger, turn: Turn, pods: Mapping[str, Pod]) -> None:
    held = turn.ledger.reservations.lifts.keys() - before.reservations.lifts.keys()
    behind = [
        uid
        for uid, place in turn.places.items()
        if place.standing in {Standing.NEXT, Standing.BEHIND} and not pods[uid].gang
    ]
    new = [pods[uid] for uid in held if not pods[uid].gang]
    assert not [uid for uid in behind for pod in new if pods[uid].place < pod.place]


def check_held(turn: Turn, gangs: Mapping[str, Gang], pods: Mapping[str, Pod]) -> None:
    lifts = turn.ledger.reservations.lifts
    for name, gang in gangs.items():
        of_gang = [uid for uid, pod in pods.items() if pod.gang == name and pod.waits]
        held = [uid for uid in of_gang if uid in lifts]
        has_begun = any(lifts[uid].is_begun_lift for uid in held)
        assert gang.running or has_begun or len(held) in {0, gang.size}, "whole or not at all"
    for uid in turn.ungate_uids:
        if lifts[uid].is_begun_lift:
            continue
        held_demand = lifts[uid].demand
        assert all(held_demand.get(key, 0) >= amount for key, amount in pods[uid].demand.items())


def grown(before: QuotaLedger, after: QuotaLedger) -> list[str]:
    """Return what is over `hard`, and less was before."""
    was, now = (total((each.used or {}, each.reserved)) for each in (before, after))
    return [each.key for each in exceeded_limits(now, after.hard) if now[each.key] > was.get(each.key, 0)]
