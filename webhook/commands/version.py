"""`gpu-admission version`: the version of this program, and that of the installation in the cluster."""

from typing import Any

import click

from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import CAPACITY_CONFIG_MAP, CONTROLLER, WEBHOOK, decode_metadata, decode_version
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import Screen, print_as
from webhook.version import VERSION, commit

LABEL = "app.kubernetes.io/version"
LABELLED_OBJECTS = {
    "manifests": ("/api/v1", "configmaps", CAPACITY_CONFIG_MAP),
    "webhook": ("/apis/apps/v1", "deployments", WEBHOOK),
    "controller": ("/apis/apps/v1", "deployments", CONTROLLER),
}
"""Objects of an installation that have its version as a label. The first one every authenticated user may get."""


@click.command()
@click.option("--client", is_flag=True, help="Show the version of this program alone, without a cluster.")
@options.install_namespace_option
@options.output_option()
@options.cluster_options
def version(*, client: bool, install_namespace: str, output: str, cluster: ClusterChoice) -> None:
    """Show the versions of this program and of the installation.

    Exit codes: 0, also if they differ; 2 if the cluster cannot be used.
    """
    shown: dict[str, Any] = {"client": {"version": VERSION, "commit": commit()}}
    try:
        if not client:
            with cluster.client() as api:
                shown |= _installed_versions(api, install_namespace)
    finally:
        # Without a cluster, too, what is known stands before the error.
        print_as(output, shown, lambda screen: _print_versions(screen, shown, install_namespace))


def _installed_versions(api: ApiClient, install_namespace: str) -> dict[str, Any]:
    labels = {name: _version_label(api, install_namespace, *what) for name, what in LABELLED_OBJECTS.items()}
    installation = {name: label for name, label in labels.items() if label}
    return {
        "kubernetes": decode_version(api.get("/version")).git_version,
        "installation": installation,
        "skew": not {VERSION}.issuperset(installation.values()),
    }


def _version_label(api: ApiClient, namespace: str, group: str, plural: str, name: str) -> str:
    """Return the label of the object; "" without it, or where the object may not be read."""
    try:
        metadata = decode_metadata(api.get(api_path(group, "namespaces", namespace, plural, name)))
    except (errors.Forbidden, errors.NotFound):
        return ""
    return dict(metadata.sorted_labels).get(LABEL, "")


def _print_versions(screen: Screen, shown: dict[str, Any], namespace: str) -> None:
    screen.line(f"client        {VERSION}, commit {shown['client']['commit']}")
    if "installation" not in shown:
        return
    parts = ", ".join(f"{name} {label}" for name, label in shown["installation"].items())
    screen.line(f"installation  {parts or f'none in namespace {namespace} that you may read'}")
    screen.line(f"Kubernetes    {shown['kubernetes']}")
    if shown["skew"]:
        advice = "use the client of the installation's version: checks, fields and words may differ"
        screen.paragraph(f"the client and the installation differ: {advice}", style="yellow")
