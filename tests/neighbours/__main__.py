"""Build the controllers of others, from their Go modules."""

import sys

import click

from tests.controlplane.build import ControlPlaneUnavailable
from tests.neighbours.build import NEIGHBOURS, build


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("build")
@click.argument("names", nargs=-1, type=click.Choice([each.name for each in NEIGHBOURS]))
def build_command(names: tuple[str, ...]) -> None:
    """Build those of these names, or all, that are not there yet."""
    for neighbour in NEIGHBOURS:
        if not names or neighbour.name in names:
            build(neighbour, sys.stdout)


try:
    main()
except ControlPlaneUnavailable as error:
    sys.exit(str(error))
