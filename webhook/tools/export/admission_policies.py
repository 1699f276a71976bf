"""The export: the objects of every policy and rule that CEL can express, what is left to the webhook and why, and their text."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from textwrap import wrap
from typing import Any

import msgspec
import yaml

from policies.placement.class_choice import ANY
from policies.pods.pod import Toleration
from policies.policy import Binding
from policies.printable import printable_json, printable_lines, printable_yaml
from policies.rule import Mode
from policies.rules import (
    gpu_class,
    gpu_isolation,
    gpu_quota,
    gpu_requests,
    gpu_toleration,
    model_warming,
    readiness_delay,
    shared_memory,
)
from webhook.cluster.objects import timestamp
from webhook.configuration.loader import Configuration
from webhook.tools.export import gpu_class as gpu_class_cel
from webhook.tools.export import gpu_isolation as gpu_isolation_cel
from webhook.tools.export import gpu_requests as gpu_requests_cel
from webhook.tools.export import gpu_toleration as gpu_toleration_cel
from webhook.tools.export import scope
from webhook.tools.export.objects import (
    LABELS,
    ExportedRule,
    MutationFragment,
    Object,
    ValidationFragment,
    mutating_objects,
    validating_objects,
)
from webhook.tools.export.scope import Governed
from webhook.tools.export.templates import INEXPRESSIBLE

EXPRESSIBLE = (gpu_requests.RULE.id, gpu_class.RULE.id, gpu_toleration.RULE.id, gpu_isolation.RULE.id)
WIDTH = 110
SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items() if not name.endswith("/name"))


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to export, and for which API server. `mutations` is the version of MutatingAdmissionPolicy, None where it has none."""

    now: datetime
    mutations: str | None = "v1"
    rules: Collection[str] = EXPRESSIBLE
    excluded: tuple[str, ...] = ()


