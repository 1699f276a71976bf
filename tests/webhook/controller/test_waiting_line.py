"""Removals of the gates of pods that wait in line, when the API server refuses them, and gangs that have started."""

import threading
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from policies.quota.amounts import Vector
from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import Revisions
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from policies.quota.line import Gang, Standing
from policies.quota.waiting import GATE, QueueSpec
from tests.builders import JSON, gpu_container, quota_ledger
from tests.cases import cases
from tests.webhook.controller.clock import Clock
from webhook.cluster import errors
from webhook.configuration.loader import load_directory
from webhook.controller import waiting_line
from webhook.controller.gangs import KnownGang
from webhook.controller.owners import Owner
from webhook.controller.records import PodRecord, RecordReader
from webhook.controller.waiting_line import FIRST_PAUSE, MAX_COMPARED, WaitingLine
from webhook.workloads.gangs import GangSource

BY = CatalogueVersion("0123456789abcdef", UnclassifiedPods.TOTAL_ONLY)
DENIED = errors.Invalid("ValidatingAdmissionPolicy denied the request")
POD: Any = SimpleNamespace(
    uid="a", namespace="team", name="train", version=7, waiting=SimpleNamespace(gate=0, has_other_gate=False)
)
LATER: Any = SimpleNamespace(**{**vars(POD), "version": 8})


OWNERS: Any = SimpleNamespace(
    of=lambda _namespace, reference, _late: Owner(reference.group, reference.kind, reference.uid)
)
"""All owners exist."""


class World:
    """A line whose pods the API server refuses to change."""

    def __init__(self) -> None:
        self.again: list[float] = []
        self.denials: list[str] = []
        reports: Any = SimpleNamespace(denied=lambda _pod, problem: self.denials.append(problem))
        api: Any = SimpleNamespace(patch=self._refuse)
        nothing: Any = None
        self.line = WaitingLine(
            api,
            nothing,
            nothing,
            OWNERS,
            reports,
            lambda _: QueueSpec(),
            lambda _namespace, seconds: self.again.append(seconds),
        )

    def _refuse(self, *_: object, **__: object) -> None:
        raise DENIED


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(waiting_line, "monotonic", Clock())
    return World()


def test_a_pod_that_has_changed_meanwhile_is_tried_again(world: World) -> None:
    for pod in (POD, LATER):
        world.line._lift(pod)
        assert world.line._obstacle(pod, None) is None
    assert (world.denials, world.again) == ([], [FIRST_PAUSE, FIRST_PAUSE])


def test_a_pod_that_an_admission_policy_denies_stands_aside(world: World) -> None:
    for _ in range(3):
        world.line._lift(POD)
    assert world.line._obstacle(POD, None) is Standing.DENIED
    assert world.denials == 2 * [str(DENIED)]
    passing = 0.0
    assert world.again == [FIRST_PAUSE, passing, passing, 2 * FIRST_PAUSE]
    assert world.line._obstacle(LATER, None) is None


def member(
    uid: str, phase: str = "", *, waits: bool = False, job: str = "1", group: str = "", deleted: bool = False
) -> PodRecord:
    spec = {"containers": [gpu_container("1")]} | ({"schedulingGates": [{"name": GATE}]} if waits else {})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"train-{job}", "uid": job, "controller": True}
    metadata: JSON = {"name": uid, "uid": uid, "namespace": "team", "resourceVersion": "1"}
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    metadata |= {
        "ownerReferences": [owner],
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "labels": {"scheduling.x-k8s.io/pod-group": group} if group else {},
    }
    document = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    found = RecordReader(load_directory(None)).read_pod(msgspec.Raw(msgspec.json.encode(document)))
    assert found is not None
    return found


@cases(
    ("pods", "running"),
    all_wait=([member("a", waits=True), member("b", waits=True)], 0),
    one_runs=([member("a", "Running"), member("b", waits=True)], 1),
    the_rest_has_succeeded=([member("a", "Succeeded"), member("b", "Failed"), member("c", waits=True)], 1),
    all_are_deleted_and_come_again=([member("a", "Running", deleted=True), member("b", waits=True)], 0),
    all_failed_and_come_again=([member("a", "Failed"), member("b", waits=True)], 0),
    another_job_succeeded=([member("a", "Succeeded", job="0"), member("b", waits=True)], 0),
    another_job_with_that_pod_group_succeeded=(
        [member("a", "Succeeded", job="0", group="g"), member("b", waits=True, group="g")],
        0,
    ),
)
def test_how_many_pods_of_a_gang_have_started(pods: list[PodRecord], running: int) -> None:
    cache: Any = SimpleNamespace(own=SimpleNamespace(pods_of=lambda _: pods))
    gangs: Any = SimpleNamespace(
        find=lambda _, sources: {each: KnownGang("Job/train", 2) for each in sources}
    )
    nothing: Any = None
    line = WaitingLine(nothing, cache, gangs, OWNERS, nothing, nothing, nothing)
    waiting = [each for each in pods if each.waits]
    keys, found = line._known_gangs("team", waiting)
    assert {keys[each.uid] for each in waiting} == {"Job/train"}
    assert found == {"Job/train": Gang(2, running)}


