"""Choice of a GPU class for a pod: by its annotation, by the memory of its model, or by the default of the policy."""

from collections.abc import Sequence

from policies.finding import ContactEdit, Edit, Finding, Reason, one_choice
from policies.gpus.classes import GPUClass
from policies.models.memory import ModelNeed, enough_in_words, sufficient_card_counts
from policies.placement.class_advice import ANNOTATION_PATH, ClassAdvice, class_finding
from policies.placement.class_selection import Choice, ClassSelection, node_label_values
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path

UNKNOWN_CLASS = Reason("UnknownClass", "a pod names a GPU class that does not exist")
CLASS_NOT_OFFERED = Reason("ClassNotOffered", "a class does not have the resources that the pod requests")
CLASS_CONTRADICTION = Reason(
    "ClassContradiction", "constraints of a pod contradict each other, its annotation, or its claims"
)
CLASS_NOT_ALLOWED = Reason("ClassNotAllowed", "the namespace may not use a class on which the pod could run")
MODEL_TOO_LARGE = Reason("ModelTooLarge", "the model of a pod needs more GPU memory than the class has")

MUST_BE_CLASS = "must be a GPU class or a family of classes"


def choose_class(
    selection: ClassSelection, need: ModelNeed | None, *, is_pinned: bool
) -> Choice | Finding | None:
    """Return the choice, a finding about an invalid request, or None if nothing requests a class.

    If the pod is already pinned or chooses its hardware otherwise, only the annotation counts.
    """
    if GPU_CLASS in selection.pod.annotations:
        return _annotated_choice(selection, selection.pod.annotations[GPU_CLASS])
    if is_pinned or not (need or selection.default) or selection.has_claims or selection.chosen_hardware:
        return None
    guess = (_choice_for_model(selection, need) if need else None) or _default_choice(selection)
    return None if isinstance(guess, Choice) and selection.chooses_others_than(guess) else guess


def _annotated_choice(selection: ClassSelection, name: str) -> Choice | Finding:
    classes = selection.gpu_classes.resolve(name)
    allowed = selection.allowed_of(classes)
    if allowed and any(selection.may_have_resources(gpu_class) for gpu_class in classes):
        return _make_choice(selection, allowed, name, f"annotation {GPU_CLASS}", by_annotation=True)
    usable = selection.usable_classes()
    names = list(selection.names_to_suggest(usable))
    advice, reason = selection.advice_to_name(names), CLASS_NOT_OFFERED
    if not usable:
        advice = selection.advice_if_none_usable()
        message = selection.none_usable_message
        if not classes:
            reason, message = UNKNOWN_CLASS, f"{MUST_BE_CLASS}; {message}"
    elif not classes:
        reason, message = UNKNOWN_CLASS, MUST_BE_CLASS
        if near := selection.intended(name):
            advice = ClassAdvice(one_choice(Edit(ANNOTATION_PATH, near)), f"did you mean {near}?")
        elif listed_classes := selection.usable_in_list(name, names):
            message = "must be one GPU class or family: it cannot be a list"
            advice = selection.advice_to_name(listed_classes)
        elif not name.strip():
            choices = (*advice.choices, (Edit(ANNOTATION_PATH),))
            advice = advice._replace(choices=choices, remedy=f"{advice.remedy}, or remove it")
        else:
            message += selection.why_unusable(selection.gpu_classes.nearest(name) or "")
    elif allowed:
        message = f"must be a class with {selection.requested_text}"
    else:
        reason = CLASS_NOT_ALLOWED
        message = f"must be a class that namespace {selection.namespace} may use"
    return class_finding(reason, name, message, advice)


def _choice_for_model(selection: ClassSelection, need: ModelNeed) -> Choice | Finding | None:
    candidates = [
        gpu_class
        for gpu_class in selection.gpu_classes
        if node_label_values(gpu_class, selection.label_key) and selection.has_whole_resources(gpu_class)
    ]
    if not candidates:
        return None  # no class has the requested resources, such as TPUs
    allowed = selection.allowed_of(candidates)
    if chosen := _classes_holding(selection, need, allowed):
        text = chosen[0].name if len(chosen) == 1 else "that holds the weights"
        return _make_choice(selection, tuple(chosen), text, need.text)
    key, value = need.declared
    choices = tuple(filter(None, map(selection.edits_to_count, sufficient_card_counts(need, allowed))))
    enough = enough_in_words(need, allowed)
    # Of several containers, the author knows which loads the model.
    note = f"; {enough} would do" if enough and not choices else ""
    return Finding(
        reason=MODEL_TOO_LARGE,
        path=annotation_path(key),
        value=value,
        message=f"must fit on a class that the pod may use: {need.weights_text}{note}",
        choices=choices,
        remedy=f"request {enough}" if choices else "",
        ask_contact="" if choices else "for larger cards",
        contact_choices=() if choices else ((ContactEdit("Node"),),),
    )


def _classes_holding(
    selection: ClassSelection, need: ModelNeed, allowed: Sequence[GPUClass]
) -> Sequence[GPUClass]:
    """Return the smallest class that the model fits, or, as far as its size is only estimated, those that hold its weights."""
    fitting = [gpu_class for gpu_class in allowed if need.fits(gpu_class, selection.gpu_classes)]
    weights_fit = [gpu_class for gpu_class in allowed if need.weights_fit(gpu_class, selection.gpu_classes)]
    if not fitting:
        return weights_fit  # the estimate may be too high; gpu-class warns about it
    memory = min(gpu_class.memory_gib for gpu_class in fitting)
    smallest = [gpu_class for gpu_class in fitting if gpu_class.memory_gib == memory]
    # GPUClasses describe cards that most clusters lack: of equal cards, take the first with nodes.
    first = next(filter(selection.has_own_nodes, smallest), smallest[0])
    if need.estimate.knows_kv_cache or selection.has_own_nodes(first):
        return [first]
    # A rule of thumb must not exclude the existing nodes.
    with_nodes = [gpu_class for gpu_class in weights_fit if selection.has_own_nodes(gpu_class)]
    return [gpu_class for gpu_class in with_nodes if gpu_class in fitting] or with_nodes or [first]


def _default_choice(selection: ClassSelection) -> Choice | None:
    name = selection.default or ""
    allowed = selection.allowed_of(selection.gpu_classes.resolve(name))
    if not any(selection.can_be_default(gpu_class) for gpu_class in allowed):
        return None
    return _make_choice(selection, allowed, name, "the default of the policy")


def _make_choice(
    selection: ClassSelection,
    classes: tuple[GPUClass, ...],
    text: str,
    because: str,
    *,
    by_annotation: bool = False,
) -> Choice:
    is_class = selection.gpu_classes.get(text) is not None
    is_family = not is_class and classes == selection.gpu_classes.of_family(text)
    return Choice(classes, text, because, by_annotation, text if is_family else None)


def reason_without_default(selection: ClassSelection) -> str | None:
    """Return in words how the pod itself keeps the default of the policy out; "" or None if it does not."""
    default = _default_choice(selection)
    return selection.chosen_hardware or (selection.chooses_others_than(default) if default else None)
