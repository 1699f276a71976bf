"""Run GPU pods that can be interrupted on the spot pool: cheaper nodes that the provider takes back at short notice.

Reads:   annotation spot where `pods` is annotated; restartPolicy and annotation model-phase, by which a pod may be a server.
Adds:    `tolerations` and `nodeSelector` of the pool, and a terminationGracePeriodSeconds of at least
         `minTerminationSeconds` (never less than it was).
Denies:  an annotation that is not true or false.
Warns:   of an annotation that has no effect.

Nothing is added to pods that may serve (they always restart, and do not declare training), unless `serving` is true. A
PodDisruptionBudget does not help: it bounds evictions, not nodes that the provider takes back. Nothing is added to pods of a
DaemonSet, with a nodeName or with a scheduling gate, to pods that constrain a label of the pool themselves, and to pods that no
node could then take.
`mode` is disabled by default.
"""

from collections.abc import Iterator
from enum import Enum
from functools import partial

import msgspec
from msgspec.structs import replace

from policies.finding import ContactEdit, Edit, Finding, one_choice, separate_choices, warning
from policies.models.shapes import ModelPhase
from policies.placement.class_case import placer_of
from policies.placement.class_selection import REQUIRED_AFFINITY
from policies.pods.annotations import (
    BOOLEAN_WORDS,
    INEFFECTIVE_ANNOTATION,
    INVALID_ANNOTATION,
    MODEL_PHASE,
    SPOT,
    BadAnnotation,
)
from policies.pods.field_paths import annotation_path
from policies.pods.label_selector import label_problems
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod, PodSpec, Toleration
from policies.pods.tolerations import toleration_problems
from policies.rule import Context, Mode, Rule, RuleOptions

ID = "spot"
DEFAULT_GRACE_SECONDS = 30
"""Default of the API server (k8s.io/kubernetes pkg/apis/core/v1/defaults.go, SetDefaults_PodSpec)."""
LONGEST_GRACE_SECONDS = 3600
_ineffective = partial(warning, reason=INEFFECTIVE_ANNOTATION, path=annotation_path(SPOT))


class SpotPods(Enum):
    """Which GPU pods of the policy's namespaces run on the spot pool."""

    ANNOTATED = "annotated"
    ALL = "all"


class SpotOptions(RuleOptions, frozen=True):
    mode: Mode = Mode.DISABLED
    pods: SpotPods = SpotPods.ANNOTATED
    tolerations: tuple[Toleration, ...] = ()
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    min_termination_seconds: int | None = None
    serving: bool = False
    """Pods that may serve run on the spot pool, too."""

    def problems(self) -> Iterator[tuple[str, str]]:
        for index, toleration in enumerate(self.tolerations):
            yield from toleration_problems(toleration, f"tolerations[{index}]", key_is_required=True)
        yield from label_problems(self.node_selector, "nodeSelector")
        seconds = self.min_termination_seconds
        if seconds is not None and not 1 <= seconds <= LONGEST_GRACE_SECONDS:
            yield ("minTerminationSeconds", f"must be from 1 to {LONGEST_GRACE_SECONDS}, not {seconds}")
        if self.mode is not Mode.DISABLED and not self.node_selector:
            yield "nodeSelector", "must have the labels of the spot pool"


def mutate(patch: PodPatch, options: SpotOptions, context: Context) -> Iterator[Finding]:
    if (
        _wants_spot(patch.pod, options, context) is True
        and _reason_against(patch.pod, options, context) is None
    ):
        _add_pool(patch, options)
    yield from ()


def check(pod: Pod, options: SpotOptions, context: Context) -> Iterator[Finding]:
    wanted = _wants_spot(pod, options, context)
    if isinstance(wanted, BadAnnotation):
        yield wanted.finding()
    elif wanted and SPOT in pod.annotations:
        reason = _reason_against(pod, options, context)
        if reason is not None:
            yield replace(reason, value=pod.annotations[SPOT])


def _wants_spot(pod: Pod, options: SpotOptions, context: Context) -> bool | BadAnnotation:
    """Return whether the pod is to run on the spot pool, or the error of its annotation."""
    text = pod.annotations.get(SPOT)
    if text is None:
        return options.pods is SpotPods.ALL and context.surely_requests_gpus(pod)
    if not context.resource_mapping.pod_requests_gpus(pod):
        return False
    word = text.strip().lower()
    if word not in {"true", "false"}:
        remedy = f'set {SPOT}: "true" or "false"'
        return BadAnnotation(SPOT, text, "must be true or false", remedy, BOOLEAN_WORDS.get(word, ""), "true")
    return word == "true" or options.pods is SpotPods.ALL


