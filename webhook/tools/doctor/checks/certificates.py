"""Certificates: what API servers trust (caBundle), what the webhook serves, what the Secrets hold; and who may call it.

A TLS handshake with the address that the API server calls shows what is served, and /readyz whether callers are authenticated.
Where it cannot be reached from here, the checks examine the Secret and the flags of the Deployment, and notes say so. A
NetworkPolicy helps where API servers cannot present a certificate.
"""

import base64
import http.client
import socket
import ssl
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from certs.check import issued_by, pem, problems
from certs.reconciler import StoredSecret
from certs.rotation import COMMON_NAME
from certs.secret import CA, CERTIFICATE, KEY, DamagedError, decode
from policies.pods.label_selector import LabelSelector
from policies.times import utc
from webhook.certificates.objects import ClusterSecret, SecretName
from webhook.cluster import errors
from webhook.cluster.objects import CA_SECRET, SERVICE, WEBHOOK, InstallationNames
from webhook.tools.doctor.check import DoctorFinding, NotChecked, Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.configurations import (
    KINDS,
    PORT,
    READ_WEBHOOKS,
    entry_title,
    has_cert_manager,
)
from webhook.tools.installed_cluster import InstalledCluster

REPAIR = (
    "a controller with --certificate-secret repairs it within seconds; if none does, see "
    "kubectl -n gpu-admission logs deployment/gpu-admission-controller"
)
ROTATE = "see the controller's log for why it was not renewed; then gpu-admission certs rotate"
OVERDUE_SHARE = 0.8
"""Share of the lifetime: renewal is due after two thirds, and a running controller renews at once."""
CALL_SECONDS = 3.0

HOST_NAME_MISMATCH = 62
"""X509_V_ERR_HOSTNAME_MISMATCH of OpenSSL."""
HAS_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""


class CalledAddress(NamedTuple):
    """The host name that API servers call, and the Service behind it, if there is one."""

    host: str
    service: str = ""
    namespace: str = ""
    port: int = PORT


class CABundle(msgspec.Struct, frozen=True):
    """A readable caBundle, the first webhook with it, and the address at which the API server calls that webhook."""

    where: str
    pem: bytes
    authorities: tuple[x509.Certificate, ...]
    target: CalledAddress


def _read_bundles(cluster: InstalledCluster) -> Iterator[CABundle | DoctorFinding]:
    """Yield the caBundle of every webhook, or what is wrong with it."""
    for kind in KINDS:
        for entry in cluster.webhooks(kind):
            where, client = entry_title(kind, entry["name"]), entry.get("clientConfig") or {}
            text = client.get("caBundle")
            if not text:
                message = "must have a caBundle: without one the API server trusts no certificate of ours"
                yield failure("ca-bundle-missing", where, message, REPAIR)
                continue
            try:
                bundle = base64.b64decode(text, validate=True)
                authorities = tuple(x509.load_pem_x509_certificates(bundle))
            except ValueError:
                yield failure("ca-bundle-unreadable", where, "caBundle must be certificates in PEM", REPAIR)
            else:
                yield CABundle(where, bundle, authorities, _target(client, cluster.names))


def _target(client: dict[str, Any], names: InstallationNames) -> CalledAddress:
    """Return the address that the API server calls: of our Service, if the webhook names no other."""
    url, service = urlsplit(client.get("url") or ""), client.get("service") or {}
    if url.hostname:
        return CalledAddress(url.hostname, port=url.port or PORT)
    name, namespace = service.get("name", SERVICE), service.get("namespace", names.namespace)
    return CalledAddress(f"{name}.{namespace}.svc", name, namespace, service.get("port") or PORT)


def _distinct_bundles(cluster: InstalledCluster) -> list[CABundle]:
    by_target: dict[tuple[bytes, CalledAddress], CABundle] = {}
    for bundle in _read_bundles(cluster):
        if isinstance(bundle, CABundle):
            by_target.setdefault((bundle.pem, bundle.target), bundle)
    return list(by_target.values())


