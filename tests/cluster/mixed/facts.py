"""What documents in etcd's history say, read by itself: pods, gangs, and the rows of ledgers. Amounts are whole GPUs.

Nothing of the code that it watches is used, nor of the other referees (`tests.cluster.quota.referee`, `team_referee`).
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.cluster.mixed.recording import Timed

OUR_GATE = "gpu-admission.dev/quota"
TEAM = "clustergpuquota."
_PODS, _JOBS = "/registry/pods/", "/registry/jobs/"
_OURS = "/registry/gpu-admission.dev/"
_DEFAULT_QUEUE = {"order": "StrictFIFO", "preferReplacements": True}


class Pod(NamedTuple):
    """`owner` is the uid of its controller, "" without one. `holds`: it has no gate of ours and has not ended."""

    uid: str
    name: str
    gpus: int
    waits: bool
    holds: bool
    is_deleted: bool
    has_succeeded: bool
    has_other_gate: bool
    owner: str
    place: tuple[int, str, str]

    @property
    def is_in_line(self) -> bool:
        return self.waits and not self.is_deleted


def read_pod(stored: Any) -> Pod:
    metadata, spec = stored["metadata"], stored["spec"]
    phase = stored.get("status", {}).get("phase")
    gates = [gate["name"] for gate in spec.get("schedulingGates", ())]
    limits = (each.get("resources", {}).get("limits", {}) for each in spec["containers"])
    owner = next((each["uid"] for each in metadata.get("ownerReferences", ()) if each.get("controller")), "")
    has_ended = phase in {"Succeeded", "Failed"}
    return Pod(
        uid=metadata["uid"],
        name=metadata["name"],
        gpus=sum(int(each.get("nvidia.com/gpu", 0)) for each in limits),
        waits=OUR_GATE in gates and not has_ended,
        holds=OUR_GATE not in gates and not has_ended,
        is_deleted="deletionTimestamp" in metadata,
        has_succeeded=phase == "Succeeded",
        has_other_gate=any(gate != OUR_GATE for gate in gates),
        owner=owner,
        place=(-spec.get("priority", 0), metadata["creationTimestamp"], metadata["uid"]),
    )


Pods = Mapping[str, Pod]
"""The stored pods of a namespace by uid."""


@dataclass
class Namespace:
    """The pods of a namespace at every revision."""

    revisions: list[int] = field(default_factory=lambda: [0])
    states: list[Pods] = field(default_factory=lambda: [{}])
    times: list[float] = field(default_factory=lambda: [0.0])

    def at(self, revision: int) -> Pods:
        return self.states[bisect_right(self.revisions, revision) - 1]

    @property
    def used_over_time(self) -> Iterator[tuple[float, int]]:
        """Yield from when on the pods held how many GPUs."""
        for at, state in zip(self.times, self.states, strict=True):
            yield at, used(state)


def used(pods: Pods) -> int:
    return sum(pod.gpus for pod in pods.values() if pod.holds)


def waiting(pods: Pods) -> int:
    return sum(pod.is_in_line for pod in pods.values())


class Entry(NamedTuple):
    """A reservation. `lift`: "" for one of a creation or another update, else `held` or `begun`."""

    uid: str
    gpus: int
    name: str
    lift: str


@dataclass(frozen=True)
class Row:
    """What a ledger says of a namespace. `hard`: None if it does not limit GPUs. `is_counted`: it decides, and was counted."""

    text: Mapping[str, Any]

    @property
    def is_counted(self) -> bool:
        return "used" in self.text

    @property
    def used(self) -> int:
        return int(self.text["used"].get("gpus", 0))

    @property
    def waiting(self) -> int:
        return int(self.text.get("waiting", 0))

    @property
    def hard(self) -> int | None:
        return int(self.text["hard"]["gpus"]) if "gpus" in self.text["hard"] else None

    @property
    def revision(self) -> int:
        """The revision of the pods that were counted."""
        return int(self.text.get("revisions", {}).get("pods", 0))

    @property
    def entries(self) -> list[Entry]:
        return [
            _entry(each, head) for head, ids in _lines(self.text.get("reservations", "")) for each in ids
        ]

    def reserved(self, without: Iterable[str] = ()) -> int:
        """Return what is reserved, of creations of one name the largest less what is stored; without what is held for these uids."""
        left_out, by_name, reserved = set(without), dict[str, int](), 0
        for entry in self.entries:
            if entry.lift and entry.uid in left_out:
                continue
            if entry.name:
                by_name[entry.name] = max(by_name.get(entry.name, 0), entry.gpus)
            else:
                reserved += entry.gpus
        stored = self.text.get("storedNames", {})
        return reserved + sum(
            max(0, gpus - int(stored.get(name, {}).get("gpus", 0))) for name, gpus in by_name.items()
        )

    @property
    def lifts(self) -> dict[str, str]:
        return {entry.uid: entry.lift for entry in self.entries if entry.lift}


def _lines(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        head, _, ids = line.partition(" | ")
        yield head, ids.split(" ")


def _entry(each: str, head: str) -> Entry:
    key, _, name = each.partition(":")
    uid, _, rest = key.partition("/")
    is_lift = rest == "lift" or rest.startswith("lift/")
    gpus = sum(int(item[5:]) for item in head.split(" ") if item.startswith("gpus="))
    return Entry(uid, gpus, name, ("begun" if "/" in rest else "held") if is_lift else "")


@dataclass(frozen=True)
class TeamRow:
    """`hard` and `guaranteed` of GPUs, and the rows of the namespaces that it decides about."""

    name: str
    hard: int | None
    guaranteed: Mapping[str, int]
    rows: Mapping[str, Row]

    def held(self, without: Iterable[str] = ()) -> dict[str, int]:
        """Return what each namespace holds, by name, also of those that hold nothing and have a guarantee."""
        left_out = set(without)
        held = {name: row.used + row.reserved(left_out) for name, row in self.rows.items() if row.is_counted}
        return {**dict.fromkeys(self.guaranteed, 0), **held}

    def taken(self, held: Mapping[str, int]) -> dict[str, int]:
        return {name: max(gpus, self.guaranteed.get(name, 0)) for name, gpus in held.items()}


class Write(NamedTuple):
    """One write of a ledger object. `team`: of a team's object what it says, with its rows; `rows` by namespace."""

    revision: int
    at: float
    rows: Mapping[str, Row]
    team: TeamRow | None


