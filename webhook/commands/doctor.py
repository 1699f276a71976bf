"""`gpu-admission doctor`: what is wrong with an installation, and how to mend it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from webhook.commands.cluster_options import ClusterChoice, cluster_options
from webhook.commands.doctor_report import is_healthy, print_json, print_text
from webhook.commands.parameters import config_option, output_option
from webhook.tools.doctor.check import Result, result_of
from webhook.tools.doctor.cluster import Cluster, Names
from webhook.tools.doctor.registry import CHECKS

FINDINGS = 1
DEFAULTS = Names()


@click.command()
@cluster_options
@click.option(
    "--namespace", default=DEFAULTS.namespace, show_default=True, help="Where gpu-admission is installed."
)
@click.option("--service", default=DEFAULTS.service, show_default=True, help="Its Service.")
@click.option(
    "--canary-namespace",
    default=DEFAULTS.canary_namespace,
    show_default=True,
    help="Where a GPU pod is tried on a dry run.",
)
@click.option(
    "--certificate-secret",
    default=DEFAULTS.secret,
    show_default=True,
    help="The Secret of the certificate.",
)
@config_option("the cluster's documents")
@output_option("text", "json")
def doctor(
    cluster: ClusterChoice,
    namespace: str,
    service: str,
    canary_namespace: str,
    certificate_secret: str,
    config: Path | None,
    output: str,
) -> None:
    """Check an installation from end to end: configurations, certificate, rights, nodes, quotas, and a GPU pod on a dry run.

    Nothing is changed. Exits with 0 if there is nothing to say, 1 if something was found or could not be checked, 2 if the
    cluster cannot be reached.
    """
    names = Names(
        namespace=namespace, service=service, canary_namespace=canary_namespace, secret=certificate_secret
    )
    with cluster.client() as api:
        api.get("/version")
    results = _results(Cluster(api, names, config=config, now=datetime.now(UTC)))
    (print_json if output == "json" else print_text)(results)
    if not is_healthy(results):
        sys.exit(FINDINGS)


def _results(cluster: Cluster) -> list[Result]:
    results = []
    with _progress() as progress:
        for number, check in enumerate(CHECKS, start=1):
            progress.update(f"{number}/{len(CHECKS)} {check.title}")
            results.append(result_of(check, cluster))
    return results


@contextmanager
def _progress() -> Iterator[Status]:
    """Show on a terminal what is being done; nothing anywhere else."""
    console = Console(stderr=True, highlight=False)
    status = console.status("")
    if not console.is_terminal:
        yield status
        return
    with status:
        yield status
