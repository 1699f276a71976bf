"""The protocol under arbitrary histories: alone, and in memory."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from policies.quota.amounts import Vector
from tests.webhook.quota.ledgers import MemoryLedger
from tests.webhook.quota.machine import machine, run_settings
from tests.webhook.quota.world import Ledger, PlainLedger


@pytest.mark.parametrize(
    ("make_ledger", "clustered"),
    [
        pytest.param(PlainLedger, True, id="protocol-alone"),
        pytest.param(MemoryLedger, False, id="memory-store"),
    ],
)
def test_no_history_breaks_it(make_ledger: Callable[[Vector], Ledger], clustered: bool) -> None:
    run_state_machine_as_test(
        machine(make_ledger, clustered=clustered),
        settings=run_settings(2 * settings().max_examples, steps=40),
    )
