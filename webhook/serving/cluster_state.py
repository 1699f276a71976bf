"""What a review may look up beyond its object and the configuration."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from policies.finding import Finding
from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import NamespaceLimits
from policies.pods.pod import Pod
from policies.policy import Labels
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator, OwnerLookup
from webhook.quota.enforcer import QuotaEnforcer
from webhook.serving.admission_review import AdmissionRequest
from webhook.workloads.autoscalers import ScaleTarget


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a review may look up beyond its object and the configuration. A field that is left out means that nothing is known."""

    labels_of: Callable[[str, float], Labels] = lambda _namespace, _deadline: ()
    """Labels of a namespace by a deadline (`monotonic`). Raises NamespaceUnknown."""
    nodes: Callable[[], NodeFacts | None] = lambda: None
    named_nodes: Callable[[], NodeIndex] = lambda: NO_NODES
    claims: Callable[[float], Callable[[ClaimName], DeviceClassNames | None]] | None = None
    """Returns the lookup of one review, by its deadline."""
    owner_deadline: Callable[[float], OwnerLookup] | None = None
    """Returns the lookup of the deadlines of owners for one review, by the deadline of that."""
    budgets: Callable[[str, float], tuple[LabelSelector, ...] | None] = lambda _namespace, _deadline: None
    """Selectors of the PodDisruptionBudgets in a namespace, None if they cannot be read by the deadline."""
    has_admitted: Callable[[str, Pod, float], bool] = lambda _namespace, _pod, _deadline: False
    """Whether Kueue has admitted the owner of a pod in a namespace. False if that cannot be read by the deadline."""
    limits_of: Callable[[str, float], NamespaceLimits | None] = lambda _namespace, _deadline: None
    """What the LimitRanges of a namespace say, by a deadline; None if they cannot be read."""
    quota: QuotaEnforcer | None = None
    scaled: Callable[[str, ScaleTarget, float], Any] = lambda _namespace, _target, _deadline: None
    """Returns in plain JSON what an autoscaler in the namespace scales, None if it cannot be read by the deadline."""
    check_document: Callable[[AdmissionRequest, datetime], list[Finding]] | None = None
    """Returns what there is to say about a document of our own."""
    controller: str = ""
    """The user name of our controller."""

    def evaluator(
        self, cache: DecisionCache, request: AdmissionRequest, now: datetime, deadline: float
    ) -> Evaluator:
        """Return what evaluates the object of a request; it looks things up by `deadline`, a moment of `monotonic`."""
        quota = (
            self.quota.of(request.namespace, deadline, dry_run=bool(request.dry_run)) if self.quota else None
        )
        return Evaluator(
            cache=cache,
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
