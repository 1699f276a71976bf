"""On which classes a pod can land, in CEL: `pins` and `pinned`, read as `policies.placement.pinning.pinning` reads it."""

from policies.gpus.classes import ClassCatalogue
from policies.placement.pinning import classes_of_label
from webhook.tools.export.cel import POD, Named, text, texts

_TERMS = (
    f"{POD}.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution"
    ".?nodeSelectorTerms.orValue([])"
)


def pinning_variables(catalogue: ClassCatalogue) -> tuple[Named, ...]:
    """Return the variables, of which `pins` is whether the pod pins itself, and `pinned` to which classes.

    `labels` is label key → value → the classes whose nodes carry it. An empty term matches no node; of the others each has
    to pin the pod, because they are alternatives. A value that no class carries pins nothing.
    """
    return (
        ("labels", label_classes(catalogue)),
        (
            "selectors",
            f"{POD}.spec.?nodeSelector.orValue({{}}).transformList(key, value,\n"
            "  variables.labels[?key][?value].hasValue(), variables.labels[key][value])",
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
            "  variables.selectors.all(classes, c in classes) &&\n"
            "  (!variables.affinityPins || variables.terms.exists(t,\n"
            "    t.all(e, e.values.exists(value, c in variables.labels[e.key][value])))))",
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
