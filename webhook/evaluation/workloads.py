"""Evaluation of workloads: each of their pod templates, and the object as a whole.

DENIED means that the pods would be denied. Raises DeadlineExceeded, or msgspec.ValidationError for what cannot be read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.finding import Finding, as_plain_data
from policies.pods.defaults_annotation import DEFAULTS_ANNOTATION
from policies.pods.field_paths import Parts, path_parts, with_edits
from policies.pods.limit_ranges import REQUESTS_AND_LIMITS
from policies.pods.patch import Change
from policies.pods.pod import Pod
from policies.pods.workload import Workload, WorkloadPods
from policies.policy import EffectivePolicy, Exemption, TemplateMode
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT
from policies.rule import Mode
from webhook.configuration.workload_kinds import WorkloadKinds
from webhook.evaluation.creation import evaluate_template
from webhook.evaluation.decision import DeadlineExceeded, Decision, Outcome, Violation
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.referenced_objects import ReferencedObjects
from webhook.evaluation.tried_choices import MAX_BYTES
from webhook.workloads import references
from webhook.workloads.autoscalers import ScaleTarget
from webhook.workloads.counts import stage_field
from webhook.workloads.gang_sources import starts_together
from webhook.workloads.misplaced import lost_fields
from webhook.workloads.owners import first_deadline, leader_edit
from webhook.workloads.places import PodPlace, serve_config, workload_pods
from webhook.workloads.train_jobs import TRAIN_JOB, with_runtime
from webhook.workloads.unread import quota_findings, unread_gpus

MAX_TRIED_TEMPLATES = 4
"""Templates of one object whose findings have their choices tried."""
MAX_TEMPLATE_FINDINGS = 40
"""Findings of the templates of one object, after which the others are not evaluated. kubectl shows some 30 warnings at most."""


class EvaluatedPod(msgspec.Struct, frozen=True, dict=True):
    """A pod or one template, and the decisions of the phases in their order; paths of findings start at the object."""

    place: PodPlace
    """With the data of a template; of a pod without."""
    submitted: Pod
    """The pod as it was evaluated, without what was injected."""
    decisions: Sequence[Decision]

    @property
    def policy(self) -> EffectivePolicy:
        return self.decisions[0].policy

    @property
    def exemption(self) -> Exemption | None:
        return self.decisions[0].exemption

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(decision.violations for decision in self.decisions)))

    @property
    def changes(self) -> tuple[Change, ...]:
        return () if self.place.is_partial else self.decisions[0].changes

    @property
    def admitted(self) -> Pod:
        """The pod with what the rules add. Of a template, only what is known of its pods."""
        return self.decisions[0].pod or self.submitted

    @property
    def is_denied(self) -> bool:
        return any(violation.outcome is Outcome.DENIED for violation in self.violations)


def evaluate_workload(
    evaluator: Evaluator,
    policy: EffectivePolicy,
    group_kind: tuple[str, str],
    document: msgspec.Raw,
    *,
    is_update: bool,
) -> tuple[list[EvaluatedPod], list[Decision]]:
    """Return the templates with the decision on each, and the decisions on the object. `group_kind`: its group and kind."""
    configuration, kind = evaluator.configuration, group_kind[1]
    data, places = workload_pods(configuration.workload_kinds, *group_kind, document)
    pods = _templates(evaluator, policy, kind, places)
    workload_kind = configuration.workload_kinds.get(group_kind)
    completed = with_referenced(evaluator, policy, group_kind, data, pods)
    workload = as_workload(configuration.workload_kinds, group_kind, policy.namespace, completed)
    advice = [evaluator.check_workload(policy, workload, is_update=is_update)]
    if (
        evaluator.tries_choices
        and len(pods) <= MAX_TRIED_TEMPLATES
        and memoryview(document).nbytes <= MAX_BYTES
    ):
        tried = partial(templates_of, evaluator.trial(), policy, group_kind)
        advice = [_without_denied_choices(decision, pods, data, tried) for decision in advice]
    mapping, kinds = configuration.resource_mapping, configuration.workload_kinds
    unread = unread_gpus(*group_kind, data, places, mapping, kinds)
    quotas = quota_findings(workload_kind, data, mapping) if workload_kind else ()
    advice.append(Decision.of_findings(policy, (*unread, *quotas, *completed.findings), Mode.WARN))
    lost = (lost_field for lost_field in lost_fields(data) if policy.in_force(lost_field.rule, evaluator.now))
    mode = Mode.WARN if policy.paused_until_at(evaluator.now) is None else Mode.AUDIT
    advice.append(Decision.of_findings(policy, lost, mode))
    return pods, advice


class CompletedWorkload(msgspec.Struct, frozen=True):
    """An object, as plain data, and its pods, completed by the objects that it names.

    findings: warnings of those objects that have GPUs, or are not known. completed_by: the object that gives pods, in words.
    """

    data: Any
    pods: Sequence[EvaluatedPod]
    findings: Sequence[Finding] = ()
    completed_by: str = ""


def with_referenced(
    evaluator: Evaluator,
    policy: EffectivePolicy,
    group_kind: tuple[str, str],
    data: Any,
    pods: Sequence[EvaluatedPod],
) -> CompletedWorkload:
    """Return the object and its pods, completed by what is known of the objects that it names."""
    configuration = evaluator.configuration
    fields = list(
        references.find_references(configuration.workload_kinds, group_kind, policy.namespace, data)
    )
    if not fields:
        return CompletedWorkload(data, pods)
    referenced = ReferencedObjects(evaluator.facts, configuration, policy.namespace)
    completed, completed_by = data, ""
    for field in fields:
        if group_kind == TRAIN_JOB and (runtime := referenced.find(field)):
            completed, completed_by = with_runtime(completed, runtime), f"{field.kind} {field.name}"
        elif field.reference.gives and (found := referenced.find(field)):
            completed = references.with_copied_fields(field.reference, completed, found)
    try:
        pods = (
            templates_of(evaluator.trial(), policy, group_kind, completed) if completed is not data else pods
        )
    except msgspec.ValidationError:  # the review of that object says so
        completed, completed_by = data, ""
    requests = any(configuration.resource_mapping.pod_requests_gpus(pod.submitted) for pod in pods)
    not_completed = (
        field
        for field in fields
        if field.reference.further
        or not requests
        or (field.reference.gives and referenced.find(field) is None)
    )
    return CompletedWorkload(completed, pods, tuple(referenced.findings(not_completed)), completed_by)


def templates_of(
    evaluator: Evaluator, policy: EffectivePolicy, group_kind: tuple[str, str], data: Any
) -> list[EvaluatedPod]:
    """Return the templates of a workload, as plain data, with the decision on each."""
    document = msgspec.Raw(msgspec.json.encode(data))
    _, places = workload_pods(evaluator.configuration.workload_kinds, *group_kind, document)
    return _templates(evaluator, policy, group_kind[1], places)


def _without_denied_choices(
    decision: Decision,
    pods: Sequence[EvaluatedPod],
    data: Any,
    templates: Callable[[Any], Sequence[EvaluatedPod]],
) -> Decision:
    """Return the decision without the choices that fit the quota, but whose pods rules would deny."""
    before = _denials(pods)

    def tried(violation: Violation) -> Violation:
        finding = violation.finding
        if finding.reason is not QUOTA_CAN_NEVER_FIT or not finding.choices:
            return violation
        # Without time for the trial, the choices are offered untried.
        with suppress(DeadlineExceeded):
            for edits in finding.choices:
                edited = with_edits(
                    data, [(path_parts(edit.path), as_plain_data(edit.value)) for edit in edits]
                )
                if _denials(templates(edited)) - before:
                    return replace(violation, finding=replace(finding, choices=(), awaits=None, remedy=""))
        return violation

    return replace(decision, violations=tuple(map(tried, decision.violations)))


def _denials(pods: Iterable[EvaluatedPod]) -> Counter[tuple[str, str]]:
    denials = (each for pod in pods for each in pod.violations if each.outcome is Outcome.DENIED)
    return Counter((denial.finding.reason.name, denial.finding.path) for denial in denials)


def evaluate_autoscaler(
    evaluator: Evaluator,
    policy: EffectivePolicy,
    group_kind: tuple[str, str],
    data: Any,
    scales: ScaleTarget,
    stored: Any,
    *,
    is_update: bool,
) -> Decision:
    """Return the decision on an autoscaler, as plain data, by the `stored` object that it scales."""
    kinds = evaluator.configuration.workload_kinds
    scaled, places = workload_pods(kinds, scales.group, scales.kind, scales.with_max_replicas(stored))
    pods = tuple(pods_for_rules(_templates(evaluator, policy, scales.kind, places)))
    target = Workload(scales.group, scales.kind, policy.namespace, scaled, pods)
    workload = Workload(*group_kind, policy.namespace, data, (), target)
    return evaluator.check_workload(policy, workload, is_update=is_update)


def _templates(
    evaluator: Evaluator, policy: EffectivePolicy, kind: str, places: Iterable[tuple[PodPlace, Pod]]
) -> list[EvaluatedPod]:
    """Decide on each template until there are TEMPLATE_FINDINGS, and, if the policy denies templates, until one is denied."""
    pods: list[EvaluatedPod] = []
    findings, is_enough = 0, policy.templates is not TemplateMode.ENFORCE
    for index, (written, template) in enumerate(places):
        place, pod = with_default_amounts(evaluator, policy, written, template)
        deciding = evaluator if index < MAX_TRIED_TEMPLATES else replace(evaluator, tries_choices=False)
        decision = evaluate_template(deciding, policy, kind, pod, place.owner, is_partial=place.is_partial)
        decision = decision.located(place.path_in_object, place.path_of_edit)
        pods.append(EvaluatedPod(place, pod, (decision,)))
        findings += len(decision.violations)
        is_enough = is_enough or pods[-1].is_denied
        if findings >= MAX_TEMPLATE_FINDINGS and is_enough:
            break
    return pods


def with_default_amounts(
    evaluator: Evaluator, policy: EffectivePolicy, place: PodPlace, pod: Pod
) -> tuple[PodPlace, Pod]:
    """Return a pod with the amounts that LimitRanges give it; a part of a pod unchanged, because they are not known for it."""
    if place.is_partial or (with_defaults := evaluator.with_limit_range_defaults(policy, pod)) is pod:
        return place, pod
    amounts: list[tuple[Parts, Any]] = [
        (path_parts(f"{new.path}.resources.{kind}[{name}]"), amount)
        for old, new in zip(pod.places, with_defaults.places, strict=True)
        for kind in REQUESTS_AND_LIMITS
        for name, amount in getattr(new.container, kind).items()
        if name not in getattr(old.container, kind)
    ]
    annotation = (
        ("metadata", "annotations", DEFAULTS_ANNOTATION),
        with_defaults.annotations.get(DEFAULTS_ANNOTATION),
    )
    return replace(place, data=with_edits(place.data, [*amounts, annotation])), with_defaults


def as_workload(
    kinds: WorkloadKinds,
    group_kind: tuple[str, str],
    namespace: str,
    completed: CompletedWorkload,
    target: Workload | None = None,
) -> Workload:
    """Return an object for rules, with its readable pods."""
    kind, data = kinds.get(group_kind), completed.data
    return Workload(
        *group_kind,
        namespace,
        data,
        tuple(pods_for_rules(completed.pods)),
        target,
        completed_by=completed.completed_by,
        is_one_gang=kind is not None and starts_together(kind, data),
        serve_config=serve_config(*group_kind, data),
        deadline=first_deadline(kind, data) if kind else "",
        stage_field=stage_field(kind, data) if kind else "",
        leader_edit=leader_edit(kind, data) if kind else None,
    )


def pods_for_rules(pods: Iterable[EvaluatedPod]) -> Iterator[WorkloadPods]:
    """Yield the pods of templates, without those that are too long to be read."""
    for pod in pods:
        place, with_defaults = pod.place, pod.decisions[0].pod
        if with_defaults is not None:
            count, owner = place.count, place.owner
            yield WorkloadPods(
                place.path, pod.submitted, count, with_defaults, pod.is_denied, owner, place.path_of_edit
            )
