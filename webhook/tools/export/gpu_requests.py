"""gpu-requests in CEL: how many GPUs a container and a pod may have.

The API server validates a pod before it evaluates these policies. It rejects amounts of extended resources that are negative or
not whole, and requests that differ from their limit or have none (`ValidateResourceRequirements`), so they are not repeated here.
Only amounts of names in kubernetes.io (`deviceclass.resource.kubernetes.io/…`) may still not be whole: it does not check these.
"""

from collections.abc import Iterator, Mapping

from policies.gpus.amount import ID, NAME
from policies.gpus.classes import ClassCatalogue
from policies.gpus.resource_limits import ResourceLimits, limit_of, limits_by_pattern
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.rules import gpu_requests as rule
from webhook.tools.export.cel import (
    CONTAINERS,
    NOT_A_MIRROR_POD,
    POD,
    Named,
    fits,
    gpu_names,
    indented,
    may_request_gpus,
    names_gpu,
    quoted_value,
    sentence,
    text,
)
from webhook.tools.export.objects import PODS, Fragment

MOST = "9223372036854775807m"
"""Validation counts in thousandths (`MilliValue()`), which overflow beyond it."""

PERCENTAGES = frozenset({Measure.MEMORY_PERCENT, Measure.CORE_PERCENT})


def fragment(
    resource_mapping: ResourceMapping, options: rule.GPURequestsOptions, catalogue: ClassCatalogue
) -> Fragment:
    found = "variables.amounts" if options.max_per_pod is None else "(variables.amounts + variables.totals)"
    return Fragment(
        part="gpu-requests",
        description="GPU requests are whole numbers, and at most what the policy allows.",
        resources=(PODS,),
        conditions=(NOT_A_MIRROR_POD, may_request_gpus(resource_mapping)),
        variables=tuple(_variables(resource_mapping, options, catalogue)),
        findings=f"{found}.filter(finding, finding != '')",
    )


def _variables(
    resource_mapping: ResourceMapping, options: rule.GPURequestsOptions, catalogue: ClassCatalogue
) -> Iterator[Named]:
    """Yield the variables, of which `amounts` and `totals` are the sentences."""
    yield gpu_names(CONTAINERS, resource_mapping)
    counted = names_gpu("name", resource_mapping, lambda pattern: pattern.measure.is_count)
    # Each name once, at its first index: CEL has no sets.
    yield (
        "counted",
        "variables.gpus.transformList(i, name, i == variables.gpus.indexOf(name) && (\n"
        f"  {indented(counted, 2)}), name)",
    )
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
    """Return the sentences about amounts by themselves: of each limit, and of a request that has none."""
    finding = sentence(
        "'spec.' + list + '[' + string(i) + '].resources.' + kind + '[' + name + ']'",
        "problem",
        ID,
        container="c.name",
        value=quoted_value("amount"),
    )
    joined = ".filter(finding, finding != '').join('; ')"
    return f"""\
['containers', 'initContainers'].map(list, {POD}.spec[?list].orValue([]).transformList(i, c,
  ['limits', 'requests'].map(kind, c.?resources[?kind].orValue({{}}).transformList(name, amount,
    name in variables.gpus && (kind == 'limits' || !c.?resources.?limits[?name].hasValue()),
    [
      {indented(_problem(options, catalogue), 6)}
    ].filter(problem, problem != '').map(problem,
      {finding}).join('')
  ){joined}){joined}){joined}).filter(finding, finding != '')"""


def _problem(options: rule.GPURequestsOptions, catalogue: ClassCatalogue) -> str:
    """Return the expression for what is wrong with an `amount` of resource `name`; '' for nothing."""
    over = "quantity(amount).isGreaterThan(quantity('{}'))".format
    whole = f"set {NAME}: 1, or request a slice of a GPU (MIG) or a time-sliced share; must be a whole number of GPUs"
    too_large, too_much = ("; ".join(reversed(each[1:])) for each in (rule.TOO_LARGE, rule.OVER_100_PERCENT))
    lines = [
        f"{over(MOST)} ? {_named(too_large)} :",
        f"!quantity(amount).isInteger() ? {_named(whole)} :",
        f"name in variables.percentages && {over(100)} ? {_named(too_much)} :",
    ]
    if options.max_per_container is None:
        return "\n".join([*lines, "''"])
    too_many = "'set ' + name + ': ' + string(most) + ' or less; must be at most ' + string(most) + ' per container by policy'"
    return "\n".join(
        [
            *lines,
            "!(name in variables.counted) ? '' :",
            f"[{_most(options.max_per_container, catalogue)}].filter(most,",
            "  most >= 0 && quantity(amount).isGreaterThan(quantity(string(most)))).map(most,",
            f"  {too_many}).join('')",
        ]
    )


def _named(message: str) -> str:
    """Return the expression for a text in which NAME stands for the resource's."""
    return " + name + ".join(text(part) for part in message.split(NAME))


def _totals(most: str) -> str:
    """Return the sentences about more than `most` (an expression) of one resource at one time, once all amounts are in order.

    By the scheduler's arithmetic: app containers and sidecars add up, an init step runs beside the sidecars before it, overhead
    comes on top.
    """
    apps, steps = (f"{POD}.spec.?{each}.orValue([])" for each in ("containers", "initContainers"))
    sidecar = "{}.?restartPolicy.orValue('') == 'Always'"
    finding = sentence(
        "'spec'",
        "'the pod needs ' + string(total) + ' ' + name + ' at one time: must be at most ' + string(most) + "
        "' per pod by policy'",
        ID,
        remedy="'request ' + name + ': ' + string(most) + ' or less'",
    )
    return f"""\
variables.amounts.size() > 0 ? [] : variables.counted.map(name, [(
    [{apps}.map(c, {_count("c")}).sum() +
     {steps}.filter(c, {sidecar.format("c")}).map(c, {_count("c")}).sum()] +
    {steps}.transformList(i, c, !({sidecar.format("c")}),
      {_count("c")} +
      {steps}.transformList(j, s, j < i && {sidecar.format("s")}, {_count("s")}).sum())
  ).max() + {_whole(f"{POD}.spec.?overhead[?name]")}
].map(total, [{most}].filter(most, most >= 0 && total > most).map(most,
  {finding}).join('')).join(''))"""


def _count(container: str) -> str:
    return _whole(f"{container}.?resources.?requests[?name].or({container}.?resources.?limits[?name])")


def _whole(optional: str) -> str:
    return f"quantity({optional}.orValue('0')).asInteger()"
