"""Which waiting pods Kueue has admitted, where rule gpu-quota has `kueue: respect`, and how much in their namespace.

Kueue's controller alone writes the status of Workloads; a tenant can write labels, and ownerReferences of pods. So a pod counts
as admitted only while its Workload has room for it, in pods, GPUs and classes, beside the other pods of the Workload. And all
Workloads together limit what the namespace may use beyond its GPUQuota (`Waiter.beyond`): pods may leave theirs once they run.

A Workload says only resources: the labels of its flavor say which class they are.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache, partial
from time import monotonic

import msgspec

from policies.pods.pod import Container, Pod, PodSpec, Resources
from policies.pods.quantity import QuantityError
from policies.quota.amounts import ZERO, Amounts, total
from policies.quota.demand import Catalogue, UnclassifiedPods, pod_demand
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.kueue import (
    GROUP,
    VERSIONS,
    Flavor,
    KueueWorkload,
    decode_flavor,
    decode_workload,
    quantity_of,
)
from webhook.controller.gangs import READING_SECONDS
from webhook.controller.keepers import Keepers
from webhook.controller.usage_cache import UsageCache
from webhook.quota.counted_records import CountedPod

log = logging.getLogger("gpu_admission.controller")

READ_AGAIN_SECONDS, WORKLOADS_A_SECOND = 1.0, 500
"""Minimum of seconds between two reads for a namespace, and Workloads that are read for it in a second on average. Each change of
a pod gives its line a turn, and tenants choose how many of both there are."""
PODS = "pods"
"""Key of the number of pods of a Workload, beside its amounts."""


class Admitted(msgspec.Struct, frozen=True):
    """The uids of the waiting pods that Kueue has admitted, and what it has admitted in their namespace.

    `read_again_in`: seconds until it may be read for further pods that claim so. None if it was read now, or there are none:
    Kueue starts what it has admitted, which gives the line another turn.
    """

    uids: frozenset[str] = frozenset()
    amounts: Amounts = {}
    read_again_in: float | None = None


class _AdmittedWorkloads(msgspec.Struct, frozen=True):
    """What admitted Workloads have: all together, and each by its name. `workload_of`: their names by the uid of an owner.

    That counts until `until` (monotonic).
    """

    amounts: Amounts
    rooms: Mapping[str, Amounts]
    workload_of: Mapping[str, str]
    until: float


class KueueAdmissions:
    """`respects` says whether a namespace has `kueue: respect`."""

    def __init__(
        self, api: ApiClient, usage_cache: UsageCache, keepers: Keepers, respects: Callable[[str], bool]
    ) -> None:
        self._api, self._usage_cache, self._keepers, self._respects = api, usage_cache, keepers, respects
        self._known: dict[str, _AdmittedWorkloads] = {}

    def of(self, namespace: str, waiting: Iterable[CountedPod], held: Collection[str]) -> Admitted:
        """Return which of these pods Kueue has admitted. None of them, if that cannot be read.

        The room of a Workload is for the uids for which quota is `held`, then for the first of its pods in line.
        """
        candidates = [pod for pod in waiting if pod.waiting and pod.waiting.may_start_by_kueue]
        if not candidates or not self._respects(namespace):
            return Admitted()
        read, now = self._known.get(namespace), monotonic()
        is_kept = read is not None and now < read.until
        if read is None or not is_kept:
            read = self._known[namespace] = self._read(namespace)
        candidates.sort(key=lambda pod: (pod.uid not in held, -pod.priority, pod.since, pod.uid))
        deadline = monotonic() + READING_SECONDS
        uids = frozenset(self._admitted_uids(namespace, candidates, read, deadline) if read.rooms else ())
        is_incomplete = monotonic() >= deadline or (is_kept and len(uids) < len(candidates))
        return Admitted(uids, read.amounts, read.until - now if is_incomplete else None)

    def forget(self, namespace: str) -> None:
        self._known.pop(namespace, None)

    def _admitted_uids(
        self, namespace: str, candidates: Iterable[CountedPod], read: _AdmittedWorkloads, deadline: float
    ) -> Iterator[str]:
        """Yield the uids of the pods whose Workload has room for them; of none, if not all owners were read before `late`.

        A pod that names no class may run on any, so it needs room on each.
        """
        sums = self._usage_cache.own_counter.sums
        running = [
            (pod, self._workload_of(pod, read, deadline)) for pod in sums.pods(namespace) if pod.holds_quota
        ]
        waiting = [(pod, self._workload_of(pod, read, deadline)) for pod in candidates]
        if monotonic() >= deadline:
            return
        rooms = dict(read.rooms)
        for pod, workload in (*running, *waiting):
            demand = sums.demand_if_started(pod, UnclassifiedPods.MOST_EXPENSIVE) if workload else {}
            if demand:
                needed = {PODS: Fraction(1), **demand}
                left = {key: rooms[workload].get(key, ZERO) - amount for key, amount in needed.items()}
                is_admitted = min(left.values()) >= 0
                if is_admitted or pod.holds_quota:
                    rooms[workload] = {**rooms[workload], **left}
                if is_admitted and not pod.holds_quota:
                    yield pod.uid

    def _workload_of(self, pod: CountedPod, read: _AdmittedWorkloads, deadline: float) -> str:
        """Return the Workload of the pod, by what makes it and its gang; "" without an admitted one."""
        own = (pod.uid, pod.owner.uid if pod.owner else "")
        found = next((read.workload_of[uid] for uid in own if uid in read.workload_of), "")
        keeper = None if found else self._keepers.of(pod.namespace, pod.owner, deadline)
        return found or read.workload_of.get(keeper.uid if keeper else "", "")

    def _read(self, namespace: str) -> _AdmittedWorkloads:
        """Return what Kueue has admitted in the namespace; nothing if that cannot be read."""
        try:
            workloads, flavors = self._list_workloads(namespace)
            demand = cache(
                partial(_demand_on_flavor, self._usage_cache.own_catalogue(), flavors)
            )  # many are equal
            in_total = partial(demand, UnclassifiedPods.TOTAL_ONLY)
            of_each_class = partial(demand, UnclassifiedPods.MOST_EXPENSIVE)  # that the flavor leaves open
            admitted = {each.metadata.name or "": each for each in workloads if each.is_admitted_here}
            amounts = total(_admitted_amounts(workload, in_total) for workload in admitted.values())
            rooms = {name: _admitted_amounts(workload, of_each_class) for name, workload in admitted.items()}
        except (errors.ApiError, msgspec.MsgspecError, QuantityError) as error:
            log.warning("%s: what Kueue has admitted: %s", namespace, error)
            workloads, admitted, amounts, rooms = [], {}, {}, {}
        return _AdmittedWorkloads(
            amounts=amounts,
            rooms=rooms,
            workload_of={uid: name for name, workload in admitted.items() for uid in workload.owners},
            until=monotonic() + max(READ_AGAIN_SECONDS, len(workloads) / WORKLOADS_A_SECOND),
        )

    def _list_workloads(self, namespace: str) -> tuple[list[KueueWorkload], dict[str, Flavor]]:
        """Return the Workloads of the namespace, and all flavors by name. Raises `errors.ApiError`."""
        version = self._api.served_version(GROUP, VERSIONS)
        if version is None:
            return [], {}
        path = partial(api_path, f"/apis/{GROUP}/{version}")
        workloads = self._api.list(path("namespaces", namespace, "workloads"), decode_workload).items
        flavors = self._api.list(path("resourceflavors"), decode_flavor).items
        return workloads, {flavor.metadata.name or "": flavor for flavor in flavors}


def _admitted_amounts(
    workload: KueueWorkload, demand_of: Callable[[str, frozenset[tuple[str, int]]], Amounts]
) -> Amounts:
    """Return what Kueue has admitted of a Workload for pods that have not succeeded, and the number of those with GPUs."""
    amounts: list[Amounts] = []
    for assigned, remaining in workload.assignments:
        on_flavors: dict[str, set[tuple[str, int]]] = {}
        for resource, amount in assigned.resource_usage.items():
            of_pod = int(quantity_of(amount) / assigned.count)
            on_flavors.setdefault(assigned.flavors.get(resource, ""), set()).add((resource, of_pod))
        demand = total(demand_of(flavor, frozenset(on_flavor)) for flavor, on_flavor in on_flavors.items())
        of_pods = {key: amount * remaining for key, amount in demand.items()}
        amounts.append({PODS: Fraction(remaining), **of_pods} if of_pods else {})
    return total(amounts)


def _demand_on_flavor(
    catalogue: Catalogue,
    flavors: Mapping[str, Flavor],
    unclassified_pods: UnclassifiedPods,
    flavor: str,
    requested: Iterable[tuple[str, int]],
) -> Amounts:
    """Return the demand of a pod that requests so much on a flavor."""
    one = Container(name="main", resources=Resources(limits=dict(requested)))
    selector = flavors[flavor].spec.node_labels if flavor in flavors else None
    pod = Pod(given_spec=PodSpec(containers=(one,), node_selector=selector))
    return pod_demand(pod, catalogue, unclassified_pods).vector