class Unsupported(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is not exported: of which rule, what of it, why; `policy` if that depends on the policy."""

    rule: str
    what: str
    why: str
    policy: str = ""

    def __str__(self) -> str:
        subject = f"{self.rule} of policy {self.policy}" if self.policy else self.rule
        return f"{subject}: {self.what}: {self.why}"


class AdmissionPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """`objects` to apply, by name; what is not in them; what in them holds only for a time. `version`: of the configuration."""

    version: str
    as_of: datetime
    objects: tuple[Object, ...]
    unsupported: tuple[Unsupported, ...]
    ending: tuple[str, ...]


def export_policies(configuration: Configuration, options: ExportOptions) -> AdmissionPolicies:
    objects: list[Object] = []
    unsupported: dict[Unsupported, None] = {}
    ending: list[str] = []
    for governed in scope.governed(configuration.policies):
        ending += scope.time_dependent(governed.policy, options.now)
        for binding in governed.bindings:
            unsupported.update(dict.fromkeys(_never_exported(binding)))
            if binding.rule.id not in EXPRESSIBLE or binding.rule.id not in options.rules:
                continue
            for each in _exported(configuration, options, governed, binding):
                if isinstance(each, Unsupported):
                    unsupported[each] = None
                else:
                    objects += each
    objects.sort(key=lambda each: (each["metadata"]["name"], each["kind"]))
    return AdmissionPolicies(
        version=configuration.version,
        as_of=options.now,
        objects=tuple(objects),
        unsupported=tuple(unsupported),
        ending=tuple(ending),
    )


def _exported(
    configuration: Configuration, options: ExportOptions, governed: Governed, binding: Binding
) -> Iterator[list[Object] | Unsupported]:
    """Yield the objects of each fragment of the rule, or why there are none."""
    policy, rule_id = governed.policy, binding.rule.id
    not_exempted = scope.exempted(policy, rule_id, options.now)
    if not_exempted is None:
        return
    mode = scope.mode(policy, binding, options.now)
    where = governed.scope + not_exempted
    rule = ExportedRule(policy.name, rule_id, configuration.version, where, options.excluded)
    for fragment in _fragments(configuration, governed, binding):
        if isinstance(fragment, ValidationFragment):
            templates = policy.spec.templates if fragment.of_templates else None
            yield validating_objects(fragment, rule, scope.action(mode, fragment.severity, templates))
        elif options.mutations is None:
            why = "needs MutatingAdmissionPolicy: Kubernetes 1.36, or 1.34 where its beta is switched on"
            yield Unsupported(rule_id, "what it adds", why)
        elif mode is Mode.ENFORCE:
            yield mutating_objects(fragment, rule, options.mutations)
        else:
            why = f"mode {mode.value}: a policy of the API server can add, but not report what it would have added"
            yield Unsupported(rule_id, "what it adds", why, policy.name)


def _fragments(
    configuration: Configuration, governed: Governed, binding: Binding
) -> Iterator[ValidationFragment | MutationFragment]:
    """Yield what the rule becomes with these options; nothing for a rule that CEL cannot express."""
    mapping, classes, options = configuration.resource_mapping, configuration.classes, binding.options
    if isinstance(options, gpu_requests.GPURequestsOptions):
        yield from gpu_requests_cel.fragments(mapping, options, classes)
    elif isinstance(options, gpu_class.GPUClassOptions):
        yield from gpu_class_cel.fragments(mapping, options, classes)
    elif isinstance(options, gpu_toleration.GPUTolerationOptions):
        yield from gpu_toleration_cel.fragments(mapping, options, classes)
    elif isinstance(options, gpu_isolation.GPUIsolationOptions):
        yield from gpu_isolation_cel.fragments(mapping, _gpu_taints(configuration, governed))


def _gpu_taints(configuration: Configuration, governed: Governed) -> Iterator[Toleration]:
    """Yield the taints of GPU nodes as `gpu_isolation.tolerated_gpu_taint` finds them."""
    yield from map(gpu_toleration.resource_taint, sorted(configuration.resource_mapping.whole_cards))
    for binding in governed.bindings:
        if isinstance(binding.options, gpu_toleration.GPUTolerationOptions):
            yield from binding.options.listed
    for each in configuration.classes:
        yield from each.tolerations


# ---- what is left to the webhook


_ALL = "all of it"
_TEMPLATES = (
    "pod templates of workloads",
    "their pods are checked when they are created; a policy per kind would add nothing",
)

_STATIC: dict[str, tuple[tuple[str, str], ...]] = {
    gpu_requests.RULE.id: (
        (
            "slices that no class has, more slices or cards than a node has, another vendor's resource than the class's",
            "what a class has depends on where the pod can land, which is computed over the whole catalogue",
        ),
        (
            "the values of fraction annotations",
            "their scheduler refuses them itself; the pod gets no GPU by them",
        ),
        ("warnings", "about time-sliced shares and variables set by hand: the webhook gives this advice"),
        (
            "amounts finer than thousandths",
            "CEL compares quantities exactly, the API server rounds them up to thousandths",
        ),
    ),
    gpu_class.RULE.id: (
        (
            "the choice of a class by annotation, model size or default, and the nodeSelector for it",
            "it is computed from estimates over the catalogue; where classes are restricted, pods must pin themselves",
        ),
        (
            "annotations that contradict the pod's own placement, or name a class that lacks what the pod asks for",
            "follows from the choice",
        ),
        _TEMPLATES,
    ),
    gpu_toleration.RULE.id: (
        ("tolerations for devices by DRA", "CEL cannot look up for which DeviceClasses a claim asks"),
    ),
    gpu_isolation.RULE.id: (_TEMPLATES,),
    readiness_delay.RULE.id: (
        (_ALL, "the load time is estimated over the pod as a whole; without it probes stay as written"),
    ),
    shared_memory.RULE.id: (
        (_ALL, "its size is computed from the pod's memory; without it /dev/shm has 64 MiB"),
    ),
    model_warming.RULE.id: (
        (_ALL, "it adds a container that fetches the model; without it the server loads the model itself"),
    ),
    gpu_quota.RULE.id: ((_ALL, "it counts over all pods of a namespace, and CEL sees one object at a time"),),
}


def _never_exported(binding: Binding) -> Iterator[Unsupported]:
    """Yield what is never exported of this rule, with these options."""
    found, options = list(_STATIC.get(binding.rule.id, ())), binding.options
    if isinstance(options, gpu_requests.GPURequestsOptions):
        why = "they are assembled from several parts, or are in lists of lists, of which CEL can make no list"
        found.append((f"some or all pods of {', '.join(INEXPRESSIBLE)}", why))
        if any(isinstance(each, dict) for each in (options.max_per_container, options.max_per_pod)):
            found.append(
                ("limits by class", "the largest of a resource holds for every pod, whatever its class")
            )
        if options.complete_limits:
            found.append(("completeLimits", "without the webhook the API server itself rejects such pods"))
    if isinstance(options, gpu_class.GPUClassOptions) and ANY in options.allowed:
        found.append(("entitlement", "every class is allowed, so there is nothing to deny"))
    yield from (Unsupported(binding.rule.id, what, why) for what, why in found)


# ---- as text


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, and texts with quotes in them, as blocks."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _block(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Quoted, every quote inside would be doubled.
    style = "|" if "\n" in value or "'" in value else None
    style = style if printable_lines(value) == value else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _block)


def as_text(exported: AdmissionPolicies, output: str) -> str:
    """Return the objects as `yaml` documents under a comment, or as `json`."""
    return as_json(exported) if output == "json" else header(exported) + as_yaml(exported.objects)


def header(exported: AdmissionPolicies) -> str:
    """Return the comment that says what this is, what is not in it, and what of it ends by itself."""
    lines = [
        f"# Rules of gpu-admission as policies of the API server itself, from configuration {exported.version} "
        f"as of {timestamp(exported.as_of)}.",
        "# Generated by `gpu-admission export`: change the GPUPolicy documents and export again.",
        f"# Remove all of it: kubectl delete -l {SELECTOR} \\",
        "#   validatingadmissionpolicies,validatingadmissionpolicybindings,"
        "mutatingadmissionpolicies,mutatingadmissionpolicybindings",
        *_listed("CEL has no clock. Export again when this ends:", exported.ending),
        *_listed("Not in here:", map(str, exported.unsupported)),
    ]
    return "\n".join(lines) + "\n"


def _listed(title: str, items: Iterable[str]) -> Iterator[str]:
    for index, item in enumerate(items):
        if not index:
            yield from ("#", f"# {title}")
        yield from wrap(item, WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False)


def as_yaml(objects: tuple[Object, ...]) -> str:
    """Return the objects as YAML documents."""
    text = yaml.dump_all(
        objects, Dumper=_Dumper, explicit_start=True, sort_keys=False, allow_unicode=True, width=WIDTH
    )
    return printable_yaml(text)


def as_json(exported: AdmissionPolicies) -> str:
    """Return a List that kubectl applies, with `notExported`, `ending`, `configuration` and `asOf` beside its items."""
    document = {
        "apiVersion": "v1",
        "kind": "List",
        "configuration": exported.version,
        "asOf": timestamp(exported.as_of),
        "notExported": exported.unsupported,
        "ending": exported.ending,
        "items": exported.objects,
    }
    return printable_json(msgspec.json.format(msgspec.json.encode(document).decode(), indent=2)) + "\n"
