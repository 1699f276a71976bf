"""Teams in the text of `gpu-admission quota` and `gpu-admission status`."""

from datetime import UTC, datetime
from fractions import Fraction

import pytest
from msgspec.structs import replace

from policies.quota.amounts import Hard
from policies.quota.spec import QuotaSpec
from tests.cases import cases
from tests.policies.quota.team_denials import OWN, PROD, amounts
from tests.webhook.commands.statuses import plain, printed, status
from tests.webhook.commands.teams import SHARE, TEAM, UNCOUNTED
from webhook.commands import quota as command
from webhook.commands import why
from webhook.commands.output import Screen
from webhook.commands.quota import QuotaReports, document
from webhook.commands.quota_text import team_limits
from webhook.quota.documents import QuotaRecord, TeamView
from webhook.tools.granted_text import overcommitted_text
from webhook.tools.status.report import only_problems
from webhook.tools.status.summaries import QuotaState, QuotaSummary, TeamSummary
from webhook.tools.status.team_text import is_exhausted, team_view_text
from webhook.tools.why.explanation import QuotaDemand, QuotaFit

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
assert SHARE is not None

pytestmark = pytest.mark.usefixtures("eighty_columns")


@cases(
    ("share", "want", "short"),
    some_is_free=(
        SHARE,
        "ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40, vision-lab 15, vision-cv 7; contact: "
        "#vision-leads",
        False,
    ),
    of_a_class_nothing_is_free=(
        TeamView(
            name="t",
            hard=amounts({"gpus": 8, "classes/nvidia-a100": 2}),
            free=amounts({"gpus": 8, "classes/nvidia-a100": 0}),
        ),
        "ClusterGPUQuota t has 8 of 8 GPUs free, 0 of 2 nvidia-a100 free",
        True,
    ),
    a_team_that_grants_nothing=(
        TeamView(name="t", hard=amounts({"gpus": 0}), free=amounts({"gpus": 0})),
        "ClusterGPUQuota t has 0 of 0 GPUs free",
        False,
    ),
)
def test_what_a_namespace_sees(share: TeamView, want: str, short: bool) -> None:
    assert (team_view_text(share), is_exhausted(share)) == (want, short)


@cases(
    ("granted", "want"),
    more=({"gpus": 120}, "its namespaces are granted 120 of 64 GPUs: first come, first served"),
    as_much=({"gpus": 64}, ""),
    none_has_a_quota=({}, ""),
    what_the_team_does_not_limit=({"classes/nvidia-a100": 9}, ""),
)
def test_quotas_that_grant_more_than_the_team(granted: dict[str, int], want: str) -> None:
    assert overcommitted_text(amounts(granted), amounts({"gpus": 64})) == want


TEAMS = """\
teams                      ▄ pending ▒ reserved     used + reserved of hard
  team-audio  NotCounted, 2 namespaces
    1 of 2 namespaces is not counted yet
    gpus                   ························ ? + 0 of 8
  team-vision  Ready, 20 namespaces
    gpus                   ██████████████████████▒· 61 + 1 of 64
    largest: vision-prod 40, vision-lab 12, vision-cv 7 and 17 more; 4 GPUs
      guaranteed and not used; its namespaces are granted 120 of 64 GPUs: first
      come, first served
"""


