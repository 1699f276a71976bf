"""The two webhook configurations: there, pointing at our Service, and with the rules of this version."""

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.serving.canary_trace import VERSION
from webhook.tools.doctor.check import Check, Finding, NotChecked, Severity, Told
from webhook.tools.doctor.cluster import ADMISSION, CONFIGURATION, Cluster
from webhook.tools.doctor.expected import wanted
from webhook.tools.doctor.rights import Right

KINDS = {
    "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
}
GROUP = "admissionregistration.k8s.io"
READS = tuple(Right("get", kind, GROUP, name=CONFIGURATION) for kind in KINDS)
APPLY = "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static"
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
"""What the API server makes of a field that is left out."""
LONGEST_TIMEOUT = 10
"""Seconds. All webhooks of one request have 34 together, and a person waits."""


def place(kind: str, entry: str = "") -> str:
    return f"{KINDS[kind]}/{CONFIGURATION}" + (f" webhooks[{entry}]" if entry else "")


def _are_there(cluster: Cluster) -> Iterator[Told]:
    for kind, entries in wanted(cluster.names.namespace).configurations.items():
        if cluster.get(f"{ADMISSION}/{kind}/{CONFIGURATION}") is None:
            yield Finding(
                id="configuration-missing",
                object=place(kind),
                message="is not there, so the API server never calls the webhook",
                remedy=APPLY,
            )
            continue
        installed = {entry["name"]: entry for entry in cluster.entries(kind)}
        for name, entry in entries.items():
            if name not in installed:
                must = entry.get("failurePolicy") == "Fail"
                yield Finding(
                    id="entry-missing",
                    severity=Severity.ERROR if must else Severity.WARNING,
                    object=place(kind, name),
                    message="is not there, so nothing of that kind is looked at",
                    remedy=APPLY,
                )
        for name in installed.keys() - entries.keys():
            yield Finding(
                id="entry-unknown",
                severity=Severity.WARNING,
                object=place(kind, name),
                message=f"is no entry of version {VERSION}",
                remedy=APPLY,
            )


def _point_at_us(cluster: Cluster) -> Iterator[Told]:
    names = cluster.names
    for kind, entries in wanted(names.namespace).configurations.items():
        for entry in cluster.entries(kind):
            want = entries.get(entry["name"])
            if want is None:
                continue
            client = entry.get("clientConfig") or {}
            service = client.get("service") or {}
            told = _address(service) if service else client.get("url", "nothing")
            meant = {
                "namespace": names.namespace,
                "name": names.service,
                "port": PORT,
                "path": want["path"],
            }
            if told != _address(meant):
                yield Finding(
                    id="wrong-service",
                    object=place(kind, entry["name"]),
                    message=f"calls {told}, not {_address(meant)}",
                    remedy=f"{APPLY}; an installation of another name: --namespace, --service",
                )


def _address(service: Mapping[str, Any]) -> str:
    port = service.get("port", PORT)
    return f"{service.get('namespace')}/{service.get('name')}:{port}{service.get('path', '')}"


