"""Rule gpu-isolation in CEL. The API server policies also cover pods that the webhook never gets, and ephemeral containers.

An ephemeral container cannot request a GPU, so it gets NVIDIA_VISIBLE_DEVICES=void (no devices). A tool that must see the GPU of
a pod runs inside the container that has it (kubectl exec).

CEL variables with names of containers:

    requesting         list: they request GPUs
    fractionContainer  string: the one that a fraction scheduler serves, or ''
    unmapped           list: names of accelerators that no GPUResourceMapping has
    exempt             list: they do not get `void`
    existing           list: ephemeral containers of oldObject, which the API server forbids to change
"""

from collections.abc import Iterable, Iterator

from policies.finding import Severity
from policies.gpus import exposure
from policies.gpus.resource_mapping import Measure, ResourceMapping
from policies.gpus.unmapped import ACCELERATOR, NO_AMOUNTS, OTHER_SCHEDULERS, VIRTUAL_NODE
from policies.gpus.vendors import HIDING, VENDORS, VOID
from policies.pods.pod import Toleration
from policies.rules import gpu_isolation as rule
from webhook.tools.export import cel
from webhook.tools.export.cel import CONTAINERS, LISTS, NOT_A_MIRROR_POD, POD, Named
from webhook.tools.export.objects import EPHEMERAL_CONTAINERS, PODS, Fragment
from webhook.workloads.creators import CONTROLLER_MANAGER, DAEMONSET_CONTROLLER

EPHEMERAL = "ephemeralContainers"
_NEW_EPHEMERAL_CONTAINERS = (
    f"{POD}.spec.?ephemeralContainers.orValue([]).filter(c, !(c.name in variables.existing))"
)


def fragments(resource_mapping: ResourceMapping, gpu_taints: Iterable[Toleration]) -> Iterator[Fragment]:
    """Yield the fragments; `gpu_taints` are the taints of GPU nodes, as tolerations."""
    requesting = _requesting("variables.gpus")
    having_gpus = (
        cel.gpus_variable(CONTAINERS, resource_mapping),
        ("requesting", requesting),
        ("fractionContainer", cel.fraction_container(resource_mapping)),
    )
    existing = "dyn(oldObject).spec.?ephemeralContainers.orValue([]).map(c, c.name)"
    yield Fragment(
        part="gpu-isolation.void",
        description=f"Containers that request no GPU get {rule.VARIABLE}={VOID}, unless they set the variable themselves.",
        conditions=(NOT_A_MIRROR_POD, _NOT_OF_THE_GPU_STACK, _NO_OTHER_GPUS),
        variables=(
            *having_gpus,
            _unmapped(resource_mapping),
            (
                "exempt",
                f"variables.requesting + [variables.fractionContainer] +\n{_requesting('variables.unmapped')}",
            ),
        ),
        patch=" +\n".join(_void_patch(name) for name in LISTS),
    )
    yield Fragment(
        part="gpu-isolation.void-ephemeral",
        description=f"Ephemeral containers, which cannot request a GPU, get {rule.VARIABLE}={VOID}.",
        resources=(EPHEMERAL_CONTAINERS,),
        conditions=(),
        variables=(("exempt", existing),),
        patch=_void_patch(EPHEMERAL),
    )
    yield Fragment(
        part="gpu-isolation.exposed",
        description="No container sees GPUs that it did not request, by a variable, files of the node or an annotation.",
        variables=(*having_gpus, ("existing", "dyn([])"), _VISIBLE_DEVICES, _NODE_PATHS),
        findings=" +\n".join(
            (
                *map(_variable_findings, LISTS),
                *map(_device_list_findings, LISTS),
                _host_path_findings(CONTAINERS),
                _annotation_findings(),
                *map(_view_findings, LISTS),
            )
        ),
    )
    yield Fragment(
        part="gpu-isolation.exposed-ephemeral",
        description="No ephemeral container sees GPUs, by a variable or files of the node.",
        resources=(EPHEMERAL_CONTAINERS,),
        conditions=(),
        variables=(
            ("requesting", "dyn([])"),
            ("fractionContainer", "''"),
            ("existing", existing),
            _VISIBLE_DEVICES,
            _NODE_PATHS,
        ),
        findings=" +\n".join(
            (
                _variable_findings(EPHEMERAL),
                _device_list_findings(EPHEMERAL),
                _host_path_findings(_NEW_EPHEMERAL_CONTAINERS),
            )
        ),
    )
    yield Fragment(
        part="gpu-isolation.annotated",
        description="No annotation that names devices of the node is set on a pod after its creation.",
        resources=({**PODS, "operations": ["UPDATE"]},),
        findings=_annotation_findings("dyn(oldObject).metadata.?annotations[?key].orValue('') != value"),
    )
    yield Fragment(
        part="gpu-isolation.advice",
        description="Values from elsewhere, privileged containers on GPU nodes, and pods there without a request are reported.",
        severity=Severity.WARNING,
        variables=(
            *having_gpus,
            cel.pod_requests_gpus(resource_mapping),
            _VISIBLE_DEVICES,
            ("tolerated", _gpu_tolerations(gpu_taints)),
            ("madeByDaemonSet", _MADE_BY_DAEMONSET),
        ),
        findings=" +\n".join(
            (*map(_value_from_warnings, LISTS), *map(_privileged_warnings, LISTS), _TOLERATION_WARNING)
        ),
    )


