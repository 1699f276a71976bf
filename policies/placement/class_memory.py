"""Warnings about the model of a pod that is larger than the memory of its class."""

from collections.abc import Iterator

from policies.finding import ContactEdit, Finding, warning
from policies.models.memory import enough_cards, enough_in_words
from policies.placement.class_advice import ClassAdvice
from policies.placement.class_case import ClassCase
from policies.placement.class_choice import MODEL_TOO_LARGE
from policies.pods.annotations import MODEL_FAMILY, MODEL_LAYERS
from policies.pods.field_paths import annotation_path


def model_too_large(case: ClassCase) -> Iterator[Finding]:
    """Warn of a model that is larger than the memory of the class."""
    need, gpu_classes = case.need, case.selection.gpu_classes
    chosen = case.choice.classes if case.choice else ()
    classes = gpu_classes.named(case.pinned.classes) if case.pinned else chosen or case.claimed_classes
    if need is not None and classes and not any(need.fits(each, gpu_classes) for each in classes):
        largest = max(classes, key=lambda gpu_class: need.memory_gib(gpu_class, gpu_classes))
        key, value = need.declared
        usable = [*filter(case.selection.offers_whole, case.selection.usable())]
        fitting = [gpu_class for gpu_class in usable if need.fits(gpu_class, gpu_classes)]
        to_name = case.advice_to_use(fitting) if fitting else ClassAdvice()
        more_cards = tuple(filter(None, map(case.selection.edits_to_count, enough_cards(need, classes))))
        enough, words = enough_in_words(need, classes), need.words
        claims = [f"name a claim for {enough}"] if enough and case.claimed_class_names else []
        ways = [*claims, *([f"request {enough}"] if more_cards else ()), *filter(None, (to_name.remedy,))]
        several = () if ways else case.edits_for_several_cards(usable)
        request = "" if ways or several else "for larger cards"
        if not need.weights_fit(largest, gpu_classes):
            words = need.weights_words
        elif not need.estimate.knows_kv_cache:
            words += f"; {MODEL_FAMILY} or {MODEL_LAYERS} states it exactly"
        words += f"; {enough} would do" if enough and not (more_cards or claims) else ""
        yield warning(
            reason=MODEL_TOO_LARGE,
            path=annotation_path(key),
            value=value,
            message=f"should fit on {largest.name} ({need.room(largest, gpu_classes)}): {words}",
            choices=(*more_cards, *to_name.choices, *several),
            remedy=", or ".join(ways),
            ask_contact=request,
            contact_choices=((ContactEdit("Node"),),) if request else (),
        )
