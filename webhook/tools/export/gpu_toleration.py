"""gpu-toleration in CEL: GPU pods get the tolerations of their vendor, their policy and the class to which they pin themselves.

CEL cannot look up the devices of a DRA claim, so a pod that has nothing but claims gets none.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from policies.gpus.classes import GPUClasses
from policies.gpus.resource_mapping import IMPLICIT_DEVICE_CLASS, ResourceMapping, ResourcePattern
from policies.placement.given_tolerations import resource_taint
from policies.placement.pinning import classes_of_label
from policies.pods.pod import Toleration
from policies.rules.gpu_toleration import GPUTolerationOptions
from webhook.tools.export import cel
from webhook.tools.export.cel import CONTAINERS, NOT_A_MIRROR_POD, POD, Named
from webhook.tools.export.objects import Fragment


def fragment(
    resource_mapping: ResourceMapping, options: GPUTolerationOptions, gpu_classes: GPUClasses
) -> Fragment:
    of_classes = {gpu_class.name: gpu_class.tolerations for gpu_class in gpu_classes if gpu_class.tolerations}
    taint = _literal(resource_taint("")).replace("'key': dyn('')", "'key': dyn(k)")
    return Fragment(
        part="gpu-toleration",
        description="Pods that ask for a GPU tolerate the taints of GPU nodes; what is tolerated already is not added.",
        conditions=(NOT_A_MIRROR_POD, cel.may_request_gpus(resource_mapping)),
        variables=(
            cel.gpus_variable(CONTAINERS, resource_mapping),
            ("requested", _REQUESTED),
            ("parts", _fractions(resource_mapping)),
            (
                "cards",
                f"(variables.requested.map(name,\n  {cel.indented(_card(resource_mapping), 2)}) + variables.parts)",
            ),
            *(_pinning(gpu_classes) if of_classes else ()),
            ("listed", _listed(options, of_classes)),
            (
                "wanted",
                "variables.cards.transformList(i, k, k != '' && variables.cards.indexOf(k) == i &&\n"
                f"  !variables.listed.exists(w, w[?'key'].orValue('') == k), {taint}) + variables.listed",
            ),
            ("missing", _MISSING),
        ),
        patch=f"""\
{POD}.spec.?tolerations.hasValue()
  ? variables.missing.map(w, JSONPatch{{op: 'add', path: '/spec/tolerations/-', value: w}})
  : (variables.missing.size() == 0 ? [] :
      [JSONPatch{{op: 'add', path: '/spec/tolerations', value: variables.missing}}])""",
    )


_REQUESTED = f"""\
variables.gpus.filter(name, ({CONTAINERS}).exists(c,
  c.?resources.?limits[?name].or(c.?resources.?requests[?name]).optMap(amount,
    quantity(amount).isGreaterThan(quantity('0'))).orValue(false)))"""


def cards(resource_mapping: ResourceMapping) -> Iterator[tuple[str, str | None]]:
    """Yield each resource of whole cards (None: `name` itself) with the condition that `name` requests cards or parts of it."""
    by_card: dict[str | None, set[ResourcePattern]] = defaultdict(set)
    for pattern in resource_mapping.patterns:
        is_implicit = pattern.pattern.startswith(IMPLICIT_DEVICE_CLASS)
        if pattern.resource is not None or (pattern.measure.is_count and not is_implicit):
            by_card[pattern.resource].add(pattern)
    for card, patterns in by_card.items():
        yield cel.is_gpu_name("name", resource_mapping, patterns.__contains__), card


def _card(resource_mapping: ResourceMapping) -> str:
    """Return the expression for the resource of the whole cards that `name` requests, or requests a part of; '' if not known."""
    lines = [
        f"({cel.indented(condition, 1)})\n  ? {'name' if card is None else cel.text(card)} :"
        for condition, card in cards(resource_mapping)
    ]
    return "\n".join([*lines, "''"])


def _fractions(resource_mapping: ResourceMapping) -> str:
    """Return the expression for the cards that the first fraction annotation of the pod shares."""
    keys = [key for key in resource_mapping.fraction_annotations if not key.measure.is_count]
    has = f"{POD}.metadata.?annotations[?{{}}].hasValue()".format
    return " ".join([*(f"{has(cel.text(key.key))} ? [{cel.text(key.resource)}] :" for key in keys), "[]"])


def _listed(options: GPUTolerationOptions, of_classes: dict[str, tuple[Toleration, ...]]) -> str:
    parts = [_literals(options.tolerations)]
    for domain, tolerations in options.by_vendor.items():
        of_vendor = f"variables.cards.exists(k, k.startsWith({cel.text(domain + '/')}))"
        parts.append(f"({of_vendor} ? {_literals(tolerations)} : [])")
    for name, tolerations in of_classes.items():
        is_pinned = f"variables.pins && {cel.text(name)} in variables.pinned"
        parts.append(f"({is_pinned} ? {_literals(tolerations)} : [])")
    joined = " +\n  ".join(parts)
    return f"variables.requested.size() + variables.parts.size() == 0 ? [] : ({joined})"


def _covers(existing: str, wanted: str) -> str:
    """Return the condition that one toleration covers the other, as `policies.pods.tolerations.covers` says."""
    t = f"{existing}.?{{}}.orValue('')".format
    w = f"{wanted}[?'{{}}'].orValue('')".format
    return f"""\
