"""`gpu-admission console`: status, denials and `why` as a local web page."""

import os
import webbrowser
from urllib.parse import urlsplit

import click

from webhook.cluster.access import load_access
from webhook.commands.options import ClusterChoice, cluster_options, namespace_options, prometheus_options
from webhook.commands.output import echo, fail
from webhook.prometheus.client import Prometheus
from webhook.tools.console.app import HOST, console_server

PORT = 7080


@click.command()
@namespace_options(several=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, help=f"Port on {HOST}; 0 takes a free one."
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@prometheus_options("Also show workloads with more GPUs than they need")
@cluster_options
def console(
    *,
    namespaces: tuple[str, ...],
    all_namespaces: bool,
    port: int,
    no_browser: bool,
    prometheus: Prometheus | None,
    cluster: ClusterChoice,
) -> None:
    """Show status, denials and reasons as a local web page.

    The page reads the cluster with your own rights, changes nothing, and is served to this machine only, until Ctrl-C.
    """
    home = "" if all_namespaces else cluster.namespace()
    with cluster.client() as api:
        name = cluster.context or urlsplit(load_access(*cluster).url).netloc
        try:
            server = console_server(
                api, cluster=name, namespaces=namespaces, home=home, port=port, prometheus=prometheus
            )
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            fail(f"port {port} of {HOST} cannot be used: {reason}; name another one with --port")
        address = f"http://{HOST}:{server.port}/"
        echo(f"The console is at {address} until Ctrl-C.")
        if not no_browser:
            webbrowser.open(address)
        server.serve_forever()
