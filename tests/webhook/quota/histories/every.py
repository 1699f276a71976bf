"""All histories that show what a rule of the protocol is for."""

import inspect

from tests.webhook.quota.histories import allocations, changes, counts, epochs, ledger_objects
from tests.webhook.quota.histories.setting import History

HISTORIES: list[History] = [
    each
    for module in (counts, epochs, changes, ledger_objects, allocations)
    for each in vars(module).values()
    if inspect.isfunction(each) and "rule" in inspect.getfullargspec(each).kwonlyargs
]
