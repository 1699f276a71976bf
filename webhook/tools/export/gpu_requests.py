"""Rule gpu-requests in CEL: how many GPUs a container and a pod may request.

The API server validates a pod before it evaluates these policies. It rejects amounts of extended resources that are negative or
not whole, and requests without a limit or with another limit (`ValidateResourceRequirements`). So these checks are not repeated
here. Only resource names in kubernetes.io (`deviceclass.resource.kubernetes.io/…`) may have fractional amounts: the API server
does not check them.
"""

from collections.abc import Iterator, Mapping

from policies.gpus.amount import NAME
from policies.gpus.classes import GPUClasses
from policies.gpus.resource_limits import ResourceLimits, limit_of, limits_by_pattern
from policies.gpus.resource_mapping import GPUResource, Measure, ResourceMapping
from policies.rules import gpu_requests as rule
from webhook.tools.export import cel
from webhook.tools.export.cel import CONTAINERS, LISTS, NOT_A_MIRROR_POD, POD, Named
from webhook.tools.export.objects import Fragment

MAX_AMOUNT = "9223372036854775807m"
"""The largest amount whose thousandths (`MilliValue()`) the API server can compute without an overflow."""

PERCENTAGES = frozenset({Measure.MEMORY_PERCENT, Measure.CORE_PERCENT})


def fragment(
    resource_mapping: ResourceMapping, options: rule.GPURequestsOptions, gpu_classes: GPUClasses
) -> Fragment:
    findings = (
        "variables.wrongAmounts"
        if options.max_per_pod is None
        else "(variables.wrongAmounts + variables.wrongTotals)"
    )
    return Fragment(
        part="gpu-requests",
        description="GPU requests are whole numbers, and at most what the policy allows.",
        conditions=(NOT_A_MIRROR_POD, cel.may_request_gpus(resource_mapping)),
        variables=tuple(_variables(resource_mapping, options, gpu_classes)),
        findings=f"{findings}.filter(finding, finding != '')",
    )


def _variables(
    resource_mapping: ResourceMapping, options: rule.GPURequestsOptions, gpu_classes: GPUClasses
) -> Iterator[Named]:
    """Yield the variables. `wrongAmounts` and `wrongTotals` are lists of findings."""
    yield cel.gpus_variable(CONTAINERS, resource_mapping)
    counted = cel.is_gpu_name("name", resource_mapping, lambda pattern: pattern.measure.is_count)
    # CEL has no sets, so keep each name only at its first index.
    yield (
        "counted",
        "variables.gpus.transformList(i, name, i == variables.gpus.indexOf(name) && (\n"
        f"  {cel.indented(counted, 2)}), name)",
    )
    percentages = cel.is_gpu_name(
        "name",
        resource_mapping,
        # Where no other resource counts the cards, 200 percent are two of them.
        lambda pattern: pattern.measure in PERCENTAGES and pattern.resource is not None,
    )
    yield "percentages", f"variables.gpus.filter(name,\n  {cel.indented(percentages, 2)})"
    per_container = _limit(options.max_per_container, gpu_classes)
    yield "wrongAmounts", " +\n".join(_amounts(each, per_container) for each in LISTS)
    if options.max_per_pod is not None:
        yield "wrongTotals", _totals(_limit(options.max_per_pod, gpu_classes))


def _limit(limits: ResourceLimits, gpu_classes: GPUClasses) -> str:
    """Return a CEL expression for the limit of the resource `name`. It is -1 without a limit.

    If the limit depends on the class of the pod, it is the largest limit of all classes.
    """
    if not isinstance(limits, Mapping):
        return str(-1 if limits is None else limits)
    patterns = limits_by_pattern(limits)
    cases = [(cel.fits("name", [name]), maximum) for name, maximum in patterns]
    by_class = {each.resource for each in gpu_classes if each.name in limits or each.family in limits}
    for resource in sorted(by_class):
        requested = GPUResource(resource, Measure.DEVICES)
        having = [gpu_class for gpu_class in gpu_classes if gpu_class.resource == resource]
        maxima = [limit_of(limits, requested, [each]) for each in having]
        maxima.append(limit_of(limits, requested, []))  # of a pod without a class
        stated = [maximum for maximum in maxima if maximum is not None]
        cases.insert(0, (cel.fits("name", [resource]), max(stated) if len(stated) == len(maxima) else -1))
    return " ".join([*(f"{condition} ? {maximum} :" for condition, maximum in cases), "-1"])


