"""`gpu-admission export`: the rules that CEL can express, as admission policies of the API server itself."""

import re
from datetime import datetime
from pathlib import Path

import click
import msgspec

from policies.pods.label_selector import LabelSelector
from webhook.cluster import errors
from webhook.cluster.objects import NAMESPACE
from webhook.commands.options import (
    ClusterChoice,
    Parsed,
    config_option,
    now_option,
    optional_cluster_options,
)
from webhook.commands.output import echo
from webhook.configuration.loader import Configuration, load_directory
from webhook.tools.doctor.checks.exported import denied_agents
from webhook.tools.doctor.checks.neighbours import pod_selector
from webhook.tools.doctor.cluster import InstalledCluster, Names
from webhook.tools.export.admission_policies import ExportOptions, as_text, export_policies, summary
from webhook.tools.export.objects import Object

OLDEST = (1, 35)
"""The oldest version with which the exported policies are tested."""

MUTATIONS = {(1, 36): "v1", OLDEST: "v1beta1"}
"""The version of MutatingAdmissionPolicy since which version of Kubernetes."""

EXCLUDED = ("kube-system", "kube-node-lease", NAMESPACE)
"""The namespaces that the webhook of the chart excludes."""


def kubernetes_version(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"v?([0-9]+)\.([0-9]+)(\..*)?", text)
    if match is None:
        raise ValueError(f'"{text}" must be a version of Kubernetes such as 1.37')
    if (numbers := (int(match[1]), int(match[2]))) < OLDEST:
        raise ValueError(
            f"must be {OLDEST[0]}.{OLDEST[1]} or newer: the policies are not tested with older ones"
        )
    return numbers


@click.command()
@config_option("the cluster's documents")
@optional_cluster_options
@click.option(
    "--kubernetes",
    type=Parsed("VERSION", kubernetes_version),
    default="1.37",
    help="The version of the API server.",
)
@click.option(
    "--exclude-namespace",
    "excluded",
    multiple=True,
    metavar="NAME",
    help="Exclude this namespace, too, whatever the policies say; repeatable.",
)
@now_option("Export for this time, when exemptions and pauses may have ended")
def export(
    *,
    config: Path | None,
    cluster: ClusterChoice | None,
    kubernetes: tuple[int, int],
    excluded: tuple[str, ...],
    now: datetime,
) -> None:
    """Write the rules that CEL can express as admission policies.

    They are ValidatingAdmissionPolicy and MutatingAdmissionPolicy objects.

    They hold inside the API server: while the webhook is away, for pods that never reach it, for ephemeral containers.
    What is not in them, and why, goes to stderr.

    Exit codes: 0; 2 if the documents are invalid or the cluster cannot be used.
    """
    if config is not None and cluster is not None and cluster.is_named:
        raise click.UsageError("--config needs no cluster: omit either it or --kubeconfig and --context")
    mutations = next(version for since, version in MUTATIONS.items() if kubernetes >= since)
    if config is None and cluster is not None:
        with cluster.client() as api:
            installed = InstalledCluster(api, Names(), config=None, now=now)
            configuration, selector = _of_cluster(installed, excluded)
    else:
        configuration, selector = load_directory(config), _without({}, (*EXCLUDED, *excluded))
    exported = export_policies(configuration, ExportOptions(now=now, mutations=mutations, selector=selector))
    echo(as_text(exported), nl=False)
    echo("\n".join(summary(exported)), err=True)


def _of_cluster(installed: InstalledCluster, excluded: tuple[str, ...]) -> tuple[Configuration, Object]:
    """Return the configuration in force and the webhook's namespaceSelector without `excluded`; warn of what would be denied."""
    for problem in installed.documents.problems:
        echo(f"warning: not in force, so not exported: {problem}", err=True)
    selector = _without({}, (*EXCLUDED, *excluded))
    try:
        selector = _without(pod_selector(installed), excluded) or selector
        selecting = msgspec.convert(selector, LabelSelector)
        names = (policy.name for policy in installed.configuration.policies.policies)
        for found in denied_agents(installed, dict.fromkeys(names, selecting)):
            echo(f"warning: {found.object}: {found.message}; {found.remedy}", err=True)
    except errors.Forbidden as error:
        echo(f"warning: what the webhook excludes and what DaemonSets need is not known: {error}", err=True)
    return installed.configuration, selector


def _without(selector: Object | None, excluded: tuple[str, ...]) -> Object:
    """Return the namespaceSelector that also excludes these namespaces."""
    if selector is None or not excluded:
        return selector or {}
    names = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": list(dict.fromkeys(excluded)),
    }
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", ()), names]}
