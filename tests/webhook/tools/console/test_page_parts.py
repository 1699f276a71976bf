"""What pages show of teams, budgets and GPUs that do no work, and words that views put together."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.cases import cases
from tests.webhook.commands.teams import SHARE, TEAM, UNCOUNTED
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
from webhook.cluster.api import ApiClient
from webhook.quota.documents import IdleGPUs, IdleHolder
from webhook.tools.console import app as console
from webhook.tools.console.views import in_force, members, summary
from webhook.tools.doctor.check import DoctorFinding, failure, warning
from webhook.tools.status.report import (
    ClusterStatus,
    Health,
    InstallationPart,
    InstallationStatus,
    PolicyStatus,
)
from webhook.tools.status.summaries import (
    BudgetRow,
    BudgetSummary,
    QuotaHolder,
    QuotaRow,
    QuotaState,
    QuotaSummary,
    TeamSummary,
)

CV = quota(
    1,
    namespace="vision-cv",
    team=SHARE,
    rows=(QuotaRow(key="gpus", hard=Fraction(16), used=Fraction(7)),),
    holders=(QuotaHolder(name="Job/train", held={"gpus": Fraction(7)}),),
)
OTHER = quota(2, namespace="other")


def seen(
    *teams: TeamSummary, quotas: tuple[Any, ...] = (CV, OTHER), is_tenant: bool = False
) -> ClusterStatus:
    return replace(status(quotas), teams=None if is_tenant else teams)


def test_the_overview_lists_teams_with_problems_first_and_then_the_fullest() -> None:
    full = replace(TEAM, name="team-full", rows=(replace(TEAM.rows[0], used=Fraction(64)),))
    text = shown("/", {}, seen(TEAM, full, UNCOUNTED))

    assert re.findall(r'href="/teams/([^"]+)"', text) == ["team-audio", "team-full", "team-vision"]
    assert "20&nbsp;namespaces" in text


@cases(
    ("found",),
    may_not_be_read=(seen(is_tenant=True),),
    there_are_none=(seen(),),
)
def test_the_overview_says_nothing_of_teams(found: ClusterStatus) -> None:
    assert 'id="teams"' not in shown("/", {}, found)


def test_many_teams_have_a_page_of_their_own() -> None:
    teams = [replace(TEAM, name=f"team-{number:03}") for number in range(200)]
    overview = shown("/", {}, seen(*teams))
    first, last = (shown("/teams", query, seen(*teams)) for query in ({}, {"page": "4"}))

    assert overview.count('href="/teams/') == 10
    assert '<a class="link small" href="/teams">all 200</a>' in overview
    assert (first.count('href="/teams/'), last.count('href="/teams/')) == (50, 50)
    assert ("page 1 of 4" in first, "team-199" in last, 'href="?page=3#teams"' in last) == (True, True, True)


@cases(
    ("search", "want"),
    the_name_of_a_team=("AUDIO", ["team-audio"]),
    a_namespace_with_a_quota=("cv", ["team-vision"]),
    a_namespace_among_the_largest=("vision-lab", ["team-audio", "team-vision"]),
    words_of_several_names=("prod cv", []),
)
def test_a_team_is_found_by_its_name_or_by_one_of_its_namespaces(search: str, want: list[str]) -> None:
    audio = replace(UNCOUNTED, largest=(QuotaHolder(name="vision-lab", held={}),))
    others = (replace(TEAM, name=f"team-{number:03}", largest=()) for number in range(60))
    text = shown("/teams", {"search": search}, seen(TEAM, audio, *others))

    assert re.findall(r'href="/teams/([^"]+)"', text) == want
    assert f"{len(want)} of 62 teams" in text


def test_a_team_of_many_namespaces_has_pages() -> None:
    named = [replace(CV, namespace=f"vision-{number:03}") for number in range(120)]
    found = seen(TEAM, quotas=tuple(named))
    first, last = (shown("/teams/team-vision", query, found) for query in ({}, {"page": "3"}))

    assert (first.count('href="/quotas/'), last.count('href="/quotas/')) == (48, 22)
    assert 'href="?page=2#namespaces"' in first


def test_a_team_shows_its_namespaces_and_their_holders() -> None:
    text = shown("/teams/team-vision", {}, seen(TEAM))

    assert re.findall(r'<td>(?:<a class="name" href="/quotas/[^"]+">)?([a-z-]+)<', text) == [
        "vision-prod",
        "vision-lab",
        "vision-cv",
        "vision-web",
    ]
    assert "Job/train" in text
    assert "its namespaces are granted 120 of 64 GPUs: first come, first served" in text
    assert "4 GPUs guaranteed and not used" in text
    assert "4 of 20, those with the most GPUs first" in text


def test_a_guarantee_does_not_read_as_use() -> None:
    largest = (
        QuotaHolder(name="vision-cv", held={"gpus": Fraction(8)}, guaranteed=True),
        QuotaHolder(name="vision-lab", held={"gpus": Fraction(15)}),
    )
    text = shown("/teams/team-vision", {}, seen(replace(TEAM, largest=largest)))

    amounts = re.findall(r'<td class="of-amount number">(.*?)</td>', text)
    assert [re.sub("<[^>]*>", "", each) for each in amounts] == ["15", "8 (guaranteed) of 16"]


def test_a_team_shows_whom_to_ask_and_what_its_namespaces_are_granted() -> None:
    team = replace(TEAM, granted={"gpus": Fraction(40)}, contact="#vision <leads>")
    text = shown("/teams/team-vision", {}, seen(team))

    assert '<li class="wrap soft">its namespaces are granted 40 of 64 GPUs</li>' in text
    assert "contact: #vision &lt;leads&gt;" in text
    assert "contact:" not in shown("/teams/team-vision", {}, seen(TEAM))


def test_a_tenant_sees_the_namespaces_of_the_team_that_he_may_read() -> None:
    text = shown("/teams/team-vision", {}, seen(is_tenant=True))

    assert re.findall(r'href="/quotas/([^"]+)"', text) == ["vision-cv"]
    assert "vision-prod" not in text


def test_a_team_that_nobody_knows() -> None:
    text = shown("/teams/team-x", {}, seen(TEAM), code=404)

    assert "There is no ClusterGPUQuota team-x, or you may not read it." in text


def test_the_page_of_a_quota_says_what_its_team_has_left() -> None:
    text = shown("/quotas/vision-cv", {}, seen(is_tenant=True))

    assert '<a href="/teams/team-vision">its namespaces</a>' in text
    assert "ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40" in text
    assert 'id="team"' not in shown("/quotas/other", {}, seen(is_tenant=True))


def test_what_a_namespace_has_is_what_it_holds_or_is_guaranteed() -> None:
    largest = (QuotaHolder(name="vision-cv", held={"gpus": Fraction(8)}),)
    (row,) = members(seen(replace(TEAM, largest=largest)), "team-vision")

    assert not row.is_guaranteed
    assert (row.namespace, row.gpus, row.of, row.quota) == ("vision-cv", Fraction(8), Fraction(64), CV)
    assert row.quota is not None
    assert row.quota.state is QuotaState.READY


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


@cases(
    ("fields", "want"),
    in_force=({}, ""),
    paused=(
        {"paused_until": datetime(2026, 11, 22, 9, tzinfo=UTC)},
        '<span class="pill warn">paused until 2026-11-22 09:00 UTC</span>',
    ),
    not_in_force=({"in_force": False}, '<span class="pill bad">not in force</span>'),
)
def test_whether_a_policy_is_in_force(fields: dict[str, Any], want: str) -> None:
    policy = PolicyStatus(
        **{"name": "p", "version": "1", "priority": 0, "where": "*", "in_force": True, **fields}
    )

    assert str(in_force(policy)) == want


ERROR, WARNING = (make("id", "Node a", "is wrong", "correct it") for make in (failure, warning))


@cases(
    ("findings", "for_administrators", "want"),
    none=((), False, "no findings"),
    one_of_each=((ERROR, WARNING), False, "1 error, 1 warning"),
    several=((WARNING, WARNING), False, "2 warnings"),
    nothing_that_the_caller_may_read=((ERROR,), True, ""),
)
def test_the_findings_in_a_phrase(
    findings: tuple[DoctorFinding, ...], for_administrators: bool, want: str
) -> None:
    part = InstallationPart(name="webhook", health=Health.OK, text="", for_administrators=for_administrators)
    status: Any = type("Status", (), {"installation": InstallationStatus(parts=(part,), findings=findings)})

    assert summary(cast(ClusterStatus, status)) == want


@pytest.mark.parametrize("requested", ["job", "job/", "/train"])
def test_an_object_that_is_none(requested: str) -> None:
    problem = f'"{requested}" must be KIND/NAME, such as job/train'

    assert console._why_content(cast(ApiClient, None), requested, "", "home") == {"problem": problem}
