"""`gpu-admission rightsize`: workloads that would fit fewer GPUs, a MIG slice or a smaller class, and what that would save."""

from datetime import datetime
from pathlib import Path

import click

from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import Screen, print_as
from webhook.commands.sizes_document import sizes_document
from webhook.prometheus.client import Prometheus
from webhook.tools.prices import Prices, read_prices
from webhook.tools.rightsize.workloads import SizeReport, read_sizes

MAX_SHOWN = 40
"""Workloads in the text."""


@click.command()
@options.namespace_options("the context's", several=True)
@options.verbose_option
@click.option(
    "--window",
    type=options.Parsed("DURATION", options.window),
    default="14d",
    help="How far back peaks are read: days or hours, 14d or 36h.",
)
@options.prices_option
@options.output_option()
@options.config_option("the cluster's documents")
@options.prometheus_options("Read peaks")
@options.cluster_options
@options.now_option("Read the window up to this time")
def rightsize(
    *,
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    window: int,
    prices: Path | None,
    output: str,
    config: Path | None,
    prometheus: Prometheus | None,
    cluster: ClusterChoice,
    now: datetime,
) -> None:
    """Find workloads with more GPUs than their peaks need.

    A smaller size must hold the peak of memory and the peak of use in the window, times 1.25. Pods count that were measured
    for a day, and those that succeeded after an hour or more.

    Exit codes: 0, or 2 if the cluster, Prometheus, the documents or the prices cannot be used.
    """
    if prometheus is None:
        raise click.UsageError("--prometheus-url is required: peaks are read from there")
    chosen = () if all_namespaces else namespaces or (cluster.namespace(),)
    priced = read_prices(prices) if prices else None
    with cluster.client() as api:
        report = read_sizes(
            api, prometheus, now, hours=window, namespaces=chosen, prices=priced, config=config
        )
    print_as(output, sizes_document(report, priced), lambda screen: print_text(screen, report, priced))


def print_text(screen: Screen, report: SizeReport, prices: Prices | None) -> None:
    currency = prices.currency if prices else ""
    for workload in report.workloads[:MAX_SHOWN]:
        best = workload.best
        screen.line(workload.title, "bold")
        screen.paragraph(workload.advice(currency), indent=2)
        screen.paragraph(best.because, indent=4)
        if best.remark:
            screen.paragraph(best.remark, indent=4)
        if workload.peaks.are_idle:
            screen.paragraph(
                "no GPU of it worked in this time: ask whether it is needed at all", indent=4, style="yellow"
            )
    screen.rest(len(report.workloads) - MAX_SHOWN, hint=": see -o json", indent=0)
    if report.workloads:
        screen.line()
    for note in report.notes(currency):
        screen.paragraph(note)
    screen.print_omissions(report.omitted)
