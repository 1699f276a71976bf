"""What a handler of reviews gets, and what it returns; and what a review may look up beyond its object and the configuration."""

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import msgspec

from policies.finding import Finding, truncate
from policies.pods.limits import check_size
from policies.pods.names import is_dns_subdomain, is_uid
from policies.pods.pod import Metadata, Pod
from policies.policy import EffectivePolicy
from policies.rule import Phase
from policies.rules.disruption import ServingWorkload
from webhook.configuration.workload_kinds import WorkloadKinds
from webhook.evaluation.decision import DeadlineExceeded, Decision
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import QuotaEnforcer
from webhook.serving import admission_review
from webhook.serving.admission_review import AdmissionRequest, AdmissionResponse

T = TypeVar("T")


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a review may look up. An omitted field: nothing is known. A deadline is a moment of `monotonic`."""

    facts: Callable[[float], Facts] = lambda _deadline: Facts()
    """Returns the facts for one review, which are read by its deadline."""
    quota: QuotaEnforcer | None = None
    servers: Callable[[str, WorkloadKinds, float], tuple[ServingWorkload, ...] | None] = (
        lambda _namespace, _kinds, _deadline: None
    )
    """Returns the servers of a namespace, None if they cannot be read by the deadline."""
    check_document: Callable[[AdmissionRequest, datetime], list[Finding]] | None = None
    """Returns what there is to say about a document of our own."""
    controller: str = ""
    """The user name of our controller."""

    def evaluator(
        self, cache: DecisionCache, request: AdmissionRequest, now: datetime, deadline: float
    ) -> Evaluator:
        """Return what evaluates the object of a request by `deadline`."""
        quota = (
            self.quota.of(request.namespace, deadline, dry_run=bool(request.dry_run)) if self.quota else None
        )
        return Evaluator(
            cache=cache,
            now=now,
            deadline=deadline,
            facts=self.facts(deadline),
            quota_of=lambda _namespace: quota,  # a review has one namespace
            answer_holds=quota.still_holds if quota else lambda: True,
            queue_outcome=quota.queue_outcome if quota and not request.dry_run else None,
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


def check_uid_and_name(request: AdmissionRequest, metadata: Metadata | None) -> None:
    """Refuse a uid or name that no stored object has: both become part of the ledger. Raises UnreadableObject.

    At /validate the API server has set the one and checked the other; a dry run without it has no uid.
    """
    uid, name = (metadata.uid, metadata.name) if metadata else (None, None)
    if uid and not is_uid(uid):
        raise UnreadableObject("metadata.uid must be a UUID (RFC 4122)")
    if not all(is_dns_subdomain(given_name) for given_name in (request.name, name) if given_name):
        raise UnreadableObject("metadata.name must be a DNS subdomain of at most 253 characters")


def display_name(request: AdmissionRequest, metadata: Metadata | None) -> str:
    """Return the object's name, or its generateName while it has no final one."""
    name = request.name or (metadata and (metadata.name or metadata.generate_name)) or ""
    return truncate(name, admission_review.LONGEST_NAME)


def allow(review: Review) -> ReviewResult:
    """Allow an object that no rule reads."""
    return ReviewResult(admission_review.allowed_response(review.request.uid))


def advisory_result(request: AdmissionRequest, decisions: list[Decision]) -> ReviewResult:
    subject = admission_review.subject_of(request)
    return ReviewResult(
        admission_review.decided(request.uid, decisions, subject=subject, only_advises=True), decisions
    )
