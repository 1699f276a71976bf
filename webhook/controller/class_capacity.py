"""Publishes the nodes, the free and the pending GPUs of each class, for tenants, who may not read nodes. The leader writes it.

The ConfigMap has everything that tools read, and the status of a GPUClass what `kubectl get` shows. Metrics say what quotas grant
beside it. No decision depends on them.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import CLASSES, RESOURCES, ZERO, Amounts, total_granted
from webhook.cluster import errors
from webhook.cluster.api import MERGE_PATCH, ApiClient, api_path
from webhook.cluster.capacity import GPUNode, gpus_by_dimension, with_cards
from webhook.cluster.informer import STALE_SECONDS
from webhook.cluster.objects import CAPACITY_CONFIG_MAP, timestamp
from webhook.cluster.published_capacity import (
    REFRESH_SECONDS,
    PublishedCapacity,
    PublishedClass,
    encode,
    published_classes,
)
from webhook.configuration.cluster_source import RESOURCES as KINDS
from webhook.configuration.documents import CLASS
from webhook.controller.device_slices import DeviceSlices
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.usage_counter import UsageCounter
from webhook.quota.counted_records import CountedPod

CALL_SECONDS = 10.0

log = logging.getLogger("gpu_admission.controller")


@dataclass(eq=False)
class CapacityWriter:
    """Writes the ConfigMap in `namespace`, and the status of each GPUClass of the cluster."""

    api: ApiClient
    namespace: str
    informers: SharedInformers
    PERIOD_SECONDS = 10.0
    """Seconds between two counts. Each writes an object at most once. 2,000 nodes and 20,000 pods take some 0.1 s of CPU."""

    def __post_init__(self) -> None:
        self._written: dict[str, tuple[object, datetime]] = {}
        """What each path has, and since when."""

    def forget(self) -> None:
        """Forget what was written: another process leads, and writes."""
        self._written.clear()

    def sync(self) -> None:
        """Count, and write what differs or is due."""
        try:
            self.write(datetime.now(UTC))
        except errors.ApiError as error:
            log.warning("the capacity of classes cannot be published: %s", error)

    def write(self, now: datetime) -> None:
        """Write what differs or is due. Raises `errors.ApiError`.

        Nothing is written while a watch is silent, so that readers see how old the figures are.
        """
        counter = self.informers.usage.own_counter
        if any(informer.age > STALE_SECONDS for informer in counter.informers.values()):
            return
        classes = counted_classes(counter, self.informers.slices)
        path = api_path("/api/v1", "namespaces", self.namespace, "configmaps", CAPACITY_CONFIG_MAP)
        self._write(path, classes, encode(PublishedCapacity(now, classes)), now)
        for name in [
            document.name for document in self.informers.configuration().documents if document.kind == CLASS
        ]:
            shown = _class_status(classes.get(name, PublishedClass()))
            body = msgspec.json.encode({"status": {"capacity": {**shown, "observed": timestamp(now)}}})
            try:
                self._write(KINDS[CLASS].path("", name, "status"), shown, body, now)
            except errors.NotFound:
                log.debug("GPUClass %s is not in the cluster", name)

    def _write(self, path: str, content: object, body: bytes, now: datetime) -> None:
        before, at = self._written.get(path, (None, now))
        if content == before and (now - at).total_seconds() < REFRESH_SECONDS:
            return
        self.api.patch(path, body, content_type=MERGE_PATCH, timeout=CALL_SECONDS)
        self._written[path] = content, now


def _class_status(published: PublishedClass) -> dict[str, Any]:
    amounts = {"gpus": published.gpus, "free": published.free, "pending": published.pending}
    return {"nodes": published.nodes, **{name: str(amount) for name, amount in amounts.items()}}


def counted_classes(counter: UsageCounter, slices: DeviceSlices) -> dict[str, PublishedClass]:
    """Return what to publish, by what the informers of a counter hold, and by ResourceSlices (DRA)."""
    used: defaultdict[str, dict[str, Fraction]] = defaultdict(dict)
    pending: dict[str, Fraction] = {}
    vectors: dict[int, Amounts] = {}
    # Most pods share their demand, so that few different pairs are added up.
    pairs: Counter[tuple[str, int]] = Counter()
    for record, vector in counter.demands():
        if isinstance(record, CountedPod):
            vectors[id(vector)] = vector
            pairs[record.node_name, id(vector)] += 1
    for (node, identity), times in pairs.items():
        prefix, sums = (RESOURCES, used[node]) if node else (CLASSES, pending)
        for key, amount in vectors[identity].items():
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                sums[name] = sums.get(name, ZERO) + amount * times
    return published_classes(_gpu_nodes(counter, slices, used), pending, counter.catalogue.classes)


def _gpu_nodes(
    counter: UsageCounter, slices: DeviceSlices, used: Mapping[str, dict[str, Fraction]]
) -> Iterator[GPUNode]:
    """Yield the nodes with GPUs, those in ResourceSlices too. used: what pods use, by node and resource name."""
    claims = counter.claims.all() if counter.claims else ()
    allocated = [claim.devices for claim in claims if claim.devices]
    catalogue = counter.catalogue
    cards = slices.cards_by_node(catalogue, allocated)
    for node in counter.nodes.all():
        if node.gpus is not None:
            of_pods = replace(node.gpus, used=used.get(node.name, {}))
            found = with_cards(of_pods, cards.get(node.name, ()), catalogue)
            yield from (found,) if found.has_gpus else ()


def granted_and_allocatable(informers: SharedInformers) -> dict[str, tuple[Fraction, Fraction]]:
    """Return what ClusterGPUQuotas, and GPUQuotas outside teams, grant together, and what the nodes have of it.

    Nothing without a ClusterGPUQuota: namespaces alone may be granted more than there is. With 2,000 nodes and 2,000 quotas it
    takes some 0.1 s of CPU, at each scrape.
    """
    teams, counter = informers.membership, informers.usage.own_counter
    records = list(teams.records.values())
    outside = (record for record in informers.quotas.all() if records and not teams.team_of(record.namespace))
    granting = [record.spec.amounts for record in (*records, *outside) if record.spec is not None]
    in_nodes = gpus_by_dimension(_gpu_nodes(counter, informers.slices, {})) if granting else {}
    granted = total_granted(granting, counter.catalogue.classes)
    return {key: (amount, in_nodes.get(key, ZERO)) for key, amount in granted.items()}
