"""`gpu-admission controller`: the composition root of what keeps the quotas' rows true."""

import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from uuid import uuid4

import click
from prometheus_client import REGISTRY, disable_created_metrics

from webhook.cluster import errors
from webhook.cluster.access import AccessError, load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.leader import Leader
from webhook.commands.certificate_options import CertificateOptions, certificate_options
from webhook.configuration.cluster_source import ClusterSource, source_of
from webhook.configuration.loader import ConfigurationError
from webhook.configuration.source import ConfigurationCollector, ConfigurationSource
from webhook.controller.canary_loop import CanaryLoop, Period
from webhook.controller.controller import Controller
from webhook.controller.document_status import start_reporting
from webhook.controller.metrics import ControllerMetrics, QuotaCollector
from webhook.server.monitoring import listen, start_monitoring
from webhook.server.settings import StartupError

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LEASE = "gpu-admission-controller"
FAILED = 1
START_SECONDS = 5.0
"""Between attempts to reach the API server at the start."""

log = logging.getLogger("gpu_admission.controller")


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Directory of GPUPolicy, GPUClass, GPUResourceMapping documents; left out: the cluster's. The same as that of `serve`.",
)
@click.option("--kubeconfig", help="Left out: a pod's service account, else what kubectl would use.")
@click.option("--context", "context_name", help="Context of the kubeconfig.")
@click.option("--namespace", help="Where the Lease of the leader is; left out: the pod's own namespace.")
@click.option("--lease", default=LEASE, show_default=True, help="Name of the Lease.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address of /metrics, /healthz, /readyz.")  # noqa: S104 - a pod's address
@click.option("--port", default=9444, show_default=True, help="Its port (plain HTTP).")
@click.option(
    "--recount-seconds",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=5.0),
    help="How often every namespace is counted from a list made for it.",
)
@click.option(
    "--canary-namespace", default="", help="Where a GPU pod is tried on a dry run; left out: no canary."
)
@click.option(
    "--canary-seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1.0),
    help="How often.",
)
@certificate_options
def controller(
    config: Path | None,
    kubeconfig: str | None,
    context_name: str | None,
    namespace: str | None,
    lease: str,
    host: str,
    port: int,
    recount_seconds: float,
    canary_namespace: str,
    canary_seconds: float,
    certificates: CertificateOptions,
) -> None:
    """Count what is stored against the GPUQuotas, and give up reservations that came to nothing, until SIGTERM."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of every connection beyond its pool
    disable_created_metrics()  # type: ignore[no-untyped-call] # half of all lines, and no alert reads them
    stopping, reloaded = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        api = ApiClient(load_access(kubeconfig, context_name))
        source = source_of(config, api, lambda _: reloaded.set())
    except (AccessError, ConfigurationError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    metrics = ControllerMetrics(REGISTRY)
    REGISTRY.register(ConfigurationCollector(source))
    source.start()
    leader = Leader(api, namespace or own_namespace(), lease, f"{socket.gethostname()}_{uuid4()}")
    if (kept := certificates.loop(api, namespace or own_namespace(), REGISTRY)) is not None:
        threading.Thread(target=kept.run, args=(stopping,), name="certificates", daemon=True).start()
    if isinstance(source, ClusterSource):
        source.wait()
        start_reporting(api, source, leader, stopping)
    running = _made(api, source, leader, metrics, recount_seconds, stopping)
    if running is None:
        return
    REGISTRY.register(QuotaCollector(running.rows, running.mirrors))
    try:
        listener = listen(host, port)
    except StartupError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    start_monitoring(listener, REGISTRY, {"/healthz": running.unhealthy, "/readyz": running.unready})
    threading.Thread(
        target=_follow, args=(source, reloaded, running, stopping), name="reconfigure", daemon=True
    ).start()
    if canary_namespace:
        canary = CanaryLoop(api, Period(canary_namespace, canary_seconds), lambda: leader.leads, REGISTRY)
        threading.Thread(target=canary.run, args=(stopping,), name="canary", daemon=True).start()
    log.info("started as %s; metrics on port %d", leader.identity, listener.getsockname()[1])
    running.run(stopping)
    source.stop()
    log.info("stopped")


def own_namespace() -> str:
    """Return the namespace of the pod that this is; `default` outside a cluster."""
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return os.environ.get("POD_NAMESPACE") or "default"


def _made(
    api: ApiClient,
    source: ConfigurationSource,
    leader: Leader,
    metrics: ControllerMetrics,
    recount_seconds: float,
    stopping: threading.Event,
) -> Controller | None:
    """Return the controller as soon as the API server answers; None if `stopping` comes first."""
    while not stopping.is_set():
        try:
            return Controller(
                api, source.engine.configuration, leader, metrics, recount_seconds=recount_seconds
            )
        except errors.ApiError as error:
            log.warning("waiting for the API server: %s", error)
            stopping.wait(START_SECONDS)
    return None


def _follow(
    source: ConfigurationSource, reloaded: threading.Event, running: Controller, stopping: threading.Event
) -> None:
    """Count by every new configuration that is in force."""
    while not stopping.is_set():
        if not reloaded.wait(1.0):
            continue
        reloaded.clear()
        try:
            running.configure(source.engine.configuration)
        except errors.ApiError as error:
            log.warning("the new configuration waits for the API server: %s", error)
            reloaded.set()
            stopping.wait(START_SECONDS)