def _requesting(names: str) -> str:
    """Return the names of the containers that request more than 0 of one of these resources, or use a ResourceClaim."""
    return f"({CONTAINERS}).filter(c,\n  {cel.indented(cel.requests(names), 2)}).map(c, c.?name.orValue(''))"


def _unmapped(resource_mapping: ResourceMapping) -> Named:
    """Return the variable `unmapped`, empty in a pod with a nodeName (`gpu_isolation.unmapped`).

    It may have names of the mapping, too, but none that is nothing: of GPUs, a request counts anyway.
    """
    nothing = [each for each in resource_mapping.patterns if each.measure is Measure.NOTHING]
    is_one = f"name.lowerAscii().matches(r'{ACCELERATOR}') && name.contains('/') &&\n  !({cel.any_pattern('name', nothing)})"
    return (
        "unmapped",
        f"{POD}.spec.?nodeName.orValue('') != '' ? [] :\n{cel.resource_names(CONTAINERS)}.filter(name,\n  {is_one})",
    )


def _void_patch(containers: str) -> str:
    """Return the operations that add the variable to the containers of a list, except those in `exempt`."""
    variable = f"{{'name': {cel.text(rule.VARIABLE)}, 'value': {cel.text(VOID)}}}"
    return f"""\
{POD}.spec.?{containers}.orValue([]).transformList(i, c,
  !(c.?name.orValue('') in variables.exempt) && !c.?env.orValue([]).exists(e, e.name == {cel.text(rule.VARIABLE)}),
  c.?env.hasValue()
    ? JSONPatch{{op: 'add', path: '/spec/{containers}/' + string(i) + '/env/-', value: {variable}}}
    : JSONPatch{{op: 'add', path: '/spec/{containers}/' + string(i) + '/env', value: [{variable}]}})"""


def _variable_findings(containers: str) -> str:
    hiding_values, suggested_value = cel.texts(HIDING), cel.text(VOID)
    for vendor in VENDORS:
        if vendor.visible_devices and vendor.hiding != HIDING:
            is_its_own = f"e.name in {cel.texts(vendor.visible_devices)}"
            hiding_values = f"({is_its_own} ? {cel.texts(vendor.hiding)} : {hiding_values})"
            # The last of a vendor's values is the best.
            suggested_value = f"({is_its_own} ? {cel.text(vendor.hiding[-1])} : {suggested_value})"
    has_gpus = "(c.name in variables.requesting || c.name == variables.fractionContainer)"
    # What a sentence has before the suggested value (the same in both), and after it.
    (before, after_with_gpus), (_, after) = rule.REPLACED, rule.EXPOSED
    finding = cel.sentence(
        f"'spec.{containers}[' + string(i) + '].env[' + string(j) + ']'",
        f"""e.name + {cel.text(f'{before}"')} + {suggested_value} + '"' +
      ({has_gpus} ? {cel.text(after_with_gpus)} : {cel.text(after)})""",
        rule.ID,
        container="c.name",
        value=f"(e.?value.hasValue() ? {cel.quoted_value('e.value')} : '')",
        remedy=f"({has_gpus} ? {cel.text(rule.REMOVE_VARIABLE)} : {cel.text(rule.EXPOSED_REMEDY)})",
    )
    findings = f"""\
c.?env.orValue([]).transformList(j, e,
    (e.name in variables.visibleDevices || e.name.startsWith({cel.text(exposure.DOCKER_RESOURCE)})) &&
      (e.?valueFrom.hasValue() ? !{has_gpus} : !(e.?value.orValue('') in {hiding_values})),
    {finding})"""
    return cel.sentence_per_container(containers, "!(c.name in variables.existing)", findings)


