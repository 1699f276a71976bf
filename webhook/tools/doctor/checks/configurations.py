"""The two webhook configurations: they exist, call our Service, and have the rules of this version, as in deploy/."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from webhook.cluster import objects
from webhook.cluster.api import api_path
from webhook.configuration.advice import (
    REMEDY,
    UNREVIEWED_KIND,
    match_conditions,
    unregistered_annotations,
    without_added_annotations,
)
from webhook.tools.doctor.check import DoctorFinding, NotChecked, Observation, doctor_check, failure, warning
from webhook.tools.installed_cluster import InstalledCluster, Permission
from webhook.version import VERSION

POD_WEBHOOKS = {"pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"}
"""The webhooks from which webhooks.matchConditions of the chart takes their conditions."""
CUSTOM_WORKLOADS_WEBHOOK = "custom-workloads.validate.gpu-admission.dev"
"""The webhook to which webhooks.extraWorkloads of the chart adds rules."""
KINDS = {f"{kind.lower()}s": kind for kind in objects.WEBHOOK_CONFIGURATION_KINDS}
GROUP = "admissionregistration.k8s.io"
READ_WEBHOOKS = tuple(Permission("get", kind, GROUP, name=objects.WEBHOOK_CONFIGURATION) for kind in KINDS)
APPLY_AGAIN = "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict"
NOT_INSTALLED = "not-installed"
INSTALL_REMEDY = (
    "helm install gpu-admission deploy/chart --namespace gpu-admission --create-namespace "
    "--set image.repository=IMAGE -f deploy/chart/values-first-install.yaml, as deploy/README.md says; "
    "`gpu-admission scan` first shows what would be denied"
)
CERT_MANAGER = "cert-manager.io/inject-ca-from"
PORT = 443

DEFAULTS: dict[str, Any] = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "timeoutSeconds": 10,
    "reinvocationPolicy": "Never",
    "objectSelector": {},
    "matchConditions": [],
    "rules": [],
    "sideEffects": None,
}
"""The API server's defaults for omitted fields."""
FAILURE_POLICIES = {
    "Ignore": (
        "fails-open",
        "failurePolicy Ignore: while the webhook is away, GPU pods are admitted unchecked",
        "after the first days set failurePolicy: Fail (webhooks.failurePolicy of the chart)",
    ),
    "Fail": (
        "fails-closed",
        "failurePolicy Fail: while the webhook is away, nobody can apply a workload",
        "set failurePolicy: Ignore for it",
    ),
}
MAX_TIMEOUT = 10
"""Seconds. All webhooks of one request have 34 s together, and a person waits."""


class ExpectedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The webhooks of each configuration by kind and name; the digest of each CRD's schemas by its name.

    `make manifests` writes `expected.json` from deploy/static; tests/webhook/tools/doctor/test_expected.py compares the two.
    """

    configurations: dict[str, dict[str, Any]]
    crds: dict[str, str]


@cache
def expected_objects(namespace: str = objects.NAMESPACE) -> ExpectedObjects:
    """Return the objects that this version installs in this namespace."""
    text = (resources.files("webhook.tools.doctor") / "expected.json").read_bytes()
    expected = msgspec.json.decode(text, type=ExpectedObjects)
    for webhooks in expected.configurations.values():
        for webhook in webhooks.values():
            for expression in webhook.get("namespaceSelector", {}).get("matchExpressions", ()):
                expression["values"] = [
                    namespace if v == objects.NAMESPACE else v for v in expression["values"]
                ]
    return expected


def crd_digest(definition: Mapping[str, Any]) -> str:
    """Return a digest of a CRD's versions and their schemas, the same before and after the API server stored it."""
    versions = {version["name"]: version["schema"] for version in definition["spec"]["versions"]}
    return hashlib.sha256(msgspec.json.encode(versions, order="deterministic")).hexdigest()[:16]


def entry_title(kind: str, entry: str = "") -> str:
    return f"{KINDS[kind]}/{objects.WEBHOOK_CONFIGURATION}" + (f" webhooks[{entry}]" if entry else "")


def has_cert_manager(cluster: InstalledCluster) -> bool:
    """Whether cert-manager issues the certificate and publishes its authority; the controller then may not."""
    documents = (cluster.webhook_configuration(kind) or {} for kind in KINDS)
    return any(CERT_MANAGER in (each.get("metadata", {}).get("annotations") or ()) for each in documents)


@doctor_check("configurations", "Both webhook configurations exist", *READ_WEBHOOKS)
def _check_configurations(cluster: InstalledCluster) -> Iterator[Observation]:
    missing = [kind for kind in KINDS if cluster.webhook_configuration(kind) is None]
    if len(missing) == len(KINDS) and _read_service(cluster) is None:
        message = f"is not installed in this cluster: no webhook configuration, and no Service in {cluster.names.namespace}"
        yield failure(NOT_INSTALLED, "gpu-admission", message, INSTALL_REMEDY)
        return
    for kind in missing:
        message = "does not exist: the API server never calls the webhook"
        yield failure("configuration-missing", entry_title(kind), message, APPLY_AGAIN)


