"""Answer one admission request: find the pods in it, run the engine over them, say what came of it."""

from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter

import msgspec

from policies.finding import Finding
from policies.placement.nodes import NodeFacts
from policies.pods.pod import Pod, decode_pod
from policies.policy import EffectivePolicy, Labels, TemplateMode
from policies.rule import Mode
from policies.rules import gpu_quota
from webhook.configuration.documents import GROUP
from webhook.configuration.loader import Configuration
from webhook.quota.reservations import (
    ChargeRequest,
    QuotaEnforcer,
    charge_request_for_claim,
    charge_request_for_pod,
)
from webhook.serving import claim_templates, resource_quotas, review
from webhook.serving.audit import AuditLog, audit_record
from webhook.serving.canary_trace import add_canary_trace
from webhook.serving.document_reviews import DocumentReviews
from webhook.serving.engine import (
    MOST_FINDINGS,
    Decision,
    Engine,
    EvaluatedFinding,
    Outcome,
    Subject,
    outcome_of,
)
from webhook.serving.metrics import Metrics
from webhook.serving.namespaces import LabelsOf, NamespaceUnknown
from webhook.serving.review import AdmissionRequest, AdmissionResponse, Cause
from webhook.workloads.kinds import has_pods, is_pod
from webhook.workloads.places import workload_pods

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

