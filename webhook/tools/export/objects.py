"""The objects of admissionregistration.k8s.io/v1 that carry an exported rule: a policy and its binding, each as plain data."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from policies.finding import Severity
from webhook.cluster import objects
from webhook.tools.export.cel import Named
from webhook.tools.export.scope import Scope

GROUP = "admissionregistration.k8s.io"
LABELS = {**objects.LABELS, "app.kubernetes.io/component": "admission-policies"}
"""On every object, so that all of them can be listed, pruned and deleted at once."""

RULE_LABEL = "gpu-admission.dev/rule"
LONGEST_NAME = 253
Object = dict[str, Any]
PODS: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "operations": ["CREATE"],
    "scope": "Namespaced",
}
EPHEMERAL_CONTAINERS: Object = {**PODS, "resources": ["pods/ephemeralcontainers"], "operations": ["UPDATE"]}


class Fragment(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in CEL, or a part of it: one policy of the API server, which has either findings or a patch."""

    part: str
    """Distinguishes the fragments of one rule in the names of the objects."""
    description: str
    resources: tuple[Object, ...]
    conditions: tuple[Named, ...] = ()
    variables: tuple[Named, ...] = ()
    findings: str = ""
    """Of a ValidatingAdmissionPolicy: a list of sentences. The request is in order where the list is empty."""
    severity: Severity = Severity.DENIAL
    patch: str = ""
    """Of a MutatingAdmissionPolicy: a list of JSONPatch operations."""


class ExportedRule(msgspec.Struct, frozen=True):
    """A rule of a policy: the namespaces in which it holds, and those that are excluded whatever policies say."""

    policy: str
    id: str
    version: str
    scope: Scope
    excluded: tuple[str, ...]


def validating_objects(fragment: Fragment, rule: ExportedRule, action: str) -> list[Object]:
    spec = {
        "failurePolicy": "Fail",
        **_common(fragment, rule),
        "validations": [
            {
                "expression": "variables.findings.size() == 0",
                "messageExpression": "variables.findings.join('; ')",
                "message": f"{fragment.description} [{rule.id}]",
                "reason": "Forbidden",
            }
        ],
    }
    findings = _where_it_holds(fragment.findings, rule)
    spec["variables"] = [*spec["variables"], {"name": "findings", "expression": findings}]
    binding = {"validationActions": [action]}
    return _pair("ValidatingAdmissionPolicy", "v1", spec, binding, fragment, rule)


def mutating_objects(fragment: Fragment, rule: ExportedRule, version: str) -> list[Object]:
    """Return the MutatingAdmissionPolicy, of that version of its API, and its binding."""
    patch = _where_it_holds(fragment.patch, rule)
    spec = {
        "failurePolicy": "Fail",
        # A webhook may add a container afterwards; a second run adds nothing to what the first one has done.
        "reinvocationPolicy": "IfNeeded",
        **_common(fragment, rule),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    return _pair("MutatingAdmissionPolicy", version, spec, {}, fragment, rule)


def object_name(rule: ExportedRule, part: str) -> str:
    """Return `gpu-admission.POLICY.PART`; where that is longer than a name may be, the end of it is a digest."""
    name = f"gpu-admission.{rule.policy}.{part}"
    if len(name) <= LONGEST_NAME:
        return name
    ending = "." + sha256(name.encode()).hexdigest()[:12]
    return name[: LONGEST_NAME - len(ending)].rstrip("-.") + ending


def _common(fragment: Fragment, rule: ExportedRule) -> Object:
    constraints: Object = {"matchPolicy": "Equivalent", "resourceRules": list(fragment.resources)}
    if rule.excluded:
        excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(rule.excluded)}
        constraints["namespaceSelector"] = {"matchExpressions": [excluded]}
    conditions = _named((*rule.scope.conditions, *fragment.conditions))
    holds = [("holds", " &&\n".join(rule.scope.labels))] if rule.scope.labels else []
    return {
        "matchConstraints": constraints,
        **({"matchConditions": conditions} if conditions else {}),
        "variables": _named((*holds, *fragment.variables)),
    }


def _where_it_holds(expression: str, rule: ExportedRule) -> str:
    return f"!variables.holds ? [] :\n{expression}" if rule.scope.labels else expression


def _named(expressions: Iterable[Named]) -> list[Object]:
    return [{"name": name, "expression": expression} for name, expression in expressions]


def _pair(
    kind: str, version: str, spec: Object, binding: Object, fragment: Fragment, rule: ExportedRule
) -> list[Object]:
    name = object_name(rule, fragment.part)
    metadata = {
        "name": name,
        "labels": {**LABELS, RULE_LABEL: rule.id},
        "annotations": {
            "gpu-admission.dev/description": fragment.description,
            "gpu-admission.dev/policy": rule.policy,
            "gpu-admission.dev/version": rule.version,
        },
    }
    return [
        {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": metadata, "spec": spec}
        for kind, spec in ((kind, spec), (f"{kind}Binding", {"policyName": name, **binding}))
    ]