def _read_service(cluster: InstalledCluster) -> Any:
    return cluster.get("/api/v1", "namespaces", cluster.names.namespace, "services", objects.SERVICE)


@doctor_check("service-reference", "Every webhook calls our Service", *READ_WEBHOOKS)
def _check_service_references(cluster: InstalledCluster) -> Iterator[Observation]:
    names = cluster.names
    for kind, expected in expected_objects(names.namespace).configurations.items():
        for entry in cluster.webhooks(kind):
            if entry["name"] not in expected:
                continue
            client = entry.get("clientConfig") or {}
            service = client.get("service") or {}
            called = _address(service) if service else client.get("url", "nothing")
            path = expected[entry["name"]]["path"]
            ours = _address({"namespace": names.namespace, "name": objects.SERVICE, "path": path})
            if called != ours:
                message = f"must call {ours}, and calls {called}"
                remedy = f"{APPLY_AGAIN}; for an installation in another namespace use --namespace"
                yield failure("wrong-service", entry_title(kind, entry["name"]), message, remedy)


def _address(service: Mapping[str, Any]) -> str:
    port = service.get("port", PORT)
    return f"{service.get('namespace')}/{service.get('name')}:{port}{service.get('path', '')}"


@doctor_check("service", "The Service exists and has a ready endpoint")
def _check_service(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    where = f"Service/{objects.SERVICE} in {own}"
    service = _read_service(cluster)
    if service is None:
        message = "does not exist: the API server cannot find the webhook"
        yield failure("service-missing", where, message, APPLY_AGAIN)
        return
    if PORT not in [port.get("port") for port in service["spec"].get("ports") or ()]:
        yield failure("service-port", where, f"must have port {PORT}", APPLY_AGAIN)
    endpoints = (
        endpoint
        for item in cluster.items(api_path("/apis/discovery.k8s.io/v1", "namespaces", own, "endpointslices"))
        if (item["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == objects.SERVICE
        for endpoint in item.get("endpoints") or ()
    )
    # "Nil should be interpreted as true" (k8s.io/api discovery/v1 EndpointConditions).
    if all((endpoint.get("conditions") or {}).get("ready") is False for endpoint in endpoints):
        message = "has no ready endpoint: no replica of the webhook is ready"
        remedy = f"kubectl -n {own} get pods; kubectl -n {own} logs deployment/{objects.WEBHOOK}"
        yield failure("no-endpoints", where, message, remedy)


@doctor_check(
    "entries", "Webhooks, rules, selectors and conditions are those of this version", *READ_WEBHOOKS
)
def _check_entries(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    by_policy: dict[str, list[str]] = defaultdict(list)
    for kind, expected in expected_objects(own).configurations.items():
        if cluster.webhook_configuration(kind) is None:
            continue
        installed = {entry["name"]: entry for entry in cluster.webhooks(kind)}
        for name, expected_entry in expected.items():
            if name in installed:
                yield from _differences(entry_title(kind, name), installed[name], expected_entry, own)
                if (policy := _failure_policy(installed[name])) != _failure_policy(expected_entry):
                    by_policy[policy].append(entry_title(kind, name))
                continue
            report = failure if expected_entry.get("failurePolicy") == "Fail" else warning
            message = "does not exist: nothing of it is reviewed"
            yield report("entry-missing", entry_title(kind, name), message, APPLY_AGAIN)
        for name in installed.keys() - expected.keys():
            message = f"is unknown to version {VERSION}: remove it"
            yield warning("entry-unknown", entry_title(kind, name), message, APPLY_AGAIN)
    for policy, entries in by_policy.items():
        identity, message, remedy = FAILURE_POLICIES[policy]
        more, has = (f" and {len(entries) - 1} more", "have") if len(entries) > 1 else ("", "has")
        yield warning(identity, entries[0] + more, f"{has} {message}", remedy)
    if not any(cluster.webhooks(kind) for kind in KINDS):
        yield NotChecked(f"there is no configuration {objects.WEBHOOK_CONFIGURATION}")


def _failure_policy(entry: Mapping[str, Any]) -> str:
    return str(entry.get("failurePolicy") or DEFAULTS["failurePolicy"])


def _differences(
    where: str, entry: Mapping[str, Any], expected: Mapping[str, Any], own: str
) -> Iterator[Observation]:
    actual, expected_entry = (
        {field: configuration.get(field) or default for field, default in DEFAULTS.items()}
        for configuration in (entry, expected)
    )
    if actual["objectSelector"]:
        message = "should have no objectSelector: a user who leaves out a label evades every rule and quota"
        remedy = "empty webhooks.objectSelector of the chart; webhooks.namespaceSelector chooses by labels of administrators"
        yield warning("object-selector", where, message, remedy)
    if actual["timeoutSeconds"] > MAX_TIMEOUT:
        message = f"waits {actual['timeoutSeconds']} s for an answer, and so does the creator of a pod"
        yield warning(
            "long-timeout", where, message, f"set timeoutSeconds: {expected_entry['timeoutSeconds']}"
        )
    yield from _selector_differences(where, entry, expected, own)
    if entry["name"] == CUSTOM_WORKLOADS_WEBHOOK:
        known = _comparable("rules", expected_entry["rules"])
        actual["rules"] = [rule for rule in actual["rules"] if _comparable("rules", [rule])[0] in known]
    if entry["name"] in POD_WEBHOOKS and not actual["matchConditions"] and _chooses_by_labels(entry):
        actual["matchConditions"] = expected_entry["matchConditions"]
        refused = ", and are denied while it is away" if actual["failurePolicy"] == "Fail" else ""
        yield (
            f"{where} has no matchConditions (webhooks.matchConditions of the chart): pods without GPUs in the namespaces that "
            f"its labels choose wait for the webhook{refused}"
        )
    for field in ("matchPolicy", "reinvocationPolicy", "sideEffects", "rules", "matchConditions"):
        if _comparable(field, actual[field]) != _comparable(field, expected_entry[field]):
            yield failure("entry-differs", where, f"{field} must be that of version {VERSION}", APPLY_AGAIN)


def _selector_differences(
    where: str, entry: Mapping[str, Any], expected: Mapping[str, Any], own: str
) -> Iterator[DoctorFinding]:
    excluded = excluded_by_name(entry.get("namespaceSelector") or {})
    expected_entry = excluded_by_name(expected.get("namespaceSelector") or {})
    add = "add {} to the values of its namespaceSelector".format
    if own in expected_entry and own not in excluded:
        message = (
            f"namespaceSelector must exclude {own}: the webhook's own pods could not start while it is away"
        )
        yield failure("own-namespace", where, message, add(own))
    elif missing := ", ".join(sorted(name for name in expected_entry - excluded if name.startswith("kube-"))):
        yield warning("kube-namespace", where, f"namespaceSelector must exclude {missing}", add(missing))


def _chooses_by_labels(entry: Mapping[str, Any]) -> bool:
    selector = entry.get("namespaceSelector") or {}
    return bool(selector.get("matchLabels")) or len(selector.get("matchExpressions") or ()) > 1


def excluded_by_name(selector: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(
        name
        for expression in selector.get("matchExpressions") or ()
        if (expression["key"], expression["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        for name in expression.get("values") or ()
    )


def _comparable(field: str, value: Any) -> Any:
    """Return the value without the order of sets, white space, and defaults that the API server fills in."""
    if field == "rules":
        keys = ("apiGroups", "apiVersions", "resources", "operations")
        return sorted(
            (*(",".join(sorted(rule.get(key) or ())) for key in keys), rule.get("scope") or "*")
            for rule in value
        )
    if field == "matchConditions":
        return {condition["name"]: without_added_annotations(condition["expression"]) for condition in value}
    return value


@doctor_check(
    "workload-kinds", "Kinds of workloads that documents name are sent to the webhook", *READ_WEBHOOKS
)
def _check_workload_kinds(cluster: InstalledCluster) -> Iterator[Observation]:
    entries = cluster.webhooks("validatingwebhookconfigurations")
    sent = {
        (group, resource)
        for entry in entries
        for rule in entry.get("rules") or ()
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
    }
    for name, kinds in cluster.configuration.own_workload_kinds.items() if entries else ():
        for kind in kinds:
            if kind.has_no_gpus or kind.cluster_scoped or (kind.group, kind.plural) in sent:
                continue
            message = f"names {kind.kind} of {kind.group or 'core'}, which no rule sends: only `check` reads such objects"
            remedy = f"add {{apiGroup: {kind.group}, resources: [{kind.plural}]}} to webhooks.extraWorkloads of the chart"
            yield warning("workload-kind-not-sent", f"GPUResourceMapping/{name}", message, remedy)


@doctor_check(
    "fraction-annotations", "Annotations that documents count are sent to the webhook", *READ_WEBHOOKS
)
def _check_fraction_annotations(cluster: InstalledCluster) -> Iterator[Observation]:
    conditions = match_conditions(entry for kind in KINDS for entry in cluster.webhooks(kind))
    for name, spec in cluster.configuration.resource_mappings.items():
        for path, key in unregistered_annotations(spec, conditions):
            message = f"{path} {key} {UNREVIEWED_KIND}"
            yield failure("annotation-not-sent", f"GPUResourceMapping/{name}", message, REMEDY)


CHECKS = (
    _check_configurations,
    _check_service_references,
    _check_service,
    _check_entries,
    _check_workload_kinds,
    _check_fraction_annotations,
)
