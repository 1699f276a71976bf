"""What is read of an object and of its cluster to explain why its pods do not run."""

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from policies.gpus.claimed_devices import ClaimName, RequestedDevices
from policies.placement.nodes import NodeFacts
from policies.pods.limit_ranges import NO_LIMITS, as_admitted
from policies.pods.pod import Pod
from policies.policy import EffectivePolicy
from policies.quota.amounts import Vector, total
from policies.quota.demand import pod_demand
from webhook.cluster.api import ApiClient, shallow
from webhook.cluster.objects import InstallationNames
from webhook.configuration.dynamic_resources import read_claims
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.evaluation.kinds import POD
from webhook.tools.status.denials import read_events
from webhook.tools.status.freshness import figures_until
from webhook.tools.status.listed_capacity import node_index
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import quota_from_status
from webhook.tools.status.teams import effective_ledger
from webhook.tools.stored_objects import Evaluation, evaluate
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.discovery import ServedKind, ServedKinds
from webhook.tools.why.family import read_pods
from webhook.tools.why.fit import format_requests, requested_gpus
from webhook.workloads.places import PodPlace, workload_pods

MAX_PODS = 20


class Case:
    """An object, and what its explanation needs of the cluster. `config`: documents to use instead of those of the cluster."""

    def __init__(
        self, api: ApiClient, kind: str, name: str, namespace: str, now: datetime, config: Path | None
    ) -> None:
        self.reader = reader = Permitted(api)
        self.kinds = ServedKinds(api)
        self.served = self.kinds.find(kind)
        self.namespace, self.name, self.now = namespace, name, now
        self.document = shallow(api.get(self.served.resource.path(namespace, name)))
        self.configuration = reader.configuration(config)
        read = partial(read_events, api, namespace)
        self.events = reader.attempt(f"list events -n {namespace}", read) or []
        self.nodes = reader.class_nodes(self.configuration, now)
        self.index = node_index(self.nodes or (), self.configuration)
        self.quota = reader.quota(namespace)
        self.limits = limits = effective_ledger(reader, namespace, self.quota, now)
        self.until = until = figures_until(reader, InstallationNames(), now) if limits is not None else None
        self.quota_without = partial(quota_from_status, limits, self.configuration, has_controller=not until)
        self.unscheduled = ""
        """What the scheduler says of a pod that it finds no node for."""
        self.releasing: list[Vector] = []
        """The demand of terminating pods of the object."""

    def held_by(self, terminating: Sequence[StoredPod]) -> dict[str, str]:
        """Return what each terminating pod holds, in words. Later evaluations count it as free.

        If the next pod fits then, its author only has to wait for the end of these pods.
        """
        pods = read_pods(self.reader, self.namespace, terminating[:MAX_PODS])
        self.releasing = [*map(self.demand, pods.values())]
        mapping = self.configuration.resource_mapping
        return {name: format_requests(requested_gpus(pod, mapping)) for name, pod in pods.items()}

    def demand(self, pod: Pod) -> Vector:
        """Return what the quota of the namespace counts for a pod."""
        if self.limits is None:
            return {}
        counts_as = self.limits.unclassified_pods
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
        pods = [each.admitted for each in evaluated] or self._with_limit_range_defaults(places)
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
        return self.as_created(self.served, self.document) if self.policy is not None else None

    def as_created(self, served: ServedKind, document: bytes) -> Evaluation:
        return evaluate(served.group, served.kind, self.namespace, document, self.evaluator)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the webhook. A stored pod is not compared with the quota again: it holds its part."""
        is_pod = (self.served.group, self.served.kind) == POD
        quota = None if is_pod else self.quota_without(released=total(self.releasing))
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
