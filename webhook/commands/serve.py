"""`gpu-admission serve`: creates the parts of the webhook, and starts it."""

import atexit
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from prometheus_client import REGISTRY, disable_created_metrics

from certs.files import ensure_self_signed
from policies.rule import FETCHER_IMAGE, Need
from webhook.certificates.objects import SecretName
from webhook.certificates.serving import SecretCertificate
from webhook.cluster.access import AccessError, load_access, own_namespace
from webhook.cluster.api import ApiClient
from webhook.cluster.events import EventQueue, EventWriter
from webhook.cluster.leader import Heartbeat
from webhook.cluster.namespaces import LimitRanges, Namespaces, pdb_selectors_by
from webhook.cluster.objects import CONTROLLER, WEBHOOK, service_account
from webhook.commands.log_options import audit_log_option, log_options, open_audit_log
from webhook.commands.options import ClusterChoice, config_option, optional_cluster_options
from webhook.configuration.advice import CALL_SECONDS, registered_conditions
from webhook.configuration.cluster_source import read_schemas, source_of
from webhook.configuration.loader import ConfigurationError, keys_to_know
from webhook.configuration.source import ConfigurationCollector, ConfigurationSource, readiness_details
from webhook.evaluation.decision_cache import cache_source
from webhook.evaluation.facts import Facts
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.config_maps import PublishedCatalogues
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.metrics import LedgerCollector, QuotaMetrics
from webhook.quota.no_quota import READ_SECONDS, NoQuota, TeamLookup
from webhook.quota.store import MemoryStore
from webhook.quota.team_documents import read_teams
from webhook.server.dispatcher import Application
from webhook.server.http import Request
from webhook.server.server import run
from webhook.server.settings import CONNECTIONS, ServerSettings, StartupError
from webhook.server.tls import ServingCertificate
from webhook.serving.audit import Recorder
from webhook.serving.claim_watch import ClaimWatch, is_made_for_pod, may_name_claims, requested_by
from webhook.serving.denials import DenialReports
from webhook.serving.dispatch import Admission
from webhook.serving.endpoints import create_app, endpoint_of
from webhook.serving.handler import ClusterState
from webhook.serving.metrics import Metrics
from webhook.serving.node_watch import NodeWatch
from webhook.serving.owner_deadlines import OwnerDeadlines
from webhook.serving.review_documents import DocumentReviews
from webhook.threads import every, thread
from webhook.workloads.references import read_object
from webhook.workloads.serving_workloads import list_serving_workloads

PROBES = frozenset({"/healthz", "/readyz"})
"""Answered under any load. If a liveness probe failed, kubelet would kill the process, and move its load to another replica."""

_path = click.Path(path_type=Path)
_port = click.IntRange(0, 65535)  # 0: any free port


@click.command()
@config_option("the cluster's documents, with --standalone the built-in ones")
@optional_cluster_options
@click.option("--tls-cert", type=_path, help="Certificate chain, PEM. Read again when it changes.")
@click.option("--tls-key", type=_path, help="Its private key, PEM.")
@click.option(
    "--self-signed",
    type=_path,
    help="Directory for a certificate of our own and its authority, made when missing or due.",
)
@click.option(
    "--certificate-secret",
    metavar="[NAMESPACE/]NAME",
    help="Take the certificate from this Secret of the cluster, which `controller` keeps; readiness waits for it.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="DNS name or IP address in the self-signed certificate (repeatable).",
)
@click.option(
    "--client-ca",
    type=_path,
    help="Authorities of callers, PEM: all pages but the probes need a client certificate of theirs. Read again when it changes.",
)
@click.option(
    "--client-name",
    "client_names",
    multiple=True,
    help="Common name, or DNS or URI name, of a client certificate that may call (repeatable).",
)
@click.option("--host", default="0.0.0.0", help="Address of the webhook.")  # noqa: S104 - a pod's address
@click.option("--port", type=_port, default=8443, help="Port of the webhook (TLS).")
@click.option("--metrics-host", default="0.0.0.0", help="Address of /metrics.")  # noqa: S104 - likewise
@click.option("--metrics-port", type=_port, default=9443, help="Port of /metrics (plain HTTP).")
@click.option(
    "--threads", type=click.IntRange(1, CONNECTIONS), default=32, help="Requests worked on at once."
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(1),
    default=256,
    help="Requests worked on or waiting at once; one more is answered 503 with Retry-After, and sent again.",
)
@click.option(
    "--drain-seconds", type=click.FloatRange(0), default=15.0, help="How long to serve on after SIGTERM."
)
@audit_log_option
@click.option(
    "--fetcher-image",
    default=FETCHER_IMAGE,
    help="What model-warming runs where the policy names no image; built by deploy/Dockerfile.",
)
@log_options
def serve(
    config: Path | None,
    cluster: ClusterChoice | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    self_signed: Path | None,
    certificate_secret: str | None,
    names: tuple[str, ...],
    audit_log: str,
    fetcher_image: str,
    **server: Any,
) -> None:
    """Serve the webhook over TLS until SIGTERM.

    Quotas, node labels and, without --config, documents come from the cluster; with --standalone quotas are kept in memory.
    """
    secret = _secret_certificate(certificate_secret, cluster, tls_cert or tls_key or self_signed)
    pair = (
        (secret.certificate, secret.key)
        if secret
        else _certificate_files(tls_cert, tls_key, self_signed, names)
    )
    try:
        settings = ServerSettings(certificate=pair[0], key=pair[1], **server)
    except StartupError as error:
        raise click.UsageError(str(error)) from None
    run(partial(build, config, audit_log, cluster, secret, fetcher_image), settings)


