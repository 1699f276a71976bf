"""`gpu-admission version`: the version of this program, and that of the installation in the cluster."""

import platform
from typing import Any

import click
import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import CAPACITY, CONTROLLER, WEBHOOK, decode_metadata
from webhook.commands.options import ClusterChoice, cluster_options, install_namespace_option, output_option
from webhook.commands.output import Screen, print_as
from webhook.version import VERSION, commit

LABEL = "app.kubernetes.io/version"
INSTALLED = {"webhook": ("deployments", WEBHOOK), "controller": ("deployments", CONTROLLER)}
PUBLISHED = ("configmaps", CAPACITY)
"""Every authenticated user may get it; who may not get Deployments reads the version of the installation there."""


@click.command()
@click.option("--client", is_flag=True, help="Show the version of this program alone, without a cluster.")
@install_namespace_option
@output_option()
@cluster_options
def version(*, client: bool, install_namespace: str, output: str, cluster: ClusterChoice) -> None:
    """Show the versions of this program and of the installation.

    Exit codes: 0, also if they differ; 2 if the cluster cannot be used.
    """
    if output == "text":
        Screen().table([("client".ljust(len("installation")), f"{VERSION}, commit {commit()}")])
    shown: dict[str, Any] = {
        "client": {"version": VERSION, "commit": commit(), "python": platform.python_version()}
    }
    if not client:
        with cluster.client() as api:
            shown["kubernetes"] = msgspec.json.decode(api.get("/version")).get("gitVersion", "")
            shown["installation"] = installed(api, install_namespace)
        shown["skew"] = any(each != VERSION for each in shown["installation"].values())
    print_as(output, shown, lambda screen: _print(screen, shown, install_namespace))


def installed(api: ApiClient, namespace: str) -> dict[str, str]:
    """Return the versions of webhook and controller, or of the installation as a whole; none where nothing is installed."""
    parts = {name: _label(api, "/apis/apps/v1", namespace, *what) for name, what in INSTALLED.items()}
    found = {name: label for name, label in parts.items() if label}
    whole = _label(api, "/api/v1", namespace, *PUBLISHED) if not found else ""
    return {"whole": whole} if whole else found


def _label(api: ApiClient, group: str, namespace: str, plural: str, name: str) -> str:
    """Return the label of the object; "" without it, or where the object may not be read."""
    try:
        metadata = decode_metadata(api.get(api_path(group, "namespaces", namespace, plural, name)))
    except (errors.Forbidden, errors.NotFound):
        return ""
    return dict(metadata.sorted_labels).get(LABEL, "")


def _print(screen: Screen, shown: dict[str, Any], namespace: str) -> None:
    if "installation" not in shown:
        return
    found = shown["installation"]
    parts = ", ".join(f"{name} {label}" for name, label in found.items()).removeprefix("whole ")
    rows = [
        ("installation", parts or f"none in namespace {namespace} that you may read"),
        ("Kubernetes", shown["kubernetes"]),
    ]
    screen.table(rows)
    if shown["skew"]:
        advice = "use the client of the installation's version: checks, fields and words may differ"
        screen.paragraph(f"the client and the installation differ: {advice}", style="yellow")
