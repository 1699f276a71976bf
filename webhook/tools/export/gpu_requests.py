"""gpu-requests in CEL: the numbers by themselves, limit and request together, and how many.

In pods and built-in kinds of workloads, the API server's validation has checked all but "how many" before any policy runs; in
the templates of custom resources (PyTorchJob, RayCluster) nothing has been checked.
"""

from collections.abc import Iterator, Mapping

from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_limits import ResourceLimits, limit_of, limits_by_pattern
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.rules import gpu_requests as rule
from webhook.tools.export import templates
from webhook.tools.export.cel import (
    NOT_A_MIRROR_POD,
    Named,
    fits,
    indented,
    may_ask,
    names_gpu,
    present,
    quoted_value,
    sentence,
    text,
)
from webhook.tools.export.objects import PODS, ValidationFragment

MOST = "9223372036854775807m"
"""Validation counts in thousandths (`MilliValue()`), which overflow beyond it."""

PERCENTAGES = frozenset({Measure.MEMORY_PERCENT, Measure.CORE_PERCENT})

_LIMIT = "c.?resources.?limits[?name]"
_EXTENDED = "!name.contains('kubernetes.io/') && !name.startsWith('requests.')"
_JOINED = ".filter(finding, finding != '').join('; ')"


def fragments(
    resource_mapping: ResourceMapping, options: rule.GPURequestsOptions, catalogue: ClassCatalogue
) -> Iterator[ValidationFragment]:
    variables = tuple(_variables(resource_mapping, options, catalogue))
    found = "variables.amounts" if options.max_per_pod is None else "(variables.amounts + variables.totals)"
    findings = f"{found}.filter(finding, finding != '')"
    yield ValidationFragment(
        part="gpu-requests",
        description="GPU requests are whole numbers, equal to their limits, and at most what the policy allows.",
        resources=(PODS,),
        conditions=(NOT_A_MIRROR_POD, may_ask(resource_mapping)),
        variables=(("written", "[{'path': dyn(''), 'pod': dyn(object)}]"), *variables),
        findings=findings,
    )
    yield ValidationFragment(
        part="gpu-requests.templates",
        description="The same in the pod templates of workloads, when they are written.",
        resources=templates.resources(),
        conditions=(templates.WRITTEN_BY_SOMEBODY,),
        variables=(*templates.variables(), *variables),
        findings=findings,
        of_templates=True,
    )


def _variables(
    resource_mapping: ResourceMapping, options: rule.GPURequestsOptions, catalogue: ClassCatalogue
) -> Iterator[Named]:
    """Yield the variables between `written`, the pods as they stand there, and the findings."""
    lists = ",\n  ".join(
        f"'{name}': dyn({present(f't.pod.?spec.?{name}', '[]')})" for name in ("containers", "initContainers")
    )
    yield (
        "pods",
        f"variables.written.map(t, {{'path': dyn(t.path), 'overhead': dyn(t.pod.?spec.?overhead),\n  {lists}}})",
    )
    yield (
        "named",
        f"""\
variables.pods.map(p, (p.containers + p.initContainers).map(c, ['limits', 'requests'].map(kind,
  {present("c.?resources[?kind]", "{}")}.map(name, name).join(' ')).join(' ')).join(' '))
  .join(' ').split(' ')""",
    )
    # Each name once, at its first index: CEL has no sets.
    yield (
        "gpus",
        "variables.named.transformList(i, name, i == variables.named.indexOf(name) && (\n"
        f"  {indented(names_gpu('name', resource_mapping), 2)}), name)",
    )
    counted = names_gpu("name", resource_mapping, lambda pattern: pattern.measure.is_count)
    yield "counted", f"variables.gpus.filter(name,\n  {indented(counted, 2)})"
    percentages = names_gpu("name", resource_mapping, lambda pattern: pattern.measure in PERCENTAGES)
    yield "percentages", f"variables.gpus.filter(name,\n  {indented(percentages, 2)})"
    yield "amounts", _amounts(options, catalogue)
    if options.max_per_pod is not None:
        yield "totals", _totals(_most(options.max_per_pod, catalogue))


def _most(limits: ResourceLimits, catalogue: ClassCatalogue) -> str:
    """Return the expression for the most of the resource `name`, -1 for no limit.

    Where the limit depends on the class of the pod it is the largest of all.
    """
    if not isinstance(limits, Mapping):
        return str(-1 if limits is None else limits)
    patterns = limits_by_pattern(limits)
    cases = [(fits("name", [name]), most) for name, most in patterns]
    by_class = {each.resource for each in catalogue if each.name in limits or each.family in limits}
    for resource in sorted(by_class):
        requested = GPUResource(resource, Measure.DEVICES)
        having = [[each] for each in catalogue if each.resource == resource]
        stated = [limit_of(limits, requested, classes) for classes in (*having, [])]
        known = [most for most in stated if most is not None]
        cases.insert(0, (fits("name", [resource]), max(known) if len(known) == len(stated) else -1))
    return " ".join([*(f"{condition} ? {most} :" for condition, most in cases), "-1"])


