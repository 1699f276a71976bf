"""Requests for one ledger share reads and writes, nobody waits beyond its deadline, and nothing stale is believed."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from policies.quota.catalogue import PublishedCatalogue
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import ReservationRequest, VerdictReason
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError, ReservationOutcome
from tests.builders import CLASSES, RESOURCE_MAPPING
from tests.cases import cases
from tests.reservation_requests import creation_request
from tests.webhook.quota.ledgers import configuration, spec
from tests.webhook.quota.slow_store import Bench, failing, reads_of, reason
from tests.webhook.quota.world import NAMESPACE, vector
from webhook.quota.batcher import FIRST_PAUSE
from webhook.quota.store import LedgerConflict, VersionedLedger


def test_thirty_two_threads_share_writes_and_get_exactly_what_there_is() -> None:
    bench = Bench(gpus=100, seconds=0.1)  # long beside what a thread takes to ask
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(bench.reserve, (f"pod{number}" for number in range(160))))
    reasons = [reason(answer) for answer in answers]
    assert reasons.count(VerdictReason.RESERVED) == 100
    assert reasons.count(VerdictReason.EXCEEDED) == 60
    assert len(bench.held()) == 100
    assert bench.store.writes < 50, "batches are larger than one"
    assert bench.store.most_at_work == 1
    assert bench.batches._queues == {}, "nobody leads once nobody waits"
    assert bench.metric("batch_size_sum") / bench.metric("batch_size_count") > 3


def test_one_client_alone_reads_once_and_then_only_writes() -> None:
    bench = Bench(gpus=100, clock=lambda: 0.0)  # a ledger that was read is remembered for 0.1 s
    assert all(reason(bench.reserve(f"pod{number}")) is VerdictReason.RESERVED for number in range(20))
    assert (bench.store.reads, bench.store.writes) == (1, 20)


@cases(("seconds", "reads"), just_before=(0.09, 0), no_longer=(0.1, 1))
def test_a_ledger_is_remembered_for_a_tenth_of_a_second(seconds: float, reads: int) -> None:
    now = 100.0
    bench = Bench(gpus=9, clock=lambda: now)
    bench.reserve("pod0")
    now += seconds
    assert reads_of(bench, "pod1") == reads


def test_a_repeated_call_is_answered_from_the_ledger_itself() -> None:
    bench = Bench(gpus=2)
    bench.reserve("pod1")
    reads = bench.store.reads
    assert reason(bench.reserve("pod1")) is VerdictReason.ALREADY_RESERVED
    assert (bench.store.reads - reads, bench.store.writes) == (1, 1)
    assert bench.held() == ["pod1"]


def test_an_id_that_comes_twice_at_once_is_counted_once() -> None:
    bench = Bench(gpus=2, seconds=0.01)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(bench.reserve, ["pod1"] * 8))
    assert {reason(answer) for answer in answers} <= {VerdictReason.RESERVED, VerdictReason.ALREADY_RESERVED}
    assert bench.held() == ["pod1"]


def test_nobody_is_refused_by_what_was_only_remembered() -> None:
    bench = Bench(gpus=1)
    bench.reserve("pod1")
    bench.ledger.store.release(NAMESPACE, "pod1")  # somebody else's write
    assert reason(bench.reserve("pod2")) is VerdictReason.RESERVED


def test_nobody_is_refused_by_what_was_read_before_it_came() -> None:
    """Its author may know already that there is room."""
    bench, read = Bench(gpus=1), threading.Event()
    assert reason(bench.reserve("pod0")) is VerdictReason.RESERVED

    with ThreadPoolExecutor(1) as pool:
        late = []

        def meanwhile(namespace: str, seconds: float) -> VersionedLedger | None:
            found = bench.store._store.read(namespace, seconds)
            if not read.is_set():
                read.set()
                bench.ledger.grant(vector(gpus=2))
                late.append(pool.submit(bench.reserve, "late"))
                until = monotonic() + 20
                while not bench.batches._queues[NAMESPACE]:
                    assert monotonic() < until
                    sleep(0.001)
            return found

        bench.store.read = meanwhile  # type: ignore[method-assign]
        assert reason(bench.reserve("early")) is VerdictReason.EXCEEDED
        assert reason(late[0].result()) is VerdictReason.RESERVED


def test_a_ledger_that_somebody_else_changed_is_decided_again() -> None:
    bench = Bench(gpus=2)
    bench.reserve("pod1")
    bench.ledger.grant(vector(gpus=1))
    assert reason(bench.reserve("pod2")) is VerdictReason.EXCEEDED
    assert bench.held() == ["pod1"]
    assert bench.metric("conflicts_total") == 1, "the write that the remembered ledger justified"


def test_a_write_of_a_controller_costs_a_conflict_and_no_reads_before_later_writes() -> None:
    bench = Bench(gpus=10)
    bench.reserve("pod0")
    bench.ledger.store.release(NAMESPACE, "pod0")
    assert [reads_of(bench, f"pod{number}") for number in range(1, 4)] == [1, 0, 0]


def test_after_a_batch_of_several_requests_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 100.0, list[float]()
    bench = Bench(gpus=100, clock=lambda: now)
    monkeypatch.setattr("webhook.quota.batcher.sleep", pauses.append)
    with ThreadPoolExecutor(2) as pool:

        def meanwhile(what: str) -> None:
            nonlocal now
            if what == "swap":
                now += 0.03
                if bench.store.writes == 0:
                    pool.map(bench.reserve, ("pod1", "pod2"))
                while bench.store.writes == 0 and len(bench.batches._queues[NAMESPACE]) < 2:
                    sleep(0.001)

        bench.store.fails = meanwhile
        bench.reserve("pod0")
    assert (bench.store.writes, pauses) == (2, []), "after a batch of one, nobody waits"
    assert [reads_of(bench, uid) for uid in ("pod3", "pod4")] == [0, 0]
    assert pauses == pytest.approx([0.03]), "as long as that write took"


def test_endless_conflicts_end_with_the_deadline() -> None:
    bench = Bench(gpus=2)
    bench.store.fails = failing("swap", LedgerConflict("changed"))
    begun = monotonic()
    with pytest.raises(LedgerError) as refused:
        bench.reserve("pod1", seconds=0.3)
    assert str(refused.value) == "too many others write to the ledger of the quota"
    assert 0.2 < monotonic() - begun < 10


def test_a_ledger_that_hangs_does_not_hang_anybody() -> None:
    bench = Bench(gpus=100, seconds=60.0)
    begun = monotonic()
    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(bench.reserve, f"pod{number}", 1, 0.4) for number in range(8)]
        errors = [result.exception() for result in results]
    assert all(isinstance(error, LedgerError) for error in errors)
    assert monotonic() - begun < 20  # of the 60 that each call takes
    assert bench.batches._queues == {}


def test_who_waits_for_others_learns_that_they_were_not_decided_in_time() -> None:
    bench = Bench(gpus=100, seconds=1.0)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(bench.reserve, "pod1", 1, 30.0)
        sleep(0.1)
        follower = pool.submit(bench.reserve, "pod2", 1, 0.2)
        error = follower.exception()
        assert reason(leader.result()) is VerdictReason.RESERVED
    assert str(error) == "other requests for the same quota were not decided in time"


def test_who_has_time_left_is_decided_after_the_leader_gave_up() -> None:
    bench = Bench(gpus=2)
    broken = threading.Event()
    broken.set()

    def unreachable(_what: str) -> None:
        if broken.is_set():
            raise LedgerError("connection refused", transient=True)

    bench.store.fails = unreachable
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(bench.reserve, "pod1", 1, 0.3)
        sleep(0.1)
        follower = pool.submit(bench.reserve, "pod2", 1, 60.0)
        assert isinstance(leader.exception(), LedgerError)
        broken.clear()
        assert reason(follower.result()) is VerdictReason.RESERVED
    assert bench.held() == ["pod2"]


FORBIDDEN = LedgerError("forbidden", transient=False)


@cases(
    "breaks",
    the_ledger=lambda bench: setattr(bench.store, "fails", failing("read", FORBIDDEN)),
    the_catalogues=lambda bench: setattr(bench.batches, "_catalogues_of", Mock(side_effect=FORBIDDEN)),
)
def test_an_error_that_will_not_pass_is_told_at_once(breaks: Callable[[Bench], object]) -> None:
    bench = Bench(gpus=2)
    breaks(bench)
    begun = monotonic()
    with pytest.raises(LedgerError, match="forbidden"):
        bench.reserve("pod1", seconds=60.0)
    assert monotonic() - begun < 30  # of the 60 that it may take
    assert bench.metric("ledger_errors_total") == 1


def test_a_write_without_an_answer_is_counted_once() -> None:
    bench = Bench(gpus=2)
    store, compare_and_swap = bench.store, bench.store.compare_and_swap
    silences = iter([True])

    def swap_in_silence(
        namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        after = compare_and_swap(namespace, before, ledger, seconds)
        if next(silences, False):
            raise LedgerError("the connection was cut", transient=True)
        return after

    store.compare_and_swap = swap_in_silence  # type: ignore[method-assign] # the wire between, cut after the write
    assert reason(bench.reserve("pod1")) is VerdictReason.ALREADY_RESERVED
    assert bench.held() == ["pod1"]


def test_a_defect_in_one_request_is_its_own() -> None:
    bench = Bench(gpus=8, seconds=0.05)

    def defect(_ledger_object: QuotaLedger, _published: object) -> ReservationRequest:
        raise ZeroDivisionError("a defect")

    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(bench.reserve, f"pod{number}") for number in range(3)]
        bad = pool.submit(bench.batches.reserve, NAMESPACE, defect, monotonic() + 60)
        assert isinstance(bad.exception(), ZeroDivisionError)
        assert [reason(each.result()) for each in good] == [VerdictReason.RESERVED] * 3
    assert bench.batches._queues == {}


def test_pauses_until_a_catalogue_is_there_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, drawn, given = Bench(gpus=1), list[tuple[float, float]](), list[object]()
    requested, published = bench.ask("pod"), {"digest": PublishedCatalogue(CLASSES, RESOURCE_MAPPING)}

    def uniform(least: float, most: float) -> float:
        drawn.append((least, most))
        return 0.0

    def catalogues_of(_ledger: QuotaLedger, seconds: float) -> dict[str, PublishedCatalogue]:
        assert 0 < seconds <= 60
        if len(drawn) < 8:
            raise LedgerError("not published yet", transient=True)
        return published

    def request_of(ledger: QuotaLedger, known: Any) -> ReservationRequest:
        given.append(known)
        return requested(ledger, known)

    monkeypatch.setattr("webhook.quota.batcher.random.uniform", uniform)
    bench.batches._catalogues_of = catalogues_of

    assert reason(bench.batches.reserve(NAMESPACE, request_of, monotonic() + 60)) is VerdictReason.RESERVED
    assert drawn == [(0, min(0.004 * 2**number, 0.25)) for number in range(8)]
    assert given == [published], "nothing is charged before the catalogues are there"


@cases(("seconds", "tries"), not_at_the_deadline=(FIRST_PAUSE, 1), not_twice_as_long=(1.5 * FIRST_PAUSE, 2))
def test_no_pause_ends_after_the_deadline(seconds: float, tries: int) -> None:
    bench, tried = Bench(gpus=1, clock=lambda: 100.0), list[float]()

    def catalogues_of(_ledger: QuotaLedger, left: float) -> dict[str, PublishedCatalogue]:
        tried.append(left)
        raise LedgerError("not published yet", transient=True)

    bench.batches._catalogues_of = catalogues_of
    with pytest.raises(LedgerError, match="not published yet"):
        bench.batches.reserve(NAMESPACE, bench.ask("pod"), 100.0 + seconds)
    assert len(tried) == tries


def test_each_review_computes_its_demand_in_its_own_thread_and_once_for_each_catalogue() -> None:
    bench = Bench(gpus=100, seconds=0.02)
    computed: list[tuple[int, str | None]] = []

    def reserve(number: int) -> VerdictReason | None:
        def request_of(ledger: QuotaLedger, _published: object) -> ReservationRequest:
            computed.append(
                (number if threads[number] is threading.current_thread() else -1, ledger.class_catalogue)
            )
            demand = vector(gpus=1)
            return creation_request(f"pod{number}", demand, str(ledger.class_catalogue))

        threads[number] = threading.current_thread()
        return reason(bench.batches.reserve(NAMESPACE, request_of, monotonic() + 60))

    threads: dict[int, threading.Thread] = {}
    first = bench.ledger.catalogue
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(reserve, range(8))) == {VerdictReason.RESERVED}
        assert sorted(computed) == [(number, first) for number in range(8)]

        computed.clear()
        bench.ledger.unclassified_pods = UnclassifiedPods.DENY
        second = f"{first.partition('/')[0]}/Deny"
        bench.ledger.grant(vector(gpus=100))
        assert set(pool.map(reserve, range(8, 16))) == {VerdictReason.RESERVED}
    assert set(computed) >= {(number, second) for number in range(8, 16)}
    assert max(Counter(computed).values()) == 1, "the ledger was only seen to have another catalogue"


def test_a_dry_run_decides_and_writes_nothing() -> None:
    bench = Bench(gpus=1)
    deadline = monotonic() + 5
    fits = bench.batches.try_out(NAMESPACE, bench.ask("pod1"), deadline)
    too_much = bench.batches.try_out(NAMESPACE, bench.ask("pod1", gpus=2), deadline)
    assert (reason(fits), reason(too_much)) == (VerdictReason.RESERVED, VerdictReason.EXCEEDED)
    assert (bench.held(), bench.store.writes) == ([], 0)
    assert bench.batches.try_out("without-a-quota", bench.ask("pod1"), deadline) == ReservationOutcome()


@cases("granted", with_a_quota=True, without_one=False)
def test_no_more_namespaces_are_remembered_than_that(granted: bool) -> None:
    bench = Bench(gpus=1)
    names = [f"team{number}" for number in range(4097)]
    quotas = dict.fromkeys(names, spec(vector(gpus=1))) if granted else {}
    bench.ledger.configuration = configuration(**quotas)
    for name in names:
        outcome = bench.batches.reserve(name, bench.ask(name), monotonic() + 60)
        assert (reason(outcome) is VerdictReason.RESERVED) is granted

    each = *vars(bench.batches).values(), *vars(bench.batches.no_quota).values()
    assert max(len(remembered) for remembered in each if isinstance(remembered, dict)) == 1, (
        "the last one makes room"
    )


def test_a_full_ledger_says_so() -> None:
    bench = Bench(gpus=100)
    bench.store.reservations_limit = 40
    assert [reason(bench.reserve(f"pod{number}")) for number in range(8)][-1] is VerdictReason.FULL
    read = bench.ledger.store.read(NAMESPACE, 1.0)
    assert read is not None
    assert len(msgspec.json.encode(read.ledger.reservations.text)) <= 40 + len('""') + len("\\n")
