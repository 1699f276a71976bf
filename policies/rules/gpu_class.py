"""Put a GPU pod on the class of accelerator that it requests, needs, or gets by default, and on no class it may not use.

Reads:   annotation gpu-class (a class or a family), else the model annotations (the smallest class on which the model fits),
         else `default` of the policy; what the pod's own nodeSelector and node affinity pin it to.
Adds:    nodeSelector `labelKey`, or required node affinity where nodes of the choice carry one of several values. Never to
         pods that are placed by someone else: with a scheduling gate, made by a DaemonSet, with a nodeName.
Denies:  an unknown class, a class that does not have what the pod requests, a model that fits nowhere, invalid
         annotations, a pod that pins itself to something else than its annotation says; and, where `allowed` is restricted, every
         pod that could end up on another class.
Warns:   of constraints that no class meets, of a class too small for the model, of an annotation that pins nothing; and, where
         the nodes are known, of a class that no node and no known node pool has, and of a guess that was left out for that.

What the user pinned is never overridden: an estimate and a default only speak where nothing else does. They are guesses, left
out where the pod chooses hardware otherwise, even by preference, and where it requests devices by DRA; a default also where it
requests devices of another vendor.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from policies.finding import (
    ContactEdit,
    Edit,
    Edits,
    Finding,
    Reason,
    Severity,
    one_choice,
    separate_choices,
    warning,
)
from policies.gpus.cards import needed_on_node, vendor_domain
from policies.gpus.claimed_devices import ClaimSpec
from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.fraction_annotations import FRACTION_DEVICE
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource
from policies.placement.availability import NO_NODE
from policies.placement.claim_classes import ClaimClassCheck
from policies.placement.class_advice import (
    ANNOTATION_PATH,
    ClassAdvice,
    alternatives_in_words,
    class_finding,
    first_few,
)
from policies.placement.class_case import (
    BY_DAEMONSET,
    BY_GATE_REMOVER,
    BY_NODE_NAME,
    ClassCase,
    is_wider_than,
)
from policies.placement.class_choice import (
    CLASS_CONTRADICTION,
    CLASS_NOT_ALLOWED,
    CLASS_NOT_OFFERED,
    MODEL_TOO_LARGE,
    UNKNOWN_CLASS,
    reason_without_default,
)
from policies.placement.class_options import ANY, ClassOptions, class_matches
from policies.placement.class_selection import ClassSelection
from policies.placement.class_warnings import class_without_nodes, model_too_large
from policies.placement.given_tolerations import GPU_TOLERATION, TolerationOptions, given_tolerations
from policies.placement.hardware import EXCEPT, HARDWARE_ANNOTATIONS, hardware_keys
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import (
    ClassPin,
    allows_label,
    classes_of_label,
    is_narrowed_to,
    many_values,
    named_nodes,
)
from policies.placement.possible_edits import possible_edits
from policies.pods.annotations import GPU_CLASS, INEFFECTIVE_ANNOTATION, INVALID_ANNOTATION
from policies.pods.names import is_qualified_name
from policies.pods.patch import PodPatch
from policies.pods.pod import NodeSelectorRequirement, Pod, Toleration
from policies.rule import Context, Mode, Phase, Rule, RuleOptions

CLASS_NOT_PINNED = Reason("ClassNotPinned", "a pod cannot be pinned to its class")

ID = "gpu-class"


class GPUClassOptions(RuleOptions, frozen=True):
    label_key: str = "accelerator"
    default: str | None = None
    allowed: tuple[str, ...] = (ANY,)
    """Globs over the names of allowed classes and families. `*` allows all."""
    autoscaled_classes: tuple[str, ...] = ()
    """Globs over classes whose nodes are created on demand, so missing nodes give no warning."""
    hardware_labels: tuple[str, ...] = ()
    """Globs over keys of node labels that choose hardware, before the built-in ones. A glob with `!` excludes keys."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if not is_qualified_name(self.label_key):
            yield "labelKey", f'must be a label key, not "{self.label_key}"'
        if self.default is not None and not self.default:
            yield "default", "must not be empty: set null for no default"
        if not self.allowed:
            yield "allowed", 'must not be empty: set ["*"] to allow every class'
        labels = ((f"hardwareLabels[{at}]", glob) for at, glob in enumerate(self.hardware_labels))
        for path, glob in (*self._globs(), *labels):
            if not glob.removeprefix(EXCEPT):
                yield path, "must not be empty"

    def _globs(self) -> Iterator[tuple[str, str]]:
        for name, globs in (("allowed", self.allowed), ("autoscaledClasses", self.autoscaled_classes)):
            yield from ((f"{name}[{index}]", glob) for index, glob in enumerate(globs))

    def class_problems(self, gpu_classes: GPUClasses) -> Iterator[tuple[str, str]]:
        if self.label_key not in gpu_classes.label_keys:
            yield "labelKey", f'must be a node label of some class, not "{self.label_key}"'
        for path, glob in self._globs():
            if not any(class_matches(gpu_class, (glob,)) for gpu_class in gpu_classes):
                yield path, f'"{glob}" matches no class{gpu_classes.suggestion(glob, ": ")}'
        default = self.default
        classes = gpu_classes.resolve(default) if default else ()
        if default and not classes:
            yield (
                "default",
                f'must be a class or a family, not "{default}"{gpu_classes.suggestion(default, ": ")}',
            )
        elif default and not any(class_matches(gpu_class, self.allowed) for gpu_class in classes):
            yield "default", f'must match allowed ({", ".join(self.allowed)}), and "{default}" does not'


