"""What pages show of GPUs that do no work: pending pods and idle holders; and of budgets."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from tests.cases import cases
from tests.webhook.tools.console.shown import (
    BY_NAME,
    NOW,
    QUOTAS,
    names,
    pending,
    quota,
    shown,
    status,
    teams,
)
from webhook.quota.documents import IdleGPUs, IdleHolder
from webhook.tools.status.summaries import BudgetRow, BudgetSummary, QuotaSummary


def test_pending_pods_that_hold_quota_are_shown_the_longest_first() -> None:
    owners = [pending("team-498", f"Job/{n}", NOW - timedelta(hours=n), n) for n in range(7, 1, -1)]
    held_up = quota(498, pending=tuple(owners), is_held_up=True)
    overview, page = (shown(path, {}, status((held_up, *QUOTAS[:3]))) for path in ("/", "/quotas/team-498"))

    assert re.findall(r"<strong>(Job/\d)</strong>", overview.partition('id="denials"')[0]) == [
        f"Job/{n}" for n in (7, 6, 5, 4, 3)
    ]
    assert re.findall(r"<strong>(Job/\d)</strong>", page) == [f"Job/{n}" for n in (7, 6, 5, 4, 3, 2)]
    assert [text.count("no &lt;node&gt;") for text in (overview, page)] == [5, 6]
    assert names(overview)[0] == "team-498"


def idle(number: int, *holders: IdleHolder, **tweaks: Any) -> QuotaSummary:
    gpus = sum((each.gpus for each in holders), Fraction(0))
    return quota(number, idle=IdleGPUs(gpus=gpus, holders=holders), **tweaks)


def twenty_hours_idle(name: str, gpus: int) -> IdleHolder:
    return IdleHolder(name, Fraction(gpus), (datetime.now(UTC) - timedelta(hours=20)).isoformat())


def idle_quotas() -> tuple[QuotaSummary, ...]:
    return (
        idle(1, twenty_hours_idle("Notebook/ana", 2), twenty_hours_idle("Job/<old>", 1)),
        *(idle(number) for number in range(2, 12)),
        idle(12, twenty_hours_idle("Notebook/eve", 4)),
    )


@cases(
    ("query", "want"),
    only_idle=({"idle": "1", **BY_NAME}, teams(1, 12)),
    most_idle_first=({"sort": "most idle first"}, teams(12, 1, *range(2, 12))),
)
def test_quotas_with_idle_gpus(query: Mapping[str, str], want: list[str]) -> None:
    text = shown("/", query, status(idle_quotas()))

    assert names(text) == want
    cells = re.findall(r'<td class="of-idle number( none)?">([^<]+)</td>', text)
    assert dict(zip(want, cells, strict=True))["team-001"] == ("", "3")


def test_idle_holders_are_listed_with_what_they_lost() -> None:
    overview, page = (shown(path, {}, status(idle_quotas())) for path in ("/", "/quotas/team-001"))

    lost = re.compile(r"<strong>([^<]+)</strong>.*?· ([\d.]+ GPU-hours?) lost", re.DOTALL)
    cards = [text.partition('id="idle"')[2].partition("</section>")[0] for text in (overview, page)]
    assert [lost.findall(card) for card in cards] == [
        [
            ("Notebook/eve", "80 GPU-hours"),
            ("Notebook/ana", "40 GPU-hours"),
            ("Job/&lt;old&gt;", "20 GPU-hours"),
        ],
        [("Notebook/ana", "40 GPU-hours"), ("Job/&lt;old&gt;", "20 GPU-hours")],
    ]
    assert ["140 GPU-hours lost" in cards[0], "60 GPU-hours lost" in cards[1]] == [True, True]
    assert "7 of them idle" in overview


@cases(
    ("found", "want"),
    not_measured=(quota(1, idle=IdleGPUs(measured="<prometheus> does not answer")), True),
    not_to_be_measured=(quota(1), False),
)
def test_where_use_is_not_measured_nobody_is_called_idle(found: QuotaSummary, want: bool) -> None:
    for path in ("/", "/quotas/team-001"):
        text = shown(path, {}, status((found,)))
        assert ("&lt;prometheus&gt; does not answer" in text) is want
        assert ('id="idle"' in text) is want
        assert ('<th class="number">Idle</th>' in text) is (want and path == "/")
        assert "lost" not in text.partition("<main")[2]


def test_the_budget_of_a_quota() -> None:
    rows = (
        BudgetRow(key="gpus", granted=Fraction(5000), used=Fraction(8421, 2), unknown=Fraction(12)),
        BudgetRow(key="classes/nvidia-t4", granted=Fraction(800), used=Fraction(800), unknown=Fraction(0)),
    )
    end = NOW + timedelta(days=1)
    budget = BudgetSummary(period="month", start=NOW, end=end, until=NOW, rows=rows, message="<denied>")
    found = status((quota(1, budget=budget),))
    page, overview = shown("/quotas/team-001", {}, found), shown("/", {}, found)

    card = page.partition('id="budget"')[2].partition("</section>")[0]
    cells = re.findall(r'<b>([^<]+)</b> <span class="soft">of ([^<]+)<', card)
    assert cells == [("4210.5", "5000"), ("800", "800")]
    assert re.findall(r'<svg class="bar ([a-z]*)"', card) == ["full", "over"]
    assert "GPU-hours this month" in card
    assert "&lt;denied&gt;" in card
    assert "12 GPU-hours more may have been used" in card
    assert '<span class="over">GPU-hours of nvidia-t4 800/800</span>' in overview
    assert 'id="budget"' not in shown("/quotas/team-001", {}, status((quota(1),)))
