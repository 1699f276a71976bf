"""Each rule of the protocol, and what happens without it.

Every case is one history. With the rule nothing is broken at its end; with the rule taken out the oracle must object, or the
case would prove nothing. Their docstrings are the rules.
"""

import pytest

from tests.webhook.quota.histories.every import HISTORIES
from tests.webhook.quota.histories.setting import History


@pytest.mark.parametrize("history", [pytest.param(each, id=each.__name__) for each in HISTORIES])
def test_with_the_rule_nothing_breaks(history: History) -> None:
    assert history(rule=True).broken == []


@pytest.mark.parametrize("history", [pytest.param(each, id=each.__name__) for each in HISTORIES])
def test_without_the_rule_it_breaks(history: History) -> None:
    assert history(rule=False).broken != []
