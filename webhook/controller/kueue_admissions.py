"""What Kueue has admitted in a namespace, where rule gpu-quota has `kueue: respect`: whose pods, and how much together.

Kueue's controller alone writes the status of Workloads; a tenant can write labels, and ownerReferences of pods. So these only
say which pods may go first, and the amounts of the Workloads limit what the namespace may use beyond its GPUQuota
(`InLine.admitted`), whatever was forged. A Workload says only resources: the labels of its flavor say which class they are.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic

import msgspec

from policies.pods.pod import Container, Pod, PodSpec, Resources
from policies.quota.amounts import Vector, total
from policies.quota.demand import Catalogue, UnclassifiedPods, pod_demand
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.kueue import GROUP, VERSIONS, Flavor, Workload, decode_flavor, decode_workload
from webhook.controller.gangs import READING_SECONDS
from webhook.controller.keepers import Keepers
from webhook.quota.counted_records import PodRecord

log = logging.getLogger("gpu_admission.controller")

READ_AGAIN_SECONDS, WORKLOADS_A_SECOND = 1.0, 500
"""Minimum of seconds between two reads for a namespace, and Workloads that are read for it in a second on average. Each change of
a pod gives its line a turn, and tenants choose how many of both there are."""


class Admitted(msgspec.Struct, frozen=True):
    """The uids of the waiting pods that Kueue has admitted, and what it has admitted in their namespace.

    `is_incomplete`: another pod claims that Kueue admitted it.
    """

    uids: frozenset[str] = frozenset()
    amounts: Vector = {}
    is_incomplete: bool = False


class _Read(msgspec.Struct, frozen=True):
    """The uids of the owners of admitted Workloads, what these have, and until when that counts (monotonic)."""

    owners: frozenset[str]
    amounts: Vector
    until: float


class KueueAdmissions:
    """`respects` says whether a namespace has `kueue: respect`."""

    def __init__(
        self,
        api: ApiClient,
        catalogue: Callable[[], Catalogue],
        keepers: Keepers,
        respects: Callable[[str], bool],
    ) -> None:
        self._api, self._catalogue, self._keepers, self._respects = api, catalogue, keepers, respects
        self._known: dict[str, _Read] = {}

    def of(self, namespace: str, waiting: Iterable[PodRecord]) -> Admitted:
        """Return which of these pods Kueue has admitted. None of them, if that cannot be read."""
        named = [pod for pod in waiting if pod.waiting is not None and pod.waiting.names_kueue]
        if not named or not self._respects(namespace):
            return Admitted()
        read = self._known.get(namespace)
        if read is None or read.until <= monotonic():
            read = self._known[namespace] = self._read(namespace)
        late = monotonic() + READING_SECONDS
        uids = frozenset(pod.uid for pod in named if not read.owners.isdisjoint(self._family(pod, late)))
        return Admitted(uids, read.amounts, is_incomplete=len(uids) < len(named))

    def forget(self, namespace: str) -> None:
        self._known.pop(namespace, None)

    def _read(self, namespace: str) -> _Read:
        """Return what Kueue has admitted in the namespace; nothing if that cannot be read."""
        try:
            workloads, flavors = self._listed(namespace)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.warning("%s: what Kueue has admitted: %s", namespace, error)
            workloads, flavors = [], {}
        admitted, catalogue = [each for each in workloads if each.is_admitted_here], self._catalogue()
        owners = frozenset(uid for each in admitted for uid in each.owners)
        amounts = total(demand for each in admitted for demand in _demands(each, flavors, catalogue))
        pause = max(READ_AGAIN_SECONDS, len(workloads) / WORKLOADS_A_SECOND)
        return _Read(owners, amounts, monotonic() + pause)

    def _listed(self, namespace: str) -> tuple[list[Workload], dict[str, Flavor]]:
        """Return the Workloads of the namespace, and all flavors by name. Raises `errors.ApiError`."""
        version = self._api.served_version(GROUP, VERSIONS)
        if version is None:
            return [], {}
        path = partial(api_path, f"/apis/{GROUP}/{version}")
        workloads = self._api.list(path("namespaces", namespace, "workloads"), decode_workload).items
        flavors = self._api.list(path("resourceflavors"), decode_flavor).items
        return workloads, {each.metadata.name or "": each for each in flavors}

    def _family(self, pod: PodRecord, late: float) -> Iterator[str]:
        """Yield the uids of the pod and of what makes it and its gang: a Workload belongs to one of them."""
        yield pod.uid
        if pod.owner is not None:
            yield pod.owner.uid
            keeper = self._keepers.of(pod.namespace, pod.owner, late)
            if keeper is not None:
                yield keeper.uid


def _demands(workload: Workload, flavors: dict[str, Flavor], catalogue: Catalogue) -> Iterator[Vector]:
    """Yield the demand of each amount that Kueue has admitted, as that of one pod on its flavor."""
    for assigned, part in workload.assignments:
        for resource, amount in assigned.resource_usage.items():
            flavor = flavors.get(assigned.flavors.get(resource, ""))
            one = Container(name="main", resources=Resources(limits={resource: amount}))
            selector = flavor.spec.node_labels if flavor is not None else None
            pod = Pod(given_spec=PodSpec(containers=(one,), node_selector=selector))
            demand = pod_demand(pod, catalogue, UnclassifiedPods.TOTAL_ONLY).vector
            yield {key: amount_of * part for key, amount_of in demand.items()}
