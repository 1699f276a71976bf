"""Whether the pods of a workload will fit a quota: a pure calculation that reserves nothing.

It uses `pod_demand` of the pod as admitted. ResourceClaims (DRA) are ignored: they have a demand of their own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from fractions import Fraction
from math import ceil, floor
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.placement.pinning import named_nodes, pinning
from policies.pods.conditions import has_ended
from policies.pods.field_paths import value_at
from policies.pods.workload import PodCount, PodNumber, Workload
from policies.quota.amounts import (
    CLASSES,
    GPUS,
    ZERO,
    Amounts,
    exceeded_limits,
    maximum,
    positive_difference,
    total,
)
from policies.quota.demand import Catalogue, UnclassifiedPods, pod_demand
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import TeamState

MAX_TEMPLATES = 16
"""Maximum of pod templates with GPUs in one object. A pod with the maximum of resources takes some 1.5 ms."""

_PERCENT = re.compile(r"([0-9]{1,9})%")
_DEFAULT_LIMIT = "25%"
"""Default of `maxSurge` and `maxUnavailable` (`SetDefaults_Deployment` in `pkg/apis/apps/v1`, v1.37)."""

_FIELDS_OF_EXISTING = {
    ("", "ReplicationController"): "replicas",
    ("apps", "Deployment"): "replicas",
    ("apps", "ReplicaSet"): "replicas",
    ("apps", "StatefulSet"): "replicas",
    ("apps.kruise.io", "CloneSet"): "replicas",
    ("apps.kruise.io", "StatefulSet"): "replicas",
    ("argoproj.io", "Rollout"): "replicas",
    ("batch", "CronJob"): "active",
    ("batch", "Job"): "active",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "replicas",
}
"""The status field that counts existing pods (in a LeaderWorkerSet: groups) in any phase; of a CronJob, the list of its Jobs."""


class TemplateDemand(msgspec.Struct, frozen=True):
    """The demand of one pod of a template, and the number of its pods. `path` is the path of the template."""

    path: str
    per_pod: Amounts
    count: PodCount

    @property
    def running(self) -> int:
        """Pods at one time; 0 if the object does not say."""
        return self.count.running or 0

    def times(self, pods: int) -> Amounts:
        return {key: amount * pods for key, amount in self.per_pod.items()}


class FitFailure(Enum):
    """Why pods will not start, the worst reason first."""

    POD_TOO_LARGE = auto()
    """A single pod exceeds the whole quota."""
    GANG_TOO_LARGE = auto()
    """The pods that must run together exceed the whole quota."""
    TOO_LITTLE = auto()
    """Not all pods fit beside the usage of others."""
    TOO_LITTLE_TO_GROW = auto()
    """Not all pods fit once the workload grows, or an autoscaler scales it."""
    NO_SURGE = auto()
    """All pods fit, but not the additional pod of a rolling update."""


_WORST_FIRST = tuple(FitFailure)


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Why pods will not start, and the dimension of the quota that limits them most.

    path: of the pods' template; empty if there are several. key: the dimension. needed: what all `pods` need of it. hard: what is
    granted; of a team, the most that the namespace can have. held: what is used or reserved, maybe more than `hard`. left:
    the rest. starting: the number of pods that start now. fewer: by path of the field that states a number of pods, the
    number by which all fit, 0 if none does: now, and in an empty quota. missing: what must be released for all pods to start.
    free_part: how much of what all pods need is free in both quotas. team_state: set if the quota of the team is the limit.
    """

    failure: FitFailure
    path: str = ""
    key: str
    needed: Fraction
    left: Fraction
    hard: Fraction
    starting: int = 0
    fewer: Mapping[str, tuple[int, int]] = {}
    pods: int = 1
    held: Fraction = ZERO
    missing: Amounts = {}
    free_part: Fraction = ZERO
    team_state: TeamState | None = None