def _amounts(options: rule.GPURequestsOptions, catalogue: ClassCatalogue) -> str:
    """Return the sentences about amounts by themselves, one text a pod."""
    finding = sentence(
        "p.path + 'spec.' + list + '[' + string(i) + '].resources.' + kind + '[' + name + ']'",
        "problem",
        rule.ID,
        container="string(c.?name.orValue(''))",
        value=quoted_value("amount"),
    )
    return f"""\
variables.pods.map(p, ['containers', 'initContainers'].map(list, p[list].transformList(i, c,
  ['limits', 'requests'].map(kind, {present("c.?resources[?kind]", "{}")}.transformList(name, raw,
    name in variables.gpus,
    [{_as_text("raw")}].map(amount, [
      {indented(_problem(options, catalogue), 6)}
    ].filter(problem, problem != '').map(problem,
      {finding}).join(''))[0]
  ){_JOINED}){_JOINED}){_JOINED}){_JOINED})"""


def _problem(options: rule.GPURequestsOptions, catalogue: ClassCatalogue) -> str:
    """Return the expression for what is wrong with an `amount` of container `c`, of that kind and name; '' for nothing."""
    request = "kind == 'requests' &&"
    over = "quantity(amount).isGreaterThan(quantity('{}'))".format
    cases = [
        (
            f"{request} {_LIMIT}.hasValue() && isQuantity(amount) &&\n"
            f"  [{_as_text(_LIMIT + '.value()')}].exists(limit,\n"
            "  isQuantity(limit) && quantity(amount).compareTo(quantity(limit)) == 0)",
            "",
        ),
        ("!isQuantity(amount)", _said(rule.NOT_A_QUANTITY)),
        ("quantity(amount).isLessThan(quantity('0'))", _said(rule.NEGATIVE)),
        (over(MOST), _said(rule.TOO_LARGE)),
        (
            f"!({_is_whole('amount')})",
            f"set {rule.NAME}: 1, or request a slice of a GPU (MIG) or a time-sliced share; must be a whole number of GPUs",
        ),
        (f"name in variables.percentages && {over(100)}", _said(rule.OVER_100_PERCENT)),
        (
            f"{request} {_LIMIT}.hasValue() && {_EXTENDED}",
            "set both to the same value, or omit the request; must equal the limit: GPUs cannot be overcommitted",
        ),
    ]
    if not options.complete_limits:
        no_limit = f"add {rule.NAME} to resources.limits; {rule.NO_LIMIT}"
        cases.append((f"{request} !{_LIMIT}.hasValue() && {_EXTENDED}", no_limit))
    lines = [f"{indented(condition, 2)} ? {_named(message)} :" for condition, message in cases]
    if options.max_per_container is None:
        return "\n".join([*lines, "''"])
    is_the_limit = f"(kind == 'limits' || !{_LIMIT}.hasValue())"
    too_many = "'set ' + name + ': ' + string(most) + ' or less; must be at most ' + string(most) + ' per container by policy'"
    return "\n".join(
        [
            *lines,
            f"!({is_the_limit} && name in variables.counted) ? '' :",
            f"[{_most(options.max_per_container, catalogue)}].filter(most,",
            "  most >= 0 && quantity(amount).isGreaterThan(quantity(string(most)))).map(most,",
            f"  {too_many}).join('')",
        ]
    )


def _said(message_and_remedy: tuple[str, str]) -> str:
    return "; ".join(reversed(message_and_remedy))


def _named(message: str) -> str:
    """Return the expression for a text in which NAME stands for the resource's."""
    return " + name + ".join(text(part) for part in message.split(rule.NAME))


def _totals(most: str) -> str:
    """Return the sentences about more than `most` (an expression) of one resource at one time.

    One text a pod whose amounts are in order. By the scheduler's arithmetic: app containers and sidecars add up, an init step
    runs beside the sidecars before it, overhead comes on top.
    """
    sidecar = "{}.?restartPolicy.orValue('') == 'Always'"
    finding = sentence(
        "p.path + 'spec'",
        "'the pod needs ' + string(total) + ' ' + name + ' at one time: must be at most ' + string(most) + "
        "' per pod by policy'",
        rule.ID,
        remedy="'request ' + name + ': ' + string(most) + ' or less'",
    )
    return f"""\
variables.pods.transformList(n, p, variables.amounts[n] == '', variables.counted.map(name, [(
    [p.containers.map(c, {_count("c")}).sum() +
     p.initContainers.filter(c, {sidecar.format("c")}).map(c, {_count("c")}).sum()] +
    p.initContainers.transformList(i, c, !({sidecar.format("c")}),
      {_count("c")} +
      p.initContainers.transformList(j, s, j < i && {sidecar.format("s")}, {_count("s")}).sum())
  ).max() + {_whole("p.overhead[?name]")}
].map(total, [{most}].filter(most, most >= 0 && total > most).map(most,
  {finding}).join('')).join('')){_JOINED})"""


def _count(container: str) -> str:
    return _whole(f"{container}.?resources.?requests[?name].or({container}.?resources.?limits[?name])")


def _whole(optional: str) -> str:
    """Return the expression for an amount as a number, 0 if there is none; not asked where an amount is not in order."""
    amount = f"[{_as_text('raw')}].map(amount, int(quantity(amount).asApproximateFloat()))[0]"
    return f"[{optional}.orValue('0')].map(raw, {amount})[0]"


def _is_whole(amount: str) -> str:
    # isInteger() looks at how it is written: 1000m is none.
    count = f"string(int(quantity({amount}).asApproximateFloat()))"
    return f"quantity({amount}).isInteger() || quantity({amount}).compareTo(quantity({count})) == 0"


def _as_text(raw: str) -> str:
    """Return the expression for a quantity as text, which custom resources may hold as a number, too; null is zero.

    `string` does not do: in the API server's CEL it takes only numbers whose type is known before it runs.
    """
    return f"type({raw}) == null_type ? '0' : '%s'.format([{raw}])"