# ---- files of the node


def _canonical(path: str) -> str:
    """Return `exposure.canonical` in CEL. The API server rejects `..` in a hostPath, so it is not resolved here."""
    cleaned = f"'/' + {path}.split('/').filter(part, !(part in ['', '.'])).map(part, part + '/').join('')"
    return f"[{cleaned}].map(p, p.startsWith('/var/run/') ? p.substring(4) : p)[0]"


def _mounts(containers: str) -> str:
    return f"({containers}).exists(c, c.?volumeMounts.orValue([]).exists(m, m.name == v.name))"


_VISIBLE_DEVICES: Named = ("visibleDevices", cel.texts(exposure.VISIBLE_DEVICES))
_NODE_PATHS: Named = ("nodePaths", cel.texts(exposure.NODE_PATHS))
_NOT_OF_THE_GPU_STACK: Named = (
    "not-of-the-gpu-stack",
    f"""\
!{POD}.spec.?volumes.orValue([]).exists(v, {_mounts(CONTAINERS)} &&
  [{_canonical("v.?hostPath.?path.orValue('')")}].exists(p,
    {cel.texts(exposure.GPU_STACK_PATHS)}.exists(prefix, p.startsWith(prefix))))""",
)

_SERVED = " ||\n".join(
    f"{POD}.spec.?schedulerName.orValue('') == {cel.text(scheduler)} && {POD}.spec.?nodeName.orValue('') == '' &&\n"
    f"  {POD}.metadata.?annotations.orValue({{}}).exists(key, value, !(value in {cel.texts(NO_AMOUNTS)}) &&\n"
    f"    {cel.texts(prefixes)}.exists(prefix, key.startsWith(prefix)))"
    for scheduler, prefixes in OTHER_SCHEDULERS.items()
)
_NO_OTHER_GPUS: Named = (
    "no-other-gpus",
    f"!({POD}.spec.?nodeSelector[?{cel.text(VIRTUAL_NODE[0])}] == optional.of({cel.text(VIRTUAL_NODE[1])}) ||\n"
    f"{_SERVED})",
)


def _view_findings(containers: str) -> str:
    # The API server has refused requests without a limit.
    finding = cel.sentence(
        f"'spec.{containers}[' + string(i) + '].resources.limits[' + name + ']'",
        cel.text(rule.VIEW),
        rule.ID,
        container="c.name",
        remedy=cel.text(rule.REQUEST_INSTEAD),
    )
    findings = f"""\
c.?resources.?limits.orValue({{}}).transformList(name, amount,
    ({cel.fits("name", exposure.VIEWS)}) && quantity(amount).isGreaterThan(quantity('0')),
    {finding})"""
    return cel.sentence_per_container(containers, "c.?resources.hasValue()", findings)


def _device_list_findings(containers: str) -> str:
    finding = cel.sentence(
        f"'spec.{containers}[' + string(i) + '].volumeMounts[' + string(j) + '].mountPath'",
        cel.text(rule.LISTED),
        rule.ID,
        container="c.name",
        value=cel.quoted_value("m.mountPath"),
        remedy=cel.text(rule.REQUEST_INSTEAD),
    )
    findings = f"""\
c.?volumeMounts.orValue([]).transformList(j, m,
    m.mountPath.contains({cel.text(exposure.DEVICE_LIST)}),
    {finding})"""
    return cel.sentence_per_container(containers, "!(c.name in variables.existing)", findings)


def _host_path_findings(containers: str) -> str:
    path = "v.hostPath.path"
    before, after = map(cel.text, rule.LEADS_TO_GPUS)
    finding = cel.sentence(
        "'spec.volumes[' + string(i) + '].hostPath.path'",
        f"""{before} +
      ({containers}).filter(c, c.?volumeMounts.orValue([]).exists(m, m.name == v.name))[0].name + {after}""",
        rule.ID,
        value=cel.quoted_value(path),
        remedy=cel.text(rule.REQUEST_INSTEAD),
    )
    return f"""\
{POD}.spec.?volumes.orValue([]).transformList(i, v,
  v.?hostPath.?path.orValue('') != '' && {_mounts(containers)} &&
    [{_canonical(path)}].exists(p,
      variables.nodePaths.exists(prefix, p.startsWith(prefix) || prefix.startsWith(p)) ||
      p.matches(r'{exposure.OTHER_ROOT}')),
  {finding})"""