def _service(cluster: Cluster) -> Iterator[Told]:
    names = cluster.names
    where = f"Service/{names.service} in {names.namespace}"
    service = cluster.get(f"/api/v1/namespaces/{names.namespace}/services/{names.service}")
    if service is None:
        yield Finding(
            id="service-missing",
            object=where,
            message="is not there, so the API server cannot find the webhook",
            remedy=APPLY,
        )
        return
    if PORT not in [port.get("port") for port in service["spec"].get("ports") or ()]:
        yield Finding(id="service-port", object=where, message=f"has no port {PORT}", remedy=APPLY)
    slices = [
        each
        for each in cluster.items(
            f"/apis/discovery.k8s.io/v1/namespaces/{names.namespace}/endpointslices",
        )
        if (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == names.service
    ]
    ready = [
        endpoint
        for each in slices
        for endpoint in each.get("endpoints") or ()
        # "Nil should be interpreted as true" (k8s.io/api discovery/v1 EndpointConditions).
        if (endpoint.get("conditions") or {}).get("ready") is not False
    ]
    if not ready:
        yield Finding(
            id="no-endpoints",
            object=where,
            message="has no ready endpoint: no replica of the webhook is ready",
            remedy=f"kubectl -n {names.namespace} get pods; kubectl -n {names.namespace} logs deployment/gpu-admission-webhook",
        )


def _as_wanted(cluster: Cluster) -> Iterator[Told]:
    for kind, entries in wanted(cluster.names.namespace).configurations.items():
        for entry in cluster.entries(kind):
            want = entries.get(entry["name"])
            if want is not None:
                yield from _differences(cluster, place(kind, entry["name"]), entry, want)
    if not any(cluster.entries(kind) for kind in KINDS):
        yield NotChecked("there is no configuration of ours")


def _differences(
    cluster: Cluster, where: str, entry: Mapping[str, Any], want: Mapping[str, Any]
) -> Iterator[Finding]:
    got = {field: entry.get(field) or default for field, default in DEFAULTS.items()}
    meant = {field: want.get(field) or default for field, default in DEFAULTS.items()}
    if got["objectSelector"]:
        yield Finding(
            id="object-selector",
            object=where,
            message="has an objectSelector: whoever creates a pod can label it past the webhook",
            remedy=APPLY,
        )
    if got["failurePolicy"] != meant["failurePolicy"]:
        yield _failure_policy(where, got["failurePolicy"])
    if got["timeoutSeconds"] > LONGEST_TIMEOUT:
        yield Finding(
            id="long-timeout",
            severity=Severity.WARNING,
            object=where,
            message=f"waits {got['timeoutSeconds']} s for an answer: while the webhook hangs, so does whoever creates a pod",
            remedy=f"set timeoutSeconds: {meant['timeoutSeconds']}",
        )
    yield from _selector_differences(cluster, where, entry, want)
    for field in ("matchPolicy", "reinvocationPolicy", "sideEffects", "rules", "matchConditions"):
        if _comparable(field, got[field]) != _comparable(field, meant[field]):
            yield Finding(
                id="entry-differs",
                object=where,
                message=f"{field} is not that of version {VERSION}",
                remedy=APPLY,
            )


def _failure_policy(where: str, got: str) -> Finding:
    if got == "Ignore":
        return Finding(
            id="fails-open",
            severity=Severity.WARNING,
            object=where,
            message="has failurePolicy Ignore: while the webhook is away, GPU pods come through unseen",
            remedy="after the first days set failurePolicy: Fail (webhooks.failurePolicy of the chart)",
        )
    return Finding(
        id="fails-closed",
        severity=Severity.WARNING,
        object=where,
        message="has failurePolicy Fail: while the webhook is away, nobody can apply a workload",
        remedy="set failurePolicy: Ignore for it",
    )


def _selector_differences(
    cluster: Cluster, where: str, entry: Mapping[str, Any], want: Mapping[str, Any]
) -> Iterator[Finding]:
    got, meant = entry.get("namespaceSelector") or {}, want.get("namespaceSelector") or {}
    excluded = excluded_by_name(got)
    expected = excluded_by_name(meant) or frozenset()
    own = cluster.names.namespace
    if excluded is None:
        yield Finding(
            id="selector-differs",
            severity=Severity.WARNING,
            object=where,
            message="namespaceSelector selects by more than the names of namespaces, which this version does not",
            remedy=APPLY,
        )
    elif own in expected and own not in excluded:
        yield Finding(
            id="own-namespace",
            object=where,
            message=f"namespaceSelector does not exclude {own}: the webhook's own pods could not start while it is away",
            remedy=f"add {own} to the values of its namespaceSelector",
        )
    elif missing := sorted(name for name in expected - excluded if name.startswith("kube-")):
        yield Finding(
            id="kube-namespace",
            severity=Severity.WARNING,
            object=where,
            message=f"namespaceSelector does not exclude {', '.join(missing)}",
            remedy=f"add {', '.join(missing)} to the values of its namespaceSelector",
        )


def excluded_by_name(selector: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the namespaces that the selector leaves out by their names, None if it selects by anything else."""
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
        return sorted(
            (
                *(
                    ",".join(sorted(rule.get(key) or ()))
                    for key in ("apiGroups", "apiVersions", "resources", "operations")
                ),
                rule.get("scope") or "*",
            )
            for rule in value
        )
    if field == "matchConditions":
        return {each["name"]: "".join(each["expression"].split()) for each in value}
    return value


CHECKS = (
    Check(id="configurations", title="Both webhook configurations are there", reads=READS, run=_are_there),
    Check(
        id="service-reference", title="Every entry of them calls our Service", reads=READS, run=_point_at_us
    ),
    Check(
        id="service",
        title="The Service is there and has a ready endpoint",
        run=_service,
    ),
    Check(
        id="entries",
        title="Rules, selectors and conditions are those of this version",
        reads=READS,
        run=_as_wanted,
    ),
)
