"""To which team a namespace belongs, as the watches show it, and who is told of a change."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from policies.quota.demand import UnclassifiedPods
from tests.builders import quota_ledger
from tests.cases import cases
from tests.policies.quota.ledger.teams import team
from webhook.cluster.api import ApiClient
from webhook.cluster.collection import Subscribers
from webhook.cluster.namespaces import NamespaceRecord, Namespaces
from webhook.controller import teams
from webhook.controller.teams import TeamMembership, desired_ledger
from webhook.quota.team_documents import TeamRecord, decode_team


def record(name: str, generation: int = 1, hard: Any = None, **namespaces: Any) -> TeamRecord:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "generation": generation}
    spec = {"namespaces": namespaces, "hard": {"gpus": 4} if hard is None else hard}
    return decode_team(msgspec.json.encode({"metadata": metadata, "spec": spec}))


class World:
    """Namespaces and ClusterGPUQuotas in the watches, and what the membership says of a change of them."""

    def __init__(self, **namespaces: dict[str, str]) -> None:
        self.labels = dict(namespaces)
        self.moved: list[tuple[str, ...]] = []
        self.changed: list[str] = []
        self._subscribers = Subscribers[[NamespaceRecord | None, NamespaceRecord | None]]("namespaces")
        known: Any = SimpleNamespace(
            watched_labels=lambda name: tuple(self.labels[name].items()) if name in self.labels else None,
            names=lambda: list(self.labels),
            informer=SimpleNamespace(synced=True, subscribe=self._subscribers.subscribe),
        )
        self.membership = TeamMembership(cast(ApiClient, None), cast(Namespaces, known))
        self.membership.moved.subscribe(lambda *moved: self.moved.append(moved))
        self.membership.changed.subscribe(
            lambda before, after: self.changed.append((after or before).name)  # type: ignore[union-attr]
        )
        self.membership.informer.synced = True

    def apply(self, before: TeamRecord | None, after: TeamRecord | None) -> None:
        self.membership._team_changed(before, after)

    def relabel(self, name: str, labels: dict[str, str] | None) -> None:
        if labels is None:
            del self.labels[name]
        else:
            self.labels[name] = labels
        self._subscribers(None, NamespaceRecord(f"uid-{name}", name, ()))

    @property
    def teams(self) -> dict[str, str]:
        return {name: self.membership.team_of(name) for name in sorted(self.labels)}


VISION = record("vision", names=["vision-*"])
LABELLED = record("labelled", selector={"matchLabels": {"team": "x"}})


def created(world: World) -> None:
    world.apply(None, VISION)


def deleted(world: World) -> None:
    world.apply(None, VISION)
    world.apply(VISION, None)
    assert world.teams["vision-cv"] == "vision", "it may be made again"
    world.moved.clear()
    world.membership._deleted(VISION)


def made_again(world: World) -> None:
    world.apply(None, VISION)
    world.apply(VISION, None)
    world.apply(None, record("vision", 2, names=["vision-*"]))
    world.membership._deleted(VISION)


def replaced(world: World) -> None:
    """Have the watch show the creation of the next one first."""
    world.apply(None, VISION)
    again = record("vision", 2, names=["vision-*"])
    world.apply(None, again)
    world.apply(VISION, None)


def matches_others(world: World) -> None:
    world.apply(None, VISION)
    world.apply(VISION, record("vision", 2, names=["other"]))


def only_limits_changed(world: World) -> None:
    world.apply(None, VISION)
    assert world.membership.team_of("vision-cv") == "vision"
    world.apply(VISION, record("vision", 2, {"gpus": 8}, names=["vision-*"]))
    world.moved.clear()


def a_spec_that_cannot_be_read(world: World) -> None:
    world.apply(None, VISION)
    world.apply(VISION, record("vision", 2, {"gpus": "many"}, names=["vision-*"]))


@cases(
    ("happens", "want", "moved"),
    nothing=(lambda _: None, {"other": "", "vision-cv": ""}, []),
    created=(created, {"other": "", "vision-cv": "vision"}, [("vision-cv", "vision")]),
    deleted=(deleted, {"other": "", "vision-cv": ""}, [("vision-cv", "vision")]),
    made_again=(made_again, {"other": "", "vision-cv": "vision"}, [("vision-cv", "vision")]),
    replaced=(replaced, {"other": "", "vision-cv": "vision"}, [("vision-cv", "vision")]),
    matches_others=(matches_others, {"other": "vision", "vision-cv": ""}, [("other", "vision")]),
    only_limits_changed=(only_limits_changed, {"other": "", "vision-cv": "vision"}, []),
    nobody_leaves_a_team_whose_limits_cannot_be_read=(
        a_spec_that_cannot_be_read,
        {"other": "", "vision-cv": "vision"},
        [("vision-cv", "vision")],
    ),
)
def test_namespaces_belong_to_the_team_that_matches_them(
    happens: Callable[[World], object], want: dict[str, str], moved: list[tuple[str, ...]]
) -> None:
    world = World(**{"other": {}, "vision-cv": {}})
    happens(world)

    assert world.teams == want
    assert world.moved == moved


@cases(
    ("before", "after", "moved"),
    it_gets_the_label=({}, {"team": "x"}, [("any", "labelled")]),
    it_loses_the_label=({"team": "x"}, {}, [("any", "labelled")]),
    another_label=({"team": "x"}, {"team": "x", "a": "b"}, []),
    it_is_deleted=({"team": "x"}, None, [("any", "labelled")]),
)
def test_a_namespace_changes_its_team_by_its_labels(
    before: dict[str, str], after: dict[str, str] | None, moved: list[tuple[str, ...]]
) -> None:
    world = World(any=before)
    world.apply(None, LABELLED)
    assert world.membership.team_of("any") == ("labelled" if before else "")
    world.moved.clear()

    world.relabel("any", after)

    assert world.moved == moved
    assert world.membership.team_of("any") == ("labelled" if after else "")


def test_a_namespace_that_goes_from_team_to_team_is_told_with_both() -> None:
    world = World(**{"vision-cv": {"team": "x"}})
    world.apply(None, LABELLED)
    assert world.membership.team_of("vision-cv") == "labelled"
    world.apply(None, VISION)

    assert world.membership.team_of("vision-cv") == "vision", "a name goes before a selector"
    assert world.moved[-1] == ("vision-cv", "labelled", "vision")
    assert world.membership.members("labelled") == []
    assert world.membership.members("vision") == ["vision-cv"]


def test_the_first_namespaces_by_name_are_in_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "MAX_NAMESPACES", 2)
    world = World(**{"vision-b": {}, "vision-c": {}})
    world.apply(None, VISION)
    assert world.membership.members("vision") == ["vision-b", "vision-c"]
    assert not world.membership.exceeds_max_namespaces("vision-c")
    world.moved.clear()

    world.relabel("vision-a", {})
    assert [name for name in sorted(world.labels) if world.membership.exceeds_max_namespaces(name)] == [
        "vision-c"
    ]
    assert {name for name, *_ in world.moved} == {"vision-a", "vision-b", "vision-c"}
    world.moved.clear()

    world.relabel("vision-b", None)
    assert not world.membership.exceeds_max_namespaces("vision-c")
    assert "vision-c" in {name for name, *_ in world.moved}


def test_before_everything_is_listed_nothing_is_decided() -> None:
    world = World(**{"vision-cv": {}})
    world.membership.informer.synced = False
    world.apply(None, VISION)
    assert world.teams == {"vision-cv": ""}

    world.membership.informer.synced = True
    assert world.teams == {"vision-cv": "vision"}


DENY, EXPENSIVE, TOTAL = UnclassifiedPods.DENY, UnclassifiedPods.MOST_EXPENSIVE, UnclassifiedPods.TOTAL_ONLY


@cases(
    ("own", "of_team", "want"),
    neither=(None, None, None),
    a_quota_alone=(TOTAL, None, TOTAL),
    a_team_alone=(None, EXPENSIVE, EXPENSIVE),
    the_team_is_stricter=(TOTAL, EXPENSIVE, EXPENSIVE),
    the_quota_is_stricter=(DENY, EXPENSIVE, DENY),
)
def test_a_ledger_has_the_stricter_rule_of_its_quota_and_its_team(
    own: UnclassifiedPods | None, of_team: UnclassifiedPods | None, want: UnclassifiedPods | None
) -> None:
    quota = quota_ledger(unclassified_pods=own, hard={"gpus": 1}) if own else None
    desired = desired_ledger(
        quota, msgspec.structs.replace(team({}), unclassified_pods=of_team) if of_team else None
    )

    assert (desired and desired.unclassified_pods) == want
    if desired is not None:
        assert desired.hard == ({"gpus": 1} if own else {})
        assert desired.quota_uid == ("q" if own else "")
