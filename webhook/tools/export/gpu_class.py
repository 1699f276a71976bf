"""gpu-class in CEL, as far as it refuses: pods on classes that their namespace may not use, or that pin themselves to none.

Without the webhook nothing pins a pod to the class that its annotation names, so there the pod has to do it itself.
"""

from collections.abc import Iterator

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_choice import ANY, RULE_ID, is_covered
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path
from policies.rules.gpu_class import GPUClassOptions
from webhook.tools.export import pinning
from webhook.tools.export.cel import (
    NOT_A_MIRROR_POD,
    POD,
    may_ask,
    pod_asks,
    sentence,
    shown_value,
    text,
    texts,
)
from webhook.tools.export.objects import POD_CHANGES, Check

_PLACEMENT_CHANGED = (
    "created-or-placed-anew",
    f"""\
request.operation == 'CREATE' || ({POD}.spec.?nodeName.orValue('') == '' &&
  ['schedulingGates', 'nodeSelector', 'affinity', 'tolerations'].exists(field,
    {POD}.spec[?field] != dyn(oldObject).spec[?field]))""",
)
_ANNOTATION = f"{POD}.metadata.?annotations[?{text(GPU_CLASS)}]"


def pieces(
    resource_mapping: ResourceMapping, options: GPUClassOptions, catalogue: ClassCatalogue
) -> Iterator[Check]:
    if ANY in options.allowed:
        return
    allowed = [each for each in catalogue if is_covered(each, options.allowed)]
    known = [*catalogue.names(), *catalogue.families()]
    permitted = [name for name in known if any(each in allowed for each in catalogue.resolve(name))]
    words = "allowed here: " + ", ".join(options.allowed)
    yield Check(
        part="gpu-class.entitlement",
        description=f"GPU pods run on no class that their namespace may not use; {words}.",
        resources=(POD_CHANGES,),
        conditions=(NOT_A_MIRROR_POD, may_ask(resource_mapping), _PLACEMENT_CHANGED),
        variables=(
            *pod_asks(resource_mapping),
            *pinning.variables(catalogue),
            ("outside", f"variables.pinned.filter(c, !(c in {texts(each.name for each in allowed)}))"),
            ("named", f"{_ANNOTATION}.hasValue() ? [{_ANNOTATION}.value()] : []"),
            ("misnamed", f"variables.named.filter(n, !(n in {texts(dict.fromkeys(permitted))}))"),
        ),
        findings=f"""\
!variables.asks ? [] :
  variables.misnamed.map(n, n in {texts(dict.fromkeys(known))}
    ? {_about_annotation("'is not allowed in namespace ' + request.namespace", words)}
    : {_about_annotation(text("must be a GPU class or a family of classes"), words)}) +
  (variables.pins && variables.outside.size() > 0 ? [
    {_outside(words)}] : []) +
  (!variables.pins && variables.misnamed.size() == 0 && {POD}.spec.?schedulingGates.orValue([]).size() == 0 ? [
    {_unpinned(options, words)}] : [])""",
    )


def _about_annotation(message: str, words: str) -> str:
    path = text(annotation_path(GPU_CLASS))
    return sentence(path, message, RULE_ID, value=shown_value("n"), remedy=text(words))


def _outside(words: str) -> str:
    message = (
        "'must not pin the pod to ' + variables.outside.join(', ') + ' (' + variables.because.join('; ') + "
        "'): not allowed in namespace ' + request.namespace"
    )
    return sentence("'spec'", message, RULE_ID, remedy=text(words))


def _unpinned(options: GPUClassOptions, words: str) -> str:
    message = "'must pin the pod to a GPU class: namespace ' + request.namespace + ' may not use every class'"
    remedy = text(f"set nodeSelector {options.label_key}; {words}")
    return sentence("'spec'", message, RULE_ID, remedy=remedy)
