"""gpu-isolation in CEL: for every pod, also those that never reach the webhook, and for ephemeral containers.

An ephemeral container cannot request a GPU, so each gets `void`; a tool that must see the GPU of a pod runs inside the container
that has it (kubectl exec).
"""

from collections.abc import Iterable, Iterator

from policies.finding import Severity
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.pod import Toleration
from policies.rules import gpu_isolation as rule
from webhook.serving.admission import CONTROLLER_MANAGER, DAEMONSET_CONTROLLER
from webhook.tools.export.cel import (
    ASKS,
    CONTAINERS,
    NOT_A_MIRROR_POD,
    POD,
    gpu_names,
    indented,
    is_fraction_pod,
    pod_asks,
    quoted_value,
    sentence,
    text,
    texts,
)
from webhook.tools.export.objects import EPHEMERAL_CONTAINERS, PODS, MutationFragment, ValidationFragment

LISTS = ("containers", "initContainers")
EPHEMERAL = ("ephemeralContainers",)

_NAMES, _PREFIXES = "|".join(sorted(rule.GPU_DEVICES)), "|".join(rule.GPU_DEVICE_PREFIXES)
GPU_DEVICE_PATHS = (r"^(/+\.?)+$", rf"^(\.?/)*dev((/+\.?)*|(/+\.)*/+(({_NAMES})(/.*)?|({_PREFIXES}).*))$")
"""What `holds_gpu_devices` says, as expressions: all of /, all of /dev, or a GPU in it. The API server refuses `..` in a path."""


def fragments(
    resource_mapping: ResourceMapping, gpu_taints: Iterable[Toleration]
) -> Iterator[ValidationFragment | MutationFragment]:
    """Yield what gpu-isolation comes to; `gpu_taints` are the taints of GPU nodes, as tolerations."""
    fraction = f"!({is_fraction_pod(resource_mapping)})"
    gpus = gpu_names(CONTAINERS, resource_mapping)
    asking = f"({CONTAINERS}).filter(c,\n  {indented(ASKS, 2)}).map(c, c.?name.orValue(''))"
    before = "dyn(oldObject).spec.?ephemeralContainers.orValue([]).map(c, c.name)"
    yield MutationFragment(
        part="gpu-isolation.void",
        description=f"Containers that request no GPU get {rule.VARIABLE}={rule.VOID}, unless they set the variable themselves.",
        resources=(PODS,),
        conditions=(NOT_A_MIRROR_POD, ("not-a-fraction-pod", fraction)),
        variables=(gpus, ("spared", asking)),
        patch=" +\n".join(_void(name) for name in LISTS),
    )
    yield MutationFragment(
        part="gpu-isolation.void-ephemeral",
        description=f"Ephemeral containers, which cannot request a GPU, get {rule.VARIABLE}={rule.VOID}.",
        resources=(EPHEMERAL_CONTAINERS,),
        conditions=(("not-a-fraction-pod", fraction),),
        variables=(("spared", before),),
        patch=_void(*EPHEMERAL),
    )
    yield ValidationFragment(
        part="gpu-isolation.exposed",
        description="No container sees GPUs that it did not request, by a variable or as files of the node.",
        resources=(PODS,),
        conditions=(NOT_A_MIRROR_POD,),
        variables=(("isFraction", is_fraction_pod(resource_mapping)), gpus, ("spared", asking)),
        findings=" +\n".join((*map(_exposed, LISTS), _mounted(CONTAINERS))),
    )
    yield ValidationFragment(
        part="gpu-isolation.exposed-ephemeral",
        description="No ephemeral container sees GPUs, by a variable or as files of the node.",
        resources=(EPHEMERAL_CONTAINERS,),
        variables=(("isFraction", is_fraction_pod(resource_mapping)), ("spared", before)),
        findings=" +\n".join((*map(_exposed, EPHEMERAL), _mounted(_ADDED))),
    )
    yield _advice(resource_mapping, gpu_taints)


_ADDED = f"{POD}.spec.?ephemeralContainers.orValue([]).filter(c, !(c.name in variables.spared))"


def _void(containers: str) -> str:
    """Return the operations that add the variable to the containers of that list which are not spared."""
    variable = f"{{'name': {text(rule.VARIABLE)}, 'value': {text(rule.VOID)}}}"
    return f"""\
{POD}.spec.?{containers}.orValue([]).transformList(i, c,
  !(c.?name.orValue('') in variables.spared) && !c.?env.orValue([]).exists(e, e.name == {text(rule.VARIABLE)}),
  c.?env.hasValue()
    ? JSONPatch{{op: 'add', path: '/spec/{containers}/' + string(i) + '/env/-', value: {variable}}}
    : JSONPatch{{op: 'add', path: '/spec/{containers}/' + string(i) + '/env', value: [{variable}]}})"""