DAEMONSET_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""Who creates the pods of DaemonSets: the former, or the latter where controllers share one identity."""


VERDICTS = {review.FORBIDDEN: "denied", review.INVALID: "denied", review.UNAVAILABLE: "unavailable"}
"""What a refusal is called in the audit log and the metrics, by its code."""


class Answer(msgspec.Struct, frozen=True):
    """What is sent, and the decisions behind it."""

    response: AdmissionResponse
    decisions: list[Decision]


class Admission:
    """Answers requests with the configuration in force at that moment. Without `reservations` no quota is asked."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        audit: AuditLog | None,
        metrics: Metrics,
        reservations: QuotaEnforcer | None = None,
        *,
        nodes: Callable[[], NodeFacts | None] = lambda: None,
        reviewed: DocumentReviews | None = None,
        labels_of: LabelsOf | None = None,
    ) -> None:
        self._engine = engine
        self._audit = audit
        self._metrics = metrics
        self._reservations = reservations
        self._nodes = nodes
        self._reviewed = reviewed
        self._labels_of = labels_of

    def mutate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        """Answer by `deadline`, a moment of `monotonic`, as far as that depends on others."""
        return self._answer("mutate", request, lambda asked, now: self._mutate(asked, now, deadline))

    def validate(self, request: AdmissionRequest, deadline: float) -> AdmissionResponse:
        """Likewise."""
        return self._answer("validate", request, lambda asked, now: self._validate(asked, now, deadline))

    def _answer(
        self, phase: str, request: AdmissionRequest, decide: Callable[[AdmissionRequest, datetime], Answer]
    ) -> AdmissionResponse:
        started, clock = datetime.now(UTC), perf_counter()
        try:
            answer = decide(request, started)
        except NamespaceUnknown as unknown:
            answer = Answer(review.labels_unknown(request.uid, request.namespace, str(unknown)), [])
        seconds = perf_counter() - clock
        verdict = _verdict(answer.response)
        self._metrics.record(phase, verdict, seconds, answer.decisions)
        if self._audit is not None:
            self._audit.write(
                audit_record(
                    request,
                    phase=phase,
                    verdict=verdict,
                    started=started,
                    seconds=seconds,
                    name=request.name or _generated_name(request),
                    decisions=answer.decisions,
                )
            )
        return answer.response

    def _mutate(self, request: AdmissionRequest, now: datetime, deadline: float) -> Answer:
        if not _is_pod_itself(request) or request.operation != "CREATE":
            return Answer(review.allowed(request.uid), [])
        return self._pod(request, now, deadline, patch=True)

    def _validate(self, request: AdmissionRequest, now: datetime, deadline: float) -> Answer:
        if request.operation == "DELETE":
            if self._reservations is not None and (_is_pod_itself(request) or _is_claim(request)):
                self._reservations.release(request)
            return Answer(review.allowed(request.uid), [])
        if _is_pod_itself(request) and request.operation in {"CREATE", "UPDATE"}:
            return self._pod(request, now, deadline, patch=False)
        if _is_claim(request) and request.operation == "CREATE":
            return self._claim(request, now, deadline)
        return self._advised(request, now, deadline)

    def _advised(self, request: AdmissionRequest, now: datetime, deadline: float) -> Answer:
        """Answer for what takes no GPU by itself."""
        kind = request.kind
        if request.sub_resource:
            return Answer(review.allowed(request.uid), [])
        if has_pods(kind.group, kind.kind):
            return self._templates(request, now, deadline)
        if self._reviewed is not None and kind.group == GROUP:
            return self._document(self._reviewed, request, now)
        return self._advice(request, now, deadline)

    def _labels(self, request: AdmissionRequest, configuration: Configuration, deadline: float) -> Labels:
        """Return the labels of the request's namespace if anything depends on them. Raises NamespaceUnknown."""
        if self._labels_of is None or not configuration.policies.asks_labels(request.namespace):
            return ()
        return self._labels_of(request.namespace, deadline)

    def _document(self, reviewed: DocumentReviews, request: AdmissionRequest, now: datetime) -> Answer:
        """Check a document of our own configuration."""
        try:
            found = reviewed.findings(request, now)
        except msgspec.ValidationError as error:
            return Answer(review.unreadable_object(request.uid, str(error)), [])
        policy = self._engine().configuration.policies.for_namespace(request.namespace)
        judged = tuple(
            EvaluatedFinding(finding, outcome_of(finding.severity, Mode.ENFORCE)) for finding in found
        )
        decision = Decision(policy=policy, judged=judged)
        decisions = [decision]
        if decision.allowed:
            return Answer(review.advised(request.uid, decisions), decisions)
        causes = tuple(Cause(finding.path, finding.message) for finding in decision.findings(Outcome.DENIED))
        warnings = review.warning_texts(review.sentences(decisions, Outcome.WARNED))
        name = request.name or _generated_name(request)
        return Answer(review.invalid_document(request.uid, request.kind, name, causes, warnings), decisions)

    def _pod(self, request: AdmissionRequest, now: datetime, deadline: float, *, patch: bool) -> Answer:
        try:
            pod = decode_pod(request.object)
            before = decode_pod(request.old_object) if request.operation == "UPDATE" else None
        except msgspec.ValidationError as error:
            return Answer(review.unreadable_object(request.uid, str(error)), [])
        if is_mirror_pod(pod, request):
            return Answer(review.allowed(request.uid), [])
        engine = self._engine()
        subject = Subject(
            pod=pod,
            namespace=request.namespace,
            labels=self._labels(request, engine.configuration, deadline),
            made_by_daemonset=made_by_daemonset(pod, request),
            is_update=before is not None,
            nodes=None if patch else self._nodes(),
        )
        if patch:
            decision = engine.mutate(subject, now)
        else:
            decision = engine.validate(subject, now)
            charge_request = charge_request_for_pod(request, pod, before, engine.configuration)
            decision = self._reserved(request, charge_request, decision, now, deadline)
        name = f"pod {request.namespace}/{request.name or _name_of(pod)}"
        decisions = [decision]
        response = review.decided(request.uid, decisions, subject=name, patch=patch)
        return Answer(add_canary_trace(response, request, pod, decision, now, patch=patch), decisions)

    def _claim(self, request: AdmissionRequest, now: datetime, deadline: float) -> Answer:
        configuration = self._engine().configuration
        try:
            charge_request = charge_request_for_claim(request, configuration)
        except msgspec.ValidationError as error:
            return Answer(review.unreadable_object(request.uid, str(error)), [])
        labels = self._labels(request, configuration, deadline)
        policy = configuration.policies.for_namespace(request.namespace, labels)
        decided = Decision(policy=policy, paused_until=policy.paused(now))
        decision = self._reserved(request, charge_request, decided, now, deadline)
        name = f"resourceclaim {request.namespace}/{request.name or _generated_name(request)}"
        decisions = [decision]
        return Answer(review.decided(request.uid, decisions, subject=name, patch=False), decisions)

    def _reserved(
        self,
        request: AdmissionRequest,
        charge_request: ChargeRequest,
        decision: Decision,
        now: datetime,
        deadline: float,
    ) -> Decision:
        """Ask the quota last, for what nothing else refuses; its findings become part of the decision."""
        if self._reservations is None or not decision.allowed:
            return decision
        policy = decision.policy
        options = policy.options_of(gpu_quota.RULE.id)
        mode = policy.mode_of(gpu_quota.RULE.id, now)
        if not isinstance(options, gpu_quota.GpuQuotaOptions) or mode is Mode.DISABLED:
            return decision
        findings = self._reservations.reserve(request, charge_request, options, now, deadline)
        judged = (EvaluatedFinding(finding, outcome_of(finding.severity, mode)) for finding in findings)
        return msgspec.structs.replace(decision, judged=(*decision.judged, *judged))

    def _advice(self, request: AdmissionRequest, now: datetime, deadline: float) -> Answer:
        """Let in what asks for nothing by itself, with what is worth knowing about it."""
        kind, configuration = request.kind, self._engine().configuration
        if resource_quotas.is_resource_quota(kind.group, kind.kind):
            policy = self._policy(request, configuration, deadline)
            found = resource_quotas.findings(request.object, configuration.resource_mapping)
        elif claim_templates.is_claim_template(kind.group, kind.kind) and request.operation == "CREATE":
            policy = self._policy(request, configuration, deadline)
            found = self._claim_template(request, policy, now, deadline)
        else:
            return Answer(review.allowed(request.uid), [])
        judged = tuple(EvaluatedFinding(finding, Outcome.WARNED) for finding in found)
        decisions = [Decision(policy=policy, judged=judged)]
        return Answer(review.advised(request.uid, decisions), decisions)

    def _claim_template(
        self, request: AdmissionRequest, policy: EffectivePolicy, now: datetime, deadline: float
    ) -> tuple[Finding, ...]:
        if self._reservations is None or policy.mode_of(gpu_quota.RULE.id, now) is Mode.DISABLED:
            return ()
        row = self._reservations.look(request.namespace, deadline)
        if row is None:
            return ()
        return claim_templates.findings(request.object, row.hard, row.unpinned, self._engine().configuration)

    def _policy(
        self, request: AdmissionRequest, configuration: Configuration, deadline: float
    ) -> EffectivePolicy:
        labels = self._labels(request, configuration, deadline)
        return configuration.policies.for_namespace(request.namespace, labels)

    def _templates(self, request: AdmissionRequest, now: datetime, deadline: float) -> Answer:
        kind = request.kind
        try:
            pods = workload_pods(kind.group, kind.kind, request.object)
        except msgspec.ValidationError as error:
            # A template that cannot be read is the API server's or the operator's to refuse, never ours.
            warnings = review.warning_texts([f"gpu-admission could not read the pod template: {error}"])
            return Answer(review.allowed(request.uid, warnings=warnings), [])
        engine = self._engine()
        labels = self._labels(request, engine.configuration, deadline)
        decisions: list[Decision] = []
        for place, pod in pods:
            subject = Subject(
                pod=pod,
                namespace=request.namespace,
                labels=labels,
                made_by_daemonset=kind.kind == "DaemonSet",
                nodes=self._nodes(),
            )
            decisions.append(engine.check_template(subject, now).located(place.located))
            if sum(len(decision.judged) for decision in decisions) >= MOST_FINDINGS:
                break
        if any(decision.policy.templates is TemplateMode.ENFORCE for decision in decisions):
            name = f"{kind.kind} {request.namespace}/{request.name}"
            return Answer(review.decided(request.uid, decisions, subject=name, patch=False), decisions)
        return Answer(review.advised(request.uid, decisions), decisions)


