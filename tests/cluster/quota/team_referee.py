"""An independent count of teams from etcd's history: `referee` for each namespace, and what these promise together.

A namespace is in the team that its own ledger names as the place to which it moved, once that has it. There the rule is: an event
by which a namespace promises more leaves the sum of `max(promised, guaranteed)` over the other namespaces, and what this one
promises, within `hard` in force. A namespace that joins may bring more than is left, as a lower `hard` may leave less.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.cluster.quota.history import Event
from tests.cluster.quota.referee import BUILT_IN, Cost, Referee, Replay, WeightsOf, ledger_in

TEAM_OBJECT = "clustergpuquota."
_KEYS = re.compile(
    r"^/registry/(?:(?:pods|resourceclaims)/(?P<namespace>[^/]+)/.+"
    r"|gpu-admission\.dev/gpuquotaledgers/[^/]+/(?P<ledger>[^/]+)"
    r"|gpu-admission\.dev/clustergpuquotas/(?P<team>[^/]+))$"
)


@dataclass
class TeamReplay:
    """What the referee saw. `namespaces`: by each one's own rule.

    `two_places`: revisions after which two objects decide for one namespace. `no_such_spec`: limits of a team that no
    ClusterGPUQuota had, or that an earlier generation of it had. `joined`: how often a namespace came into a team.
    """

    namespaces: dict[str, Replay]
    over: list[str] = field(default_factory=list)
    two_places: list[str] = field(default_factory=list)
    no_such_spec: list[str] = field(default_factory=list)
    joined: int = 0

    @property
    def breaches(self) -> list[str]:
        of_namespaces = (f"{name}: {each}" for name, seen in self.namespaces.items() for each in seen.over)
        return [*of_namespaces, *self.over, *self.two_places, *self.no_such_spec]

    @property
    def unmapped_resources(self) -> list[tuple[str, str]]:
        """What was stored under a quota in force without being in its ledger, as (namespace, name)."""
        return [(name, each) for name, seen in self.namespaces.items() for each in seen.unmapped_resources]


def replay_teams(
    namespaces: Iterable[str], history: Iterable[Event], weights_of: WeightsOf = lambda _: BUILT_IN
) -> TeamReplay:
    """Count these namespaces, and the teams that they are in, again at every revision."""
    wanted, events = set(namespaces), list(history)
    objects: dict[str, list[Event]] = {name: [] for name in wanted}
    for event in events:
        if (found := _KEYS.match(event.key)) and found["namespace"] in wanted:
            objects[found["namespace"]].append(event)
    counts = {name: Referee(of, weights_of) for name, of in objects.items()}
    referee = _TeamReferee(counts)
    for event in events:
        found = _KEYS.match(event.key)
        if found and found["namespace"] in wanted:
            referee.object_event(event, found["namespace"])
        elif found and found["ledger"]:
            referee.ledger_event(event, found["ledger"])
        elif found and found["team"] and event.value:
            referee.spec_event(event)
    return referee.seen


Spec = tuple[Cost, Mapping[str, Cost]]
"""What a ClusterGPUQuota limits, and what it guarantees by namespace."""


class _TeamReferee:
    def __init__(self, counts: Mapping[str, Referee]) -> None:
        self._counts = counts
        self._own: dict[str, Any] = {}
        """What the ledger objects of namespaces say."""
        self._teams: dict[str, Any] = {}
        """What those of teams say, by their name."""
        self._followed: dict[str, Any] = {name: {} for name in counts}
        """The ledger that decides, or decided last, for each namespace."""
        self._specs: dict[str, dict[int, Spec]] = {}
        """By uid and generation of ClusterGPUQuotas."""
        self.seen = TeamReplay({name: each.seen for name, each in counts.items()})

    def spec_event(self, event: Event) -> None:
        metadata, spec = event.value["metadata"], event.value["spec"]
        guaranteed = {name: _limits(hard) for name, hard in spec.get("guaranteed", {}).items()}
        generations = self._specs.setdefault(metadata["uid"], {})
        generations[metadata["generation"]] = _limits(spec["hard"]), guaranteed

    def object_event(self, event: Event, namespace: str) -> None:
        self._evaluate(event, namespace, self._counts[namespace].object_event(event))

    def ledger_event(self, event: Event, name: str) -> None:
        before = {namespace: self._team(namespace) for namespace in self._counts}
        if name.startswith(TEAM_OBJECT):
            affected = self._team_event(event, name)
        else:
            self._own[name] = ledger_in(event.value)
            affected = {name} & self._counts.keys()
        followed = {namespace: self._ledger(namespace) for namespace in affected}
        changed = {name: ledger for name, ledger in followed.items() if ledger != self._followed[name]}
        self._followed |= changed
        grown = {
            namespace: self._counts[namespace].row_event(event, ledger)
            for namespace, ledger in changed.items()
        }
        for (
            namespace,
            keys,
        ) in grown.items():  # once all are counted: one swap may admit in several namespaces
            self._evaluate(event, namespace, keys)
        for namespace in affected:
            self.seen.joined += before[namespace] != self._team(namespace) != ""
            if len(places := list(self._places(namespace))) > 1:
                self.seen.two_places.append(f"revision {event.revision}: {namespace} in {places}")

    def _team_event(self, event: Event, name: str) -> set[str]:
        """Take the object of a team over, and return the namespaces that are in it, or were."""
        before: dict[str, Any] = self._teams.pop(name, {})
        after: dict[str, Any] = ledger_in(event.value)
        if after:
            self._teams[name] = after
            self._verify_spec(event, before.get("team", {}), after["team"])
        named = (before.get("ledgers", {}), after.get("ledgers", {}))
        return {namespace for each in named for namespace in each if namespace in self._counts}

    def _verify_spec(self, event: Event, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        uid, generation = after["uid"], after["generation"]
        if not uid and not after["hard"]:
            return  # its ClusterGPUQuota was deleted, and its object made again for a ledger that still has to pass through it
        in_force = (
            _amounts(after["hard"]),
            {name: _amounts(each) for name, each in after.get("guaranteed", {}).items()},
        )
        if self._specs.get(uid, {}).get(generation) != in_force:
            self.seen.no_such_spec.append(f"revision {event.revision}: {event.key} has {after}")
        if before.get("uid") == uid and generation < before["generation"]:
            self.seen.no_such_spec.append(f"revision {event.revision}: {event.key} went back to {generation}")

    def _team(self, namespace: str) -> str:
        """Return the name of the team's object that has the namespace, "" without one."""
        place = str(self._own.get(namespace, {}).get("movedTo", ""))
        return place if namespace in self._teams.get(place, {}).get("ledgers", {}) else ""

    def _ledger(self, namespace: str) -> Any:
        place = self._team(namespace)
        return self._teams[place]["ledgers"][namespace] if place else self._own.get(namespace, {})

    def _places(self, namespace: str) -> Iterator[str]:
        """Yield every object by which a replica may decide: it asks that of a team that it remembers first."""
        own = self._own.get(namespace, {})
        if "used" in own and not own.get("movedTo"):
            yield namespace
        for place, team in self._teams.items():
            if namespace in team.get("ledgers", {}) and namespace not in team.get("leaving", ()):
                yield place

    def _evaluate(self, event: Event, namespace: str, grown: frozenset[str]) -> None:
        if not (place := self._team(namespace)):
            return
        team = self._teams[place]["team"]
        hard, guaranteed = _amounts(team["hard"]), team.get("guaranteed", {})
        for key in grown & hard.keys():
            own = self._counts[namespace].promised[key]
            others = sum(
                (
                    max(self._promised(name, place, key), Fraction(guaranteed.get(name, {}).get(key, 0)))
                    for name in (self._teams[place]["ledgers"].keys() | guaranteed.keys()) - {namespace}
                ),
                Fraction(0),
            )
            if others + own > hard[key]:
                breach = f"{key} of {namespace} grew to {own} beside {others} of {hard[key]}"
                self.seen.over.append(f"revision {event.revision}, {event.key}, {place}: {breach}")

    def _promised(self, namespace: str, place: str, key: str) -> Fraction:
        is_member = namespace in self._counts and self._team(namespace) == place
        return self._counts[namespace].promised.get(key, Fraction(0)) if is_member else Fraction(0)


def _amounts(texts: Mapping[str, str]) -> Cost:
    return {key: Fraction(amount) for key, amount in texts.items()}


def _limits(hard: Mapping[str, Any]) -> Cost:
    """Return `hard` of a document by dimension."""
    gpus = {"gpus": Fraction(hard["gpus"])} if "gpus" in hard else {}
    named = {
        f"{kind}/{name}": Fraction(amount)
        for kind in ("classes", "resources")
        for name, amount in hard.get(kind, {}).items()
    }
    return gpus | named
