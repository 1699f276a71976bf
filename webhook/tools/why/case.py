"""What is read of an object, its pods and its cluster to explain why its pods do not run.

Pods may be made through objects between: those of a Deployment by its ReplicaSets, those of a CronJob by its Jobs. Owners are
followed upwards from the pods, and from the objects whose pods were denied, by one list of metadata for each kind of owner. So
the number of calls depends on the number of kinds alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from policies.gpus.claimed_devices import ClaimName, RequestedDevices
from policies.placement.nodes import NodeFacts
from policies.pods.limit_ranges import NO_LIMITS, as_admitted
from policies.pods.pod import Pod, decode_pod
from policies.policy import EffectivePolicy
from policies.quota.amounts import Amounts, total
from policies.quota.demand import pod_demand
from policies.quota.waiting import GROUP_SIZE, POD_GROUP
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import METADATA_LIST, ApiClient, without_deep_values
from webhook.cluster.objects import InstallationNames, decode_owned
from webhook.configuration.dynamic_resources import read_claims
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.evaluation.kinds import POD
from webhook.quota.counted_records import PODS
from webhook.tools.status.denials import ClusterEvent, read_events
from webhook.tools.status.freshness import figures_until
from webhook.tools.status.listed_capacity import node_index
from webhook.tools.status.quotas import quota_from_status
from webhook.tools.status.teams import effective_ledger
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.stored_objects import Evaluation, evaluate
from webhook.tools.stored_pod import StoredPod, decode_stored
from webhook.tools.why.discovery import ServedKind, ServedKinds
from webhook.tools.why.fit import format_requests, requested_gpus
from webhook.workloads.counts import fields_without_pods
from webhook.workloads.places import PodPlace, workload_pods

MAX_LEVELS = 5
"""Owners above a pod: a Pod of a Job of a JobSet of a TrainJob has three."""


def read_author(
    reader: TolerantReader, kinds: ServedKinds, namespace: str, served: ServedKind, document: bytes
) -> tuple[ServedKind, bytes]:
    """Return the object that people wrote: the last controller above this one that is served and readable, else this one."""
    for _ in range(MAX_LEVELS):
        owner = decode_owned(document).metadata.controller
        above = kinds.of_reference(owner.api_version, owner.kind) if owner else None
        if owner is None or above is None:
            break
        try:
            document = without_deep_values(reader.api.get(above.resource.path(namespace, owner.name)))
        except (errors.Forbidden, errors.NotFound):
            break
        served = above
    return served, document


def read_family(
    reader: TolerantReader, kinds: ServedKinds, namespace: str, uid: str, denied: Iterable[ClusterEvent]
) -> tuple[list[StoredPod], frozenset[str]]:
    """Return the pods of the object `uid`, and the uids of everything between it and them, with its own.

    `denied` are the Events about objects of its namespace whose pods were denied.
    """
    pods = reader.listed("pods", namespace, PODS.path(namespace), decode_stored) or []
    parents: dict[str, str] = {}
    to_follow: dict[str, tuple[str, str]] = {}
    for pod in pods:
        owner = pod.metadata.owner
        if owner is not None:
            parents[pod.metadata.uid] = owner.uid
            to_follow[owner.uid] = owner.api_version, owner.kind
    for event in denied:
        about = event.involved_object
        to_follow[about.uid] = about.api_version, about.kind
    for _ in range(MAX_LEVELS):
        to_follow = {each: kind for each, kind in to_follow.items() if each not in parents and each != uid}
        if not to_follow:
            break
        above = _read_owners(reader, kinds, namespace, sorted(set(to_follow.values())), parents)
        for gone in to_follow.keys() - parents.keys():
            parents[gone] = ""
        to_follow = above
    members = frozenset(member for member in {*parents, uid} if _is_below(member, uid, parents))
    return [pod for pod in pods if pod.metadata.uid in members], members


def _read_owners(
    reader: TolerantReader,
    kinds: ServedKinds,
    namespace: str,
    owner_kinds: list[tuple[str, str]],
    parents: dict[str, str],
) -> dict[str, tuple[str, str]]:
    """Add the owners of all objects of these kinds to `parents`; return the owners with their kinds."""
    owners: dict[str, tuple[str, str]] = {}
    for api_version, kind in owner_kinds:
        served = kinds.of_reference(api_version, kind)
        if served is None:
            continue
        name, path = f"{served.plural}.{served.group}".rstrip("."), served.resource.path(namespace)
        for item in reader.listed(name, namespace, path, decode_stored, accept=METADATA_LIST) or ():
            owner = item.metadata.owner
            parents[item.metadata.uid] = owner.uid if owner else ""
            if owner is not None:
                owners[owner.uid] = owner.api_version, owner.kind
    return owners


def _is_below(member: str, uid: str, parents: Mapping[str, str]) -> bool:
    for _ in range(MAX_LEVELS + 1):
        if member == uid:
            return True
        member = parents.get(member, "")
    return False


def read_pods(reader: TolerantReader, namespace: str, pods: Iterable[StoredPod]) -> dict[str, Pod]:
    """Return the pods that can be read, whole, by name."""
    found: dict[str, Pod] = {}
    for pod in pods:
        name = pod.metadata.name
        with suppress(errors.Forbidden, errors.NotFound):
            found[name] = decode_pod(reader.api.get(PODS.path(namespace, name)))
    return found


def group_progress(reader: TolerantReader, namespace: str, pod: StoredPod) -> str:
    """Return how many pods of a pod's group exist (of Kueue, by label and number), in words; "" if none is missing."""
    name, size = (pod.metadata.labels or {}).get(POD_GROUP), (pod.metadata.annotations or {}).get(GROUP_SIZE)
    if not name or not size or not size.isdecimal():
        return ""
    query = {"labelSelector": f"{POD_GROUP}={name}"}
    pods = reader.listed("pods", namespace, PODS.path(namespace), decode_stored, query=query)
    number = int(size) if pods is None else sum(pod.status.phase != "Failed" for pod in pods)
    return f"{number} of {size} pods of {name} exist" if number < int(size) else ""