def build(
    config: Path | None,
    audit_log: str,
    cluster: ClusterChoice | None,
    secret: SecretCertificate | None,
    fetcher_image: str,
    serving: ServingCertificate,
    draining: Callable[[], bool],
) -> Application:
    """Start all threads, and return the application. Call it in the worker process, because threads do not survive a fork."""
    disable_created_metrics()  # type: ignore[no-untyped-call] # they double the output, and no alert reads them
    metrics = Metrics(REGISTRY)
    api = _client(cluster) if cluster else None
    try:
        source = source_of(config, api)
    except ConfigurationError as error:
        problems = "\n".join(str(problem) for problem in error.problems)
        raise StartupError(f"the configuration in {config} cannot be used:\n{problems}") from None
    REGISTRY.register(ConfigurationCollector(source))
    source.start()
    if secret is None or api is None:
        metrics.watch_certificate(lambda: serving.state)
    else:
        secret.start(api)
        metrics.watch_certificate(lambda: secret.state, lambda: secret.ca_not_after)
    cluster_state = _cluster_state(source, api)
    cache = cache_source(lambda: source.configuration, fetcher_image)
    denials, audit = _denial_reports(api, metrics), open_audit_log(audit_log, metrics.audit_lost.inc)
    recorder = Recorder(metrics, audit, denials, replica=socket.gethostname())
    admission = Admission(cache, recorder, cluster_state)
    if serving.client_ca is not None:
        metrics.watch_client_ca(serving.client_ca)
    app = create_app(admission, metrics, partial(_readiness, source, serving, secret, draining))
    # These endpoints only compute: some 0.1 ms for a common pod, milliseconds for the largest. With a cluster, quotas need the
    # network, and so do labels of namespaces if policies select by them, lines of pods that wait, owners of pods, LimitRanges,
    # and new ResourceClaims.
    computing = {"/mutate"} if api else {"/mutate", "/validate"}

    def only_computes(request: Request) -> bool:
        """Whether the answer needs no network. The request is not decoded yet, so this reads only its path and raw body."""
        policies = source.configuration.policies
        waits = api is not None and (
            policies.has_selectors
            or policies.lets_pods_wait
            or policies.needs & {Need.OWNER, Need.LIMIT_RANGES}
            or may_name_claims(request.body)
        )
        return endpoint_of(request.path) in computing and not waits

    return Application(app, only_computes, PROBES)


def _client(cluster: ClusterChoice) -> ApiClient:
    try:
        return ApiClient(load_access(*cluster))
    except AccessError as error:
        remedy = "name one with --kubeconfig, or serve without one: --standalone"
        raise StartupError(f"no cluster to work with: {error}; {remedy}") from None


def _cluster_state(source: ConfigurationSource, api: ApiClient | None) -> ClusterState:
    """Start the watches of the cluster, if there is one, and return what reviews read of it."""
    quota = _quota_enforcer(source, api)
    if api is None:
        return ClusterState(quota=quota, check_document=DocumentReviews(source, lambda: None, tuple).findings)
    namespaces, claims = Namespaces(api), ClaimWatch(api)
    nodes = NodeWatch(api, lambda: keys_to_know(source.configuration))
    for informer in (namespaces.informer, nodes, claims):
        informer.start(threading.Event())  # for as long as the process lives
    owners = OwnerDeadlines(api)
    limit_ranges = LimitRanges(api, threading.Event())  # likewise

    def facts(deadline: float) -> Facts:
        find = claims.lookup(deadline)
        return Facts(
            labels_of=partial(namespaces.labels_of, deadline=deadline),
            nodes=nodes.facts,
            named_nodes=nodes.index,
            claims=partial(requested_by, find),
            is_made_for_pod=partial(is_made_for_pod, find),
            owner_deadline=owners.lookup(deadline),
            pdb_selectors=partial(pdb_selectors_by, api, deadline=deadline),
            find_object=partial(read_object, api, deadline=deadline),
            limits_of=partial(limit_ranges.limits_of, deadline=deadline),
        )

    return ClusterState(
        facts=facts,
        quota=quota,
        servers=partial(list_serving_workloads, api),
        check_document=DocumentReviews(
            source,
            namespaces.all,
            partial(registered_conditions, api),
            partial(read_teams, api),
            partial(read_schemas, api, seconds=CALL_SECONDS),
        ).findings,
        controller=service_account(own_namespace(), CONTROLLER),
    )


