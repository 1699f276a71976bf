"""What a review may look up beyond its object and the configuration."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from policies.finding import Finding
from policies.rules.disruption import Server
from webhook.configuration.workload_kinds import WorkloadKinds
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import QuotaEnforcer
from webhook.serving.admission_review import AdmissionRequest


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a review may look up. An omitted field: nothing is known. A deadline is a moment of `monotonic`."""

    facts: Callable[[float], Facts] = lambda _deadline: Facts()
    """Returns the facts for one review, which are read by its deadline."""
    quota: QuotaEnforcer | None = None
    servers: Callable[[str, WorkloadKinds, float], tuple[Server, ...] | None] = (
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
