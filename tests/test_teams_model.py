"""The model of teams (tests/model/teams.pml) describes this code: the code decides alike.

Runs that spin draws at random are replayed. Names are compared by tests/test_model.py.
"""

import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec.structs import replace

from policies.quota.amounts import Amounts
from policies.quota.ledger.decide import Line, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import Reconciled, StoredObject, reconcile
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.queue_entries import Gang, InLine
from policies.quota.team_line import next_to_start_in_team
from policies.quota.waiting import QueueOrder, QueueSpec, Standing, Waiter
from tests.builders import listing, quota_ledger
from tests.models import INSTANCE, MAX_RUNS, TEAMS, facts_of, numbers, run
from tests.reservation_requests import creation_request

CATALOGUE = "c"
A, B = "a", "b"
UNLIMITED = 9
ONE: Amounts = {"gpus": Fraction(1)}


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed")
@pytest.mark.parametrize("instance", INSTANCE.findall(TEAMS.read_text()))
def test_the_code_decides_as_the_model_does(instance: str, tmp_path: Path) -> None:
    lines: list[str] = []
    for seed in range(1, MAX_RUNS):
        printed = run(TEAMS, instance, seed, tmp_path)
        lines += [line for line in printed if line.startswith("decide ") or "holds=" in line]
        if seed >= settings().max_examples // 8 and any("team=1" in line for line in lines):
            break

    assert any("team=1" in line for line in lines)
    assert any("holds=" in line for line in lines) == (instance == "CLOSED")
    for line in lines:
        (replay_decision if line.startswith("decide") else replay_turn)(line)


def replay_decision(line: str) -> None:
    facts = facts_of(line)
    namespace, pod = (A, B)[int(facts["namespace"])], int(facts["pod"])
    (own,) = ledgers_of(facts["own"], big=int(facts["big"]))
    ledger = own if facts["team"] == "0" else team_of(facts).of(namespace)
    assert ledger is not None

    asked = creation_request(
        uid(pod), demand(pod, int(facts["big"])), CATALOGUE, name=name_of(pod, namespace)
    )
    if "alive" in facts:  # its pods come again and again, each under a name of its own
        asked = replace(asked, reservation=Reservation("new", ONE, name="pods/new"))
    if "joins" in facts:
        joining = Reservation("new", {}, name="pods/new")
        asked = replace(asked, reservation=joining, line=Line.JOINS)
    elif facts.get("alive") == "0":
        asked = replace(asked, is_served=False)
    if "lift" in facts:
        lift = Reservation(lift_id(uid(pod), "request"), ONE, 1)
        asked = replace(asked, reservation=lift, line=Line.LIFTS)
    (verdict,) = decide(ledger, [asked]).verdicts

    exceeded = "TEAM_" * any(each.team for each in verdict.shortfalls[:1])
    assert exceeded + verdict.reason.name == facts["verdict"].removesuffix("_LEDGER"), line


def replay_turn(line: str) -> None:
    """Of a gang of A, which needs all that the team has."""
    facts = facts_of(line)
    before = team_of(facts)
    gates = Standing.OTHER_GATE if facts["obstacle"] == "1" else None
    pods = [Waiter(uid=uid(pod), demand=ONE, since="1", gang="gang", obstacle=gates) for pod in range(2)]
    queue = QueueSpec(order=QueueOrder.STRICT_FIFO if facts["strict"] == "1" else QueueOrder.BEST_EFFORT_FIFO)
    line_of_a = InLine(pods if facts["waits"] == "1" else [], {"gang": Gang(2)}, queue)
    lines = {A: line_of_a} if facts["unread"] == "0" else {}
    counted = before.with_ledger(A, counted_again(before.ledgers[A], waiting=len(line_of_a.waiters)))

    after = next_to_start_in_team(
        counted, lines, "2" if facts["starved"] == "1" else ""
    ).team_ledgers.ledgers[A]

    held = set(after.reservations.lifts)
    assert bool(after.waiting_for_team) == (facts["closes"] == "1"), line
    assert held == {uid(pod) for pod in range(2) if has(facts["holds"], pod)}, line


def counted_again(ledger: QuotaLedger, *, waiting: int) -> QuotaLedger:
    """Return the ledger as a count writes it: the gangs that wait have what is held for them."""
    stored = StoredObject({}, waits=True)
    objects = {uid(pod): stored for pod in range(2)} if waiting else {}
    listed = listing(objects, waiting=waiting, catalogue=CATALOGUE)
    counted = reconcile(ledger, listed, frozenset())
    assert isinstance(counted, Reconciled)
    return counted.ledger


def team_of(facts: dict[str, str]) -> TeamLedgers:
    guaranteed = zip((A, B), numbers(facts["guaranteed"]), strict=True)
    of_both = ledgers_of(facts["ledgers"], int(facts.get("closes", 0)), int(facts["big"]))
    ledgers = zip((A, B), of_both, strict=True)
    return TeamLedgers(
        Team(
            name="team",
            uid="uid",
            generation=1,
            hard=limit(int(facts["hard"])),
            guaranteed={namespace: {"gpus": Fraction(amount)} for namespace, amount in guaranteed},
        ),
        {
            namespace: ledger
            for number, (namespace, ledger) in enumerate(ledgers)
            if has(facts["has"], number)
        },
        frozenset(namespace for number, namespace in enumerate((A, B)) if has(facts["leaving"], number)),
    )


def ledgers_of(text: str, closes: int = 0, big: int = 0) -> list[QuotaLedger]:
    """Return the ledgers of the namespaces in order, or one of A. big: a bit for each pod that counts 2."""
    return [
        ledger_of(
            namespace, [int(number) for number in each.split("/")], closes if namespace == A else 0, big
        )
        for namespace, each in zip((A, B), filter(None, text.split(",")), strict=False)
    ]


def ledger_of(namespace: str, parts: list[int], closes: int, big: int) -> QuotaLedger:
    counted, used, reserved, has_key, hard, held, small = parts[:7]
    gpus = used.bit_count() + (used & big).bit_count() - small.bit_count()
    amounts = {"gpus": Fraction(gpus)} if has_key or hard != UNLIMITED else {}
    return quota_ledger(
        *(
            Reservation(uid(pod), demand(pod, big), name=name_of(pod, namespace))
            for pod in range(4)
            if reserved >> pod & 1
        ),
        *(Reservation(lift_id(uid(pod)), ONE) for pod in range(4) if held >> pod & 1),
        hard=limit(hard),
        used=amounts if counted else None,
        waiting_for_team=closes,
        class_catalogue=CATALOGUE,
    )


def demand(pod: int, big: int) -> Amounts:
    return {"gpus": Fraction(1 + (big >> pod & 1))}


def limit(amount: int) -> Amounts:
    return {} if amount == UNLIMITED else {"gpus": Fraction(amount)}


def has(mask: str, number: int) -> bool:
    return bool(int(mask) >> number & 1)


def uid(pod: int) -> str:
    return f"pod-{pod}"


def name_of(pod: int, namespace: str) -> str:
    """Return the name of a pod: the first one of B has the name of the first one of A."""
    return f"pods/{(pod - 1) // 2 if namespace == B else pod}"
