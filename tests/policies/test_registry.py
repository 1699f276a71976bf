"""What the registry says of rules and reasons is on their pages, word for word."""

import pytest

from policies.finding import Reason
from policies.registry import RULES, RULES_BY_ID, RULES_BY_REASON
from policies.rule import Rule
from tests.pages import ROOT

RULE_PAGES = ROOT / "docs" / "reference" / "rules"


def test_no_two_rules_share_an_id() -> None:
    assert [*RULES_BY_ID] == [rule.id for rule in RULES]


@pytest.mark.parametrize("reason", RULES_BY_REASON, ids=lambda reason: str(reason.name))
def test_a_reason_is_documented(reason: Reason) -> None:
    assert f"| `{reason.name}` | {reason.meaning} |" in (RULE_PAGES / "reasons.md").read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.id))
def test_a_rule_is_documented(rule: Rule) -> None:
    assert f" | {rule.summary} |\n" in (RULE_PAGES / "README.md").read_text()
    if rule.not_fixable:
        assert f"- `{rule.id}`: {rule.not_fixable}\n" in (RULE_PAGES / "reasons.md").read_text()
    if rule.not_exported:
        assert f"| {rule.id} | {rule.not_exported} |" in (ROOT / "docs/operate/export.md").read_text()
