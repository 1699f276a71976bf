"""`gpu-admission controller`: reconciles quotas, certificates and the status of documents, and runs the canary."""

import datetime as dt
import functools
import logging
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from prometheus_client import REGISTRY, disable_created_metrics

from certs.rotation import RotationSettings
from policies.pods.names import is_dns_subdomain
from webhook.canary.probe import Canary
from webhook.certificates.objects import SecretName
from webhook.cluster import errors
from webhook.cluster.access import AccessError, load_access, own_namespace
from webhook.cluster.api import ApiClient
from webhook.cluster.leader import LeaderElector
from webhook.cluster.objects import CONTROLLER, service_names
from webhook.commands.log_options import audit_log_option, log_options, open_audit_log
from webhook.commands.options import (
    DURATION,
    ClusterChoice,
    cluster_options,
    config_option,
    prometheus_options,
)
from webhook.commands.output import FAILED, fail
from webhook.configuration.cluster_source import ClusterSource, source_of
from webhook.configuration.loader import ConfigurationError
from webhook.configuration.source import ConfigurationCollector, ConfigurationSource
from webhook.controller.certificate_loop import CertificateLoop
from webhook.controller.document_status import write_statuses
from webhook.controller.gpu_use import Measuring
from webhook.controller.manager import Manager
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.wiring import make_manager
from webhook.prometheus.client import Prometheus
from webhook.server.monitoring import listen, start_monitoring
from webhook.server.settings import StartupError
from webhook.threads import thread, while_leading

START_SECONDS = 5.0
"""Seconds between attempts to reach the API server at the start, and after a configuration that could not take effect."""

_DAY = dt.timedelta(days=1)

log = logging.getLogger("gpu_admission.controller")


