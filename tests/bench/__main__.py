"""Compare gpu-admission with doing nothing, with no-op hooks, the API server's CEL and its ResourceQuota, and with itself before.

`edge`: our hooks on our server. `api`: the API server alone. `cluster`: admission. `quota`: a quota. `hot`: one busy namespace
and more replicas. `scale`: many pods. `counts`: many quotas. `work`: the longest reviews.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import click
import msgspec

from tests.bench import api, cluster, counts, edge, hot, quota, report, scale, work
from tests.bench.before import Version, versions
from tests.bench.population import Population
from tests.controlplane import build

LINES: dict[str, Callable[[Any], Iterator[str]]] = {
    "work": work.lines,
    "edge": report.edge_lines,
    "api": report.api_lines,
    "cluster": report.cluster_lines,
    "quota": report.quota_lines,
    "hot": report.hot_lines,
    "scale": report.scale_lines,
    "counts": report.scale_lines,
}
"""By part, the tables of its report."""
PARTS = tuple(LINES)
ALL = "all"


@click.command(help=__doc__)
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, ALL]))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--before",
    metavar="COMMIT",
    help="A commit of ours to interleave with the working tree, in all parts but work.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Of every comparison; left out: 8 of api, 4 of edge, 3 of cluster, quota and hot, 1 of scale and counts.",
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
    help="Of a sample in the cluster; in a busy namespace twice as many.",
)
@click.option(
    "--pods",
    default=20_000,
    show_default=True,
    type=click.IntRange(min=200),
    help="Of scale: so many GPU pods in one namespace, and as many over all others.",
)
@click.option(
    "--replicas",
    multiple=True,
    default=hot.REPLICAS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Of hot; may be repeated.",
)
@click.option("--namespaces", default=200, show_default=True, type=click.IntRange(min=2), help="Of scale.")
@click.option("--nodes", default=1000, show_default=True, type=click.IntRange(min=1), help="Of scale.")
def main(
    parts: tuple[str, ...],
    output: str,
    before: str | None,
    rounds: int | None,
    requests: int,
    creates: int,
    pods: int,
    replicas: tuple[int, ...],
    namespaces: int,
    nodes: int,
) -> None:
    began = time.monotonic()

    def progress(line: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {line}", err=True)

    few, many = rounds or 3, creates * 2
    population = Population(pods=pods, namespaces=namespaces, nodes=nodes)
    compared: dict[str, Callable[[list[Version]], Any]] = {
        "work": lambda _: work.compare(progress=progress),
        "edge": lambda trees: edge.compare(trees, rounds=rounds or 4, requests=requests, progress=progress),
        "api": lambda trees: api.compare(trees, rounds=rounds or 8, creates=creates, progress=progress),
        "cluster": lambda trees: cluster.compare(trees, rounds=few, creates=creates, progress=progress),
        "quota": lambda trees: quota.compare(trees, rounds=few, creates=creates, progress=progress),
        "hot": lambda trees: hot.compare(
            trees, replica_counts=replicas, rounds=few, creates=many, progress=progress
        ),
        "scale": lambda trees: scale.compare(trees, population, rounds=rounds or 1, progress=progress),
        "counts": lambda trees: counts.compare(trees, rounds=rounds or 1, progress=progress),
    }
    chosen = PARTS if ALL in parts or not parts else tuple(dict.fromkeys(parts))
    if chosen != ("work",):
        build(sys.stderr)
    reports: dict[str, object] = {}
    with versions(before) as trees:
        for part in chosen:
            made = compared[part](trees)
            reports[part] = msgspec.to_builtins(made, str_keys=True)
            if output == "text":
                click.echo("\n".join(["", *LINES[part](made)]))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(reports)))


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # so that it cleans up as it does on Ctrl-C
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
