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

from collections.abc import Collection, Iterable, Iterator

from policies.finding import Finding, Severity
from policies.gpus.classes import ClassCatalogue, GPUClass
from policies.gpus.fraction_annotations import FRACTION_DEVICE
from policies.gpus.resource_mapping import GPUResource, Measure
from policies.models.memory import ModelNeed, advice, model_need
from policies.placement.class_choice import (
    ANNOTATION_PATH,
    ANY,
    OPEN_POD,
    RULE_ID,
    Choice,
    ClassSelection,
    about_annotation,
    choose,
    few,
    is_covered,
    suggestion,
    warning,
)
from policies.placement.hardware import hardware_keys
from policies.placement.label_keys import EXCEPT
from policies.placement.nodes import NodeFacts
from policies.placement.pinning import Pinning, admits, classes_of_label, is_narrowed_to, pinning
from policies.pods.annotations import GPU_CLASS, MODEL_FAMILY, MODEL_LAYERS
from policies.pods.field_paths import annotation_path
from policies.pods.names import is_qualified_name
from policies.pods.patch import PodPatch
from policies.pods.pod import NodeSelectorRequirement, Pod
from policies.rule import Context, Mode, Phase, Rule, RuleOptions


class GPUClassOptions(RuleOptions, frozen=True):
    label_key: str = "accelerator"
    default: str | None = None
    allowed: tuple[str, ...] = (ANY,)
    """Globs over the names of allowed classes and families. `*` allows all."""
    autoscaled_classes: tuple[str, ...] = ()
    """Globs over classes whose nodes are made on demand, so no warning if there are no nodes."""
    hardware_labels: tuple[str, ...] = ()
    """Globs over keys of node labels that choose hardware, before the built-in ones. With `!` they choose none."""

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

    def class_problems(self, catalogue: ClassCatalogue) -> Iterator[tuple[str, str]]:
        if self.label_key not in catalogue.label_keys:
            yield "labelKey", f'must be a node label of some class, not "{self.label_key}"'
        for path, glob in self._globs():
            if not any(is_covered(gpu_class, (glob,)) for gpu_class in catalogue):
                yield path, f'"{glob}" matches no class{suggestion(glob, catalogue, ": ")}'
        default = self.default
        named = catalogue.resolve(default) if default else ()
        if default and not named:
            yield (
                "default",
                f'must be a class or a family, not "{default}"{suggestion(default, catalogue, ": ")}',
            )
        elif default and not any(is_covered(gpu_class, self.allowed) for gpu_class in named):
            yield "default", f'must match allowed ({", ".join(self.allowed)}), and "{default}" does not'


# Why this rule cannot pin a pod that something else places, and how its author can.
DAEMONSET = "pods of a DaemonSet are placed by its controller", "in the template of the DaemonSet set"
NODE_NAME = "spec.nodeName says where the pod runs", "set"
GATE = (
    "gated pods are placed by the controller that removes their gates",
    "have the controller that removes its gates set",
)