def fit_result(
    workload: Workload, ledger: QuotaLedger, catalogue: Catalogue, *, is_stored: bool
) -> FitResult | None:
    """Return the worst reason why pods of a workload, or of an autoscaler's target, will not start. None if all will.

    is_stored: pods of the workload may already count in the quota: as many as its status says, or else as the holders suggest.
    """
    maker = workload.target or workload
    if is_stored and has_ended(_as_map(value_at(maker.data, ("status",)))):
        return None
    requested = demands(maker, catalogue, ledger.unclassified_pods)
    own = _held_by_workload(maker, requested, ledger) if is_stored or workload.target else {}
    failures = [
        replace(failed, team_state=state)
        for state, hard, held in _levels(ledger)
        if (failed := _worst_failure(workload, requested, hard, None if ledger.uncounted else held, own))
    ]
    worst = min(
        failures,
        key=lambda each: (_WORST_FIRST.index(each.failure), each.needed <= each.hard, each.starting),
        default=None,
    )
    if worst is None:
        return None
    alike = [failure for failure in failures if failure.failure is worst.failure]
    pods_now, missing = (
        min(result.starting for result in alike),
        maximum(failure.missing for failure in failures),
    )
    written = {
        demand.count.number.path: demand.running // demand.count.number.each
        for demand in requested
        if demand.count.number
    }
    fewer = {
        field: _least_numbers((each.fewer[field] for each in alike), written[field]) for field in worst.fewer
    }
    free_part = min(result.left / result.needed for result in alike)
    return replace(worst, missing=missing, starting=pods_now, fewer=fewer, free_part=free_part)


def _levels(ledger: QuotaLedger) -> Iterator[tuple[TeamState | None, Amounts, Amounts]]:
    """Yield (state, hard, held) for the GPUQuota, then for the team. `hard` is the most that the namespace can have."""
    yield None, ledger.hard, ledger.held
    if (state := ledger.team_state) is not None:
        of_others = positive_difference(state.taken_by_others, state.guaranteed_to_others)
        yield state, state.reachable, total((ledger.held, of_others))


def _worst_failure(
    workload: Workload, requested: Sequence[TemplateDemand], hard: Amounts, held: Amounts | None, own: Amounts
) -> FitResult | None:
    """Return the worst failure under a quota of `hard`.

    `held` is used or reserved, None if that is not known. `own`: what of that pods of the workload hold.
    """
    failure = _too_large(requested, hard)
    if held is None:
        return failure
    held = positive_difference(held, own)
    if failure is not None:
        return replace(failure, held=held.get(failure.key, ZERO))
    as_written = [(demand, demand.running) for demand in requested]
    largest = [(demand, demand.count.maximum or pods) for demand, pods in as_written]
    now = FitFailure.TOO_LITTLE_TO_GROW if workload.target else FitFailure.TOO_LITTLE
    failure = _shortage(now, as_written, hard, held)
    failure = failure or _shortage(FitFailure.TOO_LITTLE_TO_GROW, largest, hard, held)
    if failure is None and (workload.group, workload.kind) == ("apps", "Deployment"):
        failure = _surge_shortage(value_at(workload.data, ("spec",)), as_written, hard, held)
    return failure


def demands(
    workload: Workload, catalogue: Catalogue, unclassified_pods: UnclassifiedPods
) -> tuple[TemplateDemand, ...]:
    """Return the demand of the workload's pods, for each template whose pods have a demand.

    A pod that would be denied has no demand. The class of a pod that names a node is not known here, so it demands none, unless
    it pins one beside a node that its affinity names.
    The result is empty for an object with more than MAX_TEMPLATES.
    """
    mapping = catalogue.resource_mapping
    requesting = [
        pods
        for pods in workload.pods
        if not pods.denied
        and (pods.count.running != 0 or pods.count.maximum)
        and mapping.requests_gpus_without_claims(pods.admitted)
    ]
    if len(requesting) > MAX_TEMPLATES:
        return ()
    demanded: list[TemplateDemand] = []
    for pods in requesting:
        demand = pod_demand(pods.admitted, catalogue, unclassified_pods)
        amounts = demand.vector
        pinned = None if pods.admitted.spec.node_name else pinning(pods.admitted, catalogue.classes)
        if named_nodes(pods.admitted) and (pinned is None or len(pinned.classes) != 1):
            amounts = {key: amount for key, amount in amounts.items() if not key.startswith(CLASSES)}
        if amounts and not demand.denials:
            demanded.append(TemplateDemand(pods.path, amounts, pods.count))
    return tuple(demanded)


def running_demand(requested: Iterable[TemplateDemand]) -> Amounts:
    """Return the demand of all pods that run at one time, without templates of unknown count."""
    return total(demand.times(demand.running) for demand in requested)


def demands_that_can_start(requested: Sequence[TemplateDemand], hard: Amounts) -> tuple[TemplateDemand, ...]:
    """Return the demands that can start in an empty quota: a single pod fits it, or all pods that must run together."""
    gang = total(demand.times(demand.count.gang) for demand in requested if demand.count.gang)
    return tuple(
        each for each in requested if not exceeded_limits(gang if each.count.gang else each.per_pod, hard)
    )