def _quota_enforcer(source: ConfigurationSource, api: ApiClient | None) -> QuotaEnforcer:
    metrics = QuotaMetrics(REGISTRY)
    if api is None:
        memory = MemoryStore(lambda: source.configuration)
        REGISTRY.register(LedgerCollector(memory.ledgers))
        return QuotaEnforcer(ReservationBatcher(memory, metrics), release=memory.release)
    installation = own_namespace()
    catalogues = PublishedCatalogues(api, installation, lambda: source.configuration)
    no_quota = NoQuota(ClusterStore(api, installation).epoch)
    thread("epoch", every(READ_SECONDS, no_quota.read), threading.Event()).start()
    store = ClusterStore(api, installation, TeamLookup(api, epoch=no_quota.epoch).of)
    batcher = ReservationBatcher(store, metrics, catalogues_of=catalogues.named_by, no_quota=no_quota)
    return QuotaEnforcer(batcher, has_controller=Heartbeat(api, installation).is_alive)


def _denial_reports(api: ApiClient | None, metrics: Metrics) -> DenialReports:
    events = EventQueue(EventWriter(api, WEBHOOK), metrics.events_lost.inc) if api else None
    denials = DenialReports(events)
    if events:
        events.start()
        atexit.register(events.stop)
    denials.start()
    atexit.register(denials.stop)  # atexit runs it before the stop of `events`, which writes the last denials
    return denials


def _readiness(
    source: ConfigurationSource,
    serving: ServingCertificate,
    secret: SecretCertificate | None,
    is_draining: Callable[[], bool],
) -> tuple[bool, dict[str, object]]:
    """Ready unless draining, without a valid certificate, or still waiting for the cluster's documents.

    A rejected configuration or client CA is shown, and does not change readiness: all replicas keep the previous one.
    """
    certificate, unready_reasons = (secret.state, secret.unready_reasons()) if secret else (serving.state, [])
    draining, client_ca = is_draining(), serving.client_ca
    expired = certificate is not None and certificate.not_after <= datetime.now(UTC)
    detail: dict[str, object] = {"draining": draining, "configuration": readiness_details(source)}
    if certificate is not None:
        detail["certificate"] = {
            "notAfter": certificate.not_after.isoformat(),
            "expired": expired,
            "lastError": certificate.last_error,
        }
    if client_ca is not None:
        authorities = client_ca.state
        detail["clientCA"] = {
            "notAfter": authorities.not_after.isoformat(),
            "lastError": authorities.last_error,
        }
    if unready_reasons:
        detail["unready"] = unready_reasons
    return not (draining or expired or unready_reasons or source.must_wait), detail


def _secret_certificate(
    certificate_secret: str | None, cluster: ClusterChoice | None, other: Path | None
) -> SecretCertificate | None:
    if certificate_secret is None:
        return None
    if other is not None:
        problem = "says where the certificate is: leave --tls-cert, --tls-key, --self-signed out"
        raise click.UsageError(f"--certificate-secret {problem}")
    if cluster is None:
        raise click.UsageError("--certificate-secret needs a cluster: omit --standalone")
    return SecretCertificate(SecretName.of(certificate_secret, own_namespace()))


def _certificate_files(
    cert: Path | None, key: Path | None, self_signed: Path | None, names: tuple[str, ...]
) -> tuple[Path, Path]:
    if self_signed is not None and (cert or key):
        problem = "makes the certificate itself: leave --tls-cert and --tls-key out"
        raise click.UsageError(f"--self-signed {problem}")
    if self_signed is not None:
        return ensure_self_signed(self_signed, names or ("localhost", "127.0.0.1"), datetime.now(UTC))
    if cert is None or key is None:
        ways = "--tls-cert and --tls-key, --self-signed DIR or --certificate-secret NAME"
        raise click.UsageError(f"give {ways}")
    return cert, key