({t("effect")} == '' || {t("effect")} == {w("effect")}) &&
(!{existing}.?tolerationSeconds.hasValue() || {existing}.?tolerationSeconds == {wanted}[?'tolerationSeconds']) &&
({t("key")} == ''
  ? {t("operator")} == 'Exists'
  : {t("key")} == {w("key")} && ({t("operator")} == 'Exists' ||
      ({w("operator")} != 'Exists' && ({cel.tolerates_value(existing, w("value"))}))))"""


_MISSING = f"""\
variables.wanted.transformList(i, w,
  !{POD}.spec.?tolerations.orValue([]).exists(t,
    {cel.indented(_covers("t", "w"), 4)}) &&
  variables.wanted.transformList(j, v, j < i &&
    {cel.indented(_covers("v", "w"), 4)}, v).size() == 0,
  w)"""
"""What is wanted, without what the pod or an earlier one covers."""


def _literals(tolerations: Sequence[Toleration]) -> str:
    joined = ",\n  ".join(map(_literal, tolerations))
    return f"[\n  {joined}]" if tolerations else "[]"


def _literal(toleration: Toleration) -> str:
    """Return the toleration as a map; its values are of several types, so each is `dyn`."""
    fields = msgspec.to_builtins(toleration)
    members = (
        f"{cel.text(name)}: dyn({cel.text(v) if isinstance(v, str) else v})" for name, v in fields.items()
    )
    return f"{{{', '.join(members)}}}"


# ---- the classes to which a pod pins itself


_TERMS = (
    f"{POD}.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution"
    ".?nodeSelectorTerms.orValue([])"
)


def _pinning(gpu_classes: GPUClasses) -> tuple[Named, ...]:
    """Return the variables `pins` (whether the pod pins itself to classes) and `pinned` (these classes), and those they use.

    `labels` is label key → value → the classes whose nodes carry it. An empty term matches no node. Terms are alternatives, so
    each of the others has to pin the pod. A value that no class carries pins nothing.
    """
    return (
        ("labels", _label_classes(gpu_classes)),
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
            f"{cel.texts(gpu_class.name for gpu_class in gpu_classes)}.filter(c,\n"
            "  variables.selectors.all(classes, c in classes) &&\n"
            "  (!variables.affinityPins || variables.terms.exists(t,\n"
            "    t.all(e, e.values.exists(value, c in variables.labels[e.key][value])))))",
        ),
    )


def _label_classes(gpu_classes: GPUClasses) -> str:
    """Return the node labels of all classes as a map literal. Where values are class names, families are values, too."""
    lines = []
    for key in sorted(gpu_classes.label_keys):
        labels = (label for gpu_class in gpu_classes for label in gpu_class.node_labels if label.key == key)
        values = {value for label in labels for value in label.values}
        values |= {gpu_class.family for gpu_class in gpu_classes}
        by_value = {value: classes_of_label(key, value, gpu_classes) for value in values}
        entries = ",\n    ".join(
            f"{cel.text(value)}: {cel.texts(sorted(classes))}"
            for value, classes in sorted(by_value.items())
            if classes
        )
        lines.append(f"  {cel.text(key)}: {{\n    {entries}}}")
    joined = ",\n".join(lines)
    return f"{{\n{joined}}}"
