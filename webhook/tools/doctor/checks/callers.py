"""Callers: whether anybody but an API server can have the webhook review something.

A replica says at /readyz whether it authenticates callers. Where it cannot be reached from here, the check reads the flags of the
Deployment instead, and a note says so. A NetworkPolicy helps where API servers cannot present a certificate.
"""

import http.client
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec

from policies.pods.label_selector import LabelSelector
from webhook.cluster.api import api_path
from webhook.cluster.objects import SERVICE, WEBHOOK
from webhook.tools.doctor.check import NotChecked, Observation, doctor_check, warning
from webhook.tools.doctor.checks.certificates import SECONDS, Target, service_address
from webhook.tools.doctor.cluster import InstalledCluster

PORTS = {8443, "webhook"}
"""The container port to which the Service leads, by number and name."""
ANYWHERE: tuple[dict[str, Any], ...] = (
    {"ipBlock": {"cidr": "0.0.0.0/0"}},
    {"ipBlock": {"cidr": "::/0"}},
    {"namespaceSelector": {}},
)
LABELS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/component": "webhook"}


class _Readiness(msgspec.Struct):
    client_ca: dict[str, Any] | None = msgspec.field(default=None, name="clientCA")


@doctor_check("callers", "Only API servers can have the webhook review something")
def _callers(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    where = f"Service/{SERVICE} in {own}"
    target = Target(f"{SERVICE}.{own}.svc", SERVICE, own)
    address = service_address(cluster, target)
    deployment = cluster.get(api_path("/apis/apps/v1", "namespaces", own, "deployments", WEBHOOK)) or {}
    readiness = _readiness(address, target.port) if address else None
    if readiness is not None:
        if readiness.client_ca is not None and (problem := readiness.client_ca.get("lastError")):
            message = f"cannot use the newest authorities of callers: {problem}"
            remedy = "correct ca.crt in the ConfigMap or Secret of webhook.clientAuthentication"
            yield warning("client-ca-unusable", where, message, remedy)
        if readiness.client_ca is not None:
            return
    elif deployment:
        yield f"callers are looked up in the flags of Deployment/{WEBHOOK}: {where} is not reachable from here"
        if any(flag.startswith("--client-ca") for flag in _flags(deployment)):
            return
    else:
        yield NotChecked(f"{where} is not reachable from here, and Deployment/{WEBHOOK} does not exist")
        return
    if limiting := _limiting(cluster, deployment):
        yield (
            f"callers present no certificate; NetworkPolicy {', '.join(limiting)} limits who reaches the webhook, if the "
            "cluster's network enforces it"
        )
        return
    message = "answers every caller: any pod of the cluster can hold a quota for 40 s, again and again, and read its use"
    remedy = (
        "set webhook.clientAuthentication, or networkPolicy.webhookFrom where kube-apiserver cannot be configured; "
        "see docs/security.md"
    )
    yield warning("callers-unknown", where, message, remedy)


def _readiness(address: str, port: int) -> _Readiness | None:
    """Return the webhook's /readyz; None if it cannot be reached. Other checks examine its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address, port, timeout=SECONDS, context=context)
    try:
        connection.request("GET", "/readyz")
        return msgspec.json.decode(connection.getresponse().read(), type=_Readiness)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()


def _flags(deployment: dict[str, Any]) -> list[str]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return [flag for each in containers for flag in (*(each.get("command") or ()), *(each.get("args") or ()))]


def _limiting(cluster: InstalledCluster, deployment: dict[str, Any]) -> list[str]:
    """Return the policies that select the webhook's pods; empty if one of them admits everybody, since policies add up."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{cluster.names.namespace}/networkpolicies"
    labels = (deployment.get("spec") or {}).get("template", {}).get("metadata", {}).get("labels") or LABELS
    selecting = [
        policy
        for policy in cluster.items(path)
        if "Ingress" in (policy["spec"].get("policyTypes") or ["Ingress"])
        and msgspec.convert(policy["spec"].get("podSelector") or {}, LabelSelector).matches(labels)
    ]
    rules = [rule for policy in selecting for rule in policy["spec"].get("ingress") or ()]
    return [] if any(map(_admits_everybody, rules)) else [policy["metadata"]["name"] for policy in selecting]


def _admits_everybody(rule: dict[str, Any]) -> bool:
    ports = [each.get("port") for each in rule.get("ports") or ()]
    concerns_us = not ports or not PORTS.isdisjoint(ports)
    return concerns_us and (not rule.get("from") or any(peer in ANYWHERE for peer in rule["from"]))


CHECKS = (_callers,)
