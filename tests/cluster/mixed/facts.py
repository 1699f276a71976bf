"""What documents in etcd's history say, read by itself: pods, gangs, and the rows of ledgers. Amounts are whole GPUs.

Nothing of the code that it watches is used, nor of the other referees (`tests.cluster.quota.referee`, `team_referee`).
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tests.cluster.mixed.recording import Timed
from tests.cluster.quota.teams import LABEL

OUR_GATE = "gpu-admission.dev/quota"
TEAM = "clustergpuquota."
_OURS = "/registry/gpu-admission.dev/"
WARN_SECONDS = 3.0
DELETED_SECONDS = 4.0
"""A GPUQuota that was deleted stays in force for five seconds from when the controller hears of it: docs/operate/quota.md."""
_NEVER = float("inf")
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
    """A reservation. `lift`: "" for one of a creation or another update, `held`, `begun`, or `kept` for a pod that ended.

    `keeper`: the uid of the object that keeps what the pod had.
    """

    uid: str
    gpus: int
    name: str
    lift: str
    keeper: str = ""


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
        return [_entry(each, head) for head, ids in _lines(self.text.get("reservations", "")) for each in ids]

    def reserved(self, without: Iterable[str] = ()) -> int:
        """Return what is reserved, without what is held for these uids. Of creations of one name the largest counts."""
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
    def keeps(self) -> dict[str, Entry]:
        return {entry.uid: entry for entry in self.entries if entry.keeper}

    @property
    def lifts(self) -> dict[str, str]:
        return {entry.uid: entry.lift for entry in self.entries if entry.lift}


def _lines(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        head, _, ids = line.partition(" | ")
        yield head, ids.split(" ")


def _gpus(head: str) -> int:
    return sum(int(item[5:]) for item in head.split(" ") if item.startswith("gpus="))


def _entry(each: str, head: str) -> Entry:
    key, _, name = each.partition(":")
    uid, _, rest = key.partition("/")
    is_lift = rest == "lift" or rest.startswith("lift/")
    if rest.startswith("keep/"):
        return Entry(uid, _gpus(head), name, "kept", rest.removeprefix("keep/"))
    gpus = _gpus(head)
    return Entry(uid, gpus, name, ("begun" if "/" in rest else "held") if is_lift else "")


@dataclass(frozen=True)
class TeamRow:
    """`hard` and `guaranteed` of GPUs, and the rows of the namespaces that it decides about.

    `leaving`: what others hold that leave it. It is free once their ledgers are elsewhere.
    """

    name: str
    hard: int | None
    guaranteed: Mapping[str, int]
    rows: Mapping[str, Row]
    leaving: int

    def held(self, without: Iterable[str] = ()) -> dict[str, int]:
        """Return what each namespace holds, by name, also of those that hold nothing and have a guarantee."""
        left_out = set(without)
        held = {name: row.used + row.reserved(left_out) for name, row in self.rows.items() if row.is_counted}
        return {**dict.fromkeys(self.guaranteed, 0), **held}

    def taken(self, held: Mapping[str, int]) -> dict[str, int]:
        return {name: max(gpus, self.guaranteed.get(name, 0)) for name, gpus in held.items()}

    def has_room(self, taken: int) -> bool:
        """Whether its namespaces may take so much together, beside those that leave it."""
        return self.hard is None or taken + self.leaving <= self.hard


class Write(NamedTuple):
    """One write of a ledger object. `team`: of a team's object what it says, with its rows; `rows` by namespace."""

    revision: int
    at: float
    rows: Mapping[str, Row]
    team: TeamRow | None
    gone: str = ""
    """The namespace whose ledger object was deleted."""


@dataclass
class Facts:
    """The history of one run. `gangs`: by uid of the Job how many pods run together.

    `queues`: `spec.queue` by revision, None when the GPUQuota was deleted. `teams`: the team of a namespace by revision.
    """

    namespaces: dict[str, Namespace] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    gangs: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    """By uid of a Job: the revision of its deletion. The garbage collector deletes its pods some tenths of a second later."""
    queues: dict[str, list[tuple[int, Mapping[str, Any] | None]]] = field(default_factory=dict)
    teams: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    """Uids of pods whose gate could not be removed at some time, of which an Event says so."""

    warned: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By namespace: from when to when a policy for it alone said `mode: warn`."""

    without_quota: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By namespace: from when to when its GPUQuota was deleted."""

    def was_unlimited(self, namespace: str) -> bool:
        """Whether its GPUQuota was deleted for so long that it perhaps was no longer in force."""
        return any(end - begin > DELETED_SECONDS for begin, end in self.without_quota.get(namespace, ()))

    def is_warned(self, namespace: str, at: float) -> bool:
        """Whether the rule did not deny there, or had not for long: its documents take effect within WARN_SECONDS."""
        return any(begin <= at <= end + WARN_SECONDS for begin, end in self.warned.get(namespace, ()))

    def is_orphan(self, owner: str, revision: int) -> bool:
        return owner in self.gone and self.gone[owner] < revision

    def queue(self, namespace: str, revision: int) -> Mapping[str, Any]:
        return {**_DEFAULT_QUEUE, **(self._queue(namespace, revision) or {})}

    def _queue(self, namespace: str, revision: int) -> Mapping[str, Any] | None:
        return _last(self.queues.get(namespace, []), revision, {})

    def has_turns(self, namespace: str, write: Write) -> bool:
        """Whether controllers start pods by this row of a ledger.

        They do not while its GPUQuota is deleted: for five seconds the ledger stays as it is, in case it is made again. Nor by
        the own object of a namespace that belongs to a team: its ledger moves there, and the team decides what is free.
        """
        is_deleted = self._queue(namespace, write.revision) is None
        moves = write.team is None and _last(self.teams.get(namespace, []), write.revision, "") != ""
        return not is_deleted and not moves


