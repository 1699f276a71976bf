"""Runs of the models of the quota protocol in spin, and the facts that they print."""

import re
import subprocess
from pathlib import Path

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import Reconciled, Refused

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests" / "model" / "quota.pml"
WAITING = MODEL.with_name("waiting.pml")
TEAMS = MODEL.with_name("teams.pml")

RULE, INSTANCE = (
    re.compile(r"^#ifndef (\w+)\n#define \1 1\n#endif$", re.MULTILINE),
    re.compile(r"^#ifdef (\w+)  ", re.MULTILINE),
)

MAX_RUNS = 80


def run(model: Path, instance: str, seed: int, folder: Path) -> list[str]:
    """Return what a random run of the model printed."""
    command = ["spin", "-T", f"-D{instance}", f"-n{seed}", "-u3000", str(model)]
    printed = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    ).stdout
    return [
        line.strip()
        for line in printed.splitlines()
        if line.strip().startswith(("decide", "settle", "turn", "step"))
    ]


def written(before: QuotaLedger, result: Reconciled | Refused) -> QuotaLedger:
    """Return the ledger after the count: one that is only newer is not written, as in `QuotaReconciler._write`."""
    if (
        isinstance(result, Refused)
        or msgspec.structs.replace(result.ledger, revisions=before.revisions) == before
    ):
        return before
    return result.ledger


def facts_of(line: str) -> dict[str, str]:
    return dict(fact.split("=", 1) for fact in line.split() if "=" in fact)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