def _annotation_findings(condition: str = "true") -> str:
    finding = cel.sentence(
        "'metadata.annotations[' + key + ']'",
        cel.text(rule.ANNOTATED),
        rule.ID,
        value=cel.quoted_value("value"),
        remedy=cel.text(rule.REQUEST_INSTEAD),
    )
    return f"""\
{POD}.metadata.?annotations.orValue({{}}).transformList(key, value,
  key.matches(r'{exposure.DEVICE_ANNOTATIONS}') && {condition},
  {finding})"""


def _gpu_tolerations(gpu_taints: Iterable[Toleration]) -> str:
    """Return the indexes of the tolerations that admit the pod to GPU nodes (`gpu_isolation.tolerated_gpu_taint`)."""
    fields = ("key", "operator", "value", "effect")
    literals = (
        ", ".join(f"{cel.text(name)}: {cel.text(getattr(taint, name) or '')}" for name in fields)
        for taint in gpu_taints
    )
    taints = ",\n    ".join(f"{{{literal}}}" for literal in dict.fromkeys(literals))
    return f"""\
{POD}.spec.?tolerations.orValue([]).transformList(i, t,
  [
    {taints}
  ].exists(taint,
    (t.?effect.orValue('') == '' || taint.effect == '' || t.effect == taint.effect) &&
    (t.?key.orValue('') == ''
      ? t.?operator.orValue('') == 'Exists'
      : t.key == taint.key && (t.?operator.orValue('') == 'Exists' || taint.operator == 'Exists' ||
                               ({cel.tolerates_value("t", "taint.value")})))),
  i)"""


_MADE_BY_DAEMONSET = f"""\
request.userInfo.username == {cel.text(DAEMONSET_CONTROLLER)} ||
(request.userInfo.username == {cel.text(CONTROLLER_MANAGER)} &&
 {POD}.metadata.?ownerReferences.orValue([]).exists(o,
   o.?controller.orValue(false) && o.kind == 'DaemonSet' && o.apiVersion.startsWith('apps/')))"""


def _value_from_warnings(containers: str) -> str:
    """Return warnings about valueFrom and envFrom in containers that request GPUs, or that a fraction scheduler serves."""
    prefix = cel.text(exposure.DOCKER_RESOURCE)

    def finding(field: str, remedy: str) -> str:
        path = f"'spec.{containers}[' + string(i) + '].{field}[' + string(j) + ']'"
        return cel.sentence(path, cel.text(rule.UNREAD), rule.ID, remedy=cel.text(remedy), container="c.name")

    findings = f"""\
(c.?env.orValue([]).transformList(j, e,
    c.name in variables.requesting && e.?valueFrom.hasValue() &&
      (e.name in variables.visibleDevices || e.name.startsWith({prefix})) &&
      !c.?resources.?limits.orValue({{}}).exists(r, !(r in {POD}.metadata.?annotations.orValue({{}})) &&
        e.valueFrom.?fieldRef.?fieldPath.orValue('') == "metadata.annotations['" + r + "']"),
    {finding("env", rule.REMOVE_VARIABLE)}) +
  c.?envFrom.orValue([]).transformList(j, f,
    (c.name in variables.requesting || !c.?env.orValue([]).exists(e, e.name == {cel.text(rule.VARIABLE)})) &&
      (f.?prefix.orValue('').startsWith({prefix}) ||
        (variables.visibleDevices + [{prefix}]).exists(name, name.startsWith(f.?prefix.orValue('')))),
    {finding("envFrom", rule.NAME_VARIABLES)}))"""
    return cel.sentence_per_container(
        containers, "c.name in variables.requesting || c.name == variables.fractionContainer", findings
    )


def _privileged_warnings(containers: str) -> str:
    finding = cel.sentence(
        f"'spec.{containers}[' + string(i) + '].securityContext.privileged'",
        cel.text(rule.PRIVILEGED),
        rule.ID,
        container="c.name",
        value="""' = "true"'""",
        remedy=cel.text(rule.REMOVE_PRIVILEGED),
    )
    return f"""\
{POD}.spec.?{containers}.orValue([]).transformList(i, c,
  (variables.requestsGPUs || variables.tolerated.size() > 0) && c.?securityContext.?privileged.orValue(false),
  {finding})"""


_FIRST_TOLERATION = "'spec.tolerations[' + string(variables.tolerated[0]) + ']'"
_TOLERATION_WARNING = f"""\
(variables.requestsGPUs || variables.tolerated.size() == 0 || variables.madeByDaemonSet ? [] : [
  {cel.sentence(_FIRST_TOLERATION, cel.text(rule.TOLERATED), rule.ID, remedy=cel.text(rule.REMOVE_TOLERATION))}])"""