_T = TypeVar("_T")


def _last(history: Sequence[tuple[int, _T]], revision: int, otherwise: _T) -> _T:
    """Return what was last said up to a revision."""
    return next((said for since, said in reversed(history) if since <= revision), otherwise)


def read(events: Iterable[Timed]) -> Facts:
    reader = _Reader()
    for event in events:
        reader.read(event)
    return reader.facts


class _Reader:
    def __init__(self) -> None:
        self.facts = Facts()
        self._uids: dict[str, str] = {}
        """By the key of a pod or Job."""
        self._kinds = {
            "/registry/pods/": self._pod,
            "/registry/jobs/": self._job,
            "/registry/namespaces/": self._namespace,
            f"{_OURS}gpuquotas/": self._quota,
            f"{_OURS}gpupolicies/": self._policy,
            f"{_OURS}gpuquotaledgers/": self._ledger,
            "/registry/events/": self._event,
        }

    def read(self, each: Timed) -> None:
        for start, of_kind in self._kinds.items():
            if each.event.key.startswith(start):
                of_kind(each, each.event.key.removeprefix(start).split("/"))

    def _pod(self, each: Timed, path: list[str]) -> None:
        (revision, key, value), at = each
        space = self.facts.namespaces.setdefault(path[0], Namespace())
        state = dict(space.states[-1])
        if value is None:
            state.pop(self._uids.get(key, ""), None)
        else:
            pod = read_pod(value)
            state[pod.uid] = pod
            self._uids[key] = pod.uid
        space.revisions.append(revision)
        space.states.append(state)
        space.times.append(at)

    def _job(self, each: Timed, _: list[str]) -> None:
        (revision, key, value), _at = each
        if value is None:
            self.facts.gone[self._uids.get(key, "")] = revision
            return
        spec, uid = value["spec"], value["metadata"]["uid"]
        self._uids[key] = uid
        is_gang = spec.get("completionMode") == "Indexed" and spec["completions"] == spec["parallelism"]
        if is_gang and spec["parallelism"] > 1:
            self.facts.gangs[uid] = spec["parallelism"]

    def _quota(self, each: Timed, path: list[str]) -> None:
        value = each.event.value
        queue = None if value is None else value["spec"].get("queue", {})
        self.facts.queues.setdefault(path[0], []).append((each.event.revision, queue))
        spells = self.facts.without_quota.setdefault(path[0], [])
        if value is None:
            spells.append((each.at, _NEVER))
        elif spells and spells[-1][1] == _NEVER:
            spells[-1] = spells[-1][0], each.at

    def _namespace(self, each: Timed, path: list[str]) -> None:
        labels = (each.event.value or {"metadata": {}})["metadata"].get("labels", {})
        self.facts.teams.setdefault(path[0], []).append((each.event.revision, labels.get(LABEL, "")))

    def _policy(self, each: Timed, _: list[str]) -> None:
        spec = (each.event.value or {"spec": {}})["spec"]
        warns = spec.get("rules", {}).get("gpu-quota", {}).get("mode") == "warn"
        for name in spec.get("match", {}).get("namespaces", ()):
            spells = self.facts.warned.setdefault(name, [])
            if spells and spells[-1][1] == _NEVER:
                spells[-1] = spells[-1][0], each.at
            if warns:
                spells.append((each.at, _NEVER))

    def _ledger(self, each: Timed, path: list[str]) -> None:
        (revision, _, value), at = each
        if value is None:
            self.facts.writes.append(Write(revision, at, {}, None, gone=path[1]))
        else:
            self.facts.writes.append(_write(path[1], revision, at, json.loads(value["ledger"])))

    def _event(self, each: Timed, _: list[str]) -> None:
        if (value := each.event.value) is not None:
            self.facts.denied.add((value.get("involvedObject") or value["regarding"])["uid"])


def _write(name: str, revision: int, at: float, text: Any) -> Write:
    if not isinstance(text, dict):  # the epoch of quotas is an object of the same kind
        return Write(revision, at, {}, None)
    if not name.startswith(TEAM):
        return Write(revision, at, {} if text.get("movedTo") else {name: Row(text)}, None)
    every = {each: Row(row) for each, row in text.get("ledgers", {}).items()}
    rows = {each: row for each, row in every.items() if each not in text.get("leaving", ())}
    gone = (row for each, row in every.items() if each not in rows and row.is_counted)
    leaving = sum(row.used + row.reserved() for row in gone)
    team, hard = text["team"], text["team"]["hard"].get("gpus")
    guaranteed = {each: int(of.get("gpus", 0)) for each, of in team.get("guaranteed", {}).items()}
    return Write(
        revision,
        at,
        rows,
        TeamRow(name.removeprefix(TEAM), None if hard is None else int(hard), guaranteed, rows, leaving),
    )