def why_no_pods(data: Any, kind: WorkloadKind | None, now: datetime) -> str:
    """Return why an object makes no pods, if it makes none, and who last scaled it."""
    if "desiredNumberScheduled" in (data.get("status") or {}):
        return "no node matches its pods: status.desiredNumberScheduled is 0"
    fields = dict.fromkeys(fields_without_pods(kind, data)) if kind else ()
    scaling = _scaling_text(data, now) if "scaled to zero: spec.replicas is 0" in fields else ""
    return "; ".join(fields) + scaling or "as it is written, it makes no pods"


def _scaling_text(data: Any, now: datetime) -> str:
    """Return who last wrote spec.replicas, and when, by the managedFields."""
    entries = data.get("metadata", {}).get("managedFields") or ()
    wrote = [entry for entry in entries if "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})]
    last = max(wrote, key=lambda entry: str(entry.get("time")), default=None)
    at = f" at {utc(datetime.fromisoformat(last['time']), now)}" if last and last.get("time") else ""
    return f", written by {last.get('manager')}{at}" if last else ""


def wanted_pods(data: Any, counts: Sequence[int | None]) -> int | None:
    """Return how many pods an object makes now: of a Job, no more than are left to complete; of a DaemonSet what it says."""
    spec, status = data.get("spec") or {}, data.get("status") or {}
    if "desiredNumberScheduled" in status:
        return int(status["desiredNumberScheduled"])
    if not counts or None in counts:
        return None
    written = sum(count or 0 for count in counts)
    completions = spec.get("completions")
    return written if completions is None else min(written, max(completions - status.get("succeeded", 0), 0))


MAX_PODS = 20


class Case:
    """An object, and what its explanation needs of the cluster. `config`: documents to use instead of those of the cluster."""

    def __init__(
        self, api: ApiClient, kind: str, name: str, namespace: str, now: datetime, config: Path | None
    ) -> None:
        self.reader = reader = TolerantReader(api)
        self.kinds = ServedKinds(api)
        self.served = self.kinds.find(kind)
        self.namespace, self.name, self.now = namespace, name, now
        self.document = without_deep_values(api.get(self.served.resource.path(namespace, name)))
        self.configuration = reader.configuration(config)
        read = partial(read_events, api, namespace)
        self.events = reader.attempt(f"list events -n {namespace}", read) or []
        self.nodes = reader.class_nodes(self.configuration, now)
        self.index = node_index(self.nodes or (), self.configuration)
        self.quota = reader.quota(namespace)
        self.ledger = ledger = effective_ledger(reader, namespace, self.quota, now)
        self.until = until = figures_until(reader, InstallationNames(), now) if ledger is not None else None
        self.quota_after_release = partial(
            quota_from_status, ledger, self.configuration, has_controller=not until
        )
        self.unscheduled = ""
        """What the scheduler says of a pod that it finds no node for."""
        self.terminating_demands: list[Amounts] = []
        """The demand of terminating pods of the object."""

    def requested_by_terminating(self, terminating: Sequence[StoredPod]) -> dict[str, str]:
        """Return what each terminating pod holds, in words. Later evaluations count it as free.

        If the next pod fits then, its author only has to wait for the end of these pods.
        """
        pods = read_pods(self.reader, self.namespace, terminating[:MAX_PODS])
        self.terminating_demands = [*map(self.demand, pods.values())]
        mapping = self.configuration.resource_mapping
        return {name: format_requests(requested_gpus(pod, mapping)) for name, pod in pods.items()}

    def demand(self, pod: Pod) -> Amounts:
        """Return what the quota of the namespace counts for a pod."""
        if self.ledger is None:
            return {}
        counts_as = self.ledger.unclassified_pods
        return pod_demand(pod, self.configuration, counts_as, nodes=self.index).vector

    def places(self, document: msgspec.Raw) -> tuple[Any, list[tuple[PodPlace, Pod]]]:
        """Return the object as plain data, and the pods in it. The evaluation says so where the pods cannot be read."""
        served, kinds = self.served, self.configuration.workload_kinds
        try:
            return workload_pods(kinds, served.group, served.kind, document)
        except msgspec.ValidationError:
            return msgspec.json.decode(document), []

    def template(self, places: Sequence[tuple[PodPlace, Pod]]) -> Pod:
        """Return the first GPU pod that the object would make, as it would be admitted."""
        evaluated = self.evaluation.pods if self.evaluation else ()
        pods = [pod.admitted for pod in evaluated] or self._with_limit_range_defaults(places)
        is_gpu_pod = self.configuration.resource_mapping.pod_requests_gpus
        return next((pod for pod in pods if is_gpu_pod(pod)), pods[0] if pods else Pod())

    def _with_limit_range_defaults(self, places: Sequence[tuple[PodPlace, Pod]]) -> list[Pod]:
        limits = self.reader.limits_of(self.namespace) or NO_LIMITS
        return [pod if place.is_partial else as_admitted(pod, limits) for place, pod in places]

    @cached_property
    def policy(self) -> EffectivePolicy | None:
        """The policy of the namespace. None if the caller may not read policies or labels."""
        return self.reader.policy_of(self.configuration, self.namespace)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Findings of the rules as if the object were created now; None where they are not known."""
        return self.evaluate_as_created(self.served, self.document) if self.policy is not None else None

    def evaluate_as_created(self, served: ServedKind, document: bytes) -> Evaluation:
        return evaluate(served.group, served.kind, self.namespace, document, self.evaluator)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the webhook. A stored pod is not compared with the quota again: it holds its part."""
        is_pod = (self.served.group, self.served.kind) == POD
        quota = None if is_pod else self.quota_after_release(released=total(self.terminating_demands))
        return Evaluator(
            cache=DecisionCache(self.configuration),
            now=self.now,
            facts=Facts(
                labels_of=self.reader.labels_of if self.policy is not None else lambda _namespace: (),
                nodes=lambda: self.node_facts,
                named_nodes=lambda: self.index,
                claims=lambda name: self._claims.get(name),  # noqa: PLW0108 - read when it is first called
                limits_of=self.reader.limits_of,
            ),
            quota_of=lambda _namespace: quota,
        )

    @cached_property
    def node_facts(self) -> NodeFacts | None:
        return self.reader.nodes(self.configuration, self.now)[0] if self.nodes is not None else None

    @cached_property
    def _claims(self) -> dict[ClaimName, RequestedDevices | None]:
        return read_claims(self.reader.api, self.namespace)