def starting_demand(requested: Iterable[TemplateDemand], free: Amounts) -> Amounts:
    """Return the demand of the pods that start if `free` is free. All pods of a gang start, or none."""
    fitting = _fitting(((demand, demand.running) for demand in requested), free)
    return total(demand.times(number - number % (demand.count.gang or 1)) for demand, number in fitting)


def existing_demand(workload: Workload, requested: Sequence[TemplateDemand]) -> Amounts | None:
    """Return the demand of the existing pods of a stored workload, as if they had the present template.

    None if the status of its kind does not count pods.
    """
    field = _FIELDS_OF_EXISTING.get((workload.group, workload.kind))
    if field is None:
        return None
    existing_pods = _as_map(value_at(workload.data, ("status",))).get(field, 0)
    if isinstance(existing_pods, list):
        return {key: amount * len(existing_pods) for key, amount in running_demand(requested).items()}
    replicas = _as_map(value_at(workload.data, ("spec",))).get("replicas", 1) if field == "replicas" else None
    wanted_pods = replicas if isinstance(replicas, int) else sum(demand.running for demand in requested)
    if not isinstance(existing_pods, int) or not wanted_pods:
        return None
    return {
        key: amount * Fraction(existing_pods, wanted_pods)
        for key, amount in running_demand(requested).items()
    }


def _held_by_workload(
    workload: Workload, requested: Sequence[TemplateDemand], ledger: QuotaLedger
) -> Amounts:
    """Return what existing pods of a stored workload hold, by its status, or else at most, by the holders of the quota.

    Controllers name what they make after the object. What no known holder holds may belong to the workload, too.
    """
    known = existing_demand(workload, requested)
    if known is not None:
        return known
    name, held = workload.metadata.name or "", ledger.held
    most: Amounts = {}
    for key, amount in running_demand(requested).items():
        holders = ((holder.name.partition("/")[2], holder.amount) for holder in ledger.holders.get(key, ()))
        others = (
            Fraction(held_by_it)
            for holder, held_by_it in holders
            if holder != name and not holder.startswith(f"{name}-")
        )
        most[key] = min(amount, max(held.get(key, ZERO) - sum(others, ZERO), ZERO))
    return most


def _too_large(requested: Sequence[TemplateDemand], hard: Amounts) -> FitResult | None:
    gangs = [(demand, demand.count.gang) for demand in requested if demand.count.gang]
    single_pods = [(FitFailure.POD_TOO_LARGE, [(demand, 1)]) for demand in requested]
    for failure, pods in (*single_pods, (FitFailure.GANG_TOO_LARGE, gangs)):
        if over := exceeded_limits(total(demand.times(count) for demand, count in pods), hard):
            scarcest = min(over, key=lambda excess: _scarcity(excess.hard / excess.amount, excess.key))
            return FitResult(
                failure=failure,
                path=_common_path(demand for demand, _ in pods),
                key=scarcest.key,
                needed=scarcest.amount,
                left=scarcest.hard,
                hard=scarcest.hard,
                pods=sum(count for _, count in pods),
                fewer=_fewer_by_field(pods, hard, hard),
            )
    return None


def _shortage(
    failure: FitFailure, wanted: Iterable[tuple[TemplateDemand, int]], hard: Amounts, held: Amounts
) -> FitResult | None:
    """Return the shortage for these numbers of pods of each template. None if all of them fit."""
    wanted = [(demand, pods) for demand, pods in wanted if pods]
    needed = total(demand.times(pods) for demand, pods in wanted)
    left = _remaining(hard, held)
    over = [key for key in left if needed.get(key, ZERO) > left[key]]
    if not over:
        return None
    key = min(over, key=lambda key: _scarcity(left[key] / needed[key], key))
    return FitResult(
        failure=failure,
        path=_common_path(demand for demand, _ in wanted),
        key=key,
        needed=needed[key],
        left=left[key],
        hard=hard[key],
        starting=sum(number for _, number in _fitting(wanted, left)),
        fewer=_fewer_by_field(wanted, left, hard),
        pods=sum(pods for _, pods in wanted),
        held=held.get(key, ZERO),
        missing={key: held.get(key, ZERO) + needed[key] - hard[key] for key in over},
    )


def _scarcity(part: Fraction, key: str) -> tuple[Fraction, bool, str]:
    """Return what sorts dimensions by the part that there is. Equally scarce, a class or a resource says more than `gpus`."""
    return part, key == GPUS, key


