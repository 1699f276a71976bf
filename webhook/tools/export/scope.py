"""In which namespaces a rule holds, and how strictly, as conditions of CEL.

The first policy that matches a namespace governs it. CEL evaluates every policy object, so each object excludes the namespaces
that earlier policies match. CEL has no clock: pauses and exemptions count as they are at the time of the export.

Names of namespaces become match conditions. Labels become a variable of the policy, because `namespaceObject` is null in match
conditions.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from policies.pods.label_selector import LabelSelector, Requirement
from policies.policy import BUILT_IN_POLICY, Binding, Match, Policy, PolicySet, still_paused
from policies.registry import RULES
from policies.rule import Mode
from webhook.tools.export.cel import Named, fits, text, texts

NAMESPACE = "request.namespace"
LABELS = "namespaceObject.metadata.?labels"


class Scope(msgspec.Struct, frozen=True):
    """In which namespaces something holds: conditions on the name, and on the labels."""

    conditions: tuple[Named, ...] = ()
    labels: tuple[str, ...] = ()

    def __add__(self, other: "Scope") -> "Scope":
        return Scope((*self.conditions, *other.conditions), (*self.labels, *other.labels))


class Governed(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, its rules (without disabled ones), and where it governs."""

    policy: Policy
    bindings: tuple[Binding, ...]
    scope: Scope


def governed(policies: PolicySet) -> Iterator[Governed]:
    """Yield each policy that governs some namespace; the last is the built-in one, unless a policy matches every namespace."""
    before: list[Match] = []
    for policy in (*policies.policies, BUILT_IN_POLICY):
        if any(match.is_everything for match in before):
            return
        bindings = (policies.binding(rule, policy) for rule in RULES)
        name = f"governed-by-{policy.name}"[:63].rstrip("-.")
        yield Governed(
            policy=policy,
            bindings=tuple(binding for binding in bindings if binding.options.mode is not Mode.DISABLED),
            scope=_inside(name, policy.spec.match) + _outside("governed-by-no-earlier-policy", before),
        )
        before.append(policy.spec.match)


def exempted(policy: Policy, rule_id: str, now: datetime) -> Scope | None:
    """Return where the namespace is not exempted from the rule; None where every one is."""
    matches = [each for each in policy.spec.exemptions if each.holds(rule_id, now)]
    return None if any(match.is_everything for match in matches) else _outside("not-exempted", matches)


def time_dependent(policy: Policy, now: datetime) -> Iterator[str]:
    """Yield the pause and the exemptions of the policy that end by themselves, in words for the header."""
    paused = still_paused(policy.spec.paused_until, now)
    if paused is not None:
        yield f"policy {policy.name} is paused until {paused.isoformat()}: its rules only audit"
    for exemption in policy.spec.exemptions:
        if exemption.until is not None and exemption.is_in_force(now):
            yield f"policy {policy.name} exempts {exemption} until the end of {exemption.until.isoformat()}"


def _inside(name: str, match: Match) -> Scope:
    fitting = fits(NAMESPACE, match.namespaces)
    conditions = () if fitting == "true" else ((name, fitting),)
    return Scope(conditions, (selected(match.namespace_selector),) if match.namespace_selector else ())


def _outside(name: str, matches: Sequence[Match]) -> Scope:
    globs = [glob for match in matches if match.namespace_selector is None for glob in match.namespaces]
    labelled = (
        f"!(({fits(NAMESPACE, match.namespaces)}) && {selected(match.namespace_selector)})"
        for match in matches
        if match.namespace_selector is not None
    )
    return Scope(((name, f"!({fits(NAMESPACE, globs)})"),) if globs else (), tuple(labelled))


def selected(selector: LabelSelector) -> str:
    """Return the condition that the labels of the namespace match the selector; an empty one matches everything."""
    wanted = [f"{_label(key)} == optional.of({text(value)})" for key, value in selector.match_labels.items()]
    wanted += map(_required, selector.match_expressions)
    return f"({' && '.join(wanted) or 'true'})"


def _required(requirement: Requirement) -> str:
    label = _label(requirement.key)
    if requirement.operator == "Exists":
        return f"{label}.hasValue()"
    if requirement.operator == "DoesNotExist":
        return f"!{label}.hasValue()"
    among = f"{texts(requirement.values)}.exists(value, {label} == optional.of(value))"
    return among if requirement.operator == "In" else f"!{among}"


def _label(key: str) -> str:
    return f"{LABELS}[?{text(key)}]"
