"""The model of teams (tests/model/teams.pml) describes this code: the code decides alike.

Runs that spin draws at random are replayed. Names are compared by tests/test_model.py.
"""

import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec.structs import replace

from policies.quota.amounts import Vector
from policies.quota.ledger.decide import Line, decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation, lift_id
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.reservation_requests import creation_request
from tests.test_model import INSTANCE, MAX_RUNS, TEAMS, facts_of, numbers, run

CATALOGUE = "c"
A, B = "a", "b"
UNLIMITED = 9
ONE: Vector = {"gpus": Fraction(1)}


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed")
@pytest.mark.parametrize("instance", INSTANCE.findall(TEAMS.read_text()))
def test_the_code_decides_as_the_model_does(instance: str, tmp_path: Path) -> None:
    lines: list[str] = []
    for seed in range(1, MAX_RUNS):
        lines += [line for line in run(TEAMS, instance, seed, tmp_path) if line.startswith("decide")]
        if seed >= settings().max_examples // 8 and any("team=1" in line for line in lines):
            break

    assert any("team=1" in line for line in lines)
    for line in lines:
        replay_decision(line)


def replay_decision(line: str) -> None:
    facts = facts_of(line)
    namespace, pod = (A, B)[int(facts["namespace"])], int(facts["pod"])
    (own,) = ledgers_of(facts["own"])
    ledger = own if facts["team"] == "0" else team_of(facts).of(namespace)
    assert ledger is not None

    asked = creation_request(uid(pod), ONE, CATALOGUE, name=name_of(pod, namespace))
    if "lift" in facts:
        lift = Reservation(lift_id(uid(pod), "request"), ONE, 1)
        asked = replace(asked, reservation=lift, line=Line.LIFTS)
    (verdict,) = decide(ledger, [asked]).verdicts

    exceeded = "TEAM_" * any(each.team for each in verdict.shortfalls[:1])
    assert exceeded + verdict.reason.name == facts["verdict"].removesuffix("_LEDGER"), line


def team_of(facts: dict[str, str]) -> TeamLedgers:
    guaranteed = zip((A, B), numbers(facts["guaranteed"]), strict=True)
    ledgers = zip((A, B), ledgers_of(facts["ledgers"]), strict=True)
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


def ledgers_of(text: str) -> list[QuotaLedger]:
    """Return the ledgers of the namespaces in order, or one of A."""
    return [
        ledger_of(namespace, [int(number) for number in each.split("/")])
        for namespace, each in zip((A, B), filter(None, text.split(",")), strict=False)
    ]


def ledger_of(namespace: str, parts: list[int]) -> QuotaLedger:
    counted, used, reserved, has_key, hard, held = parts[:6]
    amounts = {"gpus": Fraction(used.bit_count())} if has_key or hard != UNLIMITED else {}
    return quota_ledger(
        *(
            Reservation(uid(pod), ONE, name=name_of(pod, namespace))
            for pod in range(3)
            if reserved >> pod & 1
        ),
        *(Reservation(lift_id(uid(pod)), ONE) for pod in range(3) if held >> pod & 1),
        hard=limit(hard),
        used=amounts if counted else None,
        class_catalogue=CATALOGUE,
    )


def limit(amount: int) -> Vector:
    return {} if amount == UNLIMITED else {"gpus": Fraction(amount)}


def has(mask: str, number: int) -> bool:
    return bool(int(mask) >> number & 1)


def uid(pod: int) -> str:
    return f"pod-{pod}"


def name_of(pod: int, namespace: str) -> str:
    """Return the name of a pod: that of B has the name of the first one of A."""
    return "pods/0" if namespace == B else f"pods/{pod}"
