"""What people see of the line: the status of the GPUQuota, Events on the pods that wait, and metrics."""

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from time import monotonic

from policies.quota.amounts import GPUS, NOTHING, Vector, format_amount, total_of_shared
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.line import Place, Standing, Turn
from policies.quota.shortage import amounts_in_words
from webhook.cluster.events import NORMAL, EventRecord, Regarding
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.records import PodRecord
from webhook.quota.documents import WaitingPods, WaitingPodStatus

REPEAT_SECONDS = 600.0
"""Between two Events on a pod whose reason to wait stays the same."""
NEXT_SHOWN = 10
"""Pods that the status names."""

QUEUED, GRANTED, NOT_STARTED = "QuotaQueued", "QuotaGranted", "QuotaNotStarted"
"""Reasons of Events: a pod waits, its gate was removed, its gate could not be removed."""

_ORDINALS = {1: "st", 2: "nd", 3: "rd"}


class WaitingReports:
    """For any number of threads. `write_event` queues an Event and never waits."""

    def __init__(self, write_event: Callable[[EventRecord], object], metrics: ControllerMetrics) -> None:
        self._write_event, self._metrics = write_event, metrics
        self._lock = threading.Lock()
        self._said: dict[str, dict[str, tuple[Standing, float]]] = {}
        """By namespace and uid: why a pod waits, and when its next Event is due (monotonic)."""
        self._shown: dict[str, WaitingPods] = {}

    def shown(self, namespace: str, ledger: QuotaLedger) -> WaitingPods | None:
        """Return what the status says of the pods that wait; None if none does."""
        if not ledger.waiting:
            return None
        return self._shown.get(namespace, WaitingPods(pods=ledger.waiting))

    def turn(
        self, namespace: str, waiting: Iterable[PodRecord], demands: Mapping[str, Vector], turn: Turn
    ) -> None:
        """Report the places of all pods that wait in a namespace."""
        places, pods = turn.places, {pod.uid: pod for pod in waiting}
        demand = total_of_shared(demands.values())
        keys = turn.ledger.dimensions
        in_order = sorted(pods, key=lambda uid: (places[uid].number or len(pods) + 1, pods[uid].since))
        self._shown[namespace] = WaitingPods(
            pods=len(pods),
            demand={key: amount for key, amount in demand.items() if key in keys},
            next=tuple(_status(pods[uid], places[uid]) for uid in in_order[:NEXT_SHOWN]),
        )
        self._metrics.waiting_pods.labels(namespace).set(len(pods))
        self._metrics.waiting_gpus.labels(namespace).set(float(demand.get(GPUS, NOTHING)))
        for uid in self._due(namespace, places):
            self._event(pods[uid], QUEUED, _sentence(places[uid], turn.ledger))

    def nobody(self, namespace: str) -> None:
        """Forget a namespace in which nobody waits."""
        with self._lock:
            self._said.pop(namespace, None)
        if self._shown.pop(namespace, None) is not None:
            self._metrics.forget_waiting(namespace)

    def started(self, pod: PodRecord) -> None:
        """Report that the gate of a pod was removed."""
        seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(pod.since)).total_seconds())
        self._metrics.wait_seconds.observe(seconds)
        self._event(
            pod, GRANTED, f"waited for quota for {_duration(seconds)}; its scheduling gate is removed", NORMAL
        )

    def denied(self, pod: PodRecord, problem: str) -> None:
        """Report that the gate of a pod could not be removed."""
        self._event(
            pod, NOT_STARTED, f"it is its turn, but its scheduling gate could not be removed: {problem}"
        )

    def _due(self, namespace: str, places: Mapping[str, Place]) -> list[str]:
        now = monotonic()
        with self._lock:
            before = self._said.get(namespace, {})
            said: dict[str, tuple[Standing, float]] = {}
            due = []
            for uid, place in places.items():
                known = before.get(uid)
                is_new = known is None or (known[0] is not place.standing and place.standing not in _MOVING)
                if (is_new or (known and known[1] <= now)) and place.standing is not Standing.STARTING:
                    due.append(uid)
                    known = place.standing, now + REPEAT_SECONDS
                said[uid] = known or (place.standing, now + REPEAT_SECONDS)
            self._said[namespace] = said
        return due

    def _event(self, pod: PodRecord, reason: str, message: str, kind: str = "Warning") -> None:
        regarding = Regarding("v1", "Pod", pod.name, pod.uid, pod.namespace)
        self._write_event(EventRecord(regarding=regarding, reason=reason, message=message, kind=kind))


_MOVING = frozenset({Standing.NEXT, Standing.BEHIND, Standing.STARTING})
"""A pod that only moves up in line gets no new Event."""


def _status(pod: PodRecord, place: Place) -> WaitingPodStatus:
    return WaitingPodStatus(
        name=pod.name,
        place=place.number,
        since=pod.since,
        gpus=format_amount(place.needed.get(GPUS, NOTHING)),
        reason=place.standing.value,
    )


def _sentence(place: Place, ledger: QuotaLedger) -> str:
    """Return why a pod waits: `waiting for quota: 3rd in line, needs 8 GPUs, 5 of 16 free`."""
    needed = {key: amount for key, amount in place.needed.items() if key in ledger.hard}
    where = f"{place.number}{_ordinal(place.number)} in line" if place.number else place.standing.value
    facts = [where, f"needs {amounts_in_words(needed)}"] if needed else [where]
    used, reserved = ledger.used or {}, ledger.reserved
    for key in sorted(needed, key=lambda key: (key != GPUS, key))[:1]:
        hard = ledger.hard[key]
        free = max(hard - used.get(key, NOTHING) - reserved.get(key, NOTHING), NOTHING)
        facts.append(f"{format_amount(free)} of {format_amount(hard)} free")
        holders = ", ".join(f"{each.name} {each.amount}" for each in ledger.holders.get(key, ())[:3])
        if holders:
            facts.append(f"largest holders: {holders}")
    return f"waiting for quota: {', '.join(facts)}"


def _ordinal(number: int) -> str:
    return "th" if number % 100 in {11, 12, 13} else _ORDINALS.get(number % 10, "th")


def _duration(seconds: float) -> str:
    """Return a duration for people: `12 s`, `5 min`, `2 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
