"""Evaluation of stored objects as if they were created now, without a reservation.

A stored pod is evaluated as its author submitted it (`policies.pods.injected`), by /mutate and then, changed, by /validate.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import chain

import msgspec
from msgspec.structs import replace

from policies.pods.injected import as_submitted, names_its_node
from policies.pods.limits import check_size
from policies.pods.pod import decode_pod
from webhook.cluster.objects import decode_owned
from webhook.evaluation.decision import Decision, Violation
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.kinds import POD
from webhook.evaluation.workloads import EvaluatedPod, evaluate_workload
from webhook.workloads.creators import MIRROR_ANNOTATION, has_controller
from webhook.workloads.places import PodPlace


class Verdict(Enum):
    """The result for a stored object, if it were created now."""

    REFUSED = "refused"
    """It, or the pods that it makes, would be denied."""
    CHANGED = "changed"
    ACCEPTED = "accepted"
    UNREADABLE = "unreadable"
    """It is not what its kind says, or too long to be read."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of one stored object; `advice` is about a workload as a whole.

    `owner` is the controller of the object, as `Job/train`, or "" without a controller.
    """

    group: str
    kind: str
    namespace: str
    name: str
    owner: str = ""
    pods: Sequence[EvaluatedPod] = ()
    advice: tuple[Violation, ...] = ()
    unreadable: str = ""
    """Why it cannot be read, "" if it can."""

    @property
    def verdict(self) -> Verdict:
        if self.unreadable:
            return Verdict.UNREADABLE
        if any(pod.is_refused for pod in self.pods):
            return Verdict.REFUSED
        return Verdict.CHANGED if any(pod.changes for pod in self.pods) else Verdict.ACCEPTED

    def findings(self) -> Iterator[Violation]:
        """Yield everything that was found, about the pods first."""
        return chain(*(pod.violations for pod in self.pods), self.advice)


def evaluate(
    group: str, kind: str, namespace: str, document: bytes | msgspec.Raw, by: Evaluator
) -> Evaluation:
    """Evaluate a stored object in JSON. If its kind is not known to make pods, there is only advice."""
    evaluation = Evaluation(group=group, kind=kind, namespace=namespace, name="")
    try:
        raw = check_size(msgspec.Raw(document))
        metadata = decode_owned(raw).metadata
        evaluation = replace(evaluation, name=metadata.name or "", owner=metadata.controlled_by)
        if (group, kind) == POD:
            return replace(evaluation, pods=(_pod(namespace, raw, by),))
        pods, decisions = evaluate_workload(by, by.policy(namespace), (group, kind), raw, is_update=True)
        advice = chain.from_iterable(each.violations for each in decisions)
        return replace(evaluation, pods=pods, advice=tuple(advice))
    except msgspec.ValidationError as error:
        return replace(evaluation, unreadable=str(error))


def _pod(namespace: str, document: msgspec.Raw, by: Evaluator) -> EvaluatedPod:
    stored = decode_pod(document)
    # A mirror pod shows a static pod of the kubelet's own, and passes. The kubelet deletes others with the annotation.
    if MIRROR_ANNOTATION in stored.annotations and has_controller(stored, "Node", "v1"):
        return EvaluatedPod(_WHOLE, stored, [Decision(policy=by.policy(namespace))])
    by_author = bool(stored.spec.node_name) and names_its_node(document)
    submitted = as_submitted(stored, by_author=by_author)
    by_daemonset = has_controller(stored, "DaemonSet", "apps/")
    decisions = by.create(by.policy(namespace), submitted, by_daemonset=by_daemonset)
    return EvaluatedPod(_WHOLE, submitted, decisions)


_WHOLE = PodPlace((), {}, {(): ()})
"""The place of a pod that is an object itself."""