class _Case:
    """A GPU pod under a policy: its own pin, the class chosen for it, and the values by which this rule would pin it."""

    def __init__(self, pod: Pod, options: GPUClassOptions, context: Context) -> None:
        self.pod, self.options, self.context = pod, options, context
        resources = {request.resource for request in context.resource_mapping.requests(pod)}
        if pod.annotations and context.resource_mapping.pod_fraction(pod):
            resources.add(GPUResource(FRACTION_DEVICE, Measure.FRACTION))
        self.selection = ClassSelection(
            pod=pod,
            catalogue=context.classes,
            namespace=context.namespace,
            allowed=options.allowed,
            default=options.default,
            label_key=options.label_key,
            resources=tuple(sorted(resources, key=lambda resource: resource.name)),
            hardware=hardware_keys(options.hardware_labels, context.classes.label_keys),
            nodes=context.nodes,
            autoscaled_classes=options.autoscaled_classes,
        )
        self.pinned = pinning(pod, context.classes)
        need = model_need(pod, context.resource_mapping) if pod.annotations else None
        self.need = need if isinstance(need, ModelNeed) else None
        self.bad_annotations = need if isinstance(need, tuple) else ()
        chosen = choose(self.selection, self.need, is_pinned=self.pinned is not None)
        self.choice = chosen if isinstance(chosen, Choice) else None
        self.refusal = chosen if isinstance(chosen, Finding) else None

    @property
    def is_requested(self) -> bool:
        return self.choice is not None and self.choice.by_annotation

    @property
    def placed_by(self) -> tuple[str, str] | None:
        """What places the pod instead of the scheduler."""
        if self.context.made_by_daemonset:
            return DAEMONSET
        if self.pod.spec.node_name:
            return NODE_NAME
        return GATE if self.pod.is_gated or self.context.is_update else None

    def naming(self, classes: Collection[GPUClass]) -> str:
        """Return the remedy that puts the pod on one of the classes."""
        key, pinned = self.options.label_key, self.pinned
        values_of = self.selection.values_of(classes)
        names = few(list(values_of))
        values = few([value for each in values_of.values() for value in each[:1]])
        if self.placed_by is not None:
            return f"{self.placed_by[1]} nodeSelector {key}: {values}"
        if pinned is None or self.is_requested or pinned.is_injected:
            return f"set {GPU_CLASS}: {names}"
        if list(self.pod.spec.node_selector or ()) == [key] and len(pinned.because) == 1:
            return f"set nodeSelector {key}: {values}"
        return f"remove {' and '.join(pinned.because)}, and set {GPU_CLASS}: {names}"

    def another(self) -> tuple[str, str]:
        """Return remedy and request to the platform team that put the pod on a usable class."""
        usable = self.selection.usable()
        return (self.naming(usable), "") if usable else self.selection.without_any()

    def missing_values(self) -> tuple[str, ...]:
        """Return the values of the label key that this rule adds."""
        return () if self.is_out_of_reach() else self.lacking()

    def is_out_of_reach(self) -> bool:
        """Whether the choice is a guess, and the pod's own constraints exclude all its nodes.

        False if its nodes are made on demand or do not exist, or if a pod must be pinned to be admitted.
        """
        nodes, spec = self.context.nodes, self.pod.spec
        if nodes is None or not (spec.node_selector or spec.affinity) or self.selection.is_restricted:
            return False
        if self.is_requested or self.choice is None or self.is_made_on_demand(self.choice.classes):
            return False
        key, values = self.options.label_key, self.lacking()
        return (
            bool(values)
            and not nodes.could_take(self.pod, key, values)
            and nodes.could_take(OPEN_POD, key, values)
        )

    def is_made_on_demand(self, classes: Iterable[GPUClass]) -> bool:
        return any(is_covered(gpu_class, self.options.autoscaled_classes) for gpu_class in classes)

    def lacking(self) -> tuple[str, ...]:
        """Return the values that the pod lacks to be on the choice."""
        if self.choice is None or self.placed_by is not None:
            return ()
        if self.pinned is not None and not is_wider(self.pinned, self.choice):
            return ()
        key, values = self.options.label_key, self.choice.label_values(self.options.label_key)
        is_open = admits(self.pod, key, values) and not is_narrowed_to(self.pod, key, values)
        return values if is_open else ()


def is_wider(pinned: Pinning, choice: Choice) -> bool:
    """Whether the pod pins itself to the choice and to more than that."""
    classes = set(pinned.classes)
    return bool(classes & choice.names) and not classes <= choice.names


