"""Pages of teams: for who may list ClusterGPUQuotas, and for a tenant, who sees the namespaces that he may read."""

import re
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from tests.cases import cases
from tests.webhook.commands.teams import SHARE, TEAM, UNCOUNTED
from tests.webhook.tools.console.shown import quota, shown, status
from webhook.tools.console.views import members
from webhook.tools.status.report import ClusterStatus
from webhook.tools.status.summaries import QuotaHolder, QuotaRow, QuotaState, TeamSummary

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