def _dns_names(_context: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not is_dns_subdomain(name):
            raise click.BadParameter(f'"{name}" is not a valid DNS name')
    return names


def _duration_option(
    flag: str, field: str, text: str, unit: dt.timedelta = dt.timedelta(seconds=1), least: float = 0.0
) -> Callable[..., Any]:
    """Return an option for a field of RotationSettings, in units of that length."""
    return click.option(
        flag,
        field,
        default=getattr(RotationSettings(names=()), field) / unit,
        type=click.FloatRange(min=least),
        callback=lambda _context, _option, number: number * unit,
        help=text,
    )


@click.command()
@config_option("the cluster's documents")
@cluster_options
@click.option(
    "--namespace",
    help="Namespace of the leader's Lease and of the published catalogues. Default: that of the pod.",
)
@click.option("--lease", default=CONTROLLER, help="Name of the leader's Lease.")
@click.option("--host", default="0.0.0.0", help="Address of /metrics, /healthz, /readyz.")  # noqa: S104 - a pod's address
@click.option("--port", default=9444, help="Port of /metrics, /healthz, /readyz (plain HTTP).")
@click.option(
    "--recount-seconds",
    default=300.0,
    type=click.FloatRange(min=5.0),
    help="Seconds within which each namespace with a quota is compared with a new list of it.",
)
@click.option(
    "--canary-namespace",
    default="",
    help="Namespace in which a GPU pod is created as a dry run. Default: no canary.",
)
@click.option(
    "--canary-seconds", default=60.0, type=click.FloatRange(min=1.0), help="Seconds between canaries."
)
@audit_log_option
@prometheus_options("Name the holders of GPUs that do no work")
@click.option(
    "--idle-below",
    default=0.05,
    type=click.FloatRange(min=0.0, min_open=True, max=1.0),
    help="A GPU whose use (0 to 1) stays below this is idle.",
)
@click.option("--idle-after", default="2h", type=DURATION, help="How long it must stay so, such as 2h.")
@click.option(
    "--use-every", default="5m", type=DURATION, help="Time between two queries for the use of GPUs."
)
@click.option(
    "--use-rules-interval",
    default="1m",
    type=DURATION,
    help="Interval of the recording rules: a GPU that lacks a tenth of the samples of --idle-after is not idle.",
)
@click.option(
    "--certificate-secret",
    metavar="[NAMESPACE/]NAME",
    help="Keep the webhook's certificate in this Secret, its authority in gpu-admission-ca beside it, and the caBundles of "
    "zz-gpu-admission.",
)
@click.option(
    "--certificate-name",
    "names",
    metavar="DNS",
    multiple=True,
    callback=_dns_names,
    help="DNS name in the certificate (repeatable). Default: those of the Service gpu-admission in the Secret's namespace.",
)
@_duration_option(
    "--ca-days",
    "ca_lifetime",
    "Lifetime of a certificate authority; renewed after two thirds of it.",
    _DAY,
    2.0,
)
# Certificates are valid from an hour before, which is part of their lifetime.
@_duration_option(
    "--leaf-days", "leaf_lifetime", "Lifetime of a certificate; renewed after two thirds of it.", _DAY, 1.0
)
@_duration_option(
    "--propagation-seconds",
    "propagation",
    "Time for every API server to load a new authority before it issues certificates.",
)
@_duration_option(
    "--retirement-seconds",
    "retirement",
    "Time for every server to load its certificate before the old authority is dropped.",
)
@log_options
def controller(
    config: Path | None,
    cluster: ClusterChoice,
    namespace: str | None,
    lease: str,
    host: str,
    port: int,
    recount_seconds: float,
    canary_namespace: str,
    canary_seconds: float,
    audit_log: str,
    prometheus: Prometheus | None,
    idle_below: float,
    idle_after: dt.timedelta,
    use_every: dt.timedelta,
    use_rules_interval: dt.timedelta,
    certificate_secret: str | None,
    names: tuple[str, ...],
    **durations: dt.timedelta,
) -> None:
    """Reconcile quotas, certificates and status until SIGTERM.

    Any number of replicas may run; a Lease elects the leader, which counts usage and removes expired reservations.
    """
    if idle_after < use_rules_interval:
        raise click.UsageError("--idle-after must be at least --use-rules-interval")
    measuring = (
        None
        if prometheus is None
        else Measuring(
            prometheus=prometheus,
            idle_below=idle_below,
            idle_after=idle_after,
            every=use_every,
            rules_interval=use_rules_interval,
        )
    )
    disable_created_metrics()  # type: ignore[no-untyped-call] # half of all lines, and no alert reads them
    stopping, reloaded = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        api = ApiClient(load_access(*cluster))
        namespace = namespace or own_namespace()
        source = source_of(config, api, lambda _: reloaded.set(), namespace)
    except (AccessError, ConfigurationError) as error:
        fail(error)
    metrics = ControllerMetrics(REGISTRY)
    try:
        audit = open_audit_log(audit_log, metrics.audit_lost.inc)
    except StartupError as error:
        fail(error, FAILED)
    REGISTRY.register(ConfigurationCollector(source))
    source.start()
    elector = LeaderElector(api, namespace, lease, f"{socket.gethostname()}_{uuid4()}")
    if certificate_secret is not None:
        secret = SecretName.of(certificate_secret, namespace)
        terms = RotationSettings(names=names or service_names(secret.namespace), **durations)
        thread("certificates", CertificateLoop(api, secret, terms, REGISTRY).run, stopping).start()
    source.wait()
    if isinstance(source, ClusterSource):
        # Documents come from `source`, not from the informers of the manager, so these need not be synced.
        write = functools.partial(write_statuses, api, source, elector.is_leader)
        thread("document status", write, stopping).start()

    make = functools.partial(
        make_manager,
        api=api,
        elector=elector,
        metrics=metrics,
        namespace=namespace,
        recount_seconds=recount_seconds,
        write_usage=audit.write if audit else None,
        measuring=measuring,
    )
    manager = _make_when_reached(lambda: make(configuration=source.configuration), stopping)
    if manager is None:
        return
    try:
        listener = listen(host, port)
    except StartupError as error:
        fail(error, FAILED)
    start_monitoring(
        listener, REGISTRY, {"/healthz": manager.why_unhealthy, "/readyz": manager.informers.why_unready}
    )
    manager.add("reconfigure", functools.partial(_follow_configuration, source, reloaded, manager))
    if canary_namespace:
        canary = Canary(api, canary_namespace, REGISTRY)
        # It reads no informer, so they need not be synced: it is sent as soon as this process leads.
        manager.add("canary", while_leading(elector.is_leader, canary_seconds, canary.send, canary.forget))
    log.info("started as %s; metrics on port %d", elector.identity, listener.getsockname()[1])
    manager.run(stopping)
    source.stop()
    log.info("stopped")


def _make_when_reached(make: Callable[[], Manager], stopping: threading.Event) -> Manager | None:
    """Return the manager once the API server answers; None if `stopping` is set first."""
    while not stopping.is_set():
        try:
            return make()
        except errors.ApiError as error:
            log.warning("waiting for the API server: %s", error)
            stopping.wait(START_SECONDS)
    return None


def _follow_configuration(
    source: ConfigurationSource, reloaded: threading.Event, manager: Manager, stopping: threading.Event
) -> None:
    """Count under every new configuration that takes effect."""
    while not stopping.is_set():
        if not reloaded.wait(1.0):
            continue
        reloaded.clear()
        try:
            manager.configure(source.configuration)
        except errors.ApiError as error:
            log.warning("the new configuration needs the API server: %s", error)
            reloaded.set()
            stopping.wait(START_SECONDS)
