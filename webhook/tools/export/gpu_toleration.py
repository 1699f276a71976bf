"""gpu-toleration in CEL: GPU pods get the tolerations of their policy and of the class to which they pin themselves."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from policies.pods.tolerations import covers
from webhook.tools.export.cel import NOT_A_MIRROR_POD, POD, may_ask, pod_asks, text, texts
from webhook.tools.export.gpu_class import pinning_variables
from webhook.tools.export.objects import PODS, MutationFragment


class WantedToleration(NamedTuple):
    """A toleration, the classes that want it (None: the policy does), and the classes that make it unnecessary."""

    toleration: Toleration
    classes: tuple[str, ...] | None = None
    unnecessary_with: tuple[str, ...] = ()


def fragments(
    resource_mapping: ResourceMapping, tolerations: Sequence[Toleration], catalogue: ClassCatalogue
) -> Iterator[MutationFragment]:
    wanted = list(wanted_tolerations(tolerations, catalogue))
    if not wanted:
        return
    of_classes = any(each.classes is not None for each in wanted)
    yield MutationFragment(
        part="gpu-toleration",
        description="Pods that ask for a GPU tolerate the taints of GPU nodes; what is tolerated already is not added.",
        resources=(PODS,),
        conditions=(NOT_A_MIRROR_POD, may_ask(resource_mapping)),
        variables=(
            *pod_asks(resource_mapping),
            *(pinning_variables(catalogue) if of_classes else ()),
            ("wanted", f"variables.asks ? {_listed(wanted)} : []"),
            ("missing", _MISSING),
        ),
        patch=f"""\
{POD}.spec.?tolerations.hasValue()
  ? variables.missing.map(w, JSONPatch{{op: 'add', path: '/spec/tolerations/-', value: w}})
  : (variables.missing.size() == 0 ? [] :
      [JSONPatch{{op: 'add', path: '/spec/tolerations', value: variables.missing}}])""",
    )


def wanted_tolerations(
    tolerations: Sequence[Toleration], catalogue: ClassCatalogue
) -> Iterator[WantedToleration]:
    """Yield the tolerations that can be wanted, in the order of the rule, without those that an earlier one always covers."""
    certain: list[Toleration] = []
    for toleration in tolerations:
        if not any(covers(earlier, toleration) for earlier in certain):
            certain.append(toleration)
            yield WantedToleration(toleration)
    wanted_by: dict[Toleration, list[str]] = defaultdict(list)
    for gpu_class in catalogue:
        for toleration in gpu_class.tolerations:
            if not any(covers(earlier, toleration) for earlier in certain):
                wanted_by[toleration].append(gpu_class.name)
    for at, (toleration, names) in enumerate(wanted_by.items()):
        earlier_ones = islice(wanted_by.items(), at)
        unnecessary = [name for other, others in earlier_ones if covers(other, toleration) for name in others]
        yield WantedToleration(toleration, tuple(names), tuple(unnecessary))


_MISSING = f"""\
variables.wanted.filter(w, !{POD}.spec.?tolerations.orValue([]).exists(t,
  (t.?effect.orValue('') == '' || t.?effect.orValue('') == w[?'effect'].orValue('')) &&
  (!t.?tolerationSeconds.hasValue() || t.?tolerationSeconds == w[?'tolerationSeconds']) &&
  (t.?key.orValue('') == ''
    ? t.?operator.orValue('') == 'Exists'
    : t.key == w.key && (t.?operator.orValue('') == 'Exists' ||
        (w[?'operator'].orValue('') != 'Exists' && t.?value.orValue('') == w[?'value'].orValue(''))))))"""


def _listed(wanted: Sequence[WantedToleration]) -> str:
    parts = []
    policy = ",\n  ".join(_literal(each.toleration) for each in wanted if each.classes is None)
    if policy:
        parts.append(f"[\n  {policy}]")
    parts += (f"({_pinned_to(each)} ? [{_literal(each.toleration)}] : [])" for each in wanted if each.classes)
    joined = " +\n  ".join(parts)
    return f"({joined})"


def _pinned_to(wanted: WantedToleration) -> str:
    condition = f"variables.pins && variables.pinned.exists(c, c in {texts(wanted.classes or ())})"
    if wanted.unnecessary_with:
        condition += f" && !variables.pinned.exists(c, c in {texts(wanted.unnecessary_with)})"
    return condition


def _literal(toleration: Toleration) -> str:
    """Return the toleration as a map; its values are of several types, so each is `dyn`."""
    fields = msgspec.to_builtins(toleration)
    members = (f"{text(name)}: dyn({text(v) if isinstance(v, str) else v})" for name, v in fields.items())
    return f"{{{', '.join(members)}}}"
