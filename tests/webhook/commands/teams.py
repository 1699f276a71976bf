"""Summaries of teams."""

from fractions import Fraction

from tests.policies.quota.team_denials import LAB, OWN, PROD, USED, amounts, team_ledger
from webhook.quota.documents import TeamView
from webhook.tools.status.summaries import QuotaHolder, QuotaRow, QuotaState, TeamSummary

SHARE = TeamView.of(team_ledger(USED))

TEAM = TeamSummary(
    name="team-vision",
    state=QuotaState.READY,
    rows=(QuotaRow(key="gpus", hard=Fraction(64), used=Fraction(61), reserved=Fraction(1)),),
    namespaces=20,
    largest=tuple(
        QuotaHolder(name=name, held=amounts({"gpus": amount}))
        for name, amount in ((PROD, 40), (LAB, 12), (OWN, 7), ("vision-web", 2))
    ),
    granted=amounts({"gpus": 120}),
    guaranteed_idle=amounts({"gpus": 4}),
)

UNCOUNTED = TeamSummary(
    name="team-audio",
    state=QuotaState.NOT_COUNTED,
    message="1 of 2 namespaces is not counted yet",
    rows=(QuotaRow(key="gpus", hard=Fraction(8), used=None),),
    namespaces=2,
)