def _reason_against(pod: Pod, options: SpotOptions, context: Context) -> Finding | None:
    """Return why the pod cannot be steered to the pool. None if it can."""
    if placer := placer_of(pod, by_daemonset=context.made_by_daemonset):
        selectors = (Edit(f"spec.nodeSelector[{key}]", value) for key, value in options.node_selector.items())
        tolerations = (Edit("spec.tolerations[-]", toleration) for toleration in options.tolerations)
        return _ineffective(
            message=f"has no effect: {placer.why}",
            choices=one_choice(Edit(annotation_path(SPOT)), *selectors, *tolerations),
            remedy=f"{placer.instead} the tolerations and the nodeSelector of the pool",
        )
    kept_off = _kept_off(pod, options, context)
    if may_serve(pod) and not options.serving:
        serving = (ContactEdit("GPUPolicy", f"spec.rules.{ID}.serving", True),)
        return _ineffective(
            message="has no effect: the pod restarts always, so it may serve",
            choices=one_choice(Edit(annotation_path(MODEL_PHASE), "training")),
            is_example=True,
            remedy=f'declare {MODEL_PHASE}: "training" where it does not serve',
            ask_contact="" if kept_off else f"to set {ID}.serving: true in the GPUPolicy",
            contact_choices=() if kept_off else (serving,),
        )
    return kept_off


def _kept_off(pod: Pod, options: SpotOptions, context: Context) -> Finding | None:
    """Return which constraint of the pod, or lack of nodes, keeps it off the pool. None if it can run there."""
    selected = pod.node_selector
    constrained = {each.key for term in pod.required_terms for each in term.match_expressions or ()}
    for key, value in options.node_selector.items():
        if selected.get(key, value) != value or key in constrained:
            edit = Edit(REQUIRED_AFFINITY) if key in constrained else Edit(f"spec.nodeSelector[{key}]")
            message = f"has no effect: the pod constrains node label {key} itself"
            return _ineffective(message=message, choices=one_choice(edit), remedy="remove the constraint")
    if context.nodes is not None:
        patched = PodPatch(pod)
        _add_pool(patched, options)
        if not context.nodes.labels_match(patched.pod, "", ()):
            pool = Pod(given_spec=PodSpec(node_selector=options.node_selector))
            if not context.nodes.labels_match(pool, "", ()):
                labels = ", ".join(f"{key}={value}" for key, value in options.node_selector.items())
                message = f"has no effect: no node has the labels of the spot pool ({labels})"
                labelled = tuple(
                    ContactEdit("Node", f"metadata.labels[{key}]", value)
                    for key, value in options.node_selector.items()
                )
                request = "for nodes with these labels"
                return _ineffective(message=message, ask_contact=request, contact_choices=(labelled,))
            constraints = [
                Edit(f"spec.nodeSelector[{key}]") for key in selected if key not in options.node_selector
            ]
            choices = separate_choices(
                *constraints, *((Edit(REQUIRED_AFFINITY),) if pod.required_terms else ())
            )
            message = "has no effect: no node of the spot pool meets the pod's own constraints"
            return _ineffective(message=message, choices=choices, remedy="remove one of them")
    return None


def may_serve(pod: Pod) -> bool:
    """Whether the pod may be a server. Pods of Jobs and of most training operators do not have restartPolicy Always."""
    is_training = pod.annotations.get(MODEL_PHASE, "").strip().lower() == ModelPhase.TRAINING.value
    return not is_training and pod.spec.restart_policy in {None, "Always"}


def _add_pool(patch: PodPatch, options: SpotOptions) -> None:
    for key, value in options.node_selector.items():
        if key not in patch.pod.node_selector:
            patch.set_node_selector(key, value)
    for toleration in options.tolerations:
        patch.add_toleration(toleration)
    minimum = options.min_termination_seconds
    seconds = patch.pod.spec.termination_grace_period_seconds
    if minimum is not None and (DEFAULT_GRACE_SECONDS if seconds is None else seconds) < minimum:
        patch.set_termination_grace_period(minimum)


RULE = Rule(
    id=ID,
    reasons=(INVALID_ANNOTATION, INEFFECTIVE_ANNOTATION),
    summary="GPU pods that can be interrupted run on the spot pool",
    options=SpotOptions,
    mutate=mutate,
    check=check,
    not_exported="it places a pod by the nodes that exist, and CEL cannot look anything up",
)