def mutate(patch: PodPatch, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    pod, key = patch.pod, options.label_key
    if not context.resource_mapping.pod_asks(pod):
        return
    values = _Case(pod, options, context).missing_values()
    if len(values) == 1:
        patch.set_node_selector(key, values[0])
    elif values:
        patch.require_node_affinity(NodeSelectorRequirement(key=key, operator="In", values=values))
    yield from ()


def check(pod: Pod, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    is_bound = context.is_update and pod.spec.node_name  # its annotations have no effect any more
    if is_bound or not context.resource_mapping.pod_asks(pod):
        return
    case = _Case(pod, options, context)
    for bad in case.bad_annotations:
        yield bad.finding(RULE_ID)
    if case.refusal is not None:
        yield case.refusal
    yield from _unsatisfiable(case)
    yield from _contradiction(case)
    yield from _without_label(case)
    yield from _too_small(case)
    yield from _no_node(case)
    yield from _entitlement(case)


def _unsatisfiable(case: _Case) -> Iterator[Finding]:
    """Warn of constraints that no class in the catalogue meets."""
    catalogue, key = case.context.classes, case.options.label_key
    value = (case.pod.spec.node_selector or {}).get(key)
    known = case.context.nodes.values_of(key) if case.context.nodes else ()
    is_unknown = value is not None and key in catalogue.label_keys and value not in known
    if value is not None and is_unknown and not classes_of_label(key, value, catalogue):
        yield warning(
            path=f"spec.nodeSelector[{key}]",
            value=value,
            message="should be a GPU class: the pod stays pending unless a node has this label",
            remedy=case.selection.meant(value) or "remove it",
        )
    if case.pinned is not None and not case.pinned.classes:
        yield warning(
            path="spec",
            message=f"no GPU class meets {'; '.join(case.pinned.because)}: the pod stays pending",
            remedy="remove the constraint that contradicts the others",
        )


def _contradiction(case: _Case) -> Iterator[Finding]:
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
            yield about_annotation(choice.requested, message, "remove the annotation, or those constraints")
        return
    itself = f"{', '.join(pinned.classes)}, to which the pod pins itself ({'; '.join(pinned.because)})"
    if pinned.classes and named.isdisjoint(pinned.classes):
        fitting = [c for c in case.selection.usable() if c.name in pinned.classes]
        words = few(list(case.selection.values_of(fitting)))
        remedy = f"set {GPU_CLASS}: {words}, or remove" if fitting else "remove"
        yield about_annotation(choice.requested, f"must be {itself}", f"{remedy} the pod's own constraint")
    elif is_wider(pinned, choice) and not fits_in and case.placed_by is None:
        remedy = "remove the pod's own constraints, and the annotation pins it"
        yield about_annotation(choice.requested, f"cannot narrow {itself}", remedy, Severity.WARNING)


def _without_label(case: _Case) -> Iterator[Finding]:
    """Report that the choice does not pin the pod."""
    choice, key = case.choice, case.options.label_key
    if choice is None or case.pinned is not None:
        return
    values = choice.label_values(key)
    if not values:
        yield Finding(
            rule=RULE_ID,
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
        yield about_annotation(choice.requested, f"has no effect: {why}", remedy, Severity.WARNING)


def _too_small(case: _Case) -> Iterator[Finding]:
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
            path=annotation_path(key),
            value=value,
            message=f"should fit on {largest.name} ({need.room(largest, catalogue)}): {words}",
            remedy=", or ".join(ways),
            ask=ask,
        )


def without_nodes(pod: Pod, options: GPUClassOptions, context: Context) -> Iterator[Finding]:
    """Yield only the warning of `check` about a class without nodes."""
    yield from _no_node(_Case(pod, options, context))


def _no_node(case: _Case) -> Iterator[Finding]:
    """Warn if the pod is pinned to a class without nodes, and none can be made."""
    nodes, key, catalogue = case.context.nodes, case.options.label_key, case.context.classes
    if nodes is None or case.placed_by in {DAEMONSET, NODE_NAME} or case.pod.is_gated:
        return
    if case.choice and case.is_out_of_reach():
        guess, values = case.choice, case.choice.label_values(key)
        yield warning(
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
        message=f"class {requested}: no node matches {demanded}, so the pod stays pending",
        remedy=remedy,
        ask=ask,
    )


def _instead(case: _Case, nodes: NodeFacts, pinned: frozenset[str]) -> tuple[str, str]:
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
    if usable:
        return f"{case.naming(usable)}, of which there are nodes", ""
    return "", f"for nodes of {few(sorted(pinned))}"


def _entitlement(case: _Case) -> Iterator[Finding]:
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
    yield Finding(rule=RULE_ID, path="spec", message=message, remedy=remedy, ask=ask)


RULE = Rule(
    id=RULE_ID,
    summary="GPU pods run on the class they ask for, need, or get by default, and on none they may not use",
    options=GPUClassOptions,
    mutate=mutate,
    check=check,
    on_update=True,
    not_exported="it chooses by the classes and the nodes, which CEL cannot read; `allowed` holds for the class that it chooses",
)
