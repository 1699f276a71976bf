"""Whether anybody passed the line of a namespace, from etcd's history: its own reading of pods and ledgers.

What is promised, of every revision at which a quota is in force:

  - no pod that waits, and is not being deleted, is unknown to the ledger;
  - where the ledger says that pods wait, it takes up no demand but that of claims, and what is held for pods that wait. So a pod
    without the gate is stored while others wait only if it was admitted before they were;
  - where quota is held for a pod, none before it in line waits without: none of a higher priority, or as high and older. Apart
    are those that the count did not show yet, and those that cannot start: under another gate, larger than the quota, or because
    the removal of their gate was denied, of which an Event says so. A pod for which its object keeps quota goes before all;
  - what an object keeps was used by a pod that has ended, did not succeed, and is replaced once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.quota.history import Event
from tests.cluster.quota.referee import Row, cost_of_spec, fits, granted, ledger_in, of_namespace, waits

DENIED = "QuotaNotStarted"
Pod = Mapping[str, Any]


@dataclass
class Line:
    """What was seen. `held` is how often quota was held for a pod, `passed` what must not be, `longest` the most that waited."""

    held: int = 0
    longest: int = 0
    passed: list[str] = field(default_factory=list)


def line(namespace: str, history: Iterable[Event]) -> Line:
    events = list(history)
    watcher = _Watcher(set(_denied(namespace, events)))
    for event, is_row in of_namespace(namespace, events):
        (watcher.row_event if is_row else watcher.object_event)(event)
    return watcher.seen


def _denied(namespace: str, events: Iterable[Event]) -> Iterator[str]:
    """Yield the uids of the pods whose gate could not be removed at some time."""
    ours = re.compile(rf"^/registry/events/{namespace}/")
    for event in events:
        if ours.match(event.key) and event.value and event.value.get("reason") == DENIED:
            yield (event.value.get("involvedObject") or event.value["regarding"])["uid"]


def _place(pod: Pod) -> tuple[int, str, str]:
    metadata = pod["metadata"]
    return -pod["spec"].get("priority", 0), metadata["creationTimestamp"], metadata["uid"]


def is_in_line(pod: Pod) -> bool:
    """Whether it waits and may start.

    The API server deletes a pod by two writes: a deletionTimestamp, then the deletion. If it is killed in between, the pod stays
    until the garbage collector of pods, which does not run here, deletes it.
    """
    return waits(pod) and "deletionTimestamp" not in pod["metadata"]


class _Watcher:
    def __init__(self, denied: set[str]) -> None:
        self._denied = denied
        self._waiting: dict[str, Pod] = {}
        self._since: dict[str, int] = {}
        """By uid: the revision from which on our gate was the only one."""
        self._row = Row({})
        self._ran: dict[str, Pod] = {}
        """By uid: the pods that were stored without the gate, as they were last."""
        self._kept: set[str] = set()
        self.seen = Line()

    def object_event(self, event: Event) -> None:
        self._waiting.pop(event.key, None)
        if (
            event.value
            and "status" in event.value
            and event.key.startswith("/registry/pods/")
            and not waits(event.value)
        ):
            self._ran[event.value["metadata"]["uid"]] = event.value
        if event.value and is_in_line(event.value):
            self._waiting[event.key] = event.value
            if len(event.value["spec"]["schedulingGates"]) == 1:
                self._since.setdefault(event.value["metadata"]["uid"], event.revision)
            self.seen.longest = max(self.seen.longest, len(self._waiting))
        self._check_known(event)

    def row_event(self, event: Event) -> None:
        before, self._row = self._row, Row(ledger_in(event.value))
        if not (before.in_force and self._row.in_force):
            return
        self._check_known(event)
        demanding = {each for each, demand in self._row.entries.items() if demand}
        grown = demanding - before.entries.keys() - self._row.claims
        if before.waiting and grown:
            self.seen.passed.append(f"revision {event.revision}: {before.waiting} wait, and {grown} come in")
        new = self._row.lifts.keys() - before.lifts.keys()
        self.seen.held += len(new)
        self._check_kept(event, self._row.keeps.keys() - before.keeps.keys())
        self._check_order(
            event, self._without_replacements(new, len(before.keeps.keys() - self._row.keeps.keys()))
        )

    def _without_replacements(self, new: set[str], used: int) -> set[str]:
        """Return the pods that used none of so many keeps. The last pods in line that have an owner used them."""
        owned = [
            pod
            for pod in self._waiting.values()
            if pod["metadata"]["uid"] in new and pod["metadata"].get("ownerReferences")
        ]
        replacing = sorted(owned, key=_place, reverse=True)[:used]
        return new - {pod["metadata"]["uid"] for pod in replacing}

    def _check_kept(self, event: Event, added: Iterable[str]) -> None:
        for uid in added:
            pod = self._ran.get(uid)
            is_live = any(uid == each["metadata"]["uid"] for each in self._waiting.values())
            succeeded = pod is not None and pod["status"].get("phase") == "Succeeded"
            if (
                pod is None
                or is_live
                or uid in self._kept
                or (succeeded and "deletionTimestamp" not in pod["metadata"])
            ):
                self.seen.passed.append(f"revision {event.revision}: quota of {uid} is kept")
            self._kept.add(uid)

    def _check_known(self, event: Event) -> None:
        if self._row.in_force and len(self._waiting) > self._row.waiting:
            self.seen.passed.append(
                f"revision {event.revision}, {event.key}: {len(self._waiting)} wait, {self._row.waiting} known"
            )

    def _check_order(self, event: Event, new: set[str]) -> None:
        held = [pod for pod in self._waiting.values() if pod["metadata"]["uid"] in new]
        if not held:
            return
        last = max(held, key=_place)
        passed = (
            pod["metadata"]["name"]
            for pod in self._waiting.values()
            if _place(pod) < _place(last) and self._can_start(pod) and not self._is_held(pod)
        )
        self.seen.passed += [
            f"revision {event.revision}: {last['metadata']['name']} before {name}" for name in passed
        ]

    def _is_held(self, pod: Pod) -> bool:
        return pod["metadata"]["uid"] in self._row.lifts

    def _can_start(self, pod: Pod) -> bool:
        uid = pod["metadata"]["uid"]
        is_shown = uid in self._since and self._since[uid] <= int(self._row.ledger["revisions"]["pods"])
        fits_hard = fits(cost_of_spec(pod["spec"]), {}, granted(self._row.ledger))
        return is_shown and uid not in self._denied and fits_hard