def _fitting(
    wanted: Iterable[tuple[TemplateDemand, int]], left: Amounts
) -> Iterator[tuple[TemplateDemand, int]]:
    """Yield each template with the number of its pods that fit, in order. Earlier templates take first. Groups fit whole."""
    left, wanted = dict(left), list(wanted)
    groups = {_gang_count(demand.count.gang or pods, pods) for demand, pods in wanted}
    if len(groups) == 1 and (most := groups.pop()) > 1:
        group = total(demand.times(demand.count.gang or 0) for demand, _ in wanted)
        whole = floor(min([Fraction(most), *(left[key] / group[key] for key in left.keys() & group.keys())]))
        wanted = [(demand, (demand.count.gang or 0) * whole) for demand, _ in wanted]
    for demand, pods in wanted:
        limited = left.keys() & demand.per_pod.keys()
        number = min(pods, _times_that_fit(demand.per_pod, left)) if limited else pods
        yield demand, number
        left |= {key: left[key] - demand.per_pod[key] * number for key in limited}


def _gang_count(gang: int, pods: int) -> int:
    """Return how many gangs the pods are; 1 if the gang is only a minimum."""
    return 1 if not pods or pods % gang else pods // gang


def _times_that_fit(amounts: Amounts, left: Amounts) -> int:
    """Return how many times the amounts fit; 0 if none of them is limited."""
    return min((floor(left[key] / amounts[key]) for key in left.keys() & amounts.keys()), default=0)


def _remaining(hard: Amounts, held: Amounts) -> Amounts:
    return {key: max(limit - held.get(key, ZERO), ZERO) for key, limit in hard.items()}


def _least_numbers(numbers: Iterable[tuple[int, int]], written: int) -> tuple[int, int]:
    """Return the least of each; 0 for one that is not less than what is written."""
    now, unused = (min(column) for column in zip(*numbers, strict=True))
    return now, unused if unused < written else 0


def _fewer_by_field(
    wanted: Sequence[tuple[TemplateDemand, int]], left: Amounts, hard: Amounts
) -> dict[str, tuple[int, int]]:
    """Return `FitResult.fewer` for these numbers of pods, first the field with the most of them."""
    by_field: dict[str, list[tuple[TemplateDemand, PodNumber, int]]] = {}
    for demand, pods in wanted:
        if (number := demand.count.number) is not None:
            by_field.setdefault(number.path, []).append((demand, number, pods))
    needed = total(demand.times(pods) for demand, pods in wanted)
    found = {}
    for field, made in sorted(by_field.items(), key=lambda item: -sum(pods for *_, pods in item[1])):
        unit = total(demand.times(number.each) for demand, number, _ in made)
        others = positive_difference(needed, total(demand.times(pods) for demand, _, pods in made))
        rests = (_remaining(limit, others) for limit in (left, hard))
        now, unused = (
            min(each.count.largest_valid(_times_that_fit(unit, rest)) for each, *_ in made) for rest in rests
        )
        found[field] = now, unused
    return found


def _surge_shortage(
    spec: Any, wanted: Iterable[tuple[TemplateDemand, int]], hard: Amounts, held: Amounts
) -> FitResult | None:
    """Return the shortage if a rolling update of a fully running Deployment could not begin."""
    for demand, replicas in wanted:
        if replicas and starts_beside_all(spec, replicas):
            beside = total([held, demand.times(replicas)])
            shortage = _shortage(FitFailure.NO_SURGE, [(demand, 1)], hard, beside)
            # With one replica less, the new pod of the update fits.
            return shortage and replace(shortage, starting=replicas - 1)
    return None


def starts_beside_all(spec: Any, replicas: int) -> bool:
    """Whether the first pod of a Deployment's update starts beside all others, because none of these may be unavailable.

    The deployment controller (`ResolveFenceposts` in `pkg/controller/deployment/util`, v1.37) rounds a percentage up for
    `maxSurge` and down for `maxUnavailable`. If both are 0, one pod may be unavailable.
    """
    strategy = _as_map(_as_map(spec).get("strategy"))
    limits = _as_map(strategy.get("rollingUpdate"))
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return False
    surge = _pods_of_limit(limits.get("maxSurge", _DEFAULT_LIMIT), replicas, up=True)
    return (
        bool(surge) and _pods_of_limit(limits.get("maxUnavailable", _DEFAULT_LIMIT), replicas, up=False) == 0
    )


def _pods_of_limit(value: Any, replicas: int, *, up: bool) -> int | None:
    """Return a limit as a number of pods. None for a value that the API server rejects."""
    if isinstance(value, int):
        return value
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is None:
        return None
    exact = Fraction(int(percent[1]) * replicas, 100)
    return ceil(exact) if up else floor(exact)


def _common_path(requested: Iterable[TemplateDemand]) -> str:
    paths = {demand.path for demand in requested}
    return paths.pop() if len(paths) == 1 else ""


def _as_map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