@dataclass
class Facts:
    """The history of one run. `gangs`: by uid of the Job how many pods run together. `queues`: `spec.queue` by revision."""

    namespaces: dict[str, Namespace] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    gangs: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    """By uid of such a Job: the revision of its deletion. Its pods are no gang any more, and are deleted after it."""
    queues: dict[str, list[tuple[int, Mapping[str, Any]]]] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    """Uids of pods whose gate could not be removed at some time, of which an Event says so."""

    def is_gang(self, owner: str, revision: int) -> bool:
        return owner in self.gangs and revision < self.gone.get(owner, revision + 1)

    def queue(self, namespace: str, revision: int) -> Mapping[str, Any]:
        found = [queue for since, queue in self.queues.get(namespace, ()) if since <= revision]
        return {**_DEFAULT_QUEUE, **(found[-1] if found else {})}


def read(events: Iterable[Timed]) -> Facts:
    facts = Facts()
    by_key: dict[str, str] = {}
    for event, at in events:
        key, value = event.key, event.value
        if key.startswith(_PODS):
            name = key.split("/")[3]
            space = facts.namespaces.setdefault(name, Namespace())
            state = dict(space.states[-1])
            if value is None:
                state.pop(by_key.get(key, ""), None)
            else:
                pod = read_pod(value)
                state[pod.uid] = pod
                by_key[key] = pod.uid
            space.revisions.append(event.revision)
            space.states.append(state)
            space.times.append(at)
        elif key.startswith(_JOBS) and value is None:
            facts.gone[by_key.get(key, "")] = event.revision
        elif key.startswith(_JOBS):
            spec, by_key[key] = value["spec"], value["metadata"]["uid"]
            is_gang = spec.get("completionMode") == "Indexed" and spec["completions"] == spec["parallelism"]
            if is_gang and spec["parallelism"] > 1:
                facts.gangs[value["metadata"]["uid"]] = spec["parallelism"]
        elif key.startswith(f"{_OURS}gpuquotas/"):
            queue = (value or {}).get("spec", {}).get("queue", {})
            facts.queues.setdefault(key.split("/")[4], []).append((event.revision, queue))
        elif key.startswith(f"{_OURS}gpuquotaledgers/") and value is not None:
            facts.writes.append(_write(key.split("/")[5], event.revision, at, json.loads(value["ledger"])))
        elif key.startswith("/registry/events/") and value is not None:
            facts.denied.add((value.get("involvedObject") or value["regarding"])["uid"])
    return facts


def _write(name: str, revision: int, at: float, text: Any) -> Write:
    if not name.startswith(TEAM):
        return Write(revision, at, {} if text.get("movedTo") else {name: Row(text)}, None)
    rows = {
        each: Row(row) for each, row in text.get("ledgers", {}).items() if each not in text.get("leaving", ())
    }
    team, hard = text["team"], text["team"]["hard"].get("gpus")
    guaranteed = {each: int(of.get("gpus", 0)) for each, of in team.get("guaranteed", {}).items()}
    return Write(
        revision,
        at,
        rows,
        TeamRow(name.removeprefix(TEAM), None if hard is None else int(hard), guaranteed, rows),
    )
