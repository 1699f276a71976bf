"""Pods that wait, and what is reported of them."""

from datetime import datetime, tzinfo
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from policies.quota.ledger.quota_ledger import Holder
from policies.quota.queue_entries import Gang
from policies.quota.waiting import QueueSpec, Waiter
from tests.builders import quota_ledger
from tests.policies.quota.turns import next_to_start
from tests.webhook.controller.clock import Clock
from webhook.cluster.events import EventQueue, EventRecord
from webhook.controller import waiting_reports
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.waiting_reports import WaitingReports
from webhook.quota.counted_records import Blueprint, CountedPod, WaitingPod
from webhook.quota.documents import WaitingPods

LEDGER = quota_ledger(
    hard={"gpus": Fraction(16), "classes/nvidia-a100": Fraction(4)},
    used={"gpus": Fraction(11), "classes/nvidia-a100": Fraction(2)},
    holders={
        "gpus": (Holder("Job/llama", "8"), Holder("Deployment/chat", "3")),
        "classes/nvidia-a100": (Holder("Deployment/chat", "2"),),
    },
    class_catalogue="c",
    waiting=1,
)
AT = "2026-11-26T15:00:{:02}Z"
IDLE_SINCE, NOW = "2026-11-26T08:30:00Z", "2026-11-26T15:00:00Z"


def pod(name: str, second: int = 0) -> CountedPod:
    return CountedPod(
        uid=name,
        namespace="team",
        name=name,
        holder=f"Pod/{name}",
        version=1,
        since=AT.format(second),
        blueprint=Blueprint(b"", {}),
        node_name="",
        is_terminal=False,
        extended_claim="",
        waiting=WaitingPod(0, has_other_gate=False, priority=0),
    )


def waiter(name: str, gpus: int = 8, second: int = 0, **fields: Any) -> Waiter:
    return Waiter(uid=name, demand={"gpus": Fraction(gpus)}, since=AT.format(second), **fields)


AT_ONCE = QueueSpec()


class StoppedDate(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromisoformat(NOW).astimezone(tz)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(waiting_reports, "monotonic", self.clock)
        monkeypatch.setattr(waiting_reports, "datetime", StoppedDate)
        self.events: list[EventRecord] = []
        self.started: list[CountedPod] = []
        self.changed: list[str] = []
        self.registry = CollectorRegistry()
        self.reports = WaitingReports(
            cast("EventQueue", SimpleNamespace(put=self.events.append)), ControllerMetrics(self.registry)
        )
        self.reports.gate_removed.subscribe(self.started.append)
        self.reports.changed.subscribe(self.changed.append)

    def turn(
        self,
        *waiters: Waiter,
        gangs: dict[str, Gang] | None = None,
        queue: QueueSpec = AT_ONCE,
        **ledger: Any,
    ) -> WaitingPods | None:
        """Take a turn, and return what the status shows then."""
        counted = replace(LEDGER, **ledger)
        pods = [replace(pod(each.uid), since=each.since) for each in waiters]
        demands = {each.uid: each.demand for each in waiters}
        self.reports.turn("team", pods, demands, next_to_start(counted, waiters, gangs or {}, queue))
        return self.reports.waiting_status("team", counted)

    def said(self) -> list[tuple[str, str, str]]:
        """Return the Events since the last call."""
        found = [(each.regarding.name, each.reason, each.message) for each in self.events]
        self.events.clear()
        return found
