"""Build the control plane's binaries, say where they are, or run one in the foreground."""

import signal
import sys
import threading
import time
from types import FrameType

import click

from tests.controlplane import helm
from tests.controlplane.build import ControlPlaneUnavailable, build, locate
from tests.controlplane.plane import CONTROLLERS, SCHEDULER, ControlPlane, ControlPlaneFailed
from tests.oracle.binary import ORACLE, SELECTORS


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command("build")
def build_command() -> None:
    """Build what is not there yet: minutes once, then nothing."""
    build(sys.stdout)


@main.command("build-helm")
def build_helm_command() -> None:
    """Build Helm, which renders and checks the manifests of deploy/, if it is not there yet."""
    helm.build(sys.stdout)


@main.command("build-oracle")
def build_oracle_command() -> None:
    """Build the programs that answer as the API server and the scheduler do, if they are not there yet."""
    for each in (ORACLE, SELECTORS):
        each.build(sys.stdout)


@main.command()
def path() -> None:
    """Print the folder of the binaries."""
    click.echo(locate())


@main.command()
@click.option("--controllers/--no-controllers", default=True, help=f"with {CONTROLLERS} (default)")
@click.option("--scheduler/--no-scheduler", default=True, help=f"with {SCHEDULER} (default)")
def run(controllers: bool, scheduler: bool) -> None:
    """Start a control plane and keep it until Ctrl-C."""
    build(sys.stderr)
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    started = time.monotonic()
    with ControlPlane(controllers=controllers, scheduler=scheduler) as plane:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        click.echo(
            f"ready after {time.monotonic() - started:.1f} s: {plane.url}, services in {plane.service_range}"
        )
        click.echo(f"kubeconfig: {plane.kubeconfig()}")
        click.echo(f"try: {plane.binaries / 'kubectl'} --kubeconfig={plane.kubeconfig()} get namespaces")
        click.echo("Ctrl-C ends it and removes everything.")
        ended.wait()


try:
    main()
except (ControlPlaneUnavailable, ControlPlaneFailed) as error:
    sys.exit(str(error))