def test_many_different_pods_of_one_owner_are_compared_with_few(world: World) -> None:
    read: list[str] = []

    def demand_of(pod: PodRecord) -> Vector:
        read.append(pod.uid)
        return {"gpus": Fraction(2 if pod.waits else 1)}

    for number in range(2 * MAX_COMPARED):
        world.line.ended(member(f"ended-{number}", "Succeeded"))
    assert not world.line._replacements("team", [member("a", waits=True)], demand_of)
    assert sum(uid.startswith("ended") for uid in read) == MAX_COMPARED


def test_pods_end_while_replacements_are_looked_for(world: World) -> None:
    """An informer holds its lock while it calls `ended`, and the demand of a pod needs that lock."""
    world.line.ended(member("ended", "Succeeded"))

    def demand_of(_pod: PodRecord) -> Vector:
        informer = threading.Thread(
            target=world.line.ended, args=(member("another", "Succeeded"),), daemon=True
        )
        informer.start()
        informer.join(5)
        assert not informer.is_alive()
        return {"gpus": Fraction(1)}

    assert world.line._replacements("team", [member("a", waits=True)], demand_of) == {"a"}


def owned(uid: str, kind: str, *, waits: bool = False, of: str = "1") -> PodRecord:
    owner = GangSource("batch/v1" if kind == "Job" else "apps/v1", kind, "app", uid=of)
    found = member(uid, "" if waits else "Succeeded", waits=waits)
    return msgspec.structs.replace(found, holder=f"{kind}/app", owner=owner)


@cases(
    ("kind", "in_team", "want"),
    of_a_deployment=("Deployment", True, {"a"}),
    of_a_job_whose_pods_would_keep_other_namespaces_out=("Job", True, set()),
    of_a_job_beside_nobody_else=("Job", False, {"a"}),
)
def test_who_replaces_a_pod_in_a_team(kind: str, in_team: bool, want: set[str], world: World) -> None:
    world.line.ended(owned("ended", kind))

    found = world.line._replacements(
        "team", [owned("a", kind, waits=True)], lambda _: {"gpus": Fraction(1)}, in_team=in_team
    )
    assert found == want


def test_a_pod_of_another_object_of_that_name_replaces_none(world: World) -> None:
    world.line.ended(owned("ended", "Job", of="deleted"))

    again = owned("a", "Job", waits=True, of="made again")
    assert not world.line._replacements("team", [again], lambda _: {"gpus": Fraction(1)})


@cases(
    ("kind", "counted", "want"),
    of_a_deployment_whose_next_pod_has_not_come=("Deployment", ["b"], ()),
    also_if_both_were_counted=("Deployment", ["a", "b"], ()),
    of_a_job=("Job", ["b"], ("waits",)),
)
def test_quota_of_a_team_is_kept_for_a_namespace_in_which_nobody_waits(
    kind: str, counted: list[str], want: tuple[str, ...]
) -> None:
    waits = msgspec.structs.replace(owned("waits", kind, waits=True), namespace="b")
    by_namespace = {"a": [], "b": [waits]}
    counter: Any = SimpleNamespace(
        synced=True,
        waiting_pods=by_namespace.__getitem__,
        has_waiting=lambda namespace: bool(by_namespace[namespace]),
        pods_of=by_namespace.__getitem__,
        demand_if_started=lambda *_: {"gpus": Fraction(1)},
    )
    cache: Any = SimpleNamespace(own=counter, of=lambda _: counter)
    nothing: Any = SimpleNamespace(
        find=lambda *_: {}, forget=lambda _: None, nobody=lambda _: None, turn=lambda *_: None
    )
    line = WaitingLine(nothing, cache, nothing, OWNERS, nothing, lambda _: QueueSpec(), lambda *_: None)
    line.ended(msgspec.structs.replace(owned("ended", kind), namespace="a"))
    ledger = quota_ledger(used={"gpus": Fraction(1)}, class_catalogue=str(BY), revisions=Revisions(pods=9))
    team = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(3)})

    found = line.take_team_turn(TeamLedgers(team, {"a": ledger, "b": ledger}), counted)
    assert found.lifts("b") == want
