"""The two webhook configurations: they exist, call our Service, and have the rules of this version."""

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.cluster.objects import WEBHOOK, WEBHOOK_CONFIGURATION
from webhook.serving.canary_trace import VERSION
from webhook.tools.doctor.check import DoctorCheck, DoctorFinding, NotChecked, Observation, failure, warning
from webhook.tools.doctor.cluster import ADMISSION, InstalledCluster, Right
from webhook.tools.doctor.expected import expected_objects

KINDS = {
    "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
}
GROUP = "admissionregistration.k8s.io"
READS = tuple(Right("get", kind, GROUP, name=WEBHOOK_CONFIGURATION) for kind in KINDS)
APPLY = "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static"
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
"""What the API server makes of a field that is omitted."""
LONGEST_TIMEOUT = 10
"""Seconds. All webhooks of one request have 34 together, and a person waits."""


def place(kind: str, entry: str = "") -> str:
    return f"{KINDS[kind]}/{WEBHOOK_CONFIGURATION}" + (f" webhooks[{entry}]" if entry else "")


def has_cert_manager(cluster: InstalledCluster) -> bool:
    """Whether cert-manager issues the certificate and publishes its authority; the controller then may not."""
    documents = (cluster.get(f"{ADMISSION}/{kind}/{WEBHOOK_CONFIGURATION}") or {} for kind in KINDS)
    return any(CERT_MANAGER in (each.get("metadata", {}).get("annotations") or ()) for each in documents)


def _exist(cluster: InstalledCluster) -> Iterator[Observation]:
    for kind, expected in expected_objects(cluster.names.namespace).configurations.items():
        if cluster.get(f"{ADMISSION}/{kind}/{WEBHOOK_CONFIGURATION}") is None:
            yield failure(
                "configuration-missing",
                place(kind),
                "does not exist: the API server never calls the webhook",
                APPLY,
            )
            continue
        installed = {entry["name"]: entry for entry in cluster.entries(kind)}
        for name, entry in expected.items():
            if name not in installed:
                report = failure if entry.get("failurePolicy") == "Fail" else warning
                yield report(
                    "entry-missing", place(kind, name), "does not exist: nothing of it is reviewed", APPLY
                )
        for name in installed.keys() - expected.keys():
            yield warning(
                "entry-unknown", place(kind, name), f"is unknown to version {VERSION}: remove it", APPLY
            )


def _call_our_service(cluster: InstalledCluster) -> Iterator[Observation]:
    names = cluster.names
    for kind, expected in expected_objects(names.namespace).configurations.items():
        for entry in cluster.entries(kind):
            if entry["name"] not in expected:
                continue
            client = entry.get("clientConfig") or {}
            service = client.get("service") or {}
            called = _address(service) if service else client.get("url", "nothing")
            path = expected[entry["name"]]["path"]
            ours = _address({"namespace": names.namespace, "name": names.service, "path": path})
            if called != ours:
                yield failure(
                    "wrong-service",
                    place(kind, entry["name"]),
                    f"must call {ours}, and calls {called}",
                    f"{APPLY}; for an installation of other names use --namespace, --service",
                )


def _address(service: Mapping[str, Any]) -> str:
    port = service.get("port", PORT)
    return f"{service.get('namespace')}/{service.get('name')}:{port}{service.get('path', '')}"