def _amounts(containers: str, limit: str) -> str:
    """Return a CEL list of findings, one for each container with invalid amounts: of a limit, or of a request without one."""
    finding = cel.sentence(
        f"'spec.{containers}[' + string(i) + '].resources.' + kind + '[' + name + ']'",
        "problem",
        rule.ID,
        container="c.name",
        value=cel.quoted_value("amount"),
    )
    finding_or_empty = cel.bound("problem", _problem(limit), f"problem == '' ? '' : {finding}")
    join = "filter(finding, finding != '').join('; ')"
    findings = f"""\
['limits', 'requests'].map(kind, c.?resources[?kind].orValue({{}}).transformList(name, amount,
    name in variables.gpus && (kind == 'limits' || !c.?resources.?limits[?name].hasValue()),
    {cel.indented(finding_or_empty, 4)}).{join}).filter(finding, finding != '')"""
    return cel.sentence_per_container(containers, "c.?resources.hasValue()", findings)


def _problem(limit: str) -> str:
    """Return a CEL expression for the problem of an `amount` of resource `name`. It is '' for a valid amount."""
    must_be_whole = f"set {NAME}: 1, or request a slice of a GPU (MIG) or a time-sliced share; must be a whole number of GPUs"
    too_large, over_100_percent = (
        f"{p.remedy}; {p.message}" for p in (rule.TOO_LARGE, rule.OVER_100_PERCENT)
    )
    too_many = "'set ' + name + ': ' + string(most) + ' or less; must be at most ' + string(most) + ' per container by policy'"
    of_policy = cel.bound("most", limit, f"most >= 0 && {_is_over('string(most)')} ? {too_many} : ''")
    return f"""\
{_is_over(cel.text(MAX_AMOUNT))} ? {_message(too_large)} :
!quantity(amount).isInteger() ? {_message(must_be_whole)} :
name in variables.percentages && {_is_over("'100'")} ? {_message(over_100_percent)} :
name in variables.counted ? {of_policy} : ''"""


def _is_over(maximum: str) -> str:
    return f"quantity(amount).isGreaterThan(quantity({maximum}))"


def _message(message: str) -> str:
    """Return a CEL expression for the message, with the name of the resource in place of NAME."""
    return " + name + ".join(cel.text(part) for part in message.split(NAME))


def _totals(limit: str) -> str:
    """Return a CEL list: for each resource `name` a finding if the pod needs more than `limit` at one time, else ''.

    It is evaluated only if every amount is valid. As in the scheduler, app containers and sidecars are added; an init container
    runs together with the sidecars before it; overhead is added at the end.
    """
    finding = cel.sentence(
        "'spec'",
        "'the pod needs ' + string(total) + ' ' + name + ' at one time: must be at most ' + string(most) + "
        "' per pod by policy'",
        rule.ID,
        remedy="'request ' + name + ': ' + string(most) + ' or less'",
    )
    apps, inits = (f"{POD}.spec.?{each}.orValue([])" for each in LISTS)
    is_sidecar = "{}.?restartPolicy.orValue('') == 'Always'".format
    sidecars = f"{inits}.filter(c, {is_sidecar('c')}).map(c, {_count('c')}).sum()"
    sidecars_before = f"{inits}.transformList(j, s, j < i && {is_sidecar('s')}, {_count('s')}).sum()"
    apps_and_sidecars = f"[{apps}.map(c, {_count('c')}).sum() + {sidecars}]"
    each_init = f"{inits}.transformList(i, c, !({is_sidecar('c')}), {_count('c')} + {sidecars_before})"
    total = f"({apps_and_sidecars} +\n  {each_init}).max() +\n  {_whole(f'{POD}.spec.?overhead[?name]')}"
    finding_or_empty = cel.bound("most", limit, f"most >= 0 && total > most ? {finding} : ''")
    of_name = cel.bound("total", total, finding_or_empty)
    return f"variables.wrongAmounts.size() > 0 ? [] : variables.counted.map(name, {of_name})"


def _count(container: str) -> str:
    return _whole(f"{container}.?resources.?requests[?name].or({container}.?resources.?limits[?name])")


def _whole(optional: str) -> str:
    return f"quantity({optional}.orValue('0')).asInteger()"