def class_options(context: Context) -> ClassOptions:
    """Return the options of this rule for the use of classes."""
    options = context.options_of(ID)
    if not isinstance(options, GPUClassOptions):
        return ClassOptions(reads_annotation=False)
    return ClassOptions(
        allowed=options.allowed,
        default=options.default,
        autoscaled_classes=options.autoscaled_classes,
        reads_annotation=options.mode is Mode.ENFORCE and not context.made_by_daemonset,
    )


def _given_tolerations(pod: Pod, context: Context, classes: Sequence[GPUClass]) -> Sequence[Toleration]:
    """Return the tolerations that rule gpu-toleration gives a pod of these classes."""
    options = context.options_of(GPU_TOLERATION)
    if options is None or options.mode is not Mode.ENFORCE or not isinstance(options, TolerationOptions):
        return ()
    return given_tolerations(pod, options, classes, context.resource_mapping, context.device_classes)


def _class_case(pod: Pod, options: GPUClassOptions, context: Context) -> ClassCase:
    mapping = context.resource_mapping
    # Rule ineffective-fields says which name a misspelt one means.
    requests = mapping.requests(pod)
    resources = {
        request.resource for request in requests if not mapping.suggested_name(request.resource.name)
    }
    if pod.annotations and mapping.pod_fraction(pod):
        resources.add(GPUResource(FRACTION_DEVICE, Measure.FRACTION))
    # Of GPUs of several vendors, the pod keeps those of the class that it names, or that its namespace may use.
    named = context.classes.resolve(pod.annotations.get(GPU_CLASS, ""))
    allowed = () if ANY in options.allowed else context.classes
    vendors = {
        vendor_domain(gpu_class.resource)
        for gpu_class in named or (each for each in allowed if class_matches(each, options.allowed))
    }
    kept = {resource for resource in resources if vendor_domain(resource.name) in vendors} or resources
    needed = needed_on_node(pod, mapping)
    others = {resource.name for resource in resources - kept}
    placed_by = None
    if context.made_by_daemonset:
        placed_by = BY_DAEMONSET
    elif pod.spec.node_name:
        placed_by = BY_NODE_NAME
    elif pod.is_gated or context.is_update:
        placed_by = BY_GATE_REMOVER
    selection = ClassSelection(
        pod=pod,
        gpu_classes=context.classes,
        namespace=context.namespace,
        allowed=options.allowed,
        default=options.default,
        label_key=options.label_key,
        resources=tuple(sorted(kept, key=lambda resource: resource.name)),
        other_vendors_resources=tuple(sorted(others)),
        claim_classes=context.claim_classes,
        claimed_gpus=context.claimed_gpus,
        hardware=hardware_keys(options.hardware_labels, context.classes.label_keys),
        nodes=context.nodes,
        autoscaled_classes=options.autoscaled_classes,
        amounts={name: amount for name, amount in needed.items() if name not in others},
        bypasses_scheduler=placed_by is not None,
        tolerations_of=partial(_given_tolerations, pod, context),
    )
    return ClassCase(selection, mapping, placed_by)


