"""Creations that come fast are admitted by what was reserved ahead: few writes, nothing admitted twice, nothing kept."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from prometheus_client import CollectorRegistry

from policies.quota.charge import Charge
from policies.quota.charge_request import ChargedRequest, ChargeRequest, LedgerError
from policies.quota.ledger.decide import Reason, ReservationRequest
from policies.quota.ledger.quota_ledger import SPARE_SECONDS
from policies.quota.ledger.reconcile import Listing, Reconciled, StoredObject, reconcile
from policies.quota.ledger.spares import has_spares, is_spare
from tests.webhook.quota.ledgers import configuration
from tests.webhook.quota.slow_store import Bench, reason
from tests.webhook.quota.world import NAMESPACE, vector
from webhook.quota import enforcer
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.spares import DEMANDS, MOST, NamespaceSpares, spare_ids
from webhook.quota.store import LedgerConflict
from webhook.quota.waiting import RequestOf

STEP = 0.01
"""Seconds between two creations that come fast."""


class Fast(Bench):
    """A replica that reserves ahead, by a clock of its own; nothing settles by itself."""

    def __init__(self, gpus: int = 16_000) -> None:
        self.now = 100.0
        super().__init__(gpus, clock=lambda: self.now)
        self.batches._spares.reserves_ahead = True

    def create(self, uids: Iterator[str] | list[str], step: float = STEP) -> None:
        for uid in uids:
            self.now += step
            verdict = self.reserve(uid).verdict
            assert verdict is not None
            assert verdict.allowed

    def spares(self) -> list[str]:
        return [each for each in self.held() if is_spare(each)]

    def objects(self) -> list[str]:
        return [each for each in self.held() if not is_spare(each)]

    def settle(self) -> None:
        self.batches.settle_due()


def pods(number: int, name: str = "pod") -> list[str]:
    return [f"{name}{each}" for each in range(number)]


def change(uid: str) -> RequestOf:
    demand = vector(gpus=1)
    asked = ReservationRequest.change(uid, "request", {}, demand, Bench(1).ledger.catalogue, version=7)
    return lambda _row, _published: ChargedRequest(Charge(demand), asked)


def test_a_hundred_creations_one_by_one_take_few_writes_and_all_are_in_the_row_at_last() -> None:
    replica = Fast()
    replica.create(pods(100))
    assert replica.store.writes <= 12
    assert replica.metric("spares_assigned_total") == 100 - replica.metric("batch_size_sum")
    replica.now += SPARE_SECONDS
    replica.settle()
    assert sorted(replica.held()) == sorted(pods(100)), "and no spare"


def test_a_ledger_is_kept_only_while_it_has_spares_of_ours() -> None:
    replica = Fast()
    replica.create(pods(20))
    assert replica.batches._spares._of(NAMESPACE).ledger is not None
    replica.now += SPARE_SECONDS
    replica.settle()
    assert replica.batches._spares._of(NAMESPACE).ledger is None, "it may be of thousands of reservations"


def test_what_is_reserved_is_never_less_than_what_was_admitted() -> None:
    replica = Fast()
    for number, uid in enumerate(pods(300), start=1):
        replica.create([uid])
        assert len(replica.held()) >= number
        if number % 50 == 0:
            replica.settle()


def test_a_crowd_takes_two_spares_for_each_that_came_together() -> None:
    replica = Fast()
    replica.store.seconds = 0.05
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(replica.reserve, pods(40)))
    assert {reason(answer) for answer in answers} == {Reason.RESERVED}
    assert replica.store.writes <= 3
    assert len(replica.held()) >= 40


@pytest.mark.parametrize(
    ("gpus", "step"),
    [
        pytest.param(16_000, 0.3, id="creations-that-come-slowly"),
        pytest.param(63, STEP, id="a-quota-without-ample-room"),
    ],
)
def test_no_spares_for(gpus: int, step: float) -> None:
    replica = Fast(gpus)
    replica.create(pods(30), step)
    assert (replica.store.writes, replica.spares()) == (30, [])


@pytest.mark.parametrize("seconds", [1.5, 5, 20])
def test_a_lone_creation_after_a_crowd_takes_no_spares(seconds: float) -> None:
    replica = Fast()
    replica.create(pods(300), 0.001)
    replica.now += SPARE_SECONDS
    replica.settle()
    replica.now += seconds
    writes = replica.store.writes
    replica.create(["lone"])
    assert (replica.spares(), replica.store.writes) == ([], writes + 1)


def test_each_of_many_demands_has_a_pace_of_its_own() -> None:
    asked = [
        ReservationRequest.creation(f"{gpus}-{number}", vector(gpus=gpus))
        for gpus in range(1, DEMANDS + 4)
        for number in range(gpus)
    ]
    wanted = NamespaceSpares(spare_ids()).wanted(asked, frozenset(), 0.0)
    found = {int(each.beside.reservation.demand["gpus"]): len(each.ids) for each in wanted}
    assert sorted(found) == list(range(2, DEMANDS + 4)), "one alone shows no pace"
    assert sorted(found.values()) == list(found.values())
    assert len(wanted) == len(found)


def test_there_are_no_spares_when_the_quota_may_be_full_before_all_is_counted_once() -> None:
    replica = Fast(600)
    for number, uid in enumerate(pods(600)):
        replica.create([uid])
        if number > 300:
            replica.settle()
        if number == 500:
            assert replica.spares() == []
    assert reason(replica.reserve("one-more")) is Reason.EXCEEDED


def test_a_swap_takes_no_more_than_the_most() -> None:
    replica = Fast(10**6)
    replica.create(pods(2000), 0.0005)
    assert len(replica.spares()) <= MOST


def test_a_spare_is_assigned_for_a_second_after_its_swap_began() -> None:
    replica = Fast()
    replica.create(pods(20))
    assert replica.spares()
    replica.now += SPARE_SECONDS
    writes = replica.store.writes
    replica.create(["late"])
    assert replica.store.writes == writes + 1
    assert "late" in replica.held(), "with a reservation of its own"


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(Bench(1).ask("other", gpus=2), id="another-demand"),
        pytest.param(change("other"), id="a-change-of-a-stored-object"),
    ],
)
def test_a_spare_is_not_for(request_of: RequestOf) -> None:
    replica = Fast()
    replica.create(pods(20))
    before = len(replica.spares())
    assert before
    replica.batches.reserve(NAMESPACE, request_of, replica.now + 5)
    assert any(each.startswith("other") for each in replica.held())


def test_a_spare_is_not_for_what_was_charged_by_other_bases() -> None:
    replica = Fast()
    replica.create(pods(20))
    asked = ReservationRequest.creation("other", vector(gpus=1), "another/catalogue")
    answer = replica.batches.reserve(
        NAMESPACE, lambda _row, _published: ChargedRequest(Charge(vector(gpus=1)), asked), replica.now + 5
    )
    assert reason(answer) is Reason.OTHER_CATALOGUE


def test_a_repeated_call_takes_no_second_spare() -> None:
    replica = Fast()
    replica.create(pods(20))
    assigned, spares = replica.metric("spares_assigned_total"), replica.spares()
    assert "pod19" not in replica.held(), "it has a spare"
    for _ in range(3):
        assert reason(replica.reserve("pod19")) is Reason.RESERVED
    replica.now += SPARE_SECONDS
    replica.settle()
    assert sorted(replica.held()) == sorted(pods(20))
    assert (assigned, len(spares)) != (0, 0)


def failing_once(error: Exception, *, after: bool) -> Callable[[Bench], None]:
    """Make the next swap fail: as if it had not happened, or `after` it has."""

    def set_up(bench: Bench) -> None:
        swap, left = bench.store._store.compare_and_swap, [error]

        def failing(*arguments: object) -> object:
            if not left:
                return swap(*arguments)  # type: ignore[arg-type]
            if after:
                swap(*arguments)  # type: ignore[arg-type]
            raise left.pop()

        bench.store._store.compare_and_swap = failing  # type: ignore[method-assign,assignment]

    return set_up


FAILURES = [
    pytest.param(failing_once(LedgerConflict("changed"), after=False), id="a-conflict"),
    pytest.param(
        failing_once(LedgerError("timed out", transient=True), after=False), id="a-timeout-before-the-write"
    ),
    pytest.param(
        failing_once(LedgerError("timed out", transient=True), after=True), id="a-timeout-after-the-write"
    ),
]


@pytest.mark.parametrize("fail", FAILURES)
def test_a_swap_that_settles_and_fails_is_made_again(fail: Callable[[Bench], None]) -> None:
    replica = Fast()
    replica.create(pods(20))
    replica.now += SPARE_SECONDS
    fail(replica)
    replica.settle()
    replica.settle()
    assert sorted(replica.held()) == sorted(pods(20))


@pytest.mark.parametrize("fail", FAILURES)
def test_spares_of_a_swap_that_failed_are_assigned_to_nobody_and_removed(
    fail: Callable[[Bench], None],
) -> None:
    replica = Fast()
    replica.create(pods(20))
    replica.now += SPARE_SECONDS
    fail(replica)
    replica.create(pods(20, "more"))
    replica.now += SPARE_SECONDS
    replica.settle()
    assert sorted(replica.held()) == sorted(pods(20) + pods(20, "more"))


def test_what_a_swap_is_to_remove_is_assigned_no_more_while_it_is_made() -> None:
    replica = Fast()
    replica.create(pods(20))
    replica.now += SPARE_SECONDS
    late: list[str] = []

    def meanwhile(what: str) -> None:
        if what == "swap" and not late:
            late.append("late")
            replica.now -= SPARE_SECONDS / 2  # even if the clock says that there is time
            assert replica.batches._spares.ledger(NAMESPACE) is None

    replica.store.fails = meanwhile
    replica.settle()
    assert late
    assert sorted(replica.held()) == sorted(pods(20))


def test_the_last_settling_gives_everything_back() -> None:
    replica = Fast()
    replica.batches.start()
    replica.create(pods(20))
    assert replica.spares()
    replica.batches.stop()
    assert sorted(replica.held()) == sorted(pods(20))
    replica.create(pods(20, "later"))
    assert replica.spares() == [], "nothing is reserved ahead any more"


def test_three_replicas_admit_exactly_what_there_is() -> None:
    bench = Bench(gpus=800, seconds=0.002)
    replicas = [ReservationBatcher(bench.store, QuotaMetrics(CollectorRegistry())) for _ in range(3)]
    for each in replicas:
        each.start()

    def reserve(number: int, replica: ReservationBatcher) -> Reason | None:
        until = monotonic() + 60
        while True:
            answer = replica.reserve(NAMESPACE, bench.ask(f"pod{number}"), until)
            if answer.ledger is None or not has_spares(answer.ledger) or reason(answer) is Reason.RESERVED:
                return reason(answer)

    with ThreadPoolExecutor(24) as pool:
        reasons = list(pool.map(reserve, range(860), itertools.cycle(replicas)))
    assert (reasons.count(Reason.RESERVED), reasons.count(Reason.EXCEEDED)) == (800, 60)
    for each in replicas:
        each.stop()
    assert len(bench.held()) == 800
    assert not any(map(is_spare, bench.held()))


def count(replica: Fast, stored: list[str]) -> None:
    before = replica.store.read(NAMESPACE, 1)
    assert before is not None
    listing = Listing(
        used=vector(gpus=len(stored)),
        objects={each: StoredObject(vector(gpus=1)) for each in stored},
        revisions=before.ledger.revisions,
        catalogue=replica.ledger.catalogue,
    )
    counted = reconcile(before.ledger, listing, frozenset())
    assert isinstance(counted, Reconciled)
    replica.store.compare_and_swap(NAMESPACE, before, counted.ledger, 1)


@pytest.mark.parametrize(
    ("gpus", "is_settled", "is_counted", "want"),
    [
        pytest.param(15_990, False, False, True, id="fits-but-for-spares"),
        pytest.param(15_990, True, False, True, id="fits-but-for-what-may-be-counted-twice"),
        pytest.param(15_990, True, True, False, id="comes-after-the-next-count"),
        pytest.param(16_001, True, False, False, id="can-never-fit"),
    ],
)
def test_a_denial_is_for_spares_when_the_request(
    gpus: int, is_settled: bool, is_counted: bool, want: bool
) -> None:
    """Whichever replica is asked."""
    replica = Fast()
    replica.create(pods(20))
    assert replica.spares()
    if is_settled:
        replica.now += SPARE_SECONDS
        replica.settle()
    if is_counted:
        count(replica, pods(5))
    other = ReservationBatcher(replica.store, QuotaMetrics(CollectorRegistry()))
    answer = other.reserve(NAMESPACE, replica.ask("large", gpus), monotonic() + 5)
    assert reason(answer) is Reason.EXCEEDED
    assert ReservationBatcher.is_denied_by_spares(answer) is want


def test_a_replica_that_only_tries_out_knows_of_spares_of_others() -> None:
    bench = Fast()
    bench.create(pods(20))
    assert bench.spares()
    other = ReservationBatcher(bench.store, QuotaMetrics(CollectorRegistry()), lambda: bench.now)
    answer = other.try_out(NAMESPACE, bench.ask("large", 15_980), bench.now + 5)
    assert reason(answer) is Reason.EXCEEDED
    assert other.is_denied_by_spares(answer)


def test_what_was_denied_stays_denied_though_the_ledger_cannot_be_read_any_more() -> None:
    bench = Bench(gpus=16_000)
    bench.batches._spares.reserves_ahead = True
    for uid in pods(20):
        bench.reserve(uid)
    asks = 0

    def fails(what: str) -> None:
        nonlocal asks
        asks += what == "read"
        if asks > 1:
            raise LedgerError("connection refused", transient=False)

    bench.store.fails = fails
    large = ChargeRequest(
        "request", "large", configuration(), lambda _by, _unpinned: Charge(vector(gpus=15_990)), is_free=False
    )
    quota = QuotaEnforcer(bench.batches, bench.batches._metrics).of(
        NAMESPACE, monotonic() + 10, dry_run=False
    )
    assert reason(quota.reserve(large)) is Reason.EXCEEDED
    assert asks == 2


def test_nobody_waits_for_as_long_as_the_spares_of_a_replica_that_was_killed_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(gpus=16_000)
    bench.batches._spares.reserves_ahead = True
    for uid in pods(20):
        bench.reserve(uid)
    other = ReservationBatcher(bench.store, QuotaMetrics(CollectorRegistry()))
    monkeypatch.setattr(enforcer, "LONGEST_SECONDS", 0.3)
    quota = QuotaEnforcer(other, other._metrics).of(NAMESPACE, monotonic() + 10, dry_run=True)
    large = ChargeRequest(
        "request", "large", configuration(), lambda _by, _unpinned: Charge(vector(gpus=15_990))
    )
    reads = bench.store.reads
    assert reason(quota.reserve(large)) is Reason.EXCEEDED
    assert 1 < bench.store.reads - reads < 10
    assert any(map(is_spare, bench.held())), "they are still there"


def test_a_settling_that_fails_is_no_error_of_a_review() -> None:
    replica = Fast()
    replica.create(pods(20))
    replica.now += SPARE_SECONDS

    def fails(_what: str) -> None:
        raise LedgerError("connection refused", transient=False)

    replica.store.fails = fails
    replica.settle()
    assert replica.metric("ledger_errors_total") == 0
    replica.store.fails = lambda _what: None
    replica.settle()
    assert sorted(replica.held()) == sorted(pods(20))


def test_ids_are_of_one_process_and_never_used_twice() -> None:
    one, other = list(itertools.islice(spare_ids(), 100)), list(itertools.islice(spare_ids(), 100))
    assert len({*one, *other}) == 200
    assert all(map(is_spare, one))