@doctor_check("ca-bundle", "Every webhook has a readable caBundle", *READ_WEBHOOKS)
def _check_ca_bundles(cluster: InstalledCluster) -> Iterator[Observation]:
    yield from (bundle for bundle in _read_bundles(cluster) if isinstance(bundle, DoctorFinding))


# ---- what is served


@doctor_check(
    "certificate", "The caBundle verifies what is served, by name and for long enough", *READ_WEBHOOKS
)
def _check_served(cluster: InstalledCluster) -> Iterator[Observation]:
    bundles = _distinct_bundles(cluster)
    if not bundles:
        yield NotChecked("no webhook has a caBundle to check with")
    for target in dict.fromkeys(bundle.target for bundle in bundles):
        trusting = [bundle for bundle in bundles if bundle.target == target]
        address = service_address(cluster, target)
        endpoint = f"{address}:{target.port}"
        leaf = _presented_certificate(target, address)
        if leaf is None:
            why_unreachable = (
                f"{endpoint} is not reachable from here" if address else f"{target.host} has no address"
            )
            yield from _observe_secret(cluster, trusting, why_unreachable)
            continue
        for bundle in trusting:
            yield from _try_handshake(address, bundle)
        yield from _expiry_findings(f"certificate served at {endpoint}", leaf, trusting, cluster.now)


def service_address(cluster: InstalledCluster, target: CalledAddress) -> str:
    """Return the cluster IP of the target's Service, "" if it has none; without a Service the host."""
    if not target.service:
        return target.host
    service = cluster.get("/api/v1", "namespaces", target.namespace, "services", target.service) or {}
    address = (service.get("spec") or {}).get("clusterIP") or ""
    return "" if address == "None" else str(address)


def _presented_certificate(target: CalledAddress, address: str) -> x509.Certificate | None:
    """Return the certificate that the server at `address` presents, None if it cannot be reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # It is examined afterwards, so that all its problems can be reported.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return x509.load_der_x509_certificate(_connect(address, target, context))
    except OSError:
        return None


def _connect(address: str, target: CalledAddress, context: ssl.SSLContext) -> bytes:
    """Shake hands as the API server does; return the certificate of the server. Raises OSError."""
    with (
        socket.create_connection((address, target.port), timeout=CALL_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=target.host) as encrypted,
    ):
        return encrypted.getpeercert(binary_form=True) or b""


def _try_handshake(address: str, bundle: CABundle) -> Iterator[Observation]:
    """Connect as the API server does, trusting only the bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # stricter than Go
    context.load_verify_locations(cadata=bundle.pem.decode("ascii", "replace"))
    try:
        _connect(address, bundle.target, context)
    except ssl.SSLCertVerificationError as error:
        yield _verification_failure(bundle, error)
    except OSError as error:
        yield NotChecked(
            f"{address}:{bundle.target.port} did not answer a second time: it {errors.failure_text(error)}"
        )


def _verification_failure(bundle: CABundle, error: ssl.SSLCertVerificationError) -> DoctorFinding:
    if error.verify_code == HOST_NAME_MISMATCH:
        return _wrong_name(bundle.where, "the served certificate", bundle.target.host)
    if error.verify_code == HAS_EXPIRED:
        message = "the served certificate, or its authority, has expired: every call fails"
        return failure("certificate-expired", bundle.where, message, ROTATE)
    message = f"caBundle does not verify the served certificate ({error.verify_message})"
    return failure("ca-bundle-does-not-verify", bundle.where, message, REPAIR)


def _wrong_name(where: str, certificate: str, name: str) -> DoctorFinding:
    message = f"{certificate} must carry the name {name}, by which the API server calls"
    remedy = (
        f"issue it for {name}: --certificate-name {name} of the controller, or the dnsNames of cert-manager"
    )
    return failure("certificate-name", where, message, remedy)


