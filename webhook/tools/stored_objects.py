"""Evaluation of stored objects as if they were created now, without a reservation. In this process, without HTTP.

Rules on a whole workload treat it as stored (`is_update`), so that it does not compete with itself.

A stored pod is evaluated without its injected fields (`policies.pods.injected`): first by the rules of /mutate, then, with their
changes, by those of /validate.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.pods.injected import as_submitted, author_wrote_node_name
from policies.pods.limits import check_size
from policies.pods.pod import decode_pod
from webhook.cluster.objects import decode_owned
from webhook.evaluation.creation import evaluate_creation
from webhook.evaluation.decision import Decision, Violation
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.kinds import POD
from webhook.evaluation.workloads import EvaluatedPod, evaluate_workload
from webhook.workloads.creators import MIRROR_ANNOTATION, has_controller
from webhook.workloads.places import PodPlace


class StoredObjectVerdict(Enum):
    """The result for a stored object, if it were created now."""

    DENIED = "denied"
    """It, or the pods that it makes, would be denied."""
    CHANGED = "changed"
    ACCEPTED = "accepted"
    UNREADABLE = "unreadable"
    """Its JSON does not match the schema of its kind, or exceeds the size limit."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of one stored object. `workload_findings`: those on the workload object itself, not on its pod template.

    `owner` is the controller of the object, as `Job/train`, or "" without a controller.
    """

    group: str
    kind: str
    namespace: str
    name: str
    owner: str = ""
    pods: Sequence[EvaluatedPod] = ()
    workload_findings: Sequence[Violation] = ()
    unreadable: str = ""
    """Why it cannot be read, "" if it can."""

    @property
    def verdict(self) -> StoredObjectVerdict:
        if self.unreadable:
            return StoredObjectVerdict.UNREADABLE
        if any(pod.is_denied for pod in self.pods):
            return StoredObjectVerdict.DENIED
        is_changed = any(pod.changes for pod in self.pods)
        return StoredObjectVerdict.CHANGED if is_changed else StoredObjectVerdict.ACCEPTED

    def findings(self) -> Iterator[Violation]:
        """Yield all findings, those of the pods first."""
        return chain(*(pod.violations for pod in self.pods), self.workload_findings)


def evaluate(
    group: str, kind: str, namespace: str, document: bytes | msgspec.Raw, evaluator: Evaluator
) -> Evaluation:
    """Evaluate a stored object in JSON. For a kind without a pod template, return only `workload_findings`."""
    evaluation = Evaluation(group=group, kind=kind, namespace=namespace, name="")
    try:
        raw = check_size(msgspec.Raw(document))
        metadata = decode_owned(raw).metadata
        evaluation = replace(evaluation, name=metadata.name or "", owner=metadata.controlled_by)
        if (group, kind) == POD:
            return replace(evaluation, pods=(_evaluated_pod(namespace, raw, evaluator),))
        pods, decisions = evaluate_workload(
            evaluator, evaluator.policy(namespace), (group, kind), raw, is_update=True
        )
        findings = chain.from_iterable(decision.violations for decision in decisions)
        return replace(evaluation, pods=pods, workload_findings=tuple(findings))
    except msgspec.ValidationError as error:
        return replace(evaluation, unreadable=str(error))


def _evaluated_pod(namespace: str, document: msgspec.Raw, evaluator: Evaluator) -> EvaluatedPod:
    stored = decode_pod(document)
    # A mirror pod is admitted unchanged. The annotation alone proves nothing, and the creator is unknown here, so a Node must own
    # the pod (compare `review_pods.is_mirror_pod`).
    if MIRROR_ANNOTATION in stored.annotations and has_controller(stored, "Node", "v1"):
        return EvaluatedPod(PodPlace.of_pod(), stored, [Decision(policy=evaluator.policy(namespace))])
    # managedFields tell whether the author or the scheduler set it.
    author_set_node = bool(stored.spec.node_name) and author_wrote_node_name(document)
    policy = evaluator.policy(namespace)
    submitted = evaluator.with_limit_range_defaults(
        policy, as_submitted(stored, author_set_node=author_set_node)
    )
    made_by_daemonset = has_controller(stored, "DaemonSet", "apps/")
    decisions = evaluate_creation(evaluator, policy, submitted, by_daemonset=made_by_daemonset)
    return EvaluatedPod(PodPlace.of_pod(), submitted, decisions)
