"""What people see of the line: the status of the GPUQuota, Events on the pods that wait, and metrics."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic

from msgspec.structs import replace

from policies.finding import truncate
from policies.quota.amounts import GPUS, ZERO, Amounts, format_amount, total_of_shared, unit_name
from policies.quota.budget import keys_reached
from policies.quota.budget_findings import spending_text, time_of
from policies.quota.idleness import idle_first, idle_holders, largest_first
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import TeamState, team_title
from policies.quota.line import Place, Turn
from policies.quota.line_findings import IN_STAGES
from policies.quota.shortage_facts import amounts_in_words, largest_namespaces
from policies.quota.waiting import Standing
from webhook.cluster.collection import Subscribers
from webhook.cluster.events import NORMAL, EventQueue, EventRecord, Regarding
from webhook.controller.metrics import ControllerMetrics
from webhook.quota.counted_records import CountedPod
from webhook.quota.documents import PlaceInLine, WaitingPods

REPEAT_SECONDS = 600.0
"""Seconds between two Events on a pod whose reason to wait stays the same."""
PLACES_SHOWN = 10
"""Places in line that the status has."""
HOLDERS_NAMED, IDLE_NAMED = 3, 2
LONGEST_DENIAL = 256

QUEUED, GRANTED, NOT_STARTED = "QuotaQueued", "QuotaGranted", "QuotaNotStarted"
"""Reasons of Events: a pod waits, its gate was removed, its gate could not be removed."""

_ORDINALS = {1: "next", 2: "2nd", 3: "3rd"}
_MESSAGES = {
    Standing.STARTING: "it starts now",
    Standing.INCOMPLETE: "{} do not exist yet",
    Standing.UNREAD_GANG: "how many pods its gang{} needs could not be read yet",
    Standing.OTHER_GATE: "it has another scheduling gate, and joins the line when that is removed",
    Standing.DENIED: "the removal of its scheduling gate was denied: {}",
    Standing.TOO_LARGE: "it exceeds the whole quota: it needs {}",
    Standing.TOO_MANY: "its gang {} can start together",
    Standing.BUDGET_SPENT: "the budget is spent: {}",
    Standing.ON_HOLD: "the line is on hold: spec.queue.hold of the GPUQuota is true",
}
_WAITING_FOR_ROOM = frozenset({Standing.NEXT, Standing.BEHIND})
_MOVING = frozenset({*_WAITING_FOR_ROOM, Standing.STARTING})
"""A pod that only moves up in line gets no new Event, so no Event has its place."""
_GANG_COMING = frozenset({Standing.INCOMPLETE, Standing.UNREAD_GANG})
"""The pods of a gang come one after another: an Event says that some are missing only after REPEAT_SECONDS."""


class WaitingReports:
    """Reports why pods wait. Thread-safe.

    `changed` is called with a namespace whose status is out of date, `gate_removed` with a pod that starts.
    """

    def __init__(self, events: EventQueue, metrics: ControllerMetrics) -> None:
        self._events, self._metrics = events, metrics
        self.changed = Subscribers[[str]]("waiting pods")
        self.gate_removed = Subscribers[[CountedPod]]("waiting pods")
        self._lock = threading.Lock()
        self._last_reasons: dict[str, dict[str, tuple[Standing, float]]] = {}
        """By namespace and uid: why a pod waits, and when its next Event is due (monotonic)."""
        self._denials: dict[str, str] = {}
        """By uid: why the gate of a pod could not be removed."""
        self._shown: dict[str, tuple[WaitingPods, Sequence[Sequence[CountedPod]], Turn]] = {}
        """By namespace: what the status says after a turn, the first places, and the turn."""
        self._staged: dict[str, float] = {}
        """By uid: when an object whose pods start in stages was last read (monotonic). It has an Event."""

    def waiting_status(self, namespace: str, ledger: QuotaLedger) -> WaitingPods | None:
        """Return what the status says of the pods that wait, with what is free in this ledger; None if none does."""
        if not ledger.waiting:
            return None
        if namespace not in self._shown:
            return WaitingPods(pods=ledger.waiting)
        shown, first, turn = self._shown[namespace]
        return replace(shown, next=tuple(self._place_in_line(unit, turn, ledger) for unit in first))

    def staged(self, regarding: Regarding) -> None:
        """Say once of an object that its pods start in stages. It is read again and again while it has pods."""
        now = monotonic()
        with self._lock:
            is_new = self._staged.pop(regarding.uid, None) is None
            self._staged[regarding.uid] = (
                now  # it moves to the end: the dict is in the order of the last reads
            )
            while self._staged[oldest := next(iter(self._staged))] < now - REPEAT_SECONDS:
                del self._staged[oldest]
        if is_new:
            self._events.put(EventRecord(regarding=regarding, reason=QUEUED, message=IN_STAGES))

    def turn(
        self, namespace: str, waiting: Iterable[CountedPod], demands: Mapping[str, Amounts], turn: Turn
    ) -> None:
        """Report the places of all pods that wait in a namespace."""
        pods = {pod.uid: pod for pod in waiting}
        places = {uid: place for uid, place in turn.places.items() if uid in pods}
        due = self._due_events(namespace, places)
        units: dict[str, list[CountedPod]] = {}
        for uid, pod in sorted(pods.items(), key=lambda item: _order(places[item[0]], item[1])):
            units.setdefault(places[uid].gang or uid, []).append(pod)
        demand = total_of_shared(demands.values())
        keys, first = turn.ledger.dimensions, list(units.values())[:PLACES_SHOWN]
        shown = WaitingPods(
            pods=len(pods),
            since=min((pod.since for pod in pods.values()), default=""),
            demand={key: amount for key, amount in demand.items() if key in keys},
            next=tuple(self._place_in_line(unit, turn, turn.ledger) for unit in first),
        )
        is_new = namespace not in self._shown or shown != self._shown[namespace][0]
        self._shown[namespace] = shown, first, turn
        if is_new:
            self.changed(namespace)
        for uid in due:
            place = places[uid]
            members = len(units[place.gang or uid])
            why = self._message(uid, members, turn, turn.ledger, where="in line")
            self._put_event(pods[uid], QUEUED, f"waiting for quota: {why}")

    def nobody_waits(self, namespace: str) -> None:
        """Forget a namespace in which nobody waits."""
        with self._lock:
            self._forget_denials(self._last_reasons.pop(namespace, {}))
        self._shown.pop(namespace, None)

    def started(self, pod: CountedPod) -> None:
        """Report that the gate of a pod was removed."""
        seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(pod.since)).total_seconds())
        self._metrics.wait_seconds.observe(seconds)
        self.gate_removed(pod)
        waited = f"waited for quota for {_duration(seconds)}; its scheduling gate is removed"
        self._put_event(pod, GRANTED, waited, NORMAL)

    def delayed(self, pod: CountedPod) -> None:
        """Report that the API server did not answer when the gate of a pod was to be removed."""
        self._metrics.lifts_denied.labels(pod.namespace).inc()

    def denied(self, pod: CountedPod, problem: str) -> None:
        """Report that the gate of a pod could not be removed."""
        self._metrics.lifts_denied.labels(pod.namespace).inc()
        with self._lock:
            if pod.uid in self._last_reasons.get(pod.namespace, ()):  # else nothing would forget it
                self._denials[pod.uid] = truncate(problem, LONGEST_DENIAL)
        message = f"it is its turn, but its scheduling gate could not be removed: {problem}"
        self._put_event(pod, NOT_STARTED, message)

    def _due_events(self, namespace: str, places: Mapping[str, Place]) -> list[str]:
        now = monotonic()
        with self._lock:
            before = self._last_reasons.get(namespace, {})
            reasons: dict[str, tuple[Standing, float]] = {}
            due = []
            for uid, place in places.items():
                known = before.get(uid)
                is_new = known is None or (
                    known[0] is not place.standing
                    and (known[0] in _GANG_COMING or place.standing not in _MOVING)
                )
                if is_new and place.standing in _GANG_COMING:
                    known = place.standing, now + REPEAT_SECONDS
                elif (is_new or (known and known[1] <= now)) and place.standing is not Standing.STARTING:
                    due.append(uid)
                    known = place.standing, now + REPEAT_SECONDS
                reasons[uid] = known or (place.standing, now + REPEAT_SECONDS)
            self._last_reasons[namespace] = reasons
            self._forget_denials(before.keys() - reasons.keys())
        return due

    def _forget_denials(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._denials.pop(uid, None)

    def _place_in_line(self, unit: Sequence[CountedPod], turn: Turn, ledger: QuotaLedger) -> PlaceInLine:
        first = unit[0]
        place = turn.places[first.uid]
        return PlaceInLine(
            name=first.name,
            gang=place.gang,
            pods=len(unit),
            place=place.number,
            since=first.since,
            demand=_limited_amounts(place.needed, ledger),
            reason=place.standing.value,
            message=self._message(first.uid, len(unit), turn, ledger, where=_place_text(place.number)),
        )

    def _message(self, uid: str, members: int, turn: Turn, ledger: QuotaLedger, *, where: str) -> str:
        """Return why a pod waits: `3rd in line, needs 8 GPUs, 5 of 16 free; largest holders: Job/train 8`.

        `where`: the place in words. That of an Event has no number.
        """
        place = turn.places[uid]
        needed = _limited_amounts(place.needed, ledger)
        if place.standing in _WAITING_FOR_ROOM:
            return _in_line_text(where, place, needed, ledger, datetime.now(UTC))
        if place.standing is Standing.INCOMPLETE:
            detail = f"{place.missing} of the {members + place.missing} pods of its gang {place.gang}"
        elif place.standing is Standing.UNREAD_GANG:
            detail = f" {place.gang}" if place.gang else ""
        elif place.standing is Standing.TOO_MANY:
            detail = f"{place.gang} has {members} pods, of which at most {place.can_start}"
        elif place.standing is Standing.DENIED:
            detail = self._denials.get(uid, "")
        elif place.standing is Standing.BUDGET_SPENT:
            detail = _spent_text(place.needed, ledger)
        else:
            detail = _too_large_text(place, ledger)
        return _MESSAGES[place.standing].format(detail)

    def _put_event(self, pod: CountedPod, reason: str, message: str, kind: str = "Warning") -> None:
        regarding = Regarding("v1", "Pod", pod.name, pod.uid, pod.namespace)
        self._events.put(EventRecord(regarding=regarding, reason=reason, message=message, kind=kind))


def _order(place: Place, pod: CountedPod) -> tuple[object, ...]:
    """Sort those that start now, then by place, then those without one; the oldest first."""
    return place.standing is not Standing.STARTING, not place.number, place.number, pod.since, pod.name


def _limited_amounts(needed: Amounts, ledger: QuotaLedger) -> Amounts:
    return {key: amount for key, amount in needed.items() if key in ledger.limited}


def _too_large_text(place: Place, ledger: QuotaLedger) -> str:
    """Return `8 GPUs, the quota grants 4`; or what the team grants, if only that is exceeded."""
    own = {key: amount for key, amount in place.granted.items() if ledger.hard.get(key) == amount}
    state, whose = ledger.team_state, "the quota grants"
    if state is not None and not own:
        whose = f"{team_title(state.team.name)} grants its namespace at most"
    granted = f", {whose} {amounts_in_words(own or place.granted)}" if place.granted else ""
    return amounts_in_words(_limited_amounts(place.needed, ledger)) + granted


def _spent_text(needed: Amounts, ledger: QuotaLedger) -> str:
    """Return `100 of 100 GPU-hours used this month; it waits until 2026-12-01T00:00Z`."""
    budget, spending = ledger.budget, ledger.spending
    if budget is None or spending is None:
        return "it waits for the next period"
    spent = keys_reached(budget, spending).intersection(needed)
    return f"{spending_text(budget, spending, spent)}; it waits until {time_of(spending.end)}"


def _in_line_text(where: str, place: Place, needed: Amounts, ledger: QuotaLedger, now: datetime) -> str:
    """Return the place of a pod, and what it waits for there, of its quota or of that of the team."""
    state, held, of_team = ledger.team_state if place.for_team else None, ledger.held, ""
    hard = ledger.hard
    if state is not None:
        where, hard = f"{where} of its namespace", state.team.hard
        of_team = f" of {team_title(state.team.name)}"
    needed = {key: amount for key, amount in needed.items() if key in hard}
    if not needed:
        return where
    taken_by_others = state.taken_by_others if state else {}
    free = {
        key: max(hard[key] - taken_by_others.get(key, ZERO) - held.get(key, ZERO), ZERO) for key in needed
    }
    # The dimension that lacks room says what must become free.
    key = min(needed, key=lambda name: (free[name] >= needed[name], name != GPUS, name))
    amounts = f"{format_amount(free[key])} of {format_amount(hard[key])}{'' if key == GPUS else f' {unit_name(key)}'}"
    who = (
        _namespaces_text(state, key, fits=needed[key] <= free[key])
        if state
        else _holders_text(ledger, key, now)
    )
    return "; ".join(
        (f"{where}, needs {amounts_in_words(needed)}, {amounts}{of_team} free", *filter(None, who))
    )


def _namespaces_text(state: TeamState, key: str, *, fits: bool) -> tuple[str, ...]:
    largest = largest_namespaces(state, key, HOLDERS_NAMED)
    return "another namespace goes first" if fits else "", largest and f"largest namespaces: {largest}"


def _holders_text(ledger: QuotaLedger, key: str, now: datetime) -> tuple[str, ...]:
    holders = ledger.holders.get(key, ())
    largest = ", ".join(f"{holder.name} {holder.amount}" for holder in largest_first(holders)[:HOLDERS_NAMED])
    idle = idle_holders(idle_first(holders)[:IDLE_NAMED], key, now)
    return idle, largest and f"largest holders: {largest}"


def _place_text(number: int) -> str:
    """Return one of the first places in words: `next in line`, `2nd in line`."""
    return f"{_ORDINALS.get(number, f'{number}th')} in line"


def _duration(seconds: float) -> str:
    """Return a duration for people: `12 s`, `5 min`, `2 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
