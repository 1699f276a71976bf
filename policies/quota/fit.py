"""Whether the pods of a workload will fit a quota, one pure calculation. Nothing is charged by it.

A pod costs what `charge_pod` says of it as it would be admitted. ResourceClaims (DRA) cost nothing here: they are charged by
themselves.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from fractions import Fraction
from math import ceil, floor
from typing import Any

import msgspec

from policies.placement.pinning import named_nodes
from policies.pods.workload import PodCount, Workload
from policies.quota.amounts import (
    CLASSES,
    GPUS,
    NOTHING,
    Excess,
    Vector,
    exceeds,
    positive_difference,
    total,
)
from policies.quota.charge import Catalogues, UnclassifiedPods, charge_pod
from policies.quota.charge_request import QuotaGrant

MOST_TEMPLATES = 16
"""Of one object whose pods cost anything; to charge a pod of as many resources as there may be takes some 4 ms."""

_PERCENT = re.compile(r"([0-9]{1,9})%")
_DEFAULT = "25%"
"""Of `maxSurge` and `maxUnavailable` (`SetDefaults_Deployment` in `pkg/apis/apps/v1`, v1.36)."""

_EXISTING = {
    ("", "ReplicationController"): "replicas",
    ("apps", "Deployment"): "replicas",
    ("apps", "ReplicaSet"): "replicas",
    ("apps", "StatefulSet"): "replicas",
    ("apps.kruise.io", "CloneSet"): "replicas",
    ("apps.kruise.io", "StatefulSet"): "replicas",
    ("argoproj.io", "Rollout"): "replicas",
    ("batch", "Job"): "active",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "replicas",
}
"""The field of the status that counts pods (of a LeaderWorkerSet: groups) which exist, whatever became of them."""


class Demand(msgspec.Struct, frozen=True):
    """What one pod of a template costs, and how many there are of it. `path` is that of the template."""

    path: str
    each: Vector
    count: PodCount

    def times(self, pods: int) -> Vector:
        return {key: amount * pods for key, amount in self.each.items()}


class FitFailure(Enum):
    """What keeps pods from starting, the worst first."""

    POD_TOO_LARGE = "pod too large"
    """A single pod is larger than the whole quota."""
    GANG_TOO_LARGE = "gang too large"
    """So are the pods that must run at the same time."""
    TOO_LITTLE = "too little"
    """Not all pods fit beside what others hold."""
    TOO_LITTLE_TO_GROW = "too little to grow"
    """Not all fit to which the workload may grow, or be scaled."""
    NO_SURGE = "no surge"
    """All fit, but not the pod with which a rolling update would begin."""


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps pods from starting, and the amount of the quota that limits them most.

    `pods` need `needed` of `key`, of which `left` of `hard` is left for them, so `starting` of them start. `path` is that of
    their template, empty where there are several.
    """

    failure: FitFailure
    path: str = ""
    key: str
    needed: Fraction
    left: Fraction
    hard: Fraction
    starting: int = 0
    pods: int = 1


class Headroom(msgspec.Struct, frozen=True):
    """What a quota grants, and what others hold of it."""

    hard: Vector
    held: Vector

    def left(self) -> Vector:
        return {key: max(hard - self.held.get(key, NOTHING), NOTHING) for key, hard in self.hard.items()}


def fit_result(
    workload: Workload, grant: QuotaGrant, catalogues: Catalogues, *, is_stored: bool
) -> FitResult | None:
    """Return the worst that keeps pods of a workload, or of what an autoscaler scales, from starting; None if nothing does.

    is_stored: whether pods of the workload may exist, which are held of the quota. Where the status does not say how many, only
      what does not depend on it is found.
    """
    requested = demands(workload.target or workload, catalogues, grant.unclassified_pods)
    found = _too_large(requested, grant.hard)
    if found is not None or grant.held is None:
        return found
    room = Headroom(grant.hard, grant.held)
    if is_stored or workload.target:
        own = _existing(workload.target or workload, requested)
        if own is None:
            return None
        room = Headroom(grant.hard, positive_difference(grant.held, own))
    written = [(each, each.count.running or 0) for each in requested]
    largest = [(each, each.count.most or pods) for each, pods in written]
    now, then = FitFailure.TOO_LITTLE, FitFailure.TOO_LITTLE_TO_GROW
    found = _shortage(then if workload.target else now, written, room) or _shortage(then, largest, room)
    if found is None and (workload.group, workload.kind) == ("apps", "Deployment"):
        found = _surge(workload.data.get("spec"), written, room)
    return found


def demands(
    workload: Workload, catalogues: Catalogues, unclassified_pods: UnclassifiedPods
) -> tuple[Demand, ...]:
    """Return what the pods of the workload cost, for each template that makes pods which cost anything.

    A pod that would be denied costs nothing. Of one that names a node it is left open on which class it runs. Of an object with
    more than MOST_TEMPLATES nothing is known.
    """
    found: list[Demand] = []
    for each in workload.pods:
        if each.denied or (each.count.running == 0 and not each.count.most):
            continue
        if len(found) == MOST_TEMPLATES:
            return ()
        charge = charge_pod(
            each.admitted,
            classes=catalogues.classes,
            resource_mapping=catalogues.resource_mapping,
            unclassified_pods=unclassified_pods,
        )
        cost = charge.vector
        if named_nodes(each.admitted):
            cost = {key: amount for key, amount in cost.items() if not key.startswith(CLASSES)}
        if cost and not charge.denials:
            found.append(Demand(each.path, cost, each.count))
    return tuple(found)


