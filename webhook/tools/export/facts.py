"""The facts of the templates: CEL made of the tables that the rules read, so that both always say the same."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

import msgspec

from policies.finding import VALUE_LENGTH
from policies.gpus import exposure, fraction_annotations, unmapped, vendors
from policies.gpus.amount import NAME_SLOT
from policies.gpus.cards import MAX_RESOURCES
from policies.gpus.classes import GPUClasses
from policies.gpus.mapping_spec import DEVICE_CLASS_PREFIX, Measure, ResourcePattern
from policies.gpus.resource_limits import ResourceLimits, limit_for, limits_by_pattern
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.vendor import HIDING
from policies.placement import nodes
from policies.placement.class_advice import alternatives_in_words, first_few
from policies.placement.class_options import class_matches
from policies.placement.class_selection import node_label_values
from policies.placement.given_tolerations import toleration_for_resource
from policies.placement.pinning import classes_of_label
from policies.pods import limits, tolerations
from policies.pods.pod import PodSpec, Toleration
from policies.rule import Mode, RuleOptions
from policies.rules import gpu_class, gpu_isolation, gpu_requests, gpu_toleration, max_runtime
from webhook.configuration.loader import Configuration
from webhook.tools.export.templates import glob_cel, literal, text
from webhook.workloads import creators

MAX_NAMES_IN_MESSAGE = 500
"""Maximum of variables, mounts, volumes and annotations in a message that lists all wrong ones: a longer one would be cut."""
PERCENTAGES = frozenset({Measure.MEMORY_PERCENT, Measure.CORE_PERCENT})


def common_facts(configuration: Configuration) -> dict[str, str]:
    """Return the facts of every rule of every policy."""
    classes = configuration.classes
    return {
        **_constants(creators, fraction_annotations, tolerations, exposure, nodes),
        **_limit_facts(),
        **_mapping_facts(configuration.resource_mapping),
        "longest-value": str(VALUE_LENGTH),
        "cut-at": str(VALUE_LENGTH - 1),
        "class-labels": literal(_classes_by_label(classes)),
        "class-names": literal(each.name for each in classes),
    }


def facts_of(options: RuleOptions, configuration: Configuration) -> dict[str, str]:
    """Return the facts of a rule of a policy, which has these options."""
    classes = configuration.classes
    if isinstance(options, gpu_requests.GPURequestsOptions):
        return _gpu_requests_facts(options, classes)
    if isinstance(options, gpu_class.GPUClassOptions):
        return _gpu_class_facts(options, classes)
    if isinstance(options, max_runtime.MaxRuntimeOptions):
        return _max_runtime_facts(options, classes)
    if isinstance(options, gpu_toleration.GPUTolerationOptions):
        return {"listed-tolerations": _listed_tolerations(options, classes)}
    return _gpu_isolation_facts(configuration.resource_mapping)


def _limit_facts() -> dict[str, str]:
    """Return the limits of `policies.pods.limits`, and that of GPU resources."""
    numbers = {name: str(value) for name, value in vars(limits).items() if isinstance(value, int)}
    names = dict(zip(PodSpec.__struct_fields__, PodSpec.__struct_encode_fields__, strict=True))
    return {
        **numbers,
        "POD_LIMITS": literal({names[field]: most for field, most in limits.POD_LIMITS.items()}),
        "lists-are-short": " && ".join(
            f"dyn(object).spec.?{names[field]}.orValue([]).size() <= {most}"
            for field, most in limits.POD_LIMITS.items()
        ),
        "TERMS": limits.REQUIRED_TERMS,
        "MAX_GPU_RESOURCES": str(MAX_RESOURCES),
        "most-named": str(MAX_NAMES_IN_MESSAGE),
    }


def _constants(*modules: ModuleType) -> dict[str, str]:
    """Return the texts and lists of texts that the modules name in capitals, and of lists each text: `NAME.0`."""
    found: dict[str, str] = {}
    for name, value in (each for module in modules for each in vars(module).items() if each[0].isupper()):
        if isinstance(value, str):
            found[name] = text(value)
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            found[name] = literal(value)
            found |= {f"{name}.{at}": text(item) for at, item in enumerate(value)}
    return found


def _mapping_facts(mapping: ResourceMapping) -> dict[str, str]:
    fractions = [key for key in mapping.fraction_annotations if not key.measure.is_count]
    return {
        **_meaning_facts(mapping),
        "fraction-keys": literal({key.key: key.resource for key in mapping.fraction_annotations}),
        "fraction-schedulers": literal(mapping.fraction_schedulers),
        "fraction-annotations": literal([key.key, key.resource] for key in fractions),
        "taint-of-card": _toleration_cel(toleration_for_resource("")).replace(
            "'key': dyn('')", "'key': dyn(k)"
        ),
    }


def _meaning_facts(mapping: ResourceMapping) -> dict[str, str]:
    """Return what names of resources, and patterns by their domains, mean: see shared.yaml."""
    names: dict[str, list[str]] = {}
    patterns: dict[str, list[list[str]]] = defaultdict(list)
    for pattern in mapping.patterns:
        if "*" in pattern.pattern:
            patterns[pattern.pattern.partition("/")[0]].append(
                [*_meaning_of(pattern), *pattern.pattern.split("*")]
            )
        elif (first := mapping.first_pattern(pattern.pattern)[0]) is not None:
            names[pattern.pattern] = _meaning_of(first)
    return {"meanings": literal(names), "patterns": literal(patterns)}


def _meaning_of(pattern: ResourcePattern) -> list[str]:
    # Where no other resource counts the cards, 200 percent are two of them.
    is_percentage = pattern.measure in PERCENTAGES and pattern.resource is not None
    counts = "percent" if is_percentage else "number" if pattern.measure.is_count else "part"
    names_card = pattern.measure.is_count and not pattern.pattern.startswith(DEVICE_CLASS_PREFIX)
    card = pattern.resource or ("*" if names_card else "")
    return ["nothing" if pattern.measure is Measure.NOTHING else counts, card]


# ---- gpu-requests


def _gpu_requests_facts(options: gpu_requests.GPURequestsOptions, classes: GPUClasses) -> dict[str, str]:
    problems = {"too-large": gpu_requests.TOO_LARGE_AMOUNT, "over-100-percent": gpu_requests.OVER_100_PERCENT}
    sentences = {name: f"{problem.remedy}; {problem.message}" for name, problem in problems.items()}
    stated = [*_maxima(options.max_per_container), *_maxima(options.max_per_pod)]
    return {
        **{name: " + name + ".join(map(text, said.split(NAME_SLOT))) for name, said in sentences.items()},
        "lowest-limit": str(min([MAX_RESOURCES, *(limit for limit in stated if limit is not None)])),
        "most-per-container": _limit_cel(options.max_per_container, classes),
        "most-per-pod": _limit_cel(options.max_per_pod, classes),
    }


def _maxima(limits: ResourceLimits) -> Iterable[int | None]:
    return limits.values() if isinstance(limits, Mapping) else (limits,)


def _limit_cel(limits: ResourceLimits, classes: GPUClasses) -> str:
    """Return the limit of the resource `name`, -1 without one.

    If it depends on the class, it is the largest of the classes to which the pod pins itself, or of all.
    """
    if not isinstance(limits, Mapping):
        return literal(_or_minus_one(limits))
    cases = [(glob_cel("name", [name]), str(maximum)) for name, maximum in limits_by_pattern(limits)]
    by_class = {each.resource for each in classes if each.name in limits or each.family in limits}
    for resource in sorted(by_class):
        requested = GPUResource(resource, Measure.DEVICES)
        maxima = {
            each.name: limit_for(limits, requested, [each]) for each in classes if each.resource == resource
        }
        of_others = limit_for(limits, requested, [])  # of a pod without a class
        stated = [maximum for maximum in (*maxima.values(), of_others) if maximum is not None]
        largest = max(stated) if len(stated) > len(maxima) else None
        by_class_name = literal({name: _or_minus_one(maximum) for name, maximum in maxima.items()})
        of_pinned = f"[{by_class_name}].map(by, variables.pinned.filter(c, c in by).map(c, by[c]))[0]"
        chosen = (
            f"each.size() == 0 ? {_or_minus_one(largest)} : each.exists(most, most < 0) ? -1 : each.max()"
        )
        cases.insert(
            0, (glob_cel("name", [resource]), f"[variables.pins ? {of_pinned} : []].map(each, {chosen})[0]")
        )
    return " ".join([*(f"{condition} ? {maximum} :" for condition, maximum in cases), "-1"])


# ---- gpu-class, max-runtime


def _gpu_class_facts(options: gpu_class.GPUClassOptions, classes: GPUClasses) -> dict[str, str]:
    allowed = [each for each in classes if class_matches(each, options.allowed)]
    values = [value for each in allowed for value in node_label_values(each, options.label_key)]
    names = alternatives_in_words(first_few(values))
    return {
        "forbidden-classes": literal(each.name for each in classes if each not in allowed),
        "pin-instead": text(
            f"set nodeSelector {options.label_key}: {names}" if values else "remove the constraint"
        ),
        "is-enforced": literal(options.mode is Mode.ENFORCE),
    }


def _max_runtime_facts(options: max_runtime.MaxRuntimeOptions, classes: GPUClasses) -> dict[str, str]:
    by_class = {each.name: _or_minus_one(options.limits_for_class(each)[1]) for each in classes}
    return {
        "longest-of-all": literal(_or_minus_one(options.limits_for_class(None)[1])),
        "longest-by-class": literal(by_class),
        "exempt-kinds": literal(options.exempt.kinds),
        "is-enforced": literal(options.mode is Mode.ENFORCE),
        "LONGEST": text(max_runtime.LONGEST),
    }


def _or_minus_one(limit: int | None) -> int:
    """Return the limit, -1 where there is none."""
    return -1 if limit is None else limit


# ---- gpu-toleration


def _listed_tolerations(options: gpu_toleration.GPUTolerationOptions, classes: GPUClasses) -> str:
    conditional = [
        (f"variables.cards.exists(k, k.startsWith({text(domain + '/')}))", tolerations)
        for domain, tolerations in options.by_vendor.items()
    ]
    conditional += [
        (f"variables.pins && {text(each.name)} in variables.pinned", each.tolerations)
        for each in classes
        if each.tolerations
    ]
    parts = [
        _tolerations_cel(options.tolerations),
        *(f"({c} ? {_tolerations_cel(t)} : [])" for c, t in conditional),
    ]
    return " +\n  ".join(parts)


def _tolerations_cel(tolerations: Sequence[Toleration]) -> str:
    joined = ",\n  ".join(map(_toleration_cel, tolerations))
    return f"[\n  {joined}]" if tolerations else "[]"


def _toleration_cel(toleration: Toleration) -> str:
    """Return the toleration as a map; its values are of several types, so each is `dyn`."""
    fields = msgspec.to_builtins(toleration)
    members = (f"{text(name)}: dyn({literal(v)})" for name, v in fields.items())
    return f"{{{', '.join(members)}}}"


def _classes_by_label(classes: GPUClasses) -> dict[str, dict[str, list[str]]]:
    """Return the classes by key and value of their nodes' labels. Where values are class names, families are values, too."""
    found = {}
    for key in sorted(classes.label_keys):
        labels = (label for each in classes for label in each.node_labels if label.key == key)
        values = {value for label in labels for value in label.values} | {each.family for each in classes}
        by_value = {value: sorted(classes_of_label(key, value, classes)) for value in sorted(values)}
        found[key] = {value: names for value, names in by_value.items() if names}
    return found


# ---- gpu-isolation


def _gpu_isolation_facts(mapping: ResourceMapping) -> dict[str, str]:
    own_values = {
        name: vendor.hiding_values
        for vendor in vendors.VENDORS
        if vendor.hiding_values != HIDING
        for name in vendor.visible_devices
    }
    return {
        **_constants(gpu_isolation, unmapped, vendors),
        "own-hiding-values": literal(own_values),
        "is-view": glob_cel("name", exposure.MONITOR_RESOURCES),
        "other-schedulers": literal(mapping.other_schedulers),
    }
