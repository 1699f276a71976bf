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


def policy_and_binding(fragment: Fragment, rule: ExportedRule, action: str, mutations: str) -> list[Object]:
    """Return both objects. `action` is for findings; `mutations` is the version of MutatingAdmissionPolicy."""
    constraints: Object = {"matchPolicy": "Equivalent", "resourceRules": list(fragment.resources)}
    if rule.excluded:
        excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(rule.excluded)}
        constraints["namespaceSelector"] = {"matchExpressions": [excluded]}
    variables, guard = list(fragment.variables), ""
    if rule.scope.labels:
        variables.insert(0, ("holds", " &&\n".join(rule.scope.labels)))
        guard = "!variables.holds ? [] :\n"
    conditions = _named((*rule.scope.conditions, *fragment.conditions))
    spec: Object = {"failurePolicy": "Fail", "matchConstraints": constraints}
    if conditions:
        spec["matchConditions"] = conditions
    if fragment.findings:
        kind, version, binding = "ValidatingAdmissionPolicy", "v1", {"validationActions": [action]}
        validation = {
            "expression": "variables.findings.size() == 0",
            "messageExpression": "variables.findings.join('; ')",
            "message": f"{fragment.description} [{rule.id}]",
            "reason": "Forbidden",
        }
        spec["validations"] = [validation]
        variables.append(("findings", f"{guard}{fragment.findings}"))
    else:
        kind, version, binding = "MutatingAdmissionPolicy", mutations, {}
        # A webhook may add a container afterwards; a second run adds nothing to what the first one has done.
        spec["reinvocationPolicy"] = "IfNeeded"
        patch = {"expression": f"{guard}{fragment.patch}\n"}
        spec["mutations"] = [{"patchType": "JSONPatch", "jsonPatch": patch}]
    spec["variables"] = _named(variables)
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


def object_name(rule: ExportedRule, part: str) -> str:
    """Return `gpu-admission.POLICY.PART`; where that is longer than a name may be, the end of it is a digest."""
    name = f"gpu-admission.{rule.policy}.{part}"
    if len(name) <= LONGEST_NAME:
        return name
    ending = "." + sha256(name.encode()).hexdigest()[:12]
    return name[: LONGEST_NAME - len(ending)].rstrip("-.") + ending


def _named(expressions: Iterable[Named]) -> list[Object]:
    # With a line end each is a block in YAML; in quotes, every quote inside would be doubled.
    return [{"name": name, "expression": f"{expression}\n"} for name, expression in expressions]
