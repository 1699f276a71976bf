"""Everything that is exported: the objects of every policy and rule that CEL can express, and what it cannot, with the reason."""

from collections.abc import Collection, Iterator
from datetime import datetime

import msgspec

from policies.pods.pod import Toleration
from policies.policy import Binding
from policies.rule import Mode
from policies.rules import gpu_class, gpu_isolation, gpu_requests, gpu_toleration
from webhook.configuration.loader import Configuration
from webhook.tools.export import gpu_class as gpu_class_cel
from webhook.tools.export import gpu_isolation as gpu_isolation_cel
from webhook.tools.export import gpu_requests as gpu_requests_cel
from webhook.tools.export import gpu_toleration as gpu_toleration_cel
from webhook.tools.export import scope
from webhook.tools.export import unsupported as gaps
from webhook.tools.export.objects import (
    Check,
    Injection,
    Object,
    Place,
    check_objects,
    injection_objects,
)
from webhook.tools.export.scope import Governed
from webhook.tools.export.templates import inexpressible
from webhook.tools.export.unsupported import Unsupported
from webhook.workloads.kinds import WORKLOADS

EXPRESSIBLE = (gpu_requests.RULE.id, gpu_class.RULE.id, gpu_toleration.RULE.id, gpu_isolation.RULE.id)


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be exported, and for which API server. `mutations` is the version of MutatingAdmissionPolicy, if it has any."""

    now: datetime
    mutations: str | None = "v1"
    rules: Collection[str] = EXPRESSIBLE
    excluded: tuple[str, ...] = ()


class AdmissionPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """`objects` to be applied, by name; what is not in them; and what in them was true only at the time of the export."""

    objects: tuple[Object, ...]
    gaps: tuple[Unsupported, ...]
    ending: tuple[str, ...]


def backstop(configuration: Configuration, wish: ExportOptions) -> AdmissionPolicies:
    objects: list[Object] = []
    found: dict[Unsupported, None] = {}
    ending: list[str] = []
    for each in scope.governed(configuration.policies):
        ending += scope.time_dependent(each.policy, wish.now)
        for binding in each.bindings:
            found.update(dict.fromkeys(gaps.of_binding(binding, inexpressible(WORKLOADS))))
            if binding.rule.id in EXPRESSIBLE and binding.rule.id in wish.rules:
                _export(configuration, wish, each, binding, objects, found)
    objects.sort(key=lambda each: (each["metadata"]["name"], each["kind"]))
    return AdmissionPolicies(objects=tuple(objects), gaps=tuple(found), ending=tuple(ending))


def _export(
    configuration: Configuration,
    wish: ExportOptions,
    governed: Governed,
    binding: Binding,
    objects: list[Object],
    found: dict[Unsupported, None],
) -> None:
    policy = governed.policy
    not_exempted = scope.exempted(policy, binding.rule.id, wish.now)
    if not_exempted is None:
        return
    held = scope.mode(policy, binding, wish.now)
    place = Place(
        policy=policy.name,
        rule=binding.rule.id,
        version=configuration.version,
        scope=governed.scope + not_exempted,
        excluded=wish.excluded,
    )
    for piece in pieces(configuration, governed, binding):
        if isinstance(piece, Check):
            templates = policy.spec.templates if piece.of_templates else None
            objects += check_objects(piece, place, [scope.action(held, piece.severity, templates)])
        elif wish.mutations is None:
            found[gaps.without_mutations(binding.rule.id)] = None
        elif held is Mode.ENFORCE:
            objects += injection_objects(piece, place, wish.mutations)
        else:
            found[gaps.not_injected(policy.name, binding, held.value)] = None


def pieces(configuration: Configuration, governed: Governed, binding: Binding) -> Iterator[Check | Injection]:
    """Yield what the rule comes to with these options; nothing for a rule that CEL cannot express."""
    resource_mapping, classes, options = (
        configuration.resource_mapping,
        configuration.classes,
        binding.options,
    )
    if isinstance(options, gpu_requests.GPURequestsOptions):
        yield from gpu_requests_cel.pieces(resource_mapping, options, WORKLOADS)
    elif isinstance(options, gpu_class.GPUClassOptions):
        yield from gpu_class_cel.pieces(resource_mapping, options, classes)
    elif isinstance(options, gpu_toleration.GPUTolerationOptions):
        yield from gpu_toleration_cel.pieces(resource_mapping, options.tolerations, classes)
    elif isinstance(options, gpu_isolation.GPUIsolationOptions):
        yield from gpu_isolation_cel.pieces(resource_mapping, _gpu_taints(configuration, governed))


def _gpu_taints(configuration: Configuration, governed: Governed) -> Iterator[Toleration]:
    """Yield the taints of GPU nodes as `gpu_isolation.gpu_taints` finds them."""
    yield gpu_toleration.NVIDIA_GPU
    for binding in governed.bindings:
        if isinstance(binding.options, gpu_toleration.GPUTolerationOptions):
            yield from binding.options.tolerations
    for gpu_class_ in configuration.classes:
        yield from gpu_class_.tolerations
