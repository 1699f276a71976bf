"""Compare gpu-admission with a view that does nothing, the API server's CEL and its ResourceQuota; find the longest reviews."""

import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

import click
import msgspec

from tests.bench import cluster, edge, quota, work
from tests.bench.measure import LoadFailed
from tests.bench.report import cluster_lines, edge_lines, quota_lines
from tests.controlplane import ControlPlaneFailed, ControlPlaneUnavailable, build

EDGE, CLUSTER, QUOTA, WORK, ALL = "edge", "cluster", "quota", "work", "all"


@click.command(help=__doc__)
@click.argument("comparison", type=click.Choice([EDGE, CLUSTER, QUOTA, WORK, ALL]), default=ALL)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--rounds", default=4, show_default=True, type=click.IntRange(min=1), help="Of every comparison."
)
@click.option(
    "--requests",
    default=600,
    show_default=True,
    type=click.IntRange(min=64),
    help="Of a sample at the edge.",
)
@click.option(
    "--creates",
    default=250,
    show_default=True,
    type=click.IntRange(min=64),
    help="Of a sample in the cluster.",
)
def main(comparison: str, output: str, rounds: int, requests: int, creates: int) -> None:
    began = time.monotonic()

    def progress(line: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {line}", err=True)

    reports: dict[str, object] = {}
    if comparison in {WORK, ALL}:
        work_report = work.compare(progress=progress)
        reports["work"] = msgspec.to_builtins(work_report)
        _print(work.lines(work_report), output)
    if comparison != WORK:
        build(sys.stderr)
    if comparison in {EDGE, ALL}:
        edge_report = edge.compare(rounds=rounds, requests=requests, progress=progress)
        reports["edge"] = msgspec.to_builtins(edge_report, str_keys=True)
        _print(edge_lines(edge_report), output)
    if comparison in {CLUSTER, ALL}:
        cluster_report = cluster.compare(rounds=rounds, creates=creates, progress=progress)
        reports["cluster"] = msgspec.to_builtins(cluster_report, str_keys=True)
        _print(cluster_lines(cluster_report), output)
    if comparison in {QUOTA, ALL}:
        quota_report = quota.compare(rounds=rounds, creates=creates, progress=progress)
        reports["quota"] = msgspec.to_builtins(quota_report, str_keys=True)
        _print(quota_lines(quota_report), output)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(reports)))


def _print(lines: Iterator[str], output: str) -> None:
    if output == "text":
        click.echo("\n".join(["", *lines]))


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # so that it cleans up as it does on Ctrl-C
    try:
        main()
    except (ControlPlaneUnavailable, ControlPlaneFailed, LoadFailed) as error:
        sys.exit(str(error))
