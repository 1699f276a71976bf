"""In which namespaces a rule holds, and how strictly, as conditions of CEL.

Exactly one policy governs a namespace, the first that matches; CEL evaluates every policy object, so each one excludes what
those before it match. CEL has no clock either: what ends by itself is read at the time of the export.
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from policies.finding import Severity
from policies.policy import BUILT_IN_POLICY, Binding, Policy, PolicySet, TemplateMode
from policies.registry import RULES
from policies.rule import Mode
from webhook.export.cel import fits, texts
from webhook.export.objects import Named

EVERYTHING = "*"
NAMESPACE = "request.namespace"
NEVER = "false"


class Governed(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, the rules as it holds them (those it disables left out), and the condition that it governs a namespace."""

    policy: Policy
    bindings: tuple[Binding, ...]
    conditions: tuple[Named, ...]


def governed(policies: PolicySet) -> Iterator[Governed]:
    """Yield each policy that governs some namespace, the built-in one last where no policy matches every namespace."""
    before: list[str] = []
    for policy in (*policies.policies, BUILT_IN_POLICY):
        if EVERYTHING in before:
            return
        globs = policy.spec.match.namespaces
        bindings = (policies.binding(rule, policy) for rule in RULES)
        yield Governed(
            policy=policy,
            bindings=tuple(binding for binding in bindings if binding.options.mode is not Mode.DISABLED),
            conditions=(
                *_condition(f"governed-by-{policy.name}"[:63].rstrip("-."), fits(NAMESPACE, globs)),
                *_exclusion("governed-by-no-earlier-policy", before),
            ),
        )
        before += globs


def exempted(policy: Policy, rule_id: str, now: datetime) -> tuple[Named, ...] | None:
    """Return the condition that the namespace is not exempted from the rule; None where every one is."""
    globs = [
        glob
        for exemption in policy.spec.exemptions
        if exemption.rules is None or rule_id in exemption.rules
        for glob in exemption.namespaces
        if exemption.is_in_force(now)
    ]
    return None if EVERYTHING in globs else _exclusion("not-exempted", globs)


def mode(policy: Policy, binding: Binding, now: datetime) -> Mode:
    """Return how strictly the rule holds at that time: break glass turns everything into audit."""
    paused_until = policy.spec.paused_until
    return Mode.AUDIT if paused_until is not None and now < paused_until else binding.options.mode


def action(held: Mode, severity: Severity, templates: TemplateMode | None) -> str:
    """Return the validationAction for findings of that severity; `templates` says what a denial of one does."""
    if held is Mode.AUDIT:
        return "Audit"
    is_denied = held is Mode.ENFORCE and severity is Severity.DENIAL and templates is not TemplateMode.WARN
    return "Deny" if is_denied else "Warn"


def _condition(name: str, expression: str) -> tuple[Named, ...]:
    return () if expression == "true" else ((name, expression),)


def _exclusion(name: str, globs: list[str]) -> tuple[Named, ...]:
    return ((name, f"!({fits(NAMESPACE, globs)})"),) if globs else ()


def time_dependent(policy: Policy, now: datetime) -> Iterator[str]:
    """Yield what of the policy ends by itself, in words for the header."""
    spec = policy.spec
    if spec.paused_until is not None and now < spec.paused_until:
        yield f"policy {policy.name} is paused until {spec.paused_until.isoformat()}: its rules only audit"
    for exemption in spec.exemptions:
        if exemption.until is not None and exemption.is_in_force(now):
            names = texts(exemption.namespaces)
            yield f"policy {policy.name} exempts {names} until the end of {exemption.until.isoformat()}"
