"""`gpu-admission rightsize`: workloads that would fit fewer GPUs, a MIG slice or a smaller class, and what that would save."""

from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import Screen, print_as
from webhook.prometheus.client import Prometheus
from webhook.tools.prices import Prices, money, read_prices
from webhook.tools.rightsize.sizing import Size, Suggestion
from webhook.tools.rightsize.workloads import SizedWorkload, SizeReport, read_sizes

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
    if len(report.workloads) > MAX_SHOWN:
        screen.line(f"and {len(report.workloads) - MAX_SHOWN} more: see -o json")
    if report.workloads:
        screen.line()
    for note in report.notes(currency):
        screen.paragraph(note)
    screen.limits_of_view(report.omitted)


def sizes_document(report: SizeReport, prices: Prices | None = None) -> dict[str, Any]:
    """Return what `-o json` prints. Hours and GiB are numbers, money is text."""
    return {
        "windowHours": report.hours,
        "byHour": report.by_hour,
        **({"currency": prices.currency, "saved": money(report.saved_cents)} if prices else {}),
        "savedGPUHours": float(report.saved_gpu_hours),
        "workloads": [_workload(workload) for workload in report.workloads],
        "fitting": report.fitting,
        "notJudged": report.unjudged,
        "omitted": report.omitted,
    }


def _workload(workload: SizedWorkload) -> dict[str, Any]:
    return {
        "namespace": workload.namespace,
        "owner": workload.owner,
        "pods": workload.pods,
        **_size(workload.size),
        "peakMemoryGiB": _number(workload.peaks.memory_gib),
        "peakUse": _number(workload.peaks.use),
        "gpuHours": _number(workload.gpu_hours),
        "idle": workload.peaks.are_idle,
        "suggestions": [_suggestion(suggestion) for suggestion in workload.suggestions],
    }


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    return {
        **_size(suggestion.size),
        "because": suggestion.because,
        "remark": suggestion.remark,
        "gpuHours": _number(suggestion.gpu_hours),
        "savedGPUHours": _number(suggestion.saved_gpu_hours),
        **({} if suggestion.saved_cents is None else {"saved": money(suggestion.saved_cents)}),
    }


def _size(size: Size) -> dict[str, Any]:
    return {"class": size.gpu_class, "resource": size.resource, "gpus": size.gpus}


def _number(value: Fraction) -> float:
    return round(float(value), 3)
