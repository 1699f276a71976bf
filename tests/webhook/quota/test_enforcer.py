"""What a review learns of the quota of its namespace, and how often the ledger is read for it."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import Line
from policies.quota.quota_request import LedgerError, QuotaRequest, quota_request_for_pod
from tests.budgets import budget, spending
from tests.builders import gpu_container, pod, uid, view
from tests.cases import cases
from tests.policies.quota.team_denials import USED, team_ledger
from tests.webhook.quota.ledgers import configuration
from tests.webhook.quota.slow_store import Bench
from tests.webhook.quota.world import NAMESPACE, vector
from webhook.quota.enforcer import (
    FIRST_COUNT_SECONDS,
    MAX_WAITING,
    MAX_WAITING_OF_NAMESPACE,
    SKIP_SECONDS,
    NamespaceQuota,
    QuotaEnforcer,
    ReviewQuota,
)


def quota_of(bench: Bench) -> NamespaceQuota:
    enforcer = QuotaEnforcer(bench.batches)
    return enforcer.of(NAMESPACE, bench.clock() + 5, dry_run=False)


def reserved(bench: Bench) -> None:
    bench.reserve("pod", gpus=3)


def with_used(used: Amounts | None) -> Callable[[Bench], None]:
    def happens(bench: Bench) -> None:
        found = bench.ledger.store.read(NAMESPACE, 1.0)
        assert found is not None
        changed = msgspec.structs.replace(found, ledger=msgspec.structs.replace(found.ledger, used=used))
        bench.store.read = lambda namespace, seconds: changed  # type: ignore[method-assign] # noqa: ARG005 - the signature of a store

    return happens


def without_quota(bench: Bench) -> None:
    bench.ledger.configuration = configuration()


def unreadable(bench: Bench) -> None:
    def fail(_what: str) -> None:
        raise LedgerError("forbidden", transient=False)

    bench.store.fails = fail


@cases(
    ("happens", "want"),
    reserved=(reserved, (vector(gpus=8), vector(gpus=3), ())),
    counted=(with_used(vector(gpus=2)), (vector(gpus=8), vector(gpus=2), ())),
    not_counted_yet=(with_used(None), (vector(gpus=8), {}, ("gpus",))),
    no_quota=(without_quota, None),
    a_ledger_that_cannot_be_read=(unreadable, None),
)
def test_the_ledger_for_advice(happens: Callable[[Bench], None], want: Any) -> None:
    bench = Bench(gpus=8)
    happens(bench)

    found = quota_of(bench).ledger()

    assert (found and (found.hard, found.held, found.uncounted)) == want


def test_it_has_what_the_team_can_give_and_the_pods_that_wait_for_it() -> None:
    bench, ledger = Bench(gpus=8), team_ledger(USED, own={"gpus": 100}, waiting=3)
    before = bench.ledger.store.read(NAMESPACE, 1.0)
    assert before is not None
    changed = msgspec.structs.replace(before, ledger=msgspec.structs.replace(ledger, waiting=2))
    bench.store.read = lambda namespace, seconds: changed  # type: ignore[method-assign] # noqa: ARG005 - the signature of a store

    found = quota_of(bench).ledger()

    assert found is not None
    assert (found.team_state, found.maximum_hard, found.left, found.pods_ahead) == (
        ledger.team_state,
        vector(gpus=64),
        vector(gpus=2),
        5,
    )


@cases(
    ("end", "want"),
    the_present_period=(4_000_000_000_000, True),
    one_that_has_ended=(1_000_000_000_000, False),
)
def test_it_has_what_is_spent_in_the_present_period(end: int, want: bool) -> None:
    bench, found = Bench(gpus=8), spending(spent=7, end=end)
    before = bench.ledger.store.read(NAMESPACE, 1.0)
    assert before is not None
    changed = msgspec.structs.replace(before.ledger, budget=budget(gpus=100), spending=found)
    bench.ledger.store.compare_and_swap(NAMESPACE, before, changed, 1.0)

    advice = quota_of(bench).ledger()
    assert advice is not None
    assert (advice.budget, advice.spending) == (budget(gpus=100), found if want else None)


def test_a_review_reads_the_ledger_once_for_advice() -> None:
    bench = Bench(gpus=8)
    quota = quota_of(bench)

    assert quota.ledger() is quota.ledger()
    assert bench.store.reads == 1


def test_a_namespace_that_is_known_to_have_no_quota_costs_no_read() -> None:
    bench = Bench(gpus=8)
    without_quota(bench)
    bench.reserve("pod")
    reads = bench.store.reads

    assert quota_of(bench).ledger() is None
    assert bench.store.reads == reads


def test_without_time_nothing_is_read() -> None:
    bench = Bench(gpus=8)
    _, request = asked(bench)
    late = QuotaEnforcer(bench.batches).of(NAMESPACE, bench.clock() - 1, dry_run=True)

    with pytest.raises(LedgerError) as refused:
        late.reserve(request)

    assert str(refused.value) == "no time was left to read the quota"


@cases(
    ("happens", "known", "want"),
    reserved=(lambda _bench: None, False, "reserved"),
    without_a_quota=(without_quota, False, "no quota"),
    known_to_have_no_quota=(without_quota, True, "no quota"),
    a_ledger_that_cannot_be_read=(unreadable, False, "ledger error"),
)
def test_a_decision_is_counted_by_its_reason(
    happens: Callable[[Bench], None], known: bool, want: str
) -> None:
    bench = Bench(gpus=8)
    happens(bench)
    if known:
        bench.reserve("another")
    quota, request = asked(bench)

    with suppress(LedgerError):
        quota.reserve(request)

    labels = {"reason": want, "dry_run": "false"}
    assert bench.registry.get_sample_value("gpu_admission_quota_decisions_total", labels) == 1


@cases(
    ("own", "has_controller", "line", "want"),
    others_of_the_team_wait=(0, True, Line.BEHIND, "others wait"),
    and_nobody_would_start_them=(0, False, Line.BEHIND, "reserved"),
    its_own_pods_wait=(1, False, Line.BEHIND, "others wait"),
    one_that_never_waits=(0, True, Line.NEVER_WAITS, "others wait"),
    one_that_never_waits_and_nobody_would_start_them=(0, False, Line.NEVER_WAITS, "reserved"),
)
def test_who_waits_in_other_namespaces_closes_this_one_while_a_controller_lives(
    own: int, has_controller: bool, line: Line, want: str
) -> None:
    bench, ledger = Bench(gpus=8), team_ledger(USED, own={"gpus": 100}, waiting=3)
    before = bench.ledger.store.read(NAMESPACE, 1.0)
    assert before is not None
    catalogue = before.ledger.class_catalogue
    assert ledger.team_state is not None
    share = msgspec.structs.replace(ledger.team_state, scarce=frozenset({"gpus"}))
    in_line = msgspec.structs.replace(ledger, waiting=own, class_catalogue=catalogue, team_state=share)
    found = msgspec.structs.replace(before, ledger=in_line)
    bench.store.read = lambda namespace, seconds: found  # type: ignore[method-assign] # noqa: ARG005 - the signature of a store
    enforcer = QuotaEnforcer(bench.batches, has_controller=lambda _seconds: has_controller)
    asked = view(pod(gpu_container()))
    request = quota_request_for_pod(uid("review"), asked, None, bench.ledger.configuration, line=line)

    outcome = enforcer.of(NAMESPACE, bench.clock() + 5, dry_run=True).reserve(request)

    assert outcome.verdict is not None
    assert outcome.verdict.reason.value == want


@cases(
    ("used", "has_controller", "want"),
    room=(7, True, None),
    full=(8, True, "exceeded"),
    full_and_nobody_would_start_it=(8, False, None),
)
def test_who_waits_in_line(used: int, has_controller: bool, want: str | None) -> None:
    bench = Bench(gpus=8)
    bench.reserve("pod", gpus=used)
    enforcer = QuotaEnforcer(bench.batches, has_controller=lambda _seconds: has_controller)
    quota = enforcer.of(NAMESPACE, bench.clock() + 5, dry_run=False)
    asked = view(pod(gpu_container()))
    request = quota_request_for_pod(uid("review"), asked, None, bench.ledger.configuration)

    outcome = quota.queue_outcome(request)

    assert (outcome and outcome.verdict and outcome.verdict.reason.value) == want


@cases(("by_kueue", "want"), if_kueue_may_admit_it=(True, "exceeded"), never_otherwise=(False, None))
def test_a_pod_that_is_larger_than_the_quota_waits(by_kueue: bool, want: str | None) -> None:
    bench = Bench(gpus=8)
    enforcer = QuotaEnforcer(bench.batches, has_controller=lambda _seconds: True)
    asked = view(pod(gpu_container("9")))
    request = quota_request_for_pod(uid("review"), asked, None, bench.ledger.configuration)

    outcome = enforcer.of(NAMESPACE, bench.clock() + 5, dry_run=False).queue_outcome(
        replace(request, by_kueue=by_kueue)
    )

    assert (outcome and outcome.verdict and outcome.verdict.reason.value) == want


def counted_after(bench: Bench, reads: int) -> None:
    """Let the ledger be counted once it was read so often."""
    counted, left = bench.store.read(NAMESPACE, 1.0), [None] * reads
    assert counted is not None
    new = msgspec.structs.replace(counted, ledger=msgspec.structs.replace(counted.ledger, used=None))
    bench.store.read = lambda namespace, seconds: new if left and not left.pop() else counted  # type: ignore[method-assign] # noqa: ARG005 - the signature of a store


def asked(bench: Bench, **found: Any) -> tuple[ReviewQuota, QuotaRequest]:
    enforcer = QuotaEnforcer(bench.batches, **{"has_controller": lambda _seconds: True, **found})
    document = view(pod(gpu_container()))
    return (
        enforcer.of(NAMESPACE, bench.clock() + 1, dry_run=False),
        quota_request_for_pod(uid("review"), document, None, bench.ledger.configuration),
    )


@cases(
    ("found", "reads", "want"),
    counted_soon=({}, 3, "reserved"),
    not_in_time=({}, 1000, "uncounted"),
    no_controller_would_count_it=({"has_controller": lambda _seconds: False}, 1000, "uncounted"),
    others_of_the_namespace_wait=({"waiting": [NAMESPACE] * MAX_WAITING_OF_NAMESPACE}, 1000, "uncounted"),
    others_wait=({"waiting": ["other"] * MAX_WAITING}, 1000, "uncounted"),
    one_place_is_left=({"waiting": ["other"] * (MAX_WAITING - 1)}, 1, "reserved"),
)
def test_a_review_waits_for_the_first_count_of_its_quota(found: Any, reads: int, want: str) -> None:
    bench = Bench(gpus=8)
    counted_after(bench, reads)
    quota, request = asked(bench, **found)

    outcome = quota.reserve(request)

    assert outcome.verdict is not None
    assert outcome.verdict.reason.value == want
    assert quota.enforcer.waiting == found.get("waiting", []), "its place is free again"


@cases(
    ("first_met", "waits"),
    a_moment_ago=(-FIRST_COUNT_SECONDS + 5, True),
    so_long_ago_that_it_may_never_be_counted=(-FIRST_COUNT_SECONDS, False),
    so_long_ago_that_it_may_be_another_quota=(-SKIP_SECONDS - 1, True),
)
def test_no_review_waits_for_a_quota_that_may_never_be_counted(first_met: float, waits: bool) -> None:
    """Such as that of the 501st namespace of a team."""
    bench = Bench(gpus=8)
    counted_after(bench, 2)
    quota, request = asked(bench, first_met={NAMESPACE: monotonic() + first_met})

    outcome = quota.reserve(request)

    assert outcome.verdict is not None
    assert outcome.verdict.reason.value == ("reserved" if waits else "uncounted")
    assert (NAMESPACE in quota.enforcer.first_met) is not waits, "once it is counted, that is forgotten"


def test_no_review_waits_for_a_count_where_the_quota_denies_nothing() -> None:
    bench = Bench(gpus=8)
    counted_after(bench, 2)
    quota, request = asked(bench)

    outcome = quota.reserve(msgspec.structs.replace(request, is_enforced=False))

    assert outcome.verdict is not None
    assert outcome.verdict.reason.value == "uncounted"


def test_mutate_waits_too_so_that_a_pod_that_does_not_fit_gets_its_gate() -> None:
    bench = Bench(gpus=8)
    bench.reserve("pod", gpus=8)
    counted_after(bench, 3)
    quota, request = asked(bench)

    outcome = quota.queue_outcome(request)

    assert outcome is not None
    assert outcome.verdict is not None
    assert outcome.verdict.reason.value == "exceeded"


@cases(
    ("dry_run", "enforced", "quota_appears", "holds"),
    no_quota=(False, True, False, True),
    a_quota_appears=(False, True, True, False),
    what_is_not_stored_needs_no_check=(True, True, True, True),
    nor_does_what_no_quota_denies=(False, False, True, True),
)
def test_an_answer_by_no_quota_is_checked_again(
    dry_run: bool, enforced: bool, quota_appears: bool, holds: bool
) -> None:
    bench = Bench(gpus=8)
    without_quota(bench)
    quota, request = asked(bench)
    quota.dry_run = dry_run
    request = msgspec.structs.replace(request, is_enforced=enforced)
    quota.reserve(request)
    quota.reserve(request)
    if quota_appears:
        bench.batches.no_quota._found_at.clear()

    assert quota.still_holds() is holds
    assert quota.still_holds(), "the next evaluation says again whether it found none"
