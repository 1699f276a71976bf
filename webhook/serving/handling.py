"""What the handler of a review is given and what it returns: the request with all that it is decided by, and the answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from policies.finding import truncate
from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.limits import check_size
from policies.pods.names import is_dns_subdomain, is_uid
from policies.pods.pod import Metadata, Pod
from policies.policy import EffectivePolicy, Labels
from policies.rule import Phase
from webhook.quota.enforcer import NamespaceQuota, QuotaEnforcer
from webhook.serving import review
from webhook.serving.document_reviews import DocumentReviews
from webhook.serving.engine import Decision, Engine, OutOfTime
from webhook.serving.evaluator import Evaluator
from webhook.serving.review import AdmissionRequest, AdmissionResponse
from webhook.serving.workload_reviews import WorkloadReview
from webhook.workloads.autoscalers import ScaleTarget

Lookup = Callable[[ClaimName], DeviceClassNames | None]
"""Returns for which DeviceClasses a claim asks, None where that is not known."""


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a review may look up beyond its object and the configuration; what is None nobody knows."""

    labels_of: Callable[[str, float], Labels] | None = None
    """Labels of a namespace by a deadline (`monotonic`). Raises NamespaceUnknown."""
    nodes: Callable[[], NodeFacts | None] = lambda: None
    named_nodes: Callable[[], NodeIndex] = lambda: NO_NODES
    claims: Callable[[float], Lookup] | None = None
    """Makes the lookup of a review, of its deadline."""
    quota: QuotaEnforcer | None = None
    scaled: Callable[[str, ScaleTarget, float], Any] = lambda _namespace, _target, _deadline: None
    """Returns in plain JSON what an autoscaler in the namespace scales, None if it cannot be read by the deadline."""
    documents: DocumentReviews | None = None


class Review(msgspec.Struct, frozen=True, dict=True):
    """A request, and all that it is decided by."""

    request: AdmissionRequest
    phase: Phase
    engine: Engine
    cluster: ClusterState
    now: datetime
    deadline: float
    """A moment of `monotonic`."""

    def document(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return the JSON of an object to be decoded. Raises OutOfTime, msgspec.ValidationError where it is too long."""
        OutOfTime.check(self.deadline)
        return check_size(raw)

    @cached_property
    def evaluator(self) -> Evaluator:
        """What evaluates the object, by what the cluster is known to be."""
        cluster, deadline = self.cluster, self.deadline
        labels_of, quota = cluster.labels_of, cluster.quota
        return Evaluator(
            engine=self.engine,
            now=self.now,
            deadline=deadline,
            labels_of=(lambda namespace: labels_of(namespace, deadline))
            if labels_of
            else lambda _namespace: (),
            nodes=cluster.nodes(),
            named_nodes=cluster.named_nodes(),
            claims=self._claims if cluster.claims else None,
            quota_of=(lambda _namespace: self.quota) if quota else lambda _namespace: None,
        )

    def _claims(self, name: ClaimName) -> DeviceClassNames | None:
        return self._claim_lookup(name) if self._claim_lookup else None

    @cached_property
    def _claim_lookup(self) -> Lookup | None:
        claims = self.cluster.claims
        return claims(self.deadline) if claims else None

    @cached_property
    def quota(self) -> NamespaceQuota | None:
        request, quota = self.request, self.cluster.quota
        dry_run = bool(request.dry_run)
        return None if quota is None else quota.of(request.namespace, self.deadline, dry_run=dry_run)

    def policy(self) -> EffectivePolicy:
        """Return the policy of the namespace. Raises NamespaceUnknown."""
        return self.evaluator.policy(self.request.namespace)

    def of_workload(self, policy: EffectivePolicy) -> WorkloadReview:
        """Return the review as one of a workload."""
        is_update = self.request.operation == "UPDATE"
        return WorkloadReview(by=self.evaluator, policy=policy, kind=self.request.kind, is_update=is_update)


class ReviewResult(msgspec.Struct, frozen=True):
    """The response, the decisions behind it, and of the object what its handler knew, for the record.

    `name` and `metadata` are None where the handler did not need them. `pod` is there of a pod as it was reviewed, unless it was
    too long.
    """

    response: AdmissionResponse
    decisions: list[Decision] = []
    name: str | None = None
    metadata: Metadata | None = None
    pod: Pod | None = None
    fingerprint: bytes | None = None
    """Of a pod: those with the same one are siblings."""


Handler = Callable[[Review], ReviewResult]


class UnreadableObject(Exception):  # noqa: N818 - no bug
    """The object is not what its kind says; the message has the path of the field."""


@contextmanager
def reading() -> Iterator[None]:
    """Blame the object for errors of its decoding, and only for those. Raises UnreadableObject."""
    try:
        yield
    except msgspec.ValidationError as error:
        raise UnreadableObject(str(error)) from None


def check_identity(request: AdmissionRequest, metadata: Metadata | None) -> None:
    """Refuse a uid or name that no stored object has: both become part of the ledger. Raises UnreadableObject.

    At /validate the API server has set the one and checked the other; a dry run without it has no uid.
    """
    uid, name = (metadata.uid, metadata.name) if metadata else (None, None)
    if uid and not is_uid(uid):
        raise UnreadableObject("metadata.uid must be a UUID (RFC 4122)")
    if not all(is_dns_subdomain(each) for each in (request.name, name) if each):
        raise UnreadableObject("metadata.name must be a DNS subdomain of at most 253 characters")


def shown_name(request: AdmissionRequest, metadata: Metadata | None) -> str:
    """Return the object's name, or its generateName while it has no final one."""
    name = request.name or (metadata and (metadata.name or metadata.generate_name)) or ""
    return truncate(name, review.LONGEST_NAME)


def allow(requested: Review) -> ReviewResult:
    """Allow what no rule looks at."""
    return ReviewResult(review.allowed(requested.request.uid))
