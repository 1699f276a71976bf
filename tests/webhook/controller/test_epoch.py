"""When a controller raises the epoch, and how long a new ledger then waits."""

import pytest

from policies.quota.ledger.quota_ledger import NO_QUOTA_SECONDS
from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.webhook.quota.ledger_api import INSTALLATION, LedgerApi
from tests.webhook.quota.quota_and_ledger_object import keeper
from webhook.cluster import errors
from webhook.controller import observed_ledgers, reconciler
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import EPOCH_RAISE_SECONDS
from webhook.quota.ledger_objects import EPOCH_OBJECT, ledger_objects_path
from webhook.quota.store import VersionedLedger

PATH = ledger_objects_path(INSTALLATION, EPOCH_OBJECT)


class Controller:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.api, self.observed = 100.0, LedgerApi(), ObservedLedgers()
        self._keeper = keeper(self.api.store(), self.observed)
        for module in (observed_ledgers, reconciler):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)

    def sees(self, *namespaces: str) -> None:
        for namespace in namespaces:
            self.observed.observe(
                namespace, VersionedLedger(quota_ledger(hard={}, ledger_uid=namespace), "1")
            )

    def waits(self, namespace: str) -> float:
        return round(self._keeper._initialization_wait(namespace), 6)

    @property
    def raised(self) -> int:
        return self.api.writes.get(PATH, 0)


def test_the_epoch_is_raised_for_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch)
    names = [f"team-{number}" for number in range(2000)]
    controller.sees(*names)
    assert {controller.waits(each) for each in names} == {NO_QUOTA_SECONDS}
    assert controller.raised == 1

    controller.now += EPOCH_RAISE_SECONDS / 2
    controller.sees("late", "later")
    assert (controller.waits("late"), controller.raised) == (EPOCH_RAISE_SECONDS, 1), "it shares the next one"
    controller.now += EPOCH_RAISE_SECONDS / 2
    assert (controller.waits("late"), controller.waits("later")) == (NO_QUOTA_SECONDS, NO_QUOTA_SECONDS)
    assert controller.raised == 2
    assert controller.waits("team-0") == NO_QUOTA_SECONDS - EPOCH_RAISE_SECONDS, (
        "another raise takes it no longer"
    )
    controller.now += NO_QUOTA_SECONDS
    assert controller.waits("late") == 0


def test_a_quota_that_is_made_again_without_end_raises_it_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller(monkeypatch)
    for number in range(100):
        controller.now += 0.1
        ledger = quota_ledger(hard={}, ledger_uid=f"ledger-{number}")
        controller.observed.observe("circle", VersionedLedger(ledger, str(number + 1)))
        controller.waits("circle")
    assert controller.raised == pytest.approx(20, abs=4)


def test_a_ledger_does_not_count_while_the_epoch_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch)
    controller.sees("cv")

    def away(*_: object, **__: object) -> bytes:
        raise errors.Unreachable("away")

    monkeypatch.setattr(controller.api, "get", away)
    with pytest.raises(LedgerError, match="away"):
        controller.waits("cv")
    controller.now += 60
    assert controller.observed.initialization_wait("cv") == float("inf")
