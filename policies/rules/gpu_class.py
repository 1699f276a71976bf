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

from collections.abc import Iterator

from msgspec.structs import replace

from policies.finding import Edit, Finding, Severity
from policies.models.memory import advice
from policies.placement.class_choice import (
    ANNOTATION_PATH,
    OPEN_POD,
    RULE_ID,
    about_annotation,
    few,
    warning,
)
from policies.placement.hardware import ANNOTATIONS as HARDWARE_ANNOTATIONS
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import admits, classes_of_label, is_narrowed_to
from policies.pods.annotations import GPU_CLASS, MODEL_FAMILY, MODEL_LAYERS
from policies.pods.field_paths import annotation_path
from policies.pods.patch import PodPatch
from policies.pods.pod import NodeSelectorRequirement, Pod
from policies.reason import Reason
from policies.rule import Context, Mode, Phase, Rule
from policies.rules.gpu_class_case import DAEMONSET, NODE_NAME, Case, GPUClassOptions, is_wider


def mutate(patch: PodPatch, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    pod, key = patch.pod, options.label_key
    if not context.resource_mapping.pod_requests_gpus(pod):
        return
    values = Case(pod, options, context).missing_values()
    if len(values) == 1:
        patch.set_node_selector(key, values[0])
    elif values:
        patch.require_node_affinity(NodeSelectorRequirement(key=key, operator="In", values=values))
    yield from ()


def check(pod: Pod, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    is_bound = context.is_update and pod.spec.node_name  # its annotations have no effect any more
    if is_bound or not context.resource_mapping.pod_requests_gpus(pod):
        return
    case = Case(pod, options, context)
    for bad in case.bad_annotations:
        yield bad.finding(RULE_ID)
    if case.refusal is not None:
        instead = [str(edit.value) for edit in case.refusal.fix]
        yield case.refusal if all(map(case.has_room, instead)) else replace(case.refusal, fix=())
    yield from _unsatisfiable(case)
    yield from _contradiction(case)
    yield from _without_label(case)
    yield from _too_small(case)
    yield from _no_node(case)
    yield from _entitlement(case)


def _unsatisfiable(case: Case) -> Iterator[Finding]:
    """Warn of constraints that no class in the catalogue meets."""
    catalogue, key = case.context.classes, case.options.label_key
    value = (case.pod.spec.node_selector or {}).get(key)
    known = case.context.nodes.values_of(key) if case.context.nodes else ()
    is_unknown = value is not None and key in catalogue.label_keys and value not in known
    if value is not None and is_unknown and not classes_of_label(key, value, catalogue):
        near = case.selection.meant(value)
        yield warning(
            reason=Reason.UNKNOWN_CLASS,
            path=f"spec.nodeSelector[{key}]",
            value=value,
            message="should be a GPU class: the pod stays pending unless a node has this label",
            fix=(Edit(f"spec.nodeSelector[{key}]", near),) if near and case.is_alone(key, near) else (),
            remedy=f"did you mean {near}?" if near else "remove it",
        )
    if case.pinned is not None and not case.pinned.classes:
        yield warning(
            reason=Reason.CLASS_CONTRADICTION,
            path="spec",
            message=f"no GPU class meets {'; '.join(case.pinned.because)}: the pod stays pending",
            remedy="remove the constraint that contradicts the others",
        )


def _contradiction(case: Case) -> Iterator[Finding]:
    """Report a contradiction between the pod's own constraints and its annotation."""
    choice, pinned, key = case.choice, case.pinned, case.options.label_key
    if choice is None or not case.is_requested:
        return
    values = choice.label_values(key)
    fits_in = bool(values) and (is_narrowed_to(case.pod, key, values) or admits(case.pod, key, values))
    named = {gpu_class.name for gpu_class in case.context.classes.resolve(choice.requested)}
    if pinned is None:
        if values and not fits_in:
            message = f"must not contradict the pod's own constraints on node label {key}"
            remedy = "remove the annotation, or those constraints"
            contradiction = about_annotation(Reason.CLASS_CONTRADICTION, choice.requested, message, remedy)
            yield replace(contradiction, fix=(Edit(ANNOTATION_PATH),))
        return
    itself = f"{', '.join(pinned.classes)}, to which the pod pins itself ({'; '.join(pinned.because)})"
    if pinned.classes and named.isdisjoint(pinned.classes):
        fitting = [c for c in case.selection.usable() if c.name in pinned.classes]
        names = list(case.selection.values_of(fitting))
        remedy = f"set {GPU_CLASS}: {few(names)}, or remove" if fitting else "remove"
        yield about_annotation(
            Reason.CLASS_CONTRADICTION,
            choice.requested,
            f"must be {itself}",
            f"{remedy} the pod's own constraint",
            instead=names[0] if len(names) == 1 else "",
        )
    elif is_wider(pinned, choice) and not fits_in and case.placed_by is None:
        remedy = "remove the pod's own constraints, and the annotation pins it"
        message = f"cannot narrow {itself}"
        yield about_annotation(
            Reason.INEFFECTIVE_ANNOTATION, choice.requested, message, remedy, Severity.WARNING
        )


def _without_label(case: Case) -> Iterator[Finding]:
    """Report that the choice does not pin the pod."""
    choice, key = case.choice, case.options.label_key
    if choice is None or case.pinned is not None:
        return
    values = choice.label_values(key)
    if not values:
        yield Finding(
            rule=RULE_ID,
            reason=Reason.CLASS_NOT_PINNED,
            severity=Severity.DENIAL if case.is_requested else Severity.WARNING,
            path=ANNOTATION_PATH if case.is_requested else "",
            message=f"{choice.requested} ({choice.because}) must have node label {key} in the catalogue to pin a pod",
            ask=f"to add the label to the GPUClass, or to change labelKey of {RULE_ID} in the policy",
        )
        return
    placer = case.placed_by
    is_open = not case.pod.is_gated and not case.selection.is_restricted
    if case.is_requested and placer is not None and is_open:
        why, way = placer
        remedy = f"{way} nodeSelector {key}: {values[0]}"
        message = f"has no effect: {why}"
        yield about_annotation(
            Reason.INEFFECTIVE_ANNOTATION, choice.requested, message, remedy, Severity.WARNING
        )


def _too_small(case: Case) -> Iterator[Finding]:
    need, catalogue = case.need, case.context.classes
    chosen = case.choice.classes if case.choice else ()
    classes = catalogue.named(case.pinned.classes) if case.pinned else chosen
    if need is not None and classes and not any(need.fits(each, catalogue) for each in classes):
        largest = max(classes, key=lambda gpu_class: need.memory_gib(gpu_class, catalogue))
        key, value = need.declared
        fitting = [
            c for c in case.selection.usable() if case.selection.offers_whole(c) and need.fits(c, catalogue)
        ]
        ways, words = list(filter(None, [advice(need, classes)])), need.words
        if fitting:
            ways.append(case.naming(fitting))
        ask = "" if ways else "for larger cards"
        if not need.weights_fit(largest, catalogue):
            words = need.weights_words
        elif not need.estimate.knows_cache:
            ways.append(f"declare {MODEL_FAMILY} or {MODEL_LAYERS}")
        yield warning(
            reason=Reason.MODEL_TOO_LARGE,
            path=annotation_path(key),
            value=value,
            message=f"should fit on {largest.name} ({need.room(largest, catalogue)}): {words}",
            remedy=", or ".join(ways),
            ask=ask,
        )


def without_nodes(pod: Pod, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    """Yield only the warning of `check` about a class without nodes."""
    yield from _no_node(Case(pod, options, context))


def class_pins(pod: Pod, context: Context) -> dict[str, tuple[str, str]]:
    """Return the classes that the annotation of an unpinned pod may name, each with the node label and value that pin it."""
    options = context.options_of(RULE_ID)
    if not isinstance(options, GPUClassOptions):
        return {}
    case = Case(pod, options, context)
    if case.pinned is not None or case.is_requested or case.placed_by is not None:
        return {}
    usable = [
        each for each in case.selection.usable() if case.need is None or case.need.fits(each, context.classes)
    ]
    return {
        name: (options.label_key, values[0])
        for name, values in case.selection.values_of(usable).items()
        if len(values) == 1 and case.selection.would_take(name)
    }


def _no_node(case: Case) -> Iterator[Finding]:
    """Warn if the pod is pinned to a class without nodes, and none can be made."""
    nodes, key, catalogue = case.context.nodes, case.options.label_key, case.context.classes
    if nodes is None or case.placed_by in {DAEMONSET, NODE_NAME} or case.pod.is_gated:
        return
    if case.choice and case.is_out_of_reach():
        guess, values = case.choice, case.choice.label_values(key)
        yield warning(
            reason=Reason.NO_NODE,
            message=f"class {guess.requested} ({guess.because}) is not added: no node matches both {key}={few(values)} and the "
            "pod's own nodeSelector and affinity",
            remedy=f"name a class with the annotation {GPU_CLASS}",
        )
        return
    values = case.missing_values()
    if case.choice and values:
        chosen, requested, demanded = case.choice.names, case.choice.requested, f"{key}={few(values)}"
    elif case.pinned:
        chosen, requested = frozenset(case.pinned.classes), few(case.pinned.classes)
        demanded = " and ".join(case.pinned.because)
    else:
        return
    classes = catalogue.named(chosen)
    if not classes or case.is_made_on_demand(classes):
        return
    if nodes.could_take(case.pod, key, values):
        return
    remedy, ask = _instead(case, nodes, chosen)
    yield warning(
        reason=Reason.NO_NODE,
        message=f"class {requested}: no node matches {demanded}, so the pod stays pending",
        remedy=remedy,
        ask=ask,
    )


def _instead(case: Case, nodes: NodeFacts, pinned: frozenset[str]) -> tuple[str, str]:
    """Return remedy and request to the platform team."""
    key, catalogue = case.options.label_key, case.context.classes
    values = case.lacking() or tuple(v for k, v in (case.pod.spec.node_selector or {}).items() if k == key)
    if values and nodes.could_take(OPEN_POD, key, values):
        return "remove what else the pod's nodeSelector or affinity demands", ""
    known_otherwise = sorted(
        f"{each}={value}"
        for labels in nodes.label_sets
        if key not in dict(labels)
        for each, value in labels
        if classes_of_label(each, value, catalogue) & pinned
    )
    if known_otherwise:
        return "", f"to label nodes with {known_otherwise[0]}, which lack {key}"
    there = {name for value in nodes.values_of(key) for name in classes_of_label(key, value, catalogue)}
    selection = case.selection
    usable = [c for c in catalogue.named(there) if selection.offers(c) and selection.allows(c)]
    if case.need is not None:
        usable = [each for each in usable if case.need.weights_fit(each, catalogue)]
    if selection.can_name_nodes(usable):
        return f"{case.naming(usable)}, of which there are nodes", ""
    return "", f"for nodes of {few(sorted(pinned))}"


def _entitlement(case: Case) -> Iterator[Finding]:
    """Deny a pod that runs, or could run, on a class that its namespace may not use."""
    selection, pinned, namespace = case.selection, case.pinned, case.context.namespace
    if not selection.is_restricted:
        return
    is_certain = case.context.phase is not Phase.TEMPLATE and case.options.mode is Mode.ENFORCE
    if pinned is not None:
        outside = [c.name for c in case.context.classes.named(pinned.classes) if not selection.allows(c)]
        if not outside:
            return
        message = f"must not pin the pod to {', '.join(outside)} ({'; '.join(pinned.because)}): "
        message += f"not allowed in namespace {namespace}"
    elif (case.refusal is not None and case.refusal.severity is Severity.DENIAL) or case.pod.is_gated:
        return  # what lifts the gate has to pin the pod, and that update is checked again
    elif case.missing_values() and not is_certain:
        return  # the pods made from this template will be pinned, or would be if the rule were enforced
    elif not selection.usable():
        message = selection.none_usable
    else:
        message = f"must pin the pod to a GPU class: namespace {namespace} may not use every class"
        if case.choice is None and case.options.default and selection.chosen_hardware:
            message += f" ({selection.chosen_hardware} keeps the default {case.options.default} out)"
    remedy, ask = case.another()
    yield Finding(
        rule=RULE_ID, reason=Reason.CLASS_NOT_ALLOWED, path="spec", message=message, remedy=remedy, ask=ask
    )


RULE = Rule(
    id=RULE_ID,
    summary="GPU pods run on the class they ask for, need, or get by default, and on none they may not use",
    options=GPUClassOptions,
    mutate=mutate,
    check=check,
    metadata_keys=HARDWARE_ANNOTATIONS,
    on_update=True,
    not_exported="it chooses by the classes and the nodes, which CEL cannot read; `allowed` holds for the class that it chooses",
)
