"""The export: objects of admissionregistration.k8s.io/v1 for all that CEL can express of policies, and why the rest is left out.

Each rule of a policy is an API server policy and its binding. The first GPUPolicy that matches a namespace governs it. CEL
evaluates every policy object, so each object excludes the namespaces that earlier policies match. CEL has no clock: pauses and
exemptions count as they are at the time of the export.

Which labels a policy selects becomes a namespaceSelector. Names of namespaces become match conditions. Labels of those that it
leaves out become a variable, because `namespaceObject` is null in match conditions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from textwrap import wrap
from typing import Any

import msgspec

from policies.placement.class_options import ANY
from policies.pods import limits
from policies.pods.label_selector import LabelSelector, Requirement
from policies.policy import BUILT_IN_POLICY, Match, Policy, PolicySet, end_of_pause
from policies.registry import RULES
from policies.rule import Mode, RuleOptions
from policies.rules import gpu_class, max_runtime
from policies.times import utc
from webhook.cluster.objects import EXPORTED_LABELS, EXPORTED_RULE_LABEL, timestamp
from webhook.configuration.loader import Configuration
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.export.facts import common_facts, facts_of
from webhook.tools.export.templates import EPHEMERAL, Facts, Fragment, fragments, glob_cel, literal, text

# ---- in which namespaces a rule holds

NAMESPACE = "request.namespace"
NAMESPACE_LABELS = "namespaceObject.metadata.?labels"


def policies_with_scope(policies: PolicySet) -> Iterator[tuple[Policy, tuple[str, ...]]]:
    """Yield each policy that governs some namespace, and where, of the namespaces that its selector selects.

    The last is the built-in one, unless a policy matches every namespace.
    """
    before: list[Match] = []
    for policy in (*policies.policies, BUILT_IN_POLICY):
        if any(match.matches_all for match in before):
            return
        yield policy, (glob_cel(NAMESPACE, policy.spec.match.namespaces), *_outside_conditions(before))
        before.append(policy.spec.match)


def unexempted_scope(policy: Policy, rule_id: str, now: datetime) -> tuple[str, ...] | None:
    """Return where the namespace is not exempted from the rule; None where every one is."""
    matches = [exemption for exemption in policy.spec.exemptions if exemption.exempts(rule_id, now)]
    return None if any(match.matches_all for match in matches) else _outside_conditions(matches)


def expiring_sentences(policy: Policy, now: datetime) -> Iterator[str]:
    """Yield the pause and the exemptions of the policy that end by themselves, in words for the header."""
    paused = end_of_pause(policy.spec.paused_until, now)
    if paused is not None:
        yield f"policy {policy.name} is paused until {utc(paused)}: its rules only audit"
    for exemption in policy.spec.exemptions:
        if exemption.until is not None and exemption.is_in_force(now):
            yield f"policy {policy.name} exempts {exemption} until the end of {exemption.until.isoformat()}"


def _outside_conditions(matches: Sequence[Match]) -> tuple[str, ...]:
    globs = [glob for match in matches if match.namespace_selector is None for glob in match.namespaces]
    labelled = (
        f"({glob_cel(NAMESPACE, match.namespaces)}) && {selector_condition(match.namespace_selector)}"
        for match in matches
        if match.namespace_selector is not None
    )
    return tuple(f"!({each})" for each in ([glob_cel(NAMESPACE, globs)] if globs else []) + list(labelled))


def selector_condition(selector: LabelSelector) -> str:
    """Return the condition that the labels of the namespace match the selector; an empty one matches everything."""
    wanted = [
        f"{_label_cel(key)} == optional.of({text(value)})" for key, value in selector.match_labels.items()
    ]
    wanted += map(_requirement_condition, selector.match_expressions)
    return f"({' && '.join(wanted) or 'true'})"


def _requirement_condition(requirement: Requirement) -> str:
    label = _label_cel(requirement.key)
    if requirement.operator == "Exists":
        return f"{label}.hasValue()"
    if requirement.operator == "DoesNotExist":
        return f"!{label}.hasValue()"
    among = f"{literal(requirement.values)}.exists(value, {label} == optional.of(value))"
    return among if requirement.operator == "In" else f"!{among}"


def _label_cel(key: str) -> str:
    return f"{NAMESPACE_LABELS}[?{text(key)}]"


ADMISSION_GROUP = "admissionregistration.k8s.io"
STATIC_SUFFIX = ".static.k8s.io"
"""Ends the names of objects in files of an API server, which no stored object may have."""
MAX_NAME_LENGTH = 253 - len(STATIC_SUFFIX)
Object = dict[str, Any]
PODS: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "operations": ["CREATE"],
    "scope": "Namespaced",
}

ACTIONS = {Mode.ENFORCE: "Deny", Mode.WARN: "Warn", Mode.AUDIT: "Audit"}
RESOURCE_RULES: Mapping[str, Object] = {
    "creations": PODS,
    "updates": {**PODS, "operations": ["UPDATE"]},
    EPHEMERAL: {**PODS, "resources": ["pods/ephemeralcontainers"], "operations": ["UPDATE"]},
}
"""What the API server asks a policy about, by `reviews` of its fragment."""


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to export.

    now: the time at which pauses and exemptions are evaluated. selector: the namespaceSelector of the exported policies.
    mutations: the version of MutatingAdmissionPolicy that the API server has.
    """

    now: datetime
    mutations: str = "v1"
    selector: LabelSelector = LabelSelector()