def test_status_shows_teams_below_quotas(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(status(teams=(TEAM, UNCOUNTED)), capsys)

    assert TEAMS in text
    assert text.index("\nquotas ") < text.index("\nteams ") < text.index("\npending pods ")


@pytest.mark.parametrize("teams", [None, ()], ids=["may-not-be-read", "there-are-none"])
def test_status_says_nothing_of_teams(
    teams: tuple[TeamSummary, ...] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "teams" not in printed(status(teams=teams), capsys)


def test_of_teams_only_those_with_problems() -> None:
    found = only_problems(status(teams=(TEAM, UNCOUNTED)))

    assert found.teams == (UNCOUNTED,)


def test_status_says_in_each_quota_what_its_team_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    quota = QuotaSummary(namespace=OWN, state=QuotaState.READY, team=SHARE)
    text = printed(status(quotas=(quota,)), capsys)

    assert (
        "  vision-cv  Ready\n    ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40,\n"
        in text
    )
    assert plain(quota)["team"]["free"] == {"gpus": "2"}


def test_many_teams_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    teams = tuple(replace(TEAM, name=f"team-{number:02}") for number in range(22))
    assert "  and 2 teams more; -o json has all\n" in printed(status(teams=teams), capsys)


HEADING = "teams                            ▄ pending ▒ reserved     used + reserved of hard"


def reports(*teams: TeamSummary) -> QuotaReports:
    return QuotaReports((), None, (), teams)


@cases(("problems", "shown"), all=(False, True), with_problems=(True, False))
def test_quota_shows_teams_below_namespaces(
    problems: bool, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    command.print_table(Screen(), reports(TEAM, UNCOUNTED), (), NOW, problems=problems)
    text = capsys.readouterr().out

    assert (
        f"\n{HEADING}\nteam-audio  NotCounted, 2 namespaces\n  1 of 2 namespaces is not counted yet\n  gpus "
        in text
    )
    assert ("\nteam-vision  Ready, 20 namespaces\n  gpus " in text) is shown


def test_quota_of_one_namespace_says_what_its_team_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    spec = QuotaSpec(hard=Hard(gpus=8))
    record = QuotaRecord(namespace=OWN, uid="q", version="1", spec=spec)
    record = replace(record, status=replace(record.status, team=SHARE))
    report = command.QuotaReport(record, QuotaSummary(namespace=OWN, state=QuotaState.READY), None)

    command.print_text(Screen(), QuotaReports((report,), None, ()), NOW)

    assert "  ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40," in (
        capsys.readouterr().out
    )
    [found] = plain(document(QuotaReports((report,), None, ())))["quotas"]
    assert (found["team"]["name"], found["team"]["free"]) == ("team-vision", {"gpus": "2"})


ALONE = "there is no GPUQuota{}; ClusterGPUQuota team-vision limits it: 61 of 64 GPUs used"


def test_quota_of_a_namespace_without_one_shows_its_team(capsys: pytest.CaptureFixture[str]) -> None:
    command.print_text(Screen(), reports(TEAM), NOW)
    text = capsys.readouterr().out

    assert text.partition("\n\n")[0].replace("\n  ", " ") == ALONE.format("")
    assert "\nteam-vision  Ready, 20 namespaces\n  gpus " in text


@cases(
    ("namespaces", "want"),
    one=(("vision-web",), ALONE.format(" in vision-web")),
    several=(("vision-web", "vision-lab"), "there is no GPUQuota in vision-web, vision-lab teams"),
)
def test_status_of_a_namespace_without_a_quota_shows_its_team(
    namespaces: tuple[str, ...], want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(status(quotas=(), namespaces=namespaces, teams=(TEAM,)), capsys)

    assert f" {want} " in " ".join(text.split())
    assert "\n  team-vision  Ready, 20 namespaces\n    gpus " in text


def test_why_says_what_the_team_has_left() -> None:
    row = QuotaDemand(key="gpus", hard=Fraction(16), used=Fraction(7), requested=Fraction(4))
    fit = QuotaFit(is_held=False, state=QuotaState.READY, rows=(row,), team=SHARE)

    assert [*why.quota_facts(fit, NOW)] == [
        "gpus: 7 of 16 used; the pod requests 4",
        "ClusterGPUQuota team-vision has 2 of 64 GPUs free; largest: vision-prod 40, vision-lab 15, vision-cv 7; contact: "
        "#vision-leads",
    ]


def test_teams_in_json() -> None:
    [found] = plain(document(reports(TEAM)))["teams"]

    assert (found["name"], found["namespaces"], found["granted"]) == ("team-vision", 20, {"gpus": "120"})
    assert found["largest"][0]["name"] == PROD


def test_a_namespace_without_a_quota_is_told_its_team() -> None:
    assert team_limits(TEAM) == "ClusterGPUQuota team-vision limits it: 61 of 64 GPUs used"
    assert team_limits(UNCOUNTED) == "ClusterGPUQuota team-audio limits it: ? of 8 GPUs used"
