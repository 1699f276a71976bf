"""A namespace with a budget and its controllers, with one injected clock: pods that come and go, counts, and outages."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import GPUS
from policies.quota.budget import GPU_HOUR, Budget, Period, moment
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reservations import Reservation
from tests.builders import gpu_container, pod, quota_ledger
from tests.webhook.controller.counters import unknown_kind
from webhook.cluster.objects import timestamp
from webhook.configuration.loader import load_directory
from webhook.controller.usage_sums import UsageSums
from webhook.quota.counted_records import ClaimHistory, CountedPod
from webhook.tools.gpu_hours import AuditLine

CATALOGUES_CONFIG_MAP = load_directory(None)
TEAM = "team"
MANY = Budget(Period.MONTH, {GPUS: 10**6 * GPU_HOUR}, 0.8)


class Stored(msgspec.Struct):
    """A pod on the API server: when it was created, when it ended."""

    name: str
    gpus: int
    created: int
    ended: int = 0

    @property
    def document(self) -> Any:
        document: Any = pod(gpu_container(str(self.gpus)))
        document["metadata"] |= {
            "name": self.name,
            "uid": self.name,
            "namespace": TEAM,
            "resourceVersion": str(max(self.created, self.ended)),
            "creationTimestamp": rfc3339(self.created),
        }
        if self.ended:
            ended = {"state": {"terminated": {"exitCode": 0, "finishedAt": rfc3339(self.ended)}}}
            document["status"] = {"phase": "Succeeded", "containerStatuses": [ended]}
        return document


def rfc3339(at: int) -> str:
    return timestamp(datetime.fromtimestamp(at // 1000, UTC))


class Watching:
    """A controller process, from its first list on."""

    def __init__(self, namespace: "Namespace") -> None:
        self.sums = UsageSums(CATALOGUES_CONFIG_MAP, ClaimHistory(), unknown_kind, lambda: namespace.now)
        self.records: dict[str, CountedPod] = {}
        for each in namespace.pods.values():
            self.see(each)

    def see(self, stored: Stored) -> None:
        before = self.records.get(stored.name)
        after = self.sums.reader.read_pod(msgspec.Raw(msgspec.json.encode(stored.document)))
        assert after is not None
        self.records[stored.name] = after
        self.sums.pod_changed(before, after)

    def forget(self, name: str) -> None:
        self.sums.pod_changed(self.records.pop(name), None)


class Namespace:
    """The API server, the ledger and the controllers that run."""

    def __init__(self, now: int, budget: Budget = MANY) -> None:
        self.now = now
        self.pods: dict[str, Stored] = {}
        self.ledger: QuotaLedger = quota_ledger(
            hard={GPUS: Fraction(10**6)}, used={GPUS: Fraction(0)}, budget=budget
        )
        self.controllers: list[Watching] = []
        self.gpu_ms = 0
        """What was held in truth."""
        self.lines: list[AuditLine] = []
        """What a controller writes of usage."""

    def start(self) -> Watching:
        started = Watching(self)
        self.controllers.append(started)
        return started

    def pass_time(self, until: int) -> None:
        held = sum(each.gpus for each in self.pods.values() if not each.ended)
        self.gpu_ms += held * (until - self.now)
        self.now = until

    def create(self, name: str, gpus: int) -> None:
        self.pods[name] = Stored(name, gpus, self.now)
        reserved = Reservation(name, {GPUS: Fraction(gpus)}, name=f"pods/{name}")
        self.ledger = replace(self.ledger, reservations=self.ledger.reservations.plus([reserved]))
        for each in self.controllers:
            each.see(self.pods[name])

    def end(self, name: str) -> None:
        self.write_line(self.pods[name], "released")
        self.pods[name].ended = self.now
        for each in self.controllers:
            each.see(self.pods[name])

    def delete(self, name: str) -> None:
        gone = self.pods.pop(name)
        if not gone.ended:
            self.write_line(gone, "released")
        for each in self.controllers:
            each.forget(name)

    def write_line(self, pod: Stored, verdict: str) -> None:
        self.lines.append(
            AuditLine(
                time=timestamp(moment(self.now), "milliseconds"),
                phase="count",
                kind="Pod",
                verdict=verdict,
                namespace=TEAM,
                name=pod.name,
                object_uid=pod.name,
                owner=f"Pod/{pod.name}",
                demand={GPUS: str(pod.gpus)},
                since=rfc3339(pod.created),
                replica="controller",
            )
        )

    def count(self, controller: Watching, on: QuotaLedger | None = None) -> bool:
        """Count by a ledger that was read, by default the present one, and swap. Return whether that succeeded."""
        read = self.ledger if on is None else on
        pods = UnclassifiedPods.TOTAL_ONLY
        used, _, objects = controller.sums.sum(TEAM, pods, read)
        spending = controller.sums.spending(TEAM, pods, read)
        if read is not self.ledger:
            return False
        reservations = read.reservations.without(objects)
        self.ledger = replace(read, used=used, reservations=reservations, spending=spending)
        return True

    @property
    def hours(self) -> float:
        return self.gpu_ms / 3_600_000

    @property
    def counted(self) -> float:
        spending = self.ledger.spending
        return spending.spent.get(GPUS, 0) / GPU_HOUR if spending else 0.0

    @property
    def unknown(self) -> float:
        spending = self.ledger.spending
        return spending.unknown.get(GPUS, 0) / GPU_HOUR if spending else 0.0
