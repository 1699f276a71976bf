"""Objects that keep quota while their pods are replaced: which one it is for a pod, and how much it asks for now.

It is the nearest controller above the pod, of a kind in section `workloadKinds`, whose number of pods can be read; or one above
that which makes the gang, or the same pods, as a Deployment does above its ReplicaSets. An owner counts by group, name and uid.
"""

import logging
from collections.abc import Callable, Iterable
from fractions import Fraction
from time import monotonic

import msgspec

from policies.pods.conditions import has_ended, true_condition
from policies.pods.pod import Pod
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.keeps import DemandOfObject
from webhook.cluster import errors
from webhook.configuration.workload_kinds import steps
from webhook.controller.gangs import MAX_OWNERS, Gangs, GangWorkload
from webhook.workloads.counts import values
from webhook.workloads.gang_sources import GANG_MARKERS, GangSource

log = logging.getLogger("gpu_admission.controller")

REMEMBERED_SECONDS, UNREAD_SECONDS = 600.0, 60.0
"""How long the object above a controller is remembered after its last pod, which may be the last to go; and a failed read."""
REMEMBERED = 16_384
ENDED_STATES = frozenset({"complete", "completed", "succeeded", "failed", "terminated", "aborted"})
"""States, in small letters, of kinds that have no conditions."""
STATE_PATHS = ("status.phase", "status.state.phase", "status.applicationState.state", "status.jobStatus")


class Keepers:
    """Thread-safe: what is remembered is replaced, never changed. `gpus_of` returns the GPUs of a pod."""

    def __init__(self, gangs: Gangs, gpus_of: Callable[[Pod], Fraction]) -> None:
        self._gangs, self._gpus_of = gangs, gpus_of
        self._known: dict[tuple[str, GangSource], tuple[Keeper | None, float]] = {}

    def of(self, namespace: str, reference: GangSource | None, deadline: float) -> Keeper | None:
        """Return the object that keeps quota for the pods of a controller, or the controller, which keeps nothing.

        None if it does not exist, or was not read before `deadline` (monotonic).
        """
        if reference is None or not reference.uid:
            return None
        key, now = (namespace, reference), monotonic()
        keeper, until = self._known.get(key, (None, 0.0))
        if until <= now:
            if now >= deadline:
                return None
            keeper, until = self._find_keeper(namespace, reference), now + UNREAD_SECONDS
        if len(self._known) >= REMEMBERED:
            self._known = {}
        self._known[key] = keeper, now + REMEMBERED_SECONDS if keeper and keeper.through else until
        return keeper

    def room(self, namespace: str, keeper: Keeper, live: Iterable[Fraction]) -> DemandOfObject | None:
        """Return what an object asks for beyond its live pods, by their GPUs. None if it makes no pods any more.

        Raises `errors.ApiError`, other than for an object that is gone or may not be read.
        """
        try:
            source = GangSource(keeper.api_version, keeper.kind, keeper.name)
            workload = self._gangs.workload(namespace, source)
        except (errors.NotFound, errors.Forbidden, msgspec.MsgspecError):
            return None
        asked = _pods_asked_for(workload)
        if (
            workload.metadata.uid != keeper.uid
            or workload.metadata.deletion_timestamp
            or _has_ended(workload)
        ):
            return None
        pods, gpus = len(held := tuple(live)), sum(held, Fraction(0))
        wanted = sum(number * self._gpus_of(pod) for number, pod in asked)
        return DemandOfObject(sum(number for number, _ in asked) - pods, wanted - gpus)

    def _find_keeper(self, namespace: str, reference: GangSource) -> Keeper | None:
        """Follow the controllers up. What was read stays, if one above it cannot be read."""
        found: tuple[GangSource, GangWorkload] | None = None
        current, exists = reference, False
        try:
            for _ in range(MAX_OWNERS):
                workload = self._gangs.workload(namespace, current)
                if workload.metadata.uid != current.uid:
                    break
                exists |= current is reference and not workload.metadata.deletion_timestamp
                if workload.workload_kind is not None and not workload.workload_kind.replaces_pods:
                    break
                if _pods_asked_for(workload) and (found is None or _keeps_instead(workload, found[1])):
                    found = current, workload
                if (above := workload.metadata.controller) is None:
                    break
                current = GangSource(above.api_version, above.kind, above.name, uid=above.uid)
                if current.type not in {*self._gangs.configuration().workload_kinds, *GANG_MARKERS}:
                    break
        except (errors.ApiError, msgspec.MsgspecError) as error:
            if not isinstance(error, errors.NotFound):
                log.info("%s: the owner %s %s: %s", namespace, current.kind, current.name, error)
        if found is None:
            return (
                Keeper(reference.api_version, reference.kind, reference.name, reference.uid)
                if exists
                else None
            )
        source, _ = found
        return Keeper(source.api_version, source.kind, source.name, source.uid, reference.kind)


def _pods_asked_for(workload: GangWorkload) -> list[tuple[int, Pod]]:
    """Return the pods with GPUs that an object asks for. Nothing if a number cannot be read."""
    asked = [(count.running, pod) for count, pod in workload.pods]
    known = [(number, pod) for number, pod in asked if number is not None]
    return known if len(known) == len(asked) else []


def _is_gang(workload: GangWorkload) -> bool:
    return workload.size > 1 or bool(workload.workload_kind and workload.workload_kind.starts_together)


def _keeps_instead(above: GangWorkload, below: GangWorkload) -> bool:
    """Whether an object keeps quota instead of one below it: it makes the same pods, or the gang."""
    upper, lower = above.workload_kind, below.workload_kind
    if upper is None or lower is None:
        return False
    is_same = upper.key != lower.key and upper.pods == lower.pods
    return is_same or upper.starts_together or (_is_gang(above) and not _is_gang(below))


def _has_ended(workload: GangWorkload) -> bool:
    conditions = [
        each for _, each in values(workload.data, steps("status.conditions[]")) if isinstance(each, dict)
    ]
    status = {"conditions": conditions}
    states = (value for path in STATE_PATHS for _, value in values(workload.data, steps(path)))
    is_ending = true_condition(status, "FailureTarget", "SuccessCriteriaMet") is not None
    return is_ending or has_ended(status) or any(str(state).lower() in ENDED_STATES for state in states)
