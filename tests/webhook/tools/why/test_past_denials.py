"""What becomes of the next pod, where pods were denied and nothing that is known denies them now."""

from policies.finding import Finding
from tests.cases import cases
from tests.webhook.tools.why.situations import event, situation
from webhook.tools.why.reasons import answer_of

WEBHOOK = 'Error creating: admission webhook "pods.validate.gpu-admission.dev" denied the request: '
NOW = "a pod would be admitted now: its controller tries again by itself"


@cases(
    ("rule_denials", "remedy"),
    known_rules=([], NOW),
    rules_that_the_caller_may_not_read=(None, ""),
)
def test_what_was_denied_and_would_not_be_now(rule_denials: list[Finding] | None, remedy: str) -> None:
    _, _, (reason,) = answer_of(
        situation(rule_denials=rule_denials, events=[event(WEBHOOK + "no GPU\nmore")])
    )
    assert reason.message == "Job/train was denied pods once, last at 08:00 UTC: no GPU"
    assert reason.remedy == remedy


@cases(
    ("sees_quota", "denial", "remedy"),
    a_team_whose_figures_are_not_seen=(
        False,
        "exceeded quota: ClusterGPUQuota team-vision, 64 of 64 used",
        "do as it says; its controller tries again by itself, and succeeds once the team has room",
    ),
    a_team_whose_figures_are_seen=(True, "exceeded quota: ClusterGPUQuota team-vision, 64 of 64 used", NOW),
    a_quota_that_was_deleted=(False, "exceeded quota: team/default, 8 of 8 used", NOW),
)
def test_what_a_full_quota_denied_and_would_not_be_now(sees_quota: bool, denial: str, remedy: str) -> None:
    _, _, (reason,) = answer_of(situation(sees_quota=sees_quota, events=[event(WEBHOOK + denial)]))
    assert reason.remedy == remedy