def _service(cluster: InstalledCluster) -> Iterator[Observation]:
    names = cluster.names
    where = f"Service/{names.service} in {names.namespace}"
    service = cluster.get(f"/api/v1/namespaces/{names.namespace}/services/{names.service}")
    if service is None:
        yield failure(
            "service-missing", where, "does not exist: the API server cannot find the webhook", APPLY
        )
        return
    if PORT not in [port.get("port") for port in service["spec"].get("ports") or ()]:
        yield failure("service-port", where, f"must have port {PORT}", APPLY)
    slices = cluster.items(f"/apis/discovery.k8s.io/v1/namespaces/{names.namespace}/endpointslices")
    endpoints = (
        endpoint
        for each in slices
        if (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == names.service
        for endpoint in each.get("endpoints") or ()
    )
    # "Nil should be interpreted as true" (k8s.io/api discovery/v1 EndpointConditions).
    if all((endpoint.get("conditions") or {}).get("ready") is False for endpoint in endpoints):
        yield failure(
            "no-endpoints",
            where,
            "has no ready endpoint: no replica of the webhook is ready",
            f"kubectl -n {names.namespace} get pods; kubectl -n {names.namespace} logs deployment/{WEBHOOK}",
        )


def _as_expected(cluster: InstalledCluster) -> Iterator[Observation]:
    for kind, expected in expected_objects(cluster.names.namespace).configurations.items():
        for entry in cluster.entries(kind):
            if entry["name"] in expected:
                yield from _differences(cluster, place(kind, entry["name"]), entry, expected[entry["name"]])
    if not any(cluster.entries(kind) for kind in KINDS):
        yield NotChecked(f"there is no configuration {WEBHOOK_CONFIGURATION}")


def _differences(
    cluster: InstalledCluster, where: str, entry: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[DoctorFinding]:
    actual = {field: entry.get(field) or default for field, default in DEFAULTS.items()}
    meant = {field: expected.get(field) or default for field, default in DEFAULTS.items()}
    if actual["objectSelector"]:
        yield failure(
            "object-selector",
            where,
            "must have no objectSelector: by a label anybody could bypass the webhook",
            APPLY,
        )
    if actual["failurePolicy"] != meant["failurePolicy"]:
        yield _failure_policy(where, actual["failurePolicy"])
    if actual["timeoutSeconds"] > LONGEST_TIMEOUT:
        yield warning(
            "long-timeout",
            where,
            f"waits {actual['timeoutSeconds']} s for an answer, and whoever creates a pod waits with it",
            f"set timeoutSeconds: {meant['timeoutSeconds']}",
        )
    yield from _selector_differences(cluster, where, entry, expected)
    for field in ("matchPolicy", "reinvocationPolicy", "sideEffects", "rules", "matchConditions"):
        if _comparable(field, actual[field]) != _comparable(field, meant[field]):
            yield failure("entry-differs", where, f"{field} must be that of version {VERSION}", APPLY)


def _failure_policy(where: str, actual: str) -> DoctorFinding:
    if actual == "Ignore":
        return warning(
            "fails-open",
            where,
            "has failurePolicy Ignore: while the webhook is away, GPU pods are admitted unchecked",
            "after the first days set failurePolicy: Fail (webhooks.failurePolicy of the chart)",
        )
    return warning(
        "fails-closed",
        where,
        "has failurePolicy Fail: while the webhook is away, nobody can apply a workload",
        "set failurePolicy: Ignore for it",
    )


def _selector_differences(
    cluster: InstalledCluster, where: str, entry: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[DoctorFinding]:
    excluded = excluded_by_name(entry.get("namespaceSelector") or {})
    meant = excluded_by_name(expected.get("namespaceSelector") or {}) or frozenset()
    own = cluster.names.namespace
    if excluded is None:
        yield warning(
            "selector-differs",
            where,
            "namespaceSelector must exclude namespaces by name, and by nothing else",
            APPLY,
        )
    elif own in meant and own not in excluded:
        yield failure(
            "own-namespace",
            where,
            f"namespaceSelector must exclude {own}: the webhook's own pods could not start while it is away",
            f"add {own} to the values of its namespaceSelector",
        )
    elif missing := ", ".join(sorted(name for name in meant - excluded if name.startswith("kube-"))):
        yield warning(
            "kube-namespace",
            where,
            f"namespaceSelector must exclude {missing}",
            f"add {missing} to the values of its namespaceSelector",
        )


def excluded_by_name(selector: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the namespaces that the selector excludes by their names, None if it selects by anything else."""
    expressions = selector.get("matchExpressions") or []
    if selector.get("matchLabels") or len(expressions) > 1:
        return None
    if not expressions:
        return frozenset()
    (only,) = expressions
    if (only["key"], only["operator"]) != ("kubernetes.io/metadata.name", "NotIn"):
        return None
    return frozenset(only.get("values") or ())


def _comparable(field: str, value: Any) -> Any:
    """Return what does not depend on the order of sets, on white space, or on what the API server fills in."""
    if field == "rules":
        keys = ("apiGroups", "apiVersions", "resources", "operations")
        return sorted(
            (*(",".join(sorted(rule.get(key) or ())) for key in keys), rule.get("scope") or "*")
            for rule in value
        )
    if field == "matchConditions":
        return {each["name"]: "".join(each["expression"].split()) for each in value}
    return value


CHECKS = (
    DoctorCheck("configurations", "Both webhook configurations exist", _exist, READS),
    DoctorCheck("service-reference", "Every webhook calls our Service", _call_our_service, READS),
    DoctorCheck("service", "The Service exists and has a ready endpoint", _service),
    DoctorCheck("entries", "Rules, selectors and conditions are those of this version", _as_expected, READS),
)