def _expiry_findings(
    where: str, leaf: x509.Certificate, bundles: Iterable[CABundle], now: datetime
) -> Iterator[DoctorFinding]:
    if _is_overdue(leaf, now):
        yield _expiry_warning(where, "certificate-expires-soon", "the certificate", leaf)
    issuers = {
        authority: bundle.where
        for bundle in bundles
        for authority in bundle.authorities
        if issued_by(pem([leaf]), pem([authority]), now)
    }
    for authority, place_of_it in issuers.items():
        if _is_overdue(authority, now):
            yield _expiry_warning(
                place_of_it, "authority-expires-soon", "the authority in its caBundle", authority
            )


def _is_overdue(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * OVERDUE_SHARE <= now < end


def _expiry_warning(where: str, identity: str, what: str, certificate: x509.Certificate) -> DoctorFinding:
    end = utc(certificate.not_valid_after_utc)
    return warning(identity, where, f"{what} ends on {end} and was not renewed", ROTATE)


# ---- what the Secrets hold


def _read_secret(cluster: InstalledCluster, name: str = "") -> tuple[str, StoredSecret | None]:
    """Return the Secret, None if it does not exist, and its name for people; without `name` the Secret that servers read."""
    full = SecretName(cluster.names.namespace, name or cluster.names.secret)
    return f"Secret/{full.name} in {full.namespace}", ClusterSecret(cluster.api, full).read()


def stored_certificate(cluster: InstalledCluster) -> x509.Certificate | None:
    """Return the certificate of the Secret that servers read; None if it is missing or unreadable."""
    _, stored = _read_secret(cluster)
    try:
        return x509.load_pem_x509_certificate(stored.content.data.get(CERTIFICATE, b"")) if stored else None
    except ValueError:
        return None


def _observe_secret(
    cluster: InstalledCluster, bundles: Iterable[CABundle], why_unreachable: str
) -> Iterator[Observation]:
    where, stored = _read_secret(cluster)
    if stored is None:
        lacking = "" if _is_issued_by_controller(cluster, bundles) else f", and {where} does not exist"
        yield NotChecked(f"{why_unreachable}{lacking}")
        return
    yield f"the certificate is that of {where}: {why_unreachable}"
    leaf = stored_certificate(cluster)
    if leaf is not None:
        yield from _expiry_findings(where, leaf, bundles, cluster.now)


def _is_issued_by_controller(cluster: InstalledCluster, bundles: Iterable[CABundle]) -> bool:
    """Whether the controller issues the certificate, rather than cert-manager or `--self-signed`."""
    subjects = [authority.subject.rfc4514_string() for bundle in bundles for authority in bundle.authorities]
    ours = any(subject.startswith(f"CN={COMMON_NAME} ") for subject in subjects)
    return not has_cert_manager(cluster) and (ours or not subjects)


@doctor_check(
    "certificate-secret",
    "The certificate can be served and renewed, and the caBundle is its authority",
    *READ_WEBHOOKS,
)
def _check_secret(cluster: InstalledCluster) -> Iterator[Observation]:
    bundles = _distinct_bundles(cluster)
    where, stored = _read_secret(cluster)
    if stored is None:
        if _is_issued_by_controller(cluster, bundles):
            message = "does not exist: the webhook reads its certificate from it"
            yield failure("secret-missing", where, message, REPAIR)
        elif not bundles:  # else files take its entry_title, or the check of what is served reports it
            yield NotChecked(f"{where} does not exist")
        return
    data = stored.content.data
    authorities = data.get(CA) or next((bundle.pem for bundle in bundles), b"")
    hosts = dict.fromkeys(bundle.target.host for bundle in bundles)
    for problem in problems(data.get(CERTIFICATE, b""), data.get(KEY, b""), authorities, hosts, cluster.now):
        _, carries, name = problem.partition("does not carry the name ")
        if carries:
            yield _wrong_name(where, "its certificate", name)
        else:
            yield failure("certificate-unusable", where, f"cannot be served: {problem}", REPAIR)
    for bundle in bundles if CA in data else ():
        if bundle.pem != data[CA]:
            yield failure("ca-bundle-differs", bundle.where, f"caBundle must equal {CA} of {where}", REPAIR)
    if CA in data and not has_cert_manager(cluster):
        yield from _check_ca_secret(cluster)


def _check_ca_secret(cluster: InstalledCluster) -> Iterator[Observation]:
    where, stored = _read_secret(cluster, CA_SECRET)
    if stored is None:
        yield failure("secret-missing", where, "does not exist: controllers keep the authority in it", REPAIR)
        return
    try:
        decode(stored.content)
    except DamagedError as error:
        yield failure("secret-damaged", where, f"cannot be used to renew the certificate: {error}", REPAIR)


# ---- who may call


PORTS = {8443, "webhook"}
"""The container port to which the Service leads, by number and name."""
EVERY_PEER: tuple[dict[str, Any], ...] = (
    {"ipBlock": {"cidr": "0.0.0.0/0"}},
    {"ipBlock": {"cidr": "::/0"}},
    {"namespaceSelector": {}},
)
LABELS = {"app.kubernetes.io/name": "gpu-admission", "app.kubernetes.io/component": "webhook"}


class _ReadyzAnswer(msgspec.Struct):
    client_ca: dict[str, Any] | None = msgspec.field(default=None, name="clientCA")


@doctor_check("callers", "Only API servers can have the webhook review something")
def _check_callers(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    where = f"Service/{SERVICE} in {own}"
    target = CalledAddress(f"{SERVICE}.{own}.svc", SERVICE, own)
    address = service_address(cluster, target)
    deployment = cluster.get("/apis/apps/v1", "namespaces", own, "deployments", WEBHOOK) or {}
    readiness = _read_readiness(address, target.port) if address else None
    if readiness is not None:
        if readiness.client_ca is not None and (problem := readiness.client_ca.get("lastError")):
            message = f"cannot use the newest authorities of callers: {problem}"
            remedy = "correct ca.crt in the ConfigMap or Secret of webhook.clientAuthentication"
            yield warning("client-ca-unusable", where, message, remedy)
        if readiness.client_ca is not None:
            return
    elif deployment:
        yield f"callers are looked up in the flags of Deployment/{WEBHOOK}: {where} is not reachable from here"
        if any(flag.startswith("--client-ca") for flag in _container_flags(deployment)):
            return
    else:
        yield NotChecked(f"{where} is not reachable from here, and Deployment/{WEBHOOK} does not exist")
        return
    if limiting := _limiting_policies(cluster, deployment):
        yield (
            f"callers present no certificate; NetworkPolicy {', '.join(limiting)} limits who reaches the webhook, if the "
            "cluster's network enforces it"
        )
        return
    message = "answers every caller: any pod of the cluster can hold a quota for 40 s, again and again, and read its use"
    remedy = (
        "set webhook.clientAuthentication, or networkPolicy.webhookFrom where kube-apiserver cannot be configured; "
        "see docs/operate/security.md"
    )
    yield warning("callers-unknown", where, message, remedy)


def _read_readiness(address: str, port: int) -> _ReadyzAnswer | None:
    """Return the webhook's /readyz; None if it cannot be reached. Other checks examine its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address, port, timeout=CALL_SECONDS, context=context)
    try:
        connection.request("GET", "/readyz")
        return msgspec.json.decode(connection.getresponse().read(), type=_ReadyzAnswer)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()


def _container_flags(deployment: dict[str, Any]) -> list[str]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return [flag for each in containers for flag in (*(each.get("command") or ()), *(each.get("args") or ()))]


def _limiting_policies(cluster: InstalledCluster, deployment: dict[str, Any]) -> list[str]:
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
    ports = [port.get("port") for port in rule.get("ports") or ()]
    concerns_us = not ports or not PORTS.isdisjoint(ports)
    return concerns_us and (not rule.get("from") or any(peer in EVERY_PEER for peer in rule["from"]))


CHECKS = (_check_ca_bundles, _check_served, _check_secret, _check_callers)
