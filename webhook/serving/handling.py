"""The input and the result of the handlers of reviews."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from policies.finding import truncate
from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.limits import check_size
from policies.pods.names import is_dns_subdomain, is_uid
from policies.pods.pod import Metadata, Pod
from policies.policy import EffectivePolicy, Labels
from policies.rule import Phase
from webhook.quota.enforcer import QuotaEnforcer
from webhook.serving.document_reviews import DocumentReviews
from webhook.serving.engine import DeadlineExceeded, Decision, Engine
from webhook.serving.evaluator import Evaluator
from webhook.serving.lookups import OwnerLookup
from webhook.serving.review import LONGEST_NAME, AdmissionRequest, AdmissionResponse, allowed
from webhook.workloads.autoscalers import ScaleTarget

T = TypeVar("T")


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a review may look up beyond its object and the configuration. A field that is left out means that nothing is known."""

    labels_of: Callable[[str, float], Labels] = lambda _namespace, _deadline: ()
    """Labels of a namespace by a deadline (`monotonic`). Raises NamespaceUnknown."""
    nodes: Callable[[], NodeFacts | None] = lambda: None
    named_nodes: Callable[[], NodeIndex] = lambda: NO_NODES
    claims: Callable[[float], Callable[[ClaimName], DeviceClassNames | None]] | None = None
    """Returns the lookup of one review, by its deadline."""
    owner_deadline: Callable[[float], OwnerLookup] | None = None
    """Likewise for the deadlines of objects that make pods."""
    budgets: Callable[[str, float], tuple[LabelSelector, ...] | None] = lambda _namespace, _deadline: None
    """Selectors of the PodDisruptionBudgets in a namespace, None if they cannot be read by the deadline."""
    has_admitted: Callable[[str, Pod, float], bool] = lambda _namespace, _pod, _deadline: False
    """Whether Kueue has admitted what makes a pod in a namespace, as far as can be read by the deadline."""
    limits_of: Callable[[str, float], NamespaceLimits | None] = lambda _namespace, _deadline: None
    """What the LimitRanges of a namespace say, by a deadline; None if they cannot be read."""
    quota: QuotaEnforcer | None = None
    scaled: Callable[[str, ScaleTarget, float], Any] = lambda _namespace, _target, _deadline: None
    """Returns in plain JSON what an autoscaler in the namespace scales, None if it cannot be read by the deadline."""
    documents: DocumentReviews | None = None
    controller: str = ""
    """The user name of our controller."""

    def evaluator(
        self, engine: Engine, request: AdmissionRequest, now: datetime, deadline: float
    ) -> Evaluator:
        """Return what evaluates the object of a request; it looks things up by `deadline`, a moment of `monotonic`."""
        quota = (
            self.quota.of(request.namespace, deadline, dry_run=bool(request.dry_run)) if self.quota else None
        )
        return Evaluator(
            engine=engine,
            now=now,
            deadline=deadline,
            labels_of=lambda namespace: self.labels_of(namespace, deadline),
            nodes=self.nodes,
            named_nodes=self.named_nodes,
            claims=self.claims(deadline) if self.claims else None,
            owner_deadline=self.owner_deadline(deadline) if self.owner_deadline else None,
            budgets=lambda namespace: self.budgets(namespace, deadline),
            limits_of=lambda namespace: self.limits_of(namespace, deadline),
            has_admitted=lambda namespace, pod: self.has_admitted(namespace, pod, deadline),
            quota_of=lambda _namespace: quota,
            answer_holds=quota.still_holds if quota else lambda: True,
            queues=quota.queues if quota and not request.dry_run else None,
        )


class UnreadableObject(Exception):  # noqa: N818 - no bug
    """The object is not what its kind says; the message has the path of the field."""


class Review(msgspec.Struct, frozen=True):
    """A decoded request, and what evaluates its object."""

    request: AdmissionRequest
    phase: Phase
    cluster: ClusterState
    evaluator: Evaluator

    def document(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return the JSON of an object to be decoded. Raises DeadlineExceeded, msgspec.ValidationError where it is too long."""
        DeadlineExceeded.check(self.evaluator.deadline)
        return check_size(raw)

    @property
    def by_controller(self) -> bool:
        return bool(self.cluster.controller) and self.request.user_info.username == self.cluster.controller

    def decode(self, decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw) -> T:
        """Decode an object. Raises DeadlineExceeded, UnreadableObject."""
        try:
            return decode(self.document(raw))
        except msgspec.ValidationError as error:
            raise UnreadableObject(str(error)) from None

    def policy(self) -> EffectivePolicy:
        """Return the policy of the namespace. Raises NamespaceUnknown."""
        return self.evaluator.policy(self.request.namespace)


class ReviewResult(msgspec.Struct, frozen=True):
    """The response, and for the record the decisions behind it and what the handler knew of the object.

    `name` and `metadata` are None where the handler did not need them. `pod`: the reviewed pod, unless it was too long.
    """

    response: AdmissionResponse
    decisions: list[Decision] = []
    name: str | None = None
    metadata: Metadata | None = None
    pod: Pod | None = None


Handler = Callable[[Review], ReviewResult]


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
    return truncate(name, LONGEST_NAME)


def allow(review: Review) -> ReviewResult:
    """Allow what no rule looks at."""
    return ReviewResult(allowed(review.request.uid))