def _verdict(response: AdmissionResponse) -> str:
    if not response.allowed:
        return VERDICTS.get(response.status.code if response.status else 0, "unreadable")
    if response.patch is not None:
        return "patched"
    return "warned" if response.warnings else "allowed"


def is_mirror_pod(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether a kubelet shows a static pod of its own node: nothing may be added, and refusing it would not stop it.

    Anyone can set the annotation, so only the node itself is believed.
    """
    node = pod.body.node_name
    return (
        MIRROR_ANNOTATION in pod.annotations
        and bool(node)
        and request.user_info.username == f"system:node:{node}"
        and "system:nodes" in (request.user_info.groups or ())
    )


def made_by_daemonset(pod: Pod, request: AdmissionRequest) -> bool:
    """Whether the DaemonSet controller created the pod. An owner reference alone proves nothing: anyone can write one."""
    creator = request.user_info.username
    if creator == DAEMONSET_CONTROLLER:
        return True
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return creator == CONTROLLER_MANAGER and any(
        owner.controller and owner.kind == "DaemonSet" and owner.api_version.startswith("apps/")
        for owner in owners
    )


def _is_pod_itself(request: AdmissionRequest) -> bool:
    return is_pod(request.kind.group, request.kind.kind) and not request.sub_resource


def _is_claim(request: AdmissionRequest) -> bool:
    kind = request.kind
    return (kind.group, kind.kind, request.sub_resource) == ("resource.k8s.io", "ResourceClaim", "")


def _name_of(pod: Pod) -> str:
    metadata = pod.metadata
    if metadata is None:
        return ""
    return metadata.name or metadata.generate_name or ""


class _Named(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    generate_name: str | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Named | None = None


_OBJECT_DECODER = msgspec.json.Decoder(_Object)


def _generated_name(request: AdmissionRequest) -> str:
    """Return the name in the object, or its generateName, for an object that has no final name yet."""
    try:
        metadata = (
            _OBJECT_DECODER.decode(request.object).metadata if bytes(request.object) != b"null" else None
        )
    except msgspec.ValidationError:
        return ""
    return (metadata.name or metadata.generate_name or "") if metadata else ""
