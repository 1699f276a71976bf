"""Answers an admission request: finds the handler of its kind, and records the response."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import perf_counter

import msgspec

from policies.rule import Phase
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.configuration.documents import GROUP
from webhook.evaluation.decision import DeadlineExceeded
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.kinds import (
    CLAIM,
    CLAIM_TEMPLATE,
    LIMIT_RANGE,
    PDB,
    POD,
    RESOURCE_QUOTA,
)
from webhook.serving import admission_review as responses
from webhook.serving.admission_review import AdmissionRequest, AdmissionResponse
from webhook.serving.audit import Recorder
from webhook.serving.handler import ClusterState, Handler, Review, ReviewResult, UnreadableObject, allow
from webhook.serving.review_claims import review_changed_claim, review_claim, review_claim_template
from webhook.serving.review_documents import review_document
from webhook.serving.review_pods import restore_pod, review_pod
from webhook.serving.review_workloads import (
    review_autoscaler,
    review_for_warnings,
    review_pdb,
    review_templates,
)
from webhook.workloads.autoscalers import AUTOSCALERS


class Admission(msgspec.Struct, frozen=True):
    """Answers reviews with the cache in force at that moment."""

    cache: Callable[[], DecisionCache]
    recorder: Recorder
    cluster: ClusterState = ClusterState()

    def mutate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        """Answer by `deadline`, a moment of `monotonic`: no read of the cluster lasts longer."""
        return self._answer(Phase.MUTATE, request, deadline)

    def validate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        return self._answer(Phase.VALIDATE, request, deadline)

    def _answer(self, phase: Phase, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        started, clock = datetime.now(UTC), perf_counter()
        evaluator = self.cluster.evaluator(self.cache(), request, started, deadline)
        review = Review(request, phase, self.cluster, evaluator)
        try:
            result = handler_of(phase, request)(review)
            # A process that stood still (SIGSTOP, a frozen VM) may have decided by a quota that changed meanwhile.
            while not evaluator.answer_holds():
                result = handler_of(phase, request)(review)
        except NamespaceUnknown as unknown:
            what = (
                f"the labels of namespace {request.namespace}, which select its policy; try again: {unknown}"
            )
            result = _rejected(request, responses.UNAVAILABLE, "ServiceUnavailable", f"cannot read {what}")
        except UnreadableObject as error:
            result = _rejected(request, 400, "BadRequest", f"cannot read the object: {error}")
        except DeadlineExceeded:
            result = _rejected(request, responses.TIMEOUT, "Timeout", f"{responses.OUT_OF_TIME}; try again")
        self.recorder.record(review, result, perf_counter() - clock)
        return result.response


def _rejected(request: AdmissionRequest, code: int, reason: str, problem: str) -> ReviewResult:
    return ReviewResult(responses.rejected_response(request.uid, code, reason, f"gpu-admission {problem}"))


def release(review: Review) -> ReviewResult:
    """Give back what a deleted object holds, if the ledgers are in this process: `serve` without a cluster has no controller."""
    request, quota = review.request, review.cluster.quota
    if quota is not None and quota.release is not None and not request.dry_run:
        quota.release(request.namespace, responses.metadata_of(request.old_object).uid)
    return allow(review)


_MUTATING: Mapping[tuple[str, str, str], Handler] = {
    (*POD, "CREATE"): review_pod,
    (*POD, "UPDATE"): restore_pod,
}
_VALIDATING: Mapping[tuple[str, str, str], Handler] = {
    (*POD, "CREATE"): review_pod,
    (*POD, "UPDATE"): review_pod,
    (*POD, "DELETE"): release,
    (*CLAIM, "CREATE"): review_claim,
    (*CLAIM, "UPDATE"): review_changed_claim,
    (*CLAIM, "DELETE"): release,
    (*CLAIM_TEMPLATE, "CREATE"): review_claim_template,
    (*RESOURCE_QUOTA, "CREATE"): review_for_warnings,
    (*RESOURCE_QUOTA, "UPDATE"): review_for_warnings,
    (*PDB, "CREATE"): review_pdb,
    (*PDB, "UPDATE"): review_pdb,
    (*LIMIT_RANGE, "CREATE"): review_for_warnings,
    (*LIMIT_RANGE, "UPDATE"): review_for_warnings,
    **{(*kind, operation): review_autoscaler for kind in AUTOSCALERS for operation in ("CREATE", "UPDATE")},
}


def handler_of(phase: Phase, request: AdmissionRequest) -> Handler:
    """Return what answers a request, by kind and operation; no rule reads subresources, and every other kind may have pods."""
    key = *request.kind.key, request.operation
    if request.sub_resource:
        return allow
    if phase is Phase.MUTATE:
        return _MUTATING.get(key, allow)
    default = review_document if request.kind.group == GROUP else review_templates
    return _VALIDATING.get(key, allow if request.operation == "DELETE" else default)