class ExportedRule(msgspec.Struct, frozen=True):
    """A rule of a policy, and the namespaces in which it holds: which `selector` selects, and where all of `scope` is true."""

    policy: str
    id: str
    mode: Mode
    scope: tuple[str, ...] = ()
    selector: LabelSelector = LabelSelector()


def policy_and_binding(
    fragment: Fragment, rule: ExportedRule, version: str, options: ExportOptions
) -> list[Object]:
    """Return both objects, as plain data. `version`: of the configuration."""
    constraints: Object = {"matchPolicy": "Equivalent", "resourceRules": [RESOURCE_RULES[fragment.reviews]]}
    if selected := [*_all_requirements(options.selector), *_all_requirements(rule.selector)]:
        constraints["namespaceSelector"] = {"matchExpressions": msgspec.to_builtins(selected)}
    variables, guard = list(fragment.variables.items()), ""
    if by_labels := [each for each in rule.scope if NAMESPACE_LABELS in each]:
        variables.insert(0, ("holds", " &&\n".join(by_labels)))
        guard = "!variables.holds ? [] :\n"
    spec: Object = {"failurePolicy": "Fail", "matchConstraints": constraints}
    by_name = (each for each in rule.scope if each not in {"true", *by_labels})
    if conditions := [*by_name, *fragment.conditions]:
        # An API server evaluates each match condition, whatever the others say. Of one, it stops at the first part that is false.
        spec["matchConditions"] = _named_expressions(
            [("applies", " &&\n".join(f"({condition})" for condition in conditions))]
        )
    if fragment.findings:
        kind, served, binding = "ValidatingAdmissionPolicy", "v1", {"validationActions": [ACTIONS[rule.mode]]}
        # Without text the message is that of the validation.
        unless_large = "variables.isLarge ? '' : " if "isLarge" in dict(variables) else ""
        validation = {
            "expression": "variables.findings.size() == 0",
            "messageExpression": f"{unless_large}variables.findings.join('; ')",
            "message": f"{fragment.description} [{rule.id}]",
            "reason": "Forbidden",
        }
        spec["validations"] = [validation]
        # Each is a variable: an expression may cost a million by itself.
        found = [(f"findings{number}", guard + finding) for number, finding in enumerate(fragment.findings)]
        variables += [*found, ("findings", " + ".join(f"variables.{name}" for name, _ in found))]
    else:
        kind, served, binding = "MutatingAdmissionPolicy", options.mutations, {}
        # A webhook may add a container afterwards; a second run adds nothing to what the first one has done.
        spec["reinvocationPolicy"] = "IfNeeded"
        patch = {"expression": f"{guard}{fragment.patch}\n"}
        spec["mutations"] = [{"patchType": "JSONPatch", "jsonPatch": patch}]
    spec["variables"] = _named_expressions(variables)
    name = ".".join(filter(None, ("gpu-admission", rule.policy, fragment.part)))
    if len(name) > MAX_NAME_LENGTH:
        ending = "." + sha256(name.encode()).hexdigest()[:12]
        name = name[: MAX_NAME_LENGTH - len(ending)].rstrip("-.") + ending
    metadata = {
        "name": name,
        "labels": {**EXPORTED_LABELS, EXPORTED_RULE_LABEL: rule.id},
        "annotations": {
            "gpu-admission.dev/description": fragment.description,
            "gpu-admission.dev/policy": rule.policy,
            "gpu-admission.dev/version": version,
        },
    }
    return [
        {"apiVersion": f"{ADMISSION_GROUP}/{served}", "kind": kind, "metadata": metadata, "spec": spec}
        for kind, spec in ((kind, spec), (f"{kind}Binding", {"policyName": name, **binding}))
    ]


def _all_requirements(selector: LabelSelector) -> Iterator[Requirement]:
    """Yield everything that a selector requires: two selectors may have one label."""
    yield from (Requirement(key, "In", (value,)) for key, value in selector.match_labels.items())
    yield from selector.match_expressions


def _named_expressions(expressions: Iterable[tuple[str, str]]) -> list[Object]:
    # With a line end each is a block in YAML; in quotes, every quote inside would be doubled.
    return [{"name": name, "expression": f"{expression}\n"} for name, expression in expressions]


UNUSED = "every policy disables it, limits nothing by it, or exempts every namespace from it"
ONLY_ADDS = "a policy of the API server can add, but not report what it would have added"
WIDTH = 110
SELECTOR = ",".join(
    f"{name}={value}" for name, value in EXPORTED_LABELS.items() if not name.endswith("/name")
)


class AdmissionPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an export.

    version: of the configuration. objects: to apply, sorted by name. rules: the ids of the exported rules.
    unsupported: which rules, and parts of rules, are not exported, and why. ending: pauses and exemptions that end by themselves.
    """

    version: str
    as_of: datetime
    objects: tuple[Object, ...]
    rules: tuple[str, ...]
    unsupported: tuple[str, ...]
    ending: tuple[str, ...]


def export_policies(configuration: Configuration, options: ExportOptions) -> AdmissionPolicies:
    common = common_facts(configuration)
    found = [
        (rule, fragment)
        for rule, facts in _exported_rules(configuration, options.now)
        for fragment in fragments(rule.id, {**common, **facts})
    ]
    exported = [(rule, pair) for rule, pair in found if pair.findings or rule.mode is Mode.ENFORCE]
    if exported:
        is_enforced = any(rule.mode is Mode.ENFORCE for rule, _ in exported)
        everywhere = ExportedRule("", limits.ID, Mode.ENFORCE if is_enforced else Mode.AUDIT)
        exported += [(everywhere, fragment) for fragment in fragments(limits.ID, common)]
    ids = {rule.id for rule, _ in exported}
    governing = (policy for policy, _ in policies_with_scope(configuration.policies))
    made = (
        each
        for rule, fragment in exported
        for each in policy_and_binding(fragment, rule, configuration.version, options)
    )
    return AdmissionPolicies(
        version=configuration.version,
        as_of=options.now,
        objects=tuple(sorted(made, key=lambda each: (each["metadata"]["name"], each["kind"]))),
        rules=tuple(rule.id for rule in RULES if rule.id in ids),
        unsupported=tuple(dict.fromkeys(_unsupported_parts(found))),
        ending=tuple(each for policy in governing for each in expiring_sentences(policy, options.now)),
    )


def _unsupported_parts(found: Sequence[tuple[ExportedRule, Fragment]]) -> Iterator[str]:
    for rule in RULES:
        of_rule = [pair for pair in found if pair[0].id == rule.id]
        if not of_rule:
            yield f"{rule.id}: all of it: {rule.not_exported or UNUSED}"
            continue
        yield from (f"{rule.id}: {what}: {why}" for what, why in rule.exported_without.items())
        for of_policy, fragment in of_rule:
            if fragment.patch and of_policy.mode is not Mode.ENFORCE:
                yield f"{rule.id} of policy {of_policy.policy}: what it adds: mode {of_policy.mode.value}: {ONLY_ADDS}"


def _exported_rules(configuration: Configuration, now: datetime) -> Iterator[tuple[ExportedRule, Facts]]:
    """Yield the rules of each policy that CEL can express, where they hold, with the facts of their templates."""
    for policy, scope in policies_with_scope(configuration.policies):
        for rule in (rule for rule in RULES if not rule.not_exported):
            options = configuration.policies.bound(rule, policy).options
            outside = unexempted_scope(policy, rule.id, now)
            if options.mode is Mode.DISABLED or outside is None or not _limits_something(options):
                continue
            # While a policy is paused (break glass), its rules only audit.
            mode = Mode.AUDIT if end_of_pause(policy.spec.paused_until, now) else options.mode
            selector = policy.spec.match.namespace_selector or LabelSelector()
            made = ExportedRule(policy.name, rule.id, mode, (*scope, *outside), selector)
            yield made, facts_of(options, configuration)


def _limits_something(options: RuleOptions) -> bool:
    if isinstance(options, gpu_class.GPUClassOptions):
        return ANY not in options.allowed
    if isinstance(options, max_runtime.MaxRuntimeOptions):
        return any([options.max, *(limit.max for limit in options.by_class.values())])
    return True


def as_text(exported: AdmissionPolicies) -> str:
    return "".join([header(exported), *(f"---\n{dump_document(policy)}" for policy in exported.objects)])


def header(exported: AdmissionPolicies) -> str:
    lines = [
        f"# Rules of gpu-admission as policies of the API server itself, from configuration {exported.version} "
        f"as of {timestamp(exported.as_of)}.",
        "# Generated by `gpu-admission export`: change the GPUPolicy documents and export again.",
        f"# Remove all of it: kubectl delete -l {SELECTOR} \\",
        "#   validatingadmissionpolicies,validatingadmissionpolicybindings,"
        "mutatingadmissionpolicies,mutatingadmissionpolicybindings",
        "#",
    ]
    for line in summary(exported):
        lines += wrap(line, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False)
    return "\n".join(lines) + "\n"


def summary(exported: AdmissionPolicies) -> Iterator[str]:
    """Yield lines about the export: its size, what expires, and what is not in it."""
    count = sum("Binding" not in policy["kind"] for policy in exported.objects)
    yield f"Policies, each with its binding: {count}. Rules in here: {', '.join(exported.rules) or 'none'}."
    for title, items in (
        ("CEL has no clock. Export again when this ends:", exported.ending),
        ("Not in here:", exported.unsupported),
    ):
        if items:
            yield title
            yield from (f"- {item}" for item in items)