def mutate(patch: PodPatch, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    pod, key = patch.pod, options.label_key
    if not context.resource_mapping.pod_requests_gpus(pod):
        return
    case = _class_case(pod, options, context)
    values = case.added_values()
    if len(values) == 1:
        patch.set_node_selector(key, values[0])
    elif values:
        requirement = NodeSelectorRequirement(key=key, operator="In", values=values)
        classes = case.query.classes if case.query else ()
        patch.require_node_affinity(requirement, many_values(key, values, classes))
    yield from ()


def check(pod: Pod, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    is_bound = context.is_update and pod.spec.node_name  # its annotations have no effect any more
    if is_bound or not context.resource_mapping.pod_requests_gpus(pod):
        return
    yield from _findings(_class_case(pod, options, context), options, context)


def _findings(case: ClassCase, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    for bad in case.bad_annotations:
        yield bad.finding()
    if case.refusal is not None:
        yield case.refusal
    yield from _unsatisfiable(case)
    contradictions = [*_contradicts_annotation(case)]
    yield from contradictions
    yield from _not_pinned(case)
    yield from model_too_large(case)
    # What ends a contradiction puts the pod on other nodes.
    if all(contradiction.severity is Severity.WARNING for contradiction in contradictions):
        yield from class_without_nodes(case)
    yield from _class_not_allowed(case, options, context)


def selects_unknown_class(pod: Pod, context: Context) -> bool:
    """Whether `check` warns of a class in the nodeSelector of the pod that no GPUClass and no node has."""
    options = context.options_of(ID)
    return isinstance(options, GPUClassOptions) and bool(
        _unknown_class(pod, options.label_key, context.classes, context.nodes)
    )


def _unknown_class(pod: Pod, key: str, gpu_classes: GPUClasses, nodes: NodeFacts | None) -> str | None:
    value = pod.node_selector.get(key)
    if value is None or key not in gpu_classes.label_keys or (nodes and value in nodes.values_of(key)):
        return None
    return None if classes_of_label(key, value, gpu_classes) else value


def _unsatisfiable(case: ClassCase) -> Iterator[Finding]:
    """Warn of constraints that no class meets."""
    key = case.selection.label_key
    if (value := _unknown_class(case.pod, key, case.selection.gpu_classes, case.selection.nodes)) is not None:
        path, near = f"spec.nodeSelector[{key}]", case.selection.intended(value)
        values = case.selection.names_to_suggest(
            case.selection.usable_classes() if case.selection.nodes else ()
        ).values()
        first_values = [value for label_values in values for value in label_values[:1]]
        others = separate_choices(*(Edit(path, each) for each in first_few(first_values)))
        words = (
            f"set {key}: {alternatives_in_words(first_values)}, or remove it" if first_values else "remove it"
        )
        yield warning(
            reason=UNKNOWN_CLASS,
            path=path,
            value=value,
            message="should be a GPU class: the pod stays pending unless a node has this label",
            choices=one_choice(Edit(path, near)) if near else (*others, (Edit(path),)),
            remedy=f"did you mean {near}?" if near else words,
        )
    if case.pinned is not None and not case.pinned.classes:
        yield warning(
            reason=CLASS_CONTRADICTION,
            path="spec",
            message=f"no GPU class meets {'; '.join(case.pinned.because)}: the pod stays pending",
            choices=one_choice(*case.edits_to_unpin()),
            remedy="remove the constraint that contradicts the others",
        )
    yield from case.contradicted_claims()


def _contradicts_annotation(case: ClassCase) -> Iterator[Finding]:
    """Report a contradiction between the pod's own constraints and its annotation."""
    choice, pinned, key = case.query, case.pinned, case.selection.label_key
    if choice is None or not case.is_requested:
        return
    values = choice.label_values(key)
    fits_in = bool(values) and (is_narrowed_to(case.pod, key, values) or allows_label(case.pod, key, values))
    chosen = {gpu_class.name for gpu_class in case.selection.gpu_classes.resolve(choice.text)}
    if pinned is None:
        if values and not fits_in:
            message = f"must not contradict the pod's own constraints on node label {key}"
            remedy = "remove the annotation, or those constraints"
            choices = tuple(edits for edits in ((Edit(ANNOTATION_PATH),), case.edits_to_unpin()) if edits)
            advice = ClassAdvice(choices, remedy)
            yield class_finding(CLASS_CONTRADICTION, choice.text, message, advice)
        return
    itself = f"{', '.join(pinned.classes)}, to which the pod pins itself ({'; '.join(pinned.because)})"
    if pinned.classes and chosen.isdisjoint(pinned.classes):
        fitting = [c for c in case.selection.usable_classes() if c.name in pinned.classes]
        family = case.selection.gpu_classes.of_family(fitting[0].family) if fitting else ()
        is_family = len(fitting) > 1 and set(family) == set(fitting)
        names = [fitting[0].family] if is_family else list(case.selection.names_to_suggest(fitting))
        by_name = case.selection.advice_to_name(names) if fitting else ClassAdvice()
        remedy = f"{by_name.remedy}, or remove" if fitting else "remove"
        advice = ClassAdvice((*by_name.choices, case.edits_to_unpin()), f"{remedy} the pod's own constraint")
        yield class_finding(CLASS_CONTRADICTION, choice.text, f"must be {itself}", advice)
    elif is_wider_than(pinned, choice) and not fits_in and case.placed_by is None:
        remedy = "remove the pod's own constraints, and the annotation pins it"
        message = f"cannot narrow {itself}"
        advice = ClassAdvice(one_choice(*case.edits_to_unpin()), remedy)
        yield class_finding(INEFFECTIVE_ANNOTATION, choice.text, message, advice, Severity.WARNING)


def _not_pinned(case: ClassCase) -> Iterator[Finding]:
    """Report that the choice does not pin the pod."""
    choice, key = case.query, case.selection.label_key
    if choice is None or case.pinned is not None:
        return
    values = choice.label_values(key)
    if not values:
        yield Finding(
            reason=CLASS_NOT_PINNED,
            severity=Severity.DENIAL if case.is_requested else Severity.WARNING,
            path=ANNOTATION_PATH if case.is_requested else "",
            message=f"{choice.text} ({choice.because}) must have node label {key} in its GPUClass to pin a pod",
            ask_contact=f"to add the label to the GPUClass, or to change labelKey of {ID} in the policy",
            contact_choices=(
                (ContactEdit("GPUClass", "spec.nodeLabels[-]", key),),
                (ContactEdit("GPUPolicy", f"spec.rules.{ID}.labelKey"),),
            ),
        )
        return
    placer = case.placed_by
    is_left_to_placer = not case.pod.is_gated and not case.selection.is_restricted
    if case.is_requested and placer is not None and is_left_to_placer:
        why, way = placer
        message, remedy = f"has no effect: {why}", f"{way} nodeSelector {key}: {values[0]}"
        choices = one_choice(Edit(f"spec.nodeSelector[{key}]", values[0]), Edit(ANNOTATION_PATH))
        advice = ClassAdvice(choices, remedy)
        yield class_finding(INEFFECTIVE_ANNOTATION, choice.text, message, advice, Severity.WARNING)


def check_claim(
    spec: ClaimSpec | None, path: str, options: GPUClassOptions, context: Context
) -> Iterator[Finding]:
    """Deny requests for devices of classes that the namespace may not use."""
    if ANY not in options.allowed:
        class_check = ClaimClassCheck(
            context.namespace, options.allowed, context.resource_mapping, context.classes
        )
        yield from class_check.findings(spec, path)


def warn_without_nodes(pod: Pod, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    """Yield only the warning of `check` about a class without nodes."""
    yield from class_without_nodes(_class_case(pod, options, context))


def edits_to_try(pod: Pod, context: Context) -> Iterator[Edits]:
    """Yield edits that may help a pod, where no choice of a finding does."""
    return possible_edits(
        pod, context.resource_mapping, context.classes, class_options(context), context.nodes
    )


def class_pins(pod: Pod, context: Context) -> dict[str, ClassPin]:
    """Return by class how an unpinned pod may name it: by the annotation, or else by the nodeSelector."""
    options = context.options_of(ID)
    if not isinstance(options, GPUClassOptions):
        return {}
    case = _class_case(pod, options, context)
    is_pinned = case.pinned is not None and not case.pinned.is_injected
    if is_pinned or case.is_requested or case.placed_by not in {None, BY_DAEMONSET} or named_nodes(pod):
        return {}
    if case.selection.nodes is None and case.selection.chosen_hardware:
        return {}  # nobody knows which classes have the hardware that it selects
    usable, need = case.selection.usable_classes(), case.need
    if need is not None:
        usable = tuple(gpu_class for gpu_class in usable if need.fits(gpu_class, context.classes))
    key, reads_annotation = options.label_key, class_options(context).reads_annotation
    return {
        name: ClassPin(
            key,
            values[0],
            Edit(ANNOTATION_PATH, name) if reads_annotation else Edit(f"spec.nodeSelector[{key}]", values[0]),
        )
        for name, values in case.selection.names_to_suggest(usable).items()
        if len(values) == 1 and case.selection.certainly_takes(name)
    }


def _class_not_allowed(case: ClassCase, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    """Deny a pod that runs, or could run, on a class that its namespace may not use."""
    selection, pinned, namespace = case.selection, case.pinned, context.namespace
    if not selection.is_restricted:
        return
    is_certain = context.phase is not Phase.TEMPLATE and options.mode is Mode.ENFORCE
    if pinned is not None:
        outside = [
            c.name for c in case.selection.gpu_classes.named(pinned.classes) if not selection.allows(c)
        ]
        if not outside:
            return
        message = f"must not pin the pod to {', '.join(outside)} ({'; '.join(pinned.because)}): "
        message += f"not allowed in namespace {namespace}"
    elif case.claims_are_allowed:
        return
    elif (case.refusal is not None and case.refusal.severity is Severity.DENIAL) or case.pod.is_gated:
        return  # what lifts the gate has to pin the pod, and that update is checked again
    elif case.added_values() and not is_certain:
        return  # the pods made from this template will be pinned, or would be if the rule were enforced
    elif not selection.usable_classes():
        message = selection.none_usable_message
    else:
        message = f"must pin the pod to a GPU class: namespace {namespace} may not use every class"
        if case.query is None and options.default and (why := reason_without_default(selection)):
            message += f" ({why} keeps the default {options.default} out)"
    advice = case.advice_for_usable_class()._asdict()
    yield Finding(reason=CLASS_NOT_ALLOWED, path="spec", message=message, **advice)


RULE = Rule(
    id=ID,
    reasons=(
        INVALID_ANNOTATION,
        INEFFECTIVE_ANNOTATION,
        UNKNOWN_CLASS,
        CLASS_NOT_OFFERED,
        CLASS_CONTRADICTION,
        CLASS_NOT_PINNED,
        CLASS_NOT_ALLOWED,
        MODEL_TOO_LARGE,
        NO_NODE,
    ),
    summary="GPU pods run on the class they ask for, need, or get by default, and on none they may not use",
    options=GPUClassOptions,
    mutate=mutate,
    check=check,
    check_claim=check_claim,
    metadata_keys=HARDWARE_ANNOTATIONS,
    checks_updates=True,
    exported_without={
        "all but `allowed`": "it chooses by the classes and the nodes, which CEL cannot read",
        "pods that name a node": "CEL cannot look up its class",
        "pods that only use claims (DRA)": "CEL cannot look up their devices",
    },
)
