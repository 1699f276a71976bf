"""gpu-class in CEL, as far as it denies: pods on classes that their namespace may not use, or that pin themselves to none.

Without the webhook nothing pins a pod to the class that its annotation names, so the pod must do it itself. On which classes a
pod can land, `pins` and `pinned`, is read as `policies.placement.pinning.pinning` reads it.
"""

from collections.abc import Iterator
from functools import partial

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.class_choice import ANY, RULE_ID, is_covered, names
from policies.placement.pinning import classes_of_label
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path
from policies.rules.gpu_class import GPUClassOptions
from webhook.tools.export.cel import (
    NOT_A_MIRROR_POD,
    POD,
    Named,
    may_ask,
    pod_asks,
    quoted_value,
    sentence,
    text,
    texts,
)
from webhook.tools.export.objects import POD_CHANGES, ValidationFragment

_PLACEMENT_CHANGED = (
    "created-or-placed-anew",
    f"""\
request.operation == 'CREATE' || ({POD}.spec.?nodeName.orValue('') == '' &&
  ['schedulingGates', 'nodeSelector', 'affinity', 'tolerations'].exists(field,
    {POD}.spec[?field] != dyn(oldObject).spec[?field]))""",
)
_ANNOTATION = f"{POD}.metadata.?annotations[?{text(GPU_CLASS)}]"


def fragments(
    resource_mapping: ResourceMapping, options: GPUClassOptions, catalogue: ClassCatalogue
) -> Iterator[ValidationFragment]:
    if ANY in options.allowed:
        return
    allowed = [each for each in catalogue if is_covered(each, options.allowed)]
    known = list(dict.fromkeys([*catalogue.names(), *catalogue.families()]))
    permitted = [name for name in known if any(each in allowed for each in catalogue.resolve(name))]
    pin = f"set nodeSelector {options.label_key}: {names(allowed)}"
    about = partial(sentence, rule=RULE_ID, remedy=text(pin))
    about_annotation = partial(
        sentence,
        text(annotation_path(GPU_CLASS)),
        rule=RULE_ID,
        value=quoted_value("n"),
        remedy=text(f"set {GPU_CLASS}: {names(allowed)}"),
    )
    unclassified_pods = (
        "'must pin the pod to a GPU class: namespace ' + request.namespace + ' may not use every class'"
    )
    yield ValidationFragment(
        part="gpu-class.entitlement",
        description=f"GPU pods run only on classes that their namespace may use: {', '.join(options.allowed)}.",
        resources=(POD_CHANGES,),
        conditions=(NOT_A_MIRROR_POD, may_ask(resource_mapping), _PLACEMENT_CHANGED),
        variables=(
            *pod_asks(resource_mapping),
            *pinning_variables(catalogue),
            ("outside", f"variables.pinned.filter(c, !(c in {texts(each.name for each in allowed)}))"),
            ("named", f"{_ANNOTATION}.hasValue() ? [{_ANNOTATION}.value()] : []"),
            ("misnamed", f"variables.named.filter(n, !(n in {texts(permitted)}))"),
        ),
        findings=f"""\
!variables.asks ? [] :
  variables.misnamed.map(n, n in {texts(known)}
    ? {about_annotation("'must be a class that namespace ' + request.namespace + ' may use'")}
    : {about_annotation(text("must be a GPU class or a family of classes"))}) +
  (variables.pins && variables.outside.size() > 0 ? [
    {about("'spec'", _OUTSIDE)}] : []) +
  (!variables.pins && variables.misnamed.size() == 0 && {POD}.spec.?schedulingGates.orValue([]).size() == 0 ? [
    {about("'spec'", unclassified_pods)}] : [])""",
    )


_OUTSIDE = (
    "'must not pin the pod to ' + variables.outside.join(', ') + ' (' + variables.because.join('; ') + "
    "'): not allowed in namespace ' + request.namespace"
)


# ---- on which classes a pod can land


_TERMS = (
    f"{POD}.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution"
    ".?nodeSelectorTerms.orValue([])"
)


def pinning_variables(catalogue: ClassCatalogue) -> tuple[Named, ...]:
    """Return the variables, of which `pins` is whether the pod pins itself, `pinned` to which classes, `because` why.

    `labels` is label key → value → the classes whose nodes carry it. An empty term matches no node; of the others each has
    to pin the pod, because they are alternatives. A value that no class carries pins nothing.
    """
    return (
        ("labels", label_classes(catalogue)),
        (
            "selectors",
            f"{POD}.spec.?nodeSelector.orValue({{}}).transformList(key, value,\n"
            "  variables.labels[?key][?value].hasValue(),\n"
            "  {'because': ['nodeSelector ' + key + '=' + value], 'classes': variables.labels[key][value]})",
        ),
        (
            "terms",
            f"{_TERMS}.filter(t, t.?matchExpressions.orValue([]).size() + t.?matchFields.orValue([]).size() > 0)\n"
            "  .map(t, t.?matchExpressions.orValue([]).filter(e,\n"
            "    e.operator == 'In' && e.key in variables.labels && e.?values.orValue([]).size() > 0 &&\n"
            "    e.values.all(value, value in variables.labels[e.key])))",
        ),
        ("affinityPins", f"{_TERMS}.size() > 0 && variables.terms.all(t, t.size() > 0)"),
        ("pins", "variables.selectors.size() > 0 || variables.affinityPins"),
        (
            "pinned",
            f"{texts(catalogue.names())}.filter(c,\n"
            "  variables.selectors.all(s, c in s.classes) &&\n"
            "  (!variables.affinityPins || variables.terms.exists(t,\n"
            "    t.all(e, e.values.exists(value, c in variables.labels[e.key][value])))))",
        ),
        (
            "because",
            "variables.selectors.map(s, s.because[0]) + (variables.affinityPins ? variables.terms.map(t,\n"
            "  t.map(e, 'node affinity ' + e.key + ' in (' + e.values.join(', ') + ')').join('; ')) : [])",
        ),
    )


def label_classes(catalogue: ClassCatalogue) -> str:
    """Return the node labels of all classes as a map literal; a family goes by its name where its classes go by theirs."""
    lines = []
    for key in sorted(catalogue.label_keys):
        labels = (label for each in catalogue for label in each.node_labels if label.key == key)
        values = {value for label in labels for value in label.values}
        named = {value: classes_of_label(key, value, catalogue) for value in {*values, *catalogue.families()}}
        entries = ",\n    ".join(
            f"{text(value)}: {texts(sorted(classes))}" for value, classes in sorted(named.items()) if classes
        )
        lines.append(f"  {text(key)}: {{\n    {entries}}}")
    joined = ",\n".join(lines)
    return f"{{\n{joined}}}"
