"""`gpu-admission export`: the rules that CEL can express, as admission policies of the API server itself."""

import re
from datetime import datetime
from pathlib import Path

import click

from webhook.cluster.objects import NAMESPACE
from webhook.commands.options import ClusterChoice, config_option, now_option, optional_cluster_options
from webhook.commands.output import echo
from webhook.configuration.cluster_source import read_chosen
from webhook.configuration.loader import Configuration, load_directory
from webhook.tools.export.admission_policies import ExportOptions, as_text, export_policies, summary

OLDEST = (1, 33)
"""Older API servers lack parts of CEL that are used here (comprehensions with two variables, 1.32, usable from 1.33 on)."""

MUTATIONS = {(1, 36): "v1", (1, 34): "v1beta1"}
"""The version of MutatingAdmissionPolicy since which version of Kubernetes."""

EXCLUDED = ("kube-system", "kube-node-lease", NAMESPACE)
"""The namespaces that the webhook excludes, too."""


def version(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, int]:
    match = re.fullmatch(r"v?([0-9]+)\.([0-9]+)(\..*)?", value)
    if match is None:
        raise click.BadParameter(f'"{value}" must be a version of Kubernetes such as 1.36.')
    if (numbers := (int(match[1]), int(match[2]))) < OLDEST:
        oldest, lacking = ".".join(map(str, OLDEST)), "lacks what the policies need."
        raise click.BadParameter(f"must be {oldest} or newer: the CEL of Kubernetes {value} {lacking}")
    return numbers


@click.command()
@config_option("the cluster's documents")
@optional_cluster_options
@click.option(
    "--kubernetes",
    metavar="VERSION",
    callback=version,
    default="1.36",
    help="The version of the API server.",
)
@click.option(
    "--exclude-namespace",
    "excluded",
    multiple=True,
    default=EXCLUDED,
    help="Exclude this namespace, whatever the policies say; repeatable.",
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
    mutations = next((v for since, v in MUTATIONS.items() if kubernetes >= since), None)
    options = ExportOptions(now=now, mutations=mutations, excluded=tuple(dict.fromkeys(excluded)))
    exported = export_policies(_configuration(config, cluster), options)
    echo(as_text(exported), nl=False)
    echo("\n".join(summary(exported)), err=True)


def _configuration(config: Path | None, cluster: ClusterChoice | None) -> Configuration:
    """Return the configuration of the directory, or the one in force in the cluster."""
    if config is None and cluster is not None:
        with cluster.client() as api:
            chosen = read_chosen(api)
        for problem in chosen.problems:
            echo(f"warning: not in force, so not exported: {problem}", err=True)
        return chosen.configuration
    return load_directory(config)
