"""`gpu-admission console`: status, denials and `why` as a local web page."""

import webbrowser

import click

from webhook.commands.cluster_options import ClusterChoice, cluster_options, fail
from webhook.tools.console.server import console_server

PORT = 7080


@click.command()
@click.option("-n", "--namespace", "namespaces", multiple=True, help="Show this namespace only; repeatable.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port on 127.0.0.1; 0: a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@cluster_options
def console(namespaces: tuple[str, ...], port: int, *, no_browser: bool, cluster: ClusterChoice) -> None:
    """Show quotas, denials and reasons as a local web page.

    It reads the cluster with your own rights, changes nothing, and answers this machine only, until you press Ctrl-C.
    """
    with cluster.client() as api:
        try:
            server = console_server(api, cluster="", namespaces=namespaces, port=port)
        except OSError as error:
            fail(f"port {port} of 127.0.0.1 cannot be used: {error.strerror}; name another one with --port")
        address = f"http://127.0.0.1:{server.port}/"
        click.echo(f"The console is at {address} until you press Ctrl-C.")
        if not no_browser:
            webbrowser.open(address)
        server.serve_forever()