def _exposed(containers: str) -> str:
    finding = sentence(
        f"'spec.{containers}[' + string(i) + '].env[' + string(j) + ']'",
        text(rule.EXPOSED),
        rule.ID,
        container="c.name",
        value=f"(e.?value.hasValue() ? {quoted_value('e.value')} : '')",
        remedy=text(f"{rule.REQUEST_GPUS} or remove the variable"),
    )
    return f"""\
(variables.isFraction ? [] : {POD}.spec.?{containers}.orValue([])).transformList(i, c,
  !(c.name in variables.spared),
  c.?env.orValue([]).transformList(j, e,
    e.name == {text(rule.VARIABLE)} && (e.?valueFrom.hasValue() || !(e.?value.orValue('') in {texts(sorted(rule.HARMLESS))})),
    {finding}).join('; ')).filter(finding, finding != '')"""


def _mounted(containers: str) -> str:
    path = "v.hostPath.path"
    holds_gpu_devices = " || ".join(f"{path}.matches(r'{regex}')" for regex in GPU_DEVICE_PATHS)
    finding = sentence(
        "'spec.volumes[' + string(i) + '].hostPath.path'",
        f"""'must not hold GPU devices of the node (mounted by container "' + ({containers})
      .filter(c, c.?volumeMounts.orValue([]).exists(m, m.name == v.name)).map(c, c.name).join('", "') +
    '"): nothing counts or reserves them'""",
        rule.ID,
        value=quoted_value(path),
        remedy=text(f"{rule.REQUEST_GPUS}, which mounts their devices"),
    )
    return f"""\
{POD}.spec.?volumes.orValue([]).transformList(i, v,
  v.?hostPath.?path.hasValue() && ({holds_gpu_devices}) &&
    ({containers}).exists(c, c.?volumeMounts.orValue([]).exists(m, m.name == v.name)),
  {finding})"""


# ---- advice


def _advice(resource_mapping: ResourceMapping, gpu_taints: Iterable[Toleration]) -> ValidationFragment:
    return ValidationFragment(
        part="gpu-isolation.advice",
        description="Privileged containers on GPU nodes, and pods there that request no GPU, are reported.",
        severity=Severity.WARNING,
        resources=(PODS,),
        conditions=(NOT_A_MIRROR_POD,),
        variables=(
            *pod_asks(resource_mapping),
            ("tolerated", _tolerated(gpu_taints)),
            ("madeByDaemonSet", _MADE_BY_DAEMONSET),
        ),
        findings=" +\n".join((*map(_privileged, LISTS), _TOLERATING)),
    )


def _tolerated(gpu_taints: Iterable[Toleration]) -> str:
    """Return the indexes of the tolerations that admit the pod to GPU nodes (`gpu_isolation.admits`)."""
    taints = ",\n    ".join(dict.fromkeys(map(_taint, gpu_taints)))
    return f"""\
{POD}.spec.?tolerations.orValue([]).transformList(i, t,
  [
    {taints}
  ].exists(taint,
    (t.?effect.orValue('') == '' || taint.effect == '' || t.effect == taint.effect) &&
    (t.?key.orValue('') == ''
      ? t.?operator.orValue('') == 'Exists'
      : t.key == taint.key && (t.?operator.orValue('') == 'Exists' || taint.operator == 'Exists' ||
                               t.?value.orValue('') == taint.value))),
  i)"""


def _taint(toleration: Toleration) -> str:
    fields = ("key", "operator", "value", "effect")
    members = (f"{text(name)}: {text(getattr(toleration, name) or '')}" for name in fields)
    return f"{{{', '.join(members)}}}"


_MADE_BY_DAEMONSET = f"""\
request.userInfo.username == {text(DAEMONSET_CONTROLLER)} ||
(request.userInfo.username == {text(CONTROLLER_MANAGER)} &&
 {POD}.metadata.?ownerReferences.orValue([]).exists(o,
   o.?controller.orValue(false) && o.kind == 'DaemonSet' && o.apiVersion.startsWith('apps/')))"""


def _privileged(containers: str) -> str:
    finding = sentence(
        f"'spec.{containers}[' + string(i) + '].securityContext.privileged'",
        text(rule.PRIVILEGED),
        rule.ID,
        container="c.name",
        value="""' = "true"'""",
        remedy=text(rule.REMOVE_PRIVILEGED),
    )
    return f"""\
{POD}.spec.?{containers}.orValue([]).transformList(i, c,
  (variables.asks || variables.tolerated.size() > 0) && c.?securityContext.?privileged.orValue(false),
  {finding})"""


_FIRST_TOLERATION = "'spec.tolerations[' + string(variables.tolerated[0]) + ']'"
_TOLERATING = f"""\
(variables.asks || variables.tolerated.size() == 0 || variables.madeByDaemonSet ? [] : [
  {sentence(_FIRST_TOLERATION, text(rule.TOLERATED), rule.ID, remedy=text(rule.REMOVE_TOLERATION))}])"""
