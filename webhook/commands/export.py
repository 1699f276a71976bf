"""`gpu-admission export`: the rules that CEL can express, as admission policies of the API server itself."""

import re
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import click
import msgspec

from policies.registry import RULES_BY_ID
from webhook.cluster.objects import NAMESPACE
from webhook.commands.cluster_options import ClusterChoice, end_with, optional_cluster_options
from webhook.commands.output import counted, echo
from webhook.commands.parameters import config_option, now_option, output_option
from webhook.configuration.cluster_source import read_chosen
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory
from webhook.tools.export.admission_policies import (
    EXPRESSIBLE,
    AdmissionPolicies,
    ExportOptions,
    as_text,
    export_policies,
)
from webhook.tools.export.objects import Object

OLDEST = (1, 33)
"""Older API servers lack parts of CEL that are used here (comprehensions with two variables, 1.32, usable from 1.33 on)."""

MUTATIONS = {(1, 36): "v1", (1, 34): "v1beta1"}
"""The version of MutatingAdmissionPolicy since which version of Kubernetes."""

EXCLUDED = ("kube-system", "kube-node-lease", NAMESPACE)
"""The namespaces that the webhook excludes, too."""


def version(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"v?([0-9]+)\.([0-9]+)(\..*)?", value)
    if found is None:
        raise click.BadParameter(f'"{value}" must be a version of Kubernetes such as 1.36.')
    if (numbers := (int(found[1]), int(found[2]))) < OLDEST:
        oldest, lacking = ".".join(map(str, OLDEST)), "lacks what the policies need."
        raise click.BadParameter(f"must be {oldest} or newer: the CEL of Kubernetes {value} {lacking}")
    return numbers


def rule_ids(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return the named rules, separated by commas; all that can be exported if the option is omitted."""
    names = tuple(part.strip() for part in value.split(",")) if value is not None else EXPRESSIBLE
    for name in names:
        if name not in EXPRESSIBLE:
            what = "cannot be exported" if name in RULES_BY_ID else "is not a rule"
            raise click.BadParameter(f'"{name}" {what}; use {", ".join(EXPRESSIBLE)}')
    return names


@click.command()
@config_option("the cluster's documents")
@optional_cluster_options
@output_option("yaml", "json")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Write a file per policy into this directory."
)
@click.option("--rules", callback=rule_ids, metavar="RULE,…", help="Export only these.")
@click.option(
    "--kubernetes",
    metavar="VERSION",
    callback=version,
    default="1.36",
    show_default=True,
    help="The version of the API server.",
)
@click.option(
    "--api-version",
    type=click.Choice(["v1", "v1beta1"]),
    help="Of MutatingAdmissionPolicy; left out: the one that this version of Kubernetes has.",
)
@click.option(
    "--exclude-namespace",
    "excluded",
    multiple=True,
    default=EXCLUDED,
    show_default=True,
    help="Exclude this namespace, whatever the policies say; repeatable.",
)
@now_option("Export for this time, when exemptions and pauses may have ended")
def export(
    *,
    config: Path | None,
    cluster: ClusterChoice | None,
    output: str,
    directory: Path | None,
    rules: tuple[str, ...],
    kubernetes: tuple[int, int],
    api_version: str | None,
    excluded: tuple[str, ...],
    now: datetime,
) -> None:
    """Write the rules that CEL can express as admission policies.

    They are ValidatingAdmissionPolicy and MutatingAdmissionPolicy objects.

    They hold inside the API server: while the webhook is away, for pods that never reach it, for ephemeral containers.
    What is not in them, and why, goes to stderr. Exits with 2 if the documents are invalid or the cluster cannot be used.
    """
    if config is not None and cluster is not None and cluster.is_named:
        raise click.UsageError("--config needs no cluster: omit either it or --kubeconfig and --context")
    mutations = api_version or next((v for since, v in MUTATIONS.items() if kubernetes >= since), None)
    options = ExportOptions(
        now=now, mutations=mutations, rules=rules, excluded=tuple(dict.fromkeys(excluded))
    )
    exported = export_policies(_configuration(config, cluster), options)
    if directory is not None:
        write(directory, output, exported)
    else:
        echo(as_text(exported, output), nl=False)
    summarize(exported)


def _configuration(config: Path | None, cluster: ClusterChoice | None) -> Configuration:
    """Return the configuration of the directory, or the one in force in the cluster; the command ends if it cannot be read."""
    if config is None and cluster is not None:
        with cluster.client() as api:
            chosen = read_chosen(api)
        for problem in chosen.problems:
            echo(f"warning: not in force, so not exported: {problem}", err=True)
        return chosen.configuration
    try:
        return load_directory(config)
    except ConfigurationError as error:
        end_with(error.problems)


def write(directory: Path, output: str, exported: AdmissionPolicies) -> None:
    """Write each policy and its binding into a file of its name, and name files that are no longer part of the export."""
    directory.mkdir(parents=True, exist_ok=True)
    by_name: dict[str, list[Object]] = defaultdict(list)
    for each in exported.objects:
        by_name[each["metadata"]["name"]].append(each)
    for name, objects in by_name.items():
        part = msgspec.structs.replace(exported, objects=tuple(objects))
        (directory / f"{name}.{output}").write_text(as_text(part, output), encoding="utf-8")
    written = {f"{name}.{output}" for name in by_name}
    for name in sorted({path.name for path in directory.glob("gpu-admission.*")} - written):
        echo(f"no longer part of it, remove: {directory / name}", err=True)


def summarize(exported: AdmissionPolicies) -> None:
    """Print to stderr how much it is, what ends by itself, and what is not in it."""
    policies = counted(sum("Binding" not in each["kind"] for each in exported.objects), "policy", "policies")
    rules = ", ".join(exported.rules)
    of_rules = f": {rules}" if rules else ""
    echo(f"{policies} of the API server, each with its binding{of_rules}", err=True)
    for title, items in (
        ("ends by itself, but not in CEL, which has no clock; export again then:", exported.ending),
        ("not exported:", exported.unsupported),
    ):
        if items:
            echo("\n".join([title, *(f"- {item}" for item in items)]), err=True)
