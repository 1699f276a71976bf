"""The model of the quota protocol describes this code: the code decides and counts as its runs do.

Runs that spin draws at random are replayed with `policies.quota.ledger`; names are compared without spin.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings

from policies.quota.amounts import Amounts, maximum, total
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.decide import ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import QuotaLedger, Revisions
from policies.quota.ledger.reconcile import Listing, Reconciled, Refused, StoredObject, initialise, reconcile
from policies.quota.ledger.reservations import UNREADABLE, Reservations
from tests.builders import listing
from tests.models import (
    INSTANCE,
    MAX_RUNS,
    MODEL,
    ROOT,
    RULE,
    TEAMS,
    WAITING,
    facts_of,
    numbers,
    run,
    written,
)
from tests.reservation_requests import change_request, creation_request
from tests.webhook.quota.histories.every import HISTORIES

APART = MODEL.with_name("apart.pml")
BUDGET = MODEL.with_name("budget.pml")
TEXT = "".join(each.read_text() for each in (MODEL, WAITING, APART, BUDGET, TEAMS))
INSTANCES = INSTANCE.findall(MODEL.read_text())
EXPLAINED = re.compile(r"^/\* ([^*]+) \*/\n#ifndef ([A-Z_]+)$", re.MULTILINE)
STANDS_FOR = re.compile(r"/\* ([a-z_/]+\.py): (\w+(?:\.\w+)*(?:, \w+(?:\.\w+)*)*)")
KEYS = ("gpus", "classes/a")
UNLIMITED, TERMINAL = 3, 255
NOW, NEXT = "now", "next"
FULL, BY_BOTH, BY_NEXT = 1, 3, 4


# ---- names


def test_what_an_inline_stands_for_exists() -> None:
    named = [(path, name) for path, names in STANDS_FOR.findall(TEXT) for name in names.split(", ")]

    assert len(named) > 10
    assert [(path, name) for path, name in named if name not in definitions(ROOT / path)] == []


def definitions(path: Path) -> set[str]:
    """Return the names of the functions and methods of a module."""
    return set(defined_in(ast.parse(path.read_text()), ""))


def defined_in(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from defined_in(child, f"{child.name}.")


@pytest.mark.parametrize("answer", [*VerdictReason, *Refused], ids=str)
def test_every_answer_is_modelled_or_said_not_to_be(answer: VerdictReason | Refused) -> None:
    assert str(answer) in TEXT


@pytest.mark.parametrize(
    ("model", "mutants"),
    [
        (MODEL, "MUTANTS"),
        (WAITING, "WAITING_MUTANTS"),
        (APART, "APART_MUTANTS"),
        (BUDGET, "BUDGET_MUTANTS"),
        (TEAMS, "TEAMS_MUTANTS"),
    ],
    ids=["quota", "waiting", "apart", "budget", "teams"],
)
def test_every_rule_of_a_model_is_taken_out_and_explained(model: Path, mutants: str) -> None:
    text = model.read_text()

    assert taken_out(mutants) - set(INSTANCE.findall(text)) == rules(model)
    assert {
        rule for why, rule in EXPLAINED.findall(text) if "; without it: " in " ".join(why.split())
    } == rules(model)


def test_every_rule_of_a_quota_is_replayed() -> None:
    replayed = {
        rule: why.rpartition("Replayed:")[2].strip() for why, rule in EXPLAINED.findall(MODEL.read_text())
    }

    assert replayed.keys() == rules(MODEL)
    assert set(replayed.values()) - {history.__name__ for history in HISTORIES} == set()


def rules(model: Path) -> set[str]:
    return set(RULE.findall(model.read_text().split("/* ---- Instances")[0]))


def taken_out(mutants: str) -> set[str]:
    """Return the names in one of the lists of mutants of `tests/model/run`."""
    listed = (MODEL.parent / "run").read_text().split(f"\n{mutants} = (\n")[1].split("\n)\n")[0]
    return set(re.findall(r'"([A-Z_]+)"', listed))


# ---- runs


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed")
@pytest.mark.parametrize("instance", INSTANCES)
def test_the_code_decides_and_counts_as_the_model_does(instance: str, tmp_path: Path) -> None:
    lines, kinds = [], set[str]()
    for seed in range(1, MAX_RUNS):  # where the quota is yet to be created, few runs come to a decision
        lines += run(MODEL, instance, seed, tmp_path)
        kinds = {line.split()[0] for line in lines}
        if seed >= settings().max_examples // 8 and kinds == {"decide", "settle"}:
            break

    assert kinds == {"decide", "settle"}
    for line in lines:
        (replay_decision if line.startswith("decide") else replay_count)(line)


def replay_decision(line: str) -> None:
    facts = facts_of(line)
    number, before = int(facts["request"]), ledger_of(facts)
    requested = requests(
        facts, knows_next=facts["knows_next"] == "1", catalogue_versions=before.catalogue_versions
    )[number]

    (verdict,) = decide(before, [requested]).verdicts

    assert verdict.reason.name == facts["verdict"].removesuffix("_LEDGER"), line


def replay_count(line: str) -> None:
    state, after = line.split(" then ")
    facts, expected = facts_of(state), ledger_of(facts_of(after))
    before, listing = ledger_of(facts), listing_of(facts, expected.class_catalogue or "")
    ids = [
        UNREADABLE + unreadable(number) if number == int(facts["unreadable"]) else requested.reservation.id
        for number, requested in enumerate(requests(facts))
    ]
    matured = frozenset(
        each for each, is_matured in zip(ids, numbers(facts["matured"]), strict=True) if is_matured
    )

    if before.used is None or before.uncounted:
        if begun_before(facts):
            assert facts["counts"] == "0", line  # a controller lists again first
            return
        result = initialise(before, listing, matured, waited=facts["waited"] == "1")
    else:
        result = reconcile(before, listing, matured)

    assert isinstance(result, Reconciled) == (facts["counts"] == "1"), line
    assert written(before, result) == expected, line


def vector(code: int) -> Amounts:
    amounts = {key: Fraction(code >> 2 * place & 3) for place, key in enumerate(KEYS)}
    return {key: amount for key, amount in amounts.items() if amount}


def requests(
    facts: dict[str, str], *, knows_next: bool = False, catalogue_versions: frozenset[str] = frozenset()
) -> list[ReservationRequest]:
    """Return what each request of the instance asks; those beyond the objects change object 0.

    Of a ledger with these `catalogue_versions`, by a serve that knows the next one or does not.
    """
    objects, counted_by = len(numbers(facts["used"])), catalogue_versions if knows_next else {NOW}
    requested = []
    for number, entry in enumerate(filter(None, facts["entries"].split(","))):
        _, base, after, version, by_next = (int(part) for part in entry.split("/"))
        if number < objects:
            costs = {NOW: vector(after), NEXT: vector(by_next)}
            demand = maximum(costs[catalogue_version] for catalogue_version in counted_by or {NOW})
            uid, name = f"object-{number}", name_of(number, facts)
            requested.append(creation_request(uid, demand, *counted_by, name=name))
        else:
            requested.append(
                change_request(
                    "object-0", str(number), vector(base), vector(after), *counted_by, version=version
                )
            )
    return requested


def name_of(number: int, facts: dict[str, str]) -> str:
    return "pods/one-name" if number < int(facts["of_one_name"]) else f"pods/name-{number}"


def unreadable(number: int) -> str:
    return f"what was written about object {number}"


def entries_of(facts: dict[str, str]) -> Reservations:
    kinds = [int(entry.split("/")[0]) for entry in facts["entries"].split(",") if entry]
    by = {
        FULL: requests(facts, knows_next=True, catalogue_versions=frozenset({NOW})),
        BY_BOTH: requests(facts, knows_next=True, catalogue_versions=frozenset({NOW, NEXT})),
        BY_NEXT: requests(facts, knows_next=True, catalogue_versions=frozenset({NEXT})),
    }
    entries, lines = [], []
    for number, kind in enumerate(kinds):
        if kind and number == int(facts["unreadable"]):
            lines.append(unreadable(number))
        elif kind:
            reservation = by[kind][number].reservation
            marked = msgspec.structs.replace(reservation, catalogue=NEXT if kind == BY_BOTH else "")
            entries.append(marked)
    return Reservations.parse("\n".join([*Reservations.of(*entries).text.splitlines(), *lines]))


def ledger_of(facts: dict[str, str]) -> QuotaLedger:
    limits = dict(zip(KEYS, numbers(facts["hard"]), strict=True))
    hard = {key: Fraction(limit) for key, limit in limits.items() if limit != UNLIMITED}
    known = {KEYS[0], KEYS[1]} if facts["second_key"] == "1" else {KEYS[0]}
    counted = total(vector(code) for code in numbers(facts["used"]))
    stored = vector(int(facts["stored_name"]))
    counted_by_next, moving = facts["counted_by_next"] == "1", facts["moving"] == "1"
    return QuotaLedger(
        ledger_uid=facts["ledger_uid"],
        quota_uid=facts["uid"],
        generation=int(facts["generation"]),
        hard=hard,
        unclassified_pods=UnclassifiedPods.TOTAL_ONLY,
        used={key: counted.get(key, Fraction(0)) for key in known} if facts["counted"] == "1" else None,
        stored_names={"pods/one-name": stored} if stored else {},
        reservations=entries_of(facts),
        revisions=Revisions(*numbers(facts["revisions"])),
        class_catalogue=NEXT if counted_by_next else NOW,
        next_catalogue=NEXT if moving else None,
    )


def begun_before(facts: dict[str, str]) -> bool:
    """Whether one of the lists began before the ledger was seen with its present spec."""
    spec = [int(facts[each]) for each in ("ledger_uid", "uid", "generation")]
    return any(each[1:] != spec for each in lists_of(facts))


def lists_of(facts: dict[str, str]) -> list[list[int]]:
    """Return of each list its revision, and the ledger, the quota and its generation that were seen before it began."""
    return [[int(part) for part in each.split("/")] for each in facts["listed"].split(",") if each]


def listing_of(facts: dict[str, str], catalogue_version: str) -> Listing:
    """Return what the lists show together."""
    shown = [tuple(int(part) for part in each.split("/")) for each in facts["shown"].split(",") if each]
    by_next = [int(entry.split("/")[-1]) for entry in facts["entries"].split(",") if entry]
    objects = {
        f"object-{number}": StoredObject(
            {} if code == TERMINAL else vector(by_next[number] if catalogue_version == NEXT else code),
            terminal=code == TERMINAL,
            version=version,
            name=name_of(number, facts),
        )
        for number, (code, version) in enumerate(shown)
        if code
    }
    revisions = Revisions(*(revision for revision, *_ in lists_of(facts)))
    return listing(objects, revisions, catalogue=catalogue_version)
