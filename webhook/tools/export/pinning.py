"""Which classes a pod can land on, as `policies.placement.pinning.pinning` reads it, in CEL."""

from policies.gpus.classes import ClassCatalogue
from policies.placement.pinning import classes_of_label
from webhook.tools.export.cel import POD, Named, text, texts

_TERMS = (
    f"{POD}.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution"
    ".?nodeSelectorTerms.orValue([])"
)


def variables(catalogue: ClassCatalogue) -> tuple[Named, ...]:
    """Return the variables, of which `pins` is whether the pod pins itself, `pinned` to which classes, `because` why.

    `labels` is label key → value → the classes whose nodes carry it. An empty term matches no node; of the others each has
    to pin the pod, because they are alternatives. A value that no class carries pins nothing.
    """
    return (
        ("labels", labels(catalogue)),
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


def labels(catalogue: ClassCatalogue) -> str:
    """Return the node labels of all classes as a map literal; a family goes by its name where its classes go by theirs."""
    lines = []
    for key in sorted(catalogue.label_keys):
        values = {
            value
            for each in catalogue
            for label in each.node_labels
            if label.key == key
            for value in label.values
        }
        named = {value: classes_of_label(key, value, catalogue) for value in {*values, *catalogue.families()}}
        entries = (
            f"{text(value)}: {texts(sorted(classes))}" for value, classes in sorted(named.items()) if classes
        )
        joined = ",\n    ".join(entries)
        lines.append(f"  {text(key)}: {{\n    {joined}}}")
    joined = ",\n".join(lines)
    return f"{{\n{joined}}}"
