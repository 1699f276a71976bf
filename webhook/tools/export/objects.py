"""The objects of admissionregistration.k8s.io/v1 that carry an exported rule: a policy and its binding, each as plain data."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from policies.finding import Severity
from webhook.tools.export.cel import Named
from webhook.tools.export.scope import Scope

GROUP = "admissionregistration.k8s.io"
LABELS = {
    "app.kubernetes.io/name": "gpu-admission",
    "app.kubernetes.io/part-of": "gpu-admission",
    "app.kubernetes.io/component": "backstop",
}
"""On every object, so that all of them can be listed, pruned and deleted at once."""

LONGEST_NAME = 253
Object = dict[str, Any]
PODS: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "operations": ["CREATE"],
    "scope": "Namespaced",
}
POD_CHANGES: Object = {**PODS, "operations": ["CREATE", "UPDATE"]}
EPHEMERAL_CONTAINERS: Object = {
    **PODS,
    "resources": ["pods/ephemeralcontainers"],
    "operations": ["UPDATE"],
}


class PolicyFragment(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule comes to in CEL: which requests it looks at, and the expressions, named for the reader."""

    part: str
    """Tells the pieces of one rule apart, in the names of the objects."""
    description: str
    resources: tuple[Object, ...]
    conditions: tuple[Named, ...] = ()
    variables: tuple[Named, ...] = ()


class Check(PolicyFragment, frozen=True, kw_only=True):
    """A ValidatingAdmissionPolicy. `findings` is a list of sentences; the request is in order where it is empty."""

    findings: str
    severity: Severity = Severity.DENIAL
    of_templates: bool = False


class Injection(PolicyFragment, frozen=True, kw_only=True):
    """A MutatingAdmissionPolicy. `patch` is a list of JSONPatch operations."""

    patch: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rule holds: the policy that says so, the namespaces in which it does, and those that are left alone."""

    policy: str
    rule: str
    version: str
    scope: Scope
    excluded: tuple[str, ...]


def check_objects(check: Check, place: Place, actions: Sequence[str]) -> list[Object]:
    """Return the ValidatingAdmissionPolicy and its binding. Templates are only a convenience: there an error lets pass."""
    spec = {
        "failurePolicy": "Ignore" if check.of_templates else "Fail",
        **_common(check, place),
        "validations": [
            {
                "expression": "variables.findings.size() == 0",
                "messageExpression": "variables.findings.join('; ')",
                "message": f"{check.description} [{place.rule}]",
                "reason": "Forbidden",
            }
        ],
    }
    findings = _where_it_holds(check.findings, place)
    spec["variables"] = [*spec["variables"], {"name": "findings", "expression": findings}]
    binding = {"validationActions": list(actions)}
    return _pair("ValidatingAdmissionPolicy", "v1", spec, binding, check, place)


def injection_objects(injection: Injection, place: Place, version: str) -> list[Object]:
    """Return the MutatingAdmissionPolicy, of that version of its API, and its binding."""
    patch = _where_it_holds(injection.patch, place)
    spec = {
        "failurePolicy": "Fail",
        # A webhook may add a container afterwards; a second run adds nothing to what the first one has done.
        "reinvocationPolicy": "IfNeeded",
        **_common(injection, place),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    return _pair("MutatingAdmissionPolicy", version, spec, {}, injection, place)


def object_name(place: Place, part: str) -> str:
    """Return `gpu-admission.POLICY.PART`; where that is longer than a name may be, the end of it is a digest."""
    name = f"gpu-admission.{place.policy}.{part}"
    if len(name) <= LONGEST_NAME:
        return name
    ending = "." + sha256(name.encode()).hexdigest()[:12]
    return name[: LONGEST_NAME - len(ending)].rstrip("-.") + ending


def _common(piece: PolicyFragment, place: Place) -> Object:
    constraints: Object = {"matchPolicy": "Equivalent", "resourceRules": list(piece.resources)}
    if place.excluded:
        constraints["namespaceSelector"] = {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": list(place.excluded),
                }
            ]
        }
    conditions = (*place.scope.conditions, *piece.conditions)
    return {
        "matchConstraints": constraints,
        **({"matchConditions": _named(conditions)} if conditions else {}),
        "variables": _named((*_held(place), *piece.variables)),
    }


def _held(place: Place) -> tuple[Named, ...]:
    return (("holds", " &&\n".join(place.scope.labels)),) if place.scope.labels else ()


def _where_it_holds(expression: str, place: Place) -> str:
    return f"!variables.holds ? [] :\n{expression}" if place.scope.labels else expression


def _named(expressions: Sequence[Named]) -> list[Object]:
    return [{"name": name, "expression": expression} for name, expression in expressions]


def _pair(
    kind: str, version: str, spec: Object, binding: Object, piece: PolicyFragment, place: Place
) -> list[Object]:
    name = object_name(place, piece.part)
    metadata = {
        "name": name,
        "labels": {**LABELS, "gpu-admission.dev/rule": place.rule},
        "annotations": {
            "gpu-admission.dev/description": piece.description,
            "gpu-admission.dev/policy": place.policy,
            "gpu-admission.dev/version": place.version,
        },
    }
    api = f"{GROUP}/{version}"
    return [
        {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec},
        {
            "apiVersion": api,
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "spec": {"policyName": name, **binding},
        },
    ]