def running(requested: Iterable[Demand]) -> Vector:
    """Return what all pods cost that there are at one time as written; those of an unknown number are left out."""
    return total(each.times(each.count.running or 0) for each in requested)


def able_to_start(requested: Iterable[Demand], hard: Vector) -> tuple[Demand, ...]:
    """Return those of which a pod, and all that must run at the same time, is not larger than the whole quota."""
    small = [each for each in requested if not exceeds(each.each, hard)]
    gangs = total(each.times(each.count.gang) for each in small if each.count.gang)
    return tuple(each for each in small if not (each.count.gang and exceeds(gangs, hard)))


def _existing(workload: Workload, requested: Iterable[Demand]) -> Vector | None:
    """Return what the pods cost that a stored workload has already, None of kinds whose status does not say how many.

    They are taken for pods of the template as it is now.
    """
    field = _EXISTING.get((workload.group, workload.kind))
    if field is None:
        return None
    requested = tuple(requested)
    found = _map(workload.data.get("status")).get(field, 0)
    written = _map(workload.data.get("spec")).get("replicas", 1) if field == "replicas" else None
    of = written if isinstance(written, int) else sum(each.count.running or 0 for each in requested)
    if not isinstance(found, int) or not of:
        return None
    return {key: amount * Fraction(found, of) for key, amount in running(requested).items()}


def _too_large(requested: Iterable[Demand], hard: Vector) -> FitResult | None:
    requested = tuple(requested)
    for each in requested:
        if over := exceeds(each.each, hard):
            return _over(FitFailure.POD_TOO_LARGE, each.path, over[0], 1)
    gangs = [(each, each.count.gang) for each in requested if each.count.gang]
    over = exceeds(total(each.times(size) for each, size in gangs), hard)
    size = sum(size for _, size in gangs)
    return _over(FitFailure.GANG_TOO_LARGE, _path(each for each, _ in gangs), over[0], size) if over else None


def _over(failure: FitFailure, path: str, excess: Excess, pods: int) -> FitResult:
    hard = excess.hard
    return FitResult(
        failure=failure, path=path, key=excess.key, needed=excess.amount, left=hard, hard=hard, pods=pods
    )


def _shortage(failure: FitFailure, wanted: Iterable[tuple[Demand, int]], room: Headroom) -> FitResult | None:
    """Return of what there is too little for so many pods of each template, None if all of them fit."""
    wanted = [(each, pods) for each, pods in wanted if pods]
    needed, left = total(each.times(pods) for each, pods in wanted), room.left()
    over = [key for key in left if needed.get(key, NOTHING) > left[key]]
    if not over:
        return None
    # The names of classes and resources say more than `gpus`, where they limit as much.
    key = min(over, key=lambda key: (left[key] / needed[key], key == GPUS, key))
    return FitResult(
        failure=failure,
        path=_path(each for each, _ in wanted),
        key=key,
        needed=needed[key],
        left=left[key],
        hard=room.hard[key],
        starting=_starting(wanted, left),
        pods=sum(pods for _, pods in wanted),
    )


def _starting(wanted: Iterable[tuple[Demand, int]], left: Vector) -> int:
    """Return how many pods fit, template by template in their order."""
    started, left = 0, dict(left)
    for each, pods in wanted:
        limited = left.keys() & each.each.keys()
        number = min([pods, *(floor(left[key] / each.each[key]) for key in limited)])
        started += number
        left |= {key: left[key] - each.each[key] * number for key in limited}
    return started


def _surge(spec: Any, wanted: Iterable[tuple[Demand, int]], room: Headroom) -> FitResult | None:
    """Return the shortage where a rolling update of a Deployment that runs in full could not begin.

    As the deployment controller resolves its limits (`ResolveFenceposts` in `pkg/controller/deployment/util`, v1.36): a part of
    the replicas is rounded up for `maxSurge` and down for `maxUnavailable`, and where both come to 0 one may be unavailable. With
    none unavailable the first pod of an update starts beside all others.
    """
    strategy = _map(_map(spec).get("strategy"))
    limits = _map(strategy.get("rollingUpdate"))
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return None
    for demand, replicas in wanted:
        surge = _part(limits.get("maxSurge", _DEFAULT), replicas, up=True)
        unavailable = _part(limits.get("maxUnavailable", _DEFAULT), replicas, up=False)
        if replicas and surge and unavailable == 0:
            held = total([room.held, demand.times(replicas)])
            return _shortage(FitFailure.NO_SURGE, [(demand, 1)], Headroom(room.hard, held))
    return None


def _part(value: Any, replicas: int, *, up: bool) -> int | None:
    """Return a limit as a number of pods, None of what the API server refuses."""
    if isinstance(value, int):
        return value
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is None:
        return None
    exact = Fraction(int(percent[1]) * replicas, 100)
    return ceil(exact) if up else floor(exact)


def _path(requested: Iterable[Demand]) -> str:
    paths = {each.path for each in requested}
    return paths.pop() if len(paths) == 1 else ""


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
