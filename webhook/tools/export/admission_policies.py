"""The export: the objects of every policy and rule that CEL can express, and what stays with the webhook and why."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import wrap

import msgspec

from policies.placement.class_use import ANY
from policies.pods import limits
from policies.pods.label_selector import LabelSelector
from policies.policy import end_of_pause
from policies.registry import RULES
from policies.rule import Mode, RuleOptions
from policies.rules import gpu_class, max_runtime
from webhook.cluster.objects import EXPORTED, timestamp
from webhook.configuration.loader import Configuration
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.export import objects
from webhook.tools.export.facts import common_facts, facts_of
from webhook.tools.export.objects import ExportedRule, ExportOptions, Object
from webhook.tools.export.templates import Facts, Fragment, fragments

UNUSED = "every policy disables it, limits nothing by it, or exempts every namespace from it"
ONLY_ADDS = "a policy of the API server can add, but not report what it would have added"
WIDTH = 110
SELECTOR = ",".join(f"{name}={value}" for name, value in EXPORTED.items() if not name.endswith("/name"))


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
    exported = [(rule, each) for rule, each in found if each.findings or rule.mode is Mode.ENFORCE]
    if exported:
        is_enforced = any(rule.mode is Mode.ENFORCE for rule, _ in exported)
        everywhere = ExportedRule("", limits.ID, Mode.ENFORCE if is_enforced else Mode.AUDIT)
        exported += [(everywhere, fragment) for fragment in fragments(limits.ID, common)]
    ids = {rule.id for rule, _ in exported}
    governing = (policy for policy, _ in objects.governed(configuration.policies))
    made = (
        each
        for rule, fragment in exported
        for each in objects.policy_and_binding(fragment, rule, configuration.version, options)
    )
    return AdmissionPolicies(
        version=configuration.version,
        as_of=options.now,
        objects=tuple(sorted(made, key=lambda each: (each["metadata"]["name"], each["kind"]))),
        rules=tuple(rule.id for rule in RULES if rule.id in ids),
        unsupported=tuple(dict.fromkeys(_left_out(found))),
        ending=tuple(each for policy in governing for each in objects.time_dependent(policy, options.now)),
    )


def _left_out(found: Sequence[tuple[ExportedRule, Fragment]]) -> Iterator[str]:
    for rule in RULES:
        of_rule = [each for each in found if each[0].id == rule.id]
        if not of_rule:
            yield f"{rule.id}: all of it: {rule.not_exported or UNUSED}"
            continue
        yield from (f"{rule.id}: {what}: {why}" for what, why in rule.exported_without.items())
        for of_policy, fragment in of_rule:
            if fragment.patch and of_policy.mode is not Mode.ENFORCE:
                yield f"{rule.id} of policy {of_policy.policy}: what it adds: mode {of_policy.mode.value}: {ONLY_ADDS}"


def _exported_rules(configuration: Configuration, now: datetime) -> Iterator[tuple[ExportedRule, Facts]]:
    """Yield the rules of each policy that CEL can express, where they hold, with the facts of their templates."""
    for policy, scope in objects.governed(configuration.policies):
        for rule in (rule for rule in RULES if not rule.not_exported):
            options = configuration.policies.bound(rule, policy).options
            not_exempted = objects.not_exempted(policy, rule.id, now)
            if options.mode is Mode.DISABLED or not_exempted is None or not _limits_something(options):
                continue
            # While a policy is paused (break glass), its rules only audit.
            mode = Mode.AUDIT if end_of_pause(policy.spec.paused_until, now) else options.mode
            selector = policy.spec.match.namespace_selector or LabelSelector()
            made = ExportedRule(policy.name, rule.id, mode, (*scope, *not_exempted), selector)
            yield made, facts_of(options, configuration)


def _limits_something(options: RuleOptions) -> bool:
    if isinstance(options, gpu_class.GPUClassOptions):
        return ANY not in options.allowed
    if isinstance(options, max_runtime.MaxRuntimeOptions):
        return any([options.max, *(each.max for each in options.by_class.values())])
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
