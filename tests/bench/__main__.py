"""Compare gpu-admission with doing nothing, the API server's CEL and its ResourceQuota, and with itself before.

`server`: our hooks on our server. `api`: the API server alone. `cluster`: admission. `quota`: a quota. `hot`: one busy namespace
and more replicas. `queue`: pods that wait in line. `scale`: many pods and quotas. `work`: the longest reviews.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from tests.bench import api, cluster, hot, quota, scale, server, work
from tests.bench.before import Version, versions
from tests.bench.blocks import LAPS
from tests.bench.population import MEMBERS, Population
from tests.bench.waiting import compare as compare_waiting
from tests.controlplane import build
from tests.generated_docs import generated

PARTS = ("work", "server", "api", "cluster", "quota", "hot", "queue", "scale")
ALL = "all"


def at_least(least: int, name: str, meaning: str, **more: Any) -> Callable[[Any], Any]:
    """Return the option of a number."""
    return click.option(name, help=meaning, type=click.IntRange(min=least), show_default=True, **more)


@click.command(help=__doc__)
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, ALL]))
@click.option(
    "--before", metavar="COMMIT", help="A commit of ours to interleave with this tree, in all parts but work."
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, exists=True),
    help="A page to write the figures into, between <!-- make bench PART --> and <!-- end -->.",
)
@at_least(
    1,
    "--rounds",
    "Of every comparison; left out: 40 of api and cluster, 4 of server, 3 of quota, hot and queue, 1 of scale.",
)
@at_least(64, "--requests", "Of a sample of the server.", default=600)
@at_least(64, "--creates", "Of a sample of quota and queue; in a busy namespace twice as many.", default=250)
@at_least(
    200, "--pods", "Of scale: so many GPU pods in one namespace, as many over all others.", default=20_000
)
@at_least(
    100,
    "--waiting",
    "Of queue: so many pods in one namespace, 20 times as many over all others.",
    default=1000,
)
@at_least(1, "--replicas", "Of hot; may be repeated.", multiple=True, default=hot.REPLICAS)
@at_least(2, "--namespaces", "Of queue and scale.", default=200)
@at_least(1, "--nodes", "Of scale.", default=1000)
@at_least(0, "--teams", f"Of scale: once more with so many, of {MEMBERS} namespaces each.", default=0)
def main(
    parts: tuple[str, ...],
    before: str | None,
    page: Path | None,
    rounds: int | None,
    requests: int,
    creates: int,
    pods: int,
    waiting: int,
    replicas: tuple[int, ...],
    namespaces: int,
    nodes: int,
    teams: int,
) -> None:
    if MEMBERS * teams > namespaces:
        raise click.UsageError(f"--teams {teams} takes --namespaces {MEMBERS * teams} at least")
    began = time.monotonic()

    def progress(line: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {line}", err=True)

    few, many = rounds or 3, creates * 2
    population = Population(pods=pods, namespaces=namespaces, nodes=nodes)
    compared: dict[str, Callable[[list[Version]], Iterator[str]]] = {
        "work": lambda _: work.compare(progress),
        "server": lambda trees: server.compare(
            trees, rounds=rounds or 4, requests=requests, progress=progress
        ),
        "api": lambda trees: api.compare(trees, rounds=rounds or LAPS, progress=progress),
        "cluster": lambda trees: cluster.compare(trees, rounds=rounds or LAPS, progress=progress),
        "quota": lambda trees: quota.compare(trees, rounds=few, creates=creates, progress=progress),
        "hot": lambda trees: hot.compare(trees, replicas, rounds=few, creates=many, progress=progress),
        "queue": lambda trees: compare_waiting(
            trees, rounds=few, creates=creates, pods=waiting, namespaces=namespaces, progress=progress
        ),
        "scale": lambda trees: scale.compare(
            trees, population, teams=teams, rounds=rounds or 1, progress=progress
        ),
    }
    chosen = PARTS if ALL in parts or not parts else tuple(dict.fromkeys(parts))
    if chosen != ("work",):
        build(sys.stderr)
    with versions(before) as trees:
        for part in chosen:
            text = "\n".join(compared[part](trees))
            click.echo(f"\n{text}")
            if page:
                page.write_text(generated(page.read_text(), f"make bench {part}", f"```text\n{text}\n```\n"))


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # so that it cleans up as it does on Ctrl-C
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
