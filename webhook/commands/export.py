"""`gpu-admission export`: the rules that CEL can express, as admission policies of the API server itself."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from policies.placement.pinning import classes_of_node
from policies.pods.label_selector import LabelSelector, Requirement
from policies.pods.names import is_dns_label
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import InstallationNames, decode_version
from webhook.commands.options import (
    ClusterChoice,
    Parsed,
    config_option,
    install_namespace_option,
    now_option,
    optional_cluster_options,
)
from webhook.commands.output import FAILED, echo, fail, fail_with
from webhook.configuration.loader import Configuration, load_directory
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.doctor.checks.exported import denied_agents
from webhook.tools.doctor.checks.neighbours import pod_selector
from webhook.tools.export import static
from webhook.tools.export.admission_policies import ExportOptions, Object, as_text, export_policies, summary
from webhook.tools.export.kueue import HEADER, kueue_objects
from webhook.tools.installed_cluster import InstalledCluster

MUTATIONS_SINCE = (1, 36)
"""The version with MutatingAdmissionPolicy v1; older ones have v1beta1."""
STATIC_SINCE = (1, 37)
"""The version since which API servers read policies from files by default."""

EXCLUDED = ("kube-system", "kube-node-lease")
"""The namespaces that the webhook of the chart excludes, beside its own."""

NOTHING_TO_GRANT = (
    "no GPUQuota names a GPU class in hard.classes, and no node is known of which hard.gpus could be granted"
)


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _namespace(text: str) -> str:
    if not is_dns_label(text):
        raise ValueError(f'"{text}" must be the name of a namespace')
    return text


def _directory(text: str) -> Path:
    return Path(_not_empty(text))


@click.command()
@config_option("the cluster's documents")
@optional_cluster_options
@click.option(
    "--exclude-namespace",
    "excluded",
    multiple=True,
    type=Parsed("NAME", _namespace),
    help="Exclude this namespace, too, whatever the policies say; repeatable.",
)
@click.option(
    "--static",
    "target",
    type=Parsed("DIR", _directory),
    help="Write files for API servers (staticManifestsDir) into this directory.",
)
@click.option(
    "--check",
    "checked",
    type=Parsed("DIR", _directory),
    help="Say how these files, and what the API server has loaded, differ from what --static would write.",
)
@click.option(
    "--release-account",
    "accounts",
    multiple=True,
    type=Parsed("USER", _not_empty),
    help="With the guard: this user, by whom Helm, Flux or Argo CD write, may change what it protects; repeatable.",
)
@click.option(
    "--break-glass-group",
    "group",
    type=Parsed("GROUP", _not_empty),
    help="A guard: only members of this group may change our webhook configurations, policies and CRDs.",
)
@click.option(
    "--kueue",
    "as_queues",
    is_flag=True,
    help="Instead of policies, write flavors and queues of Kueue that grant what the GPUQuotas grant.",
)
@install_namespace_option
@now_option("Export for this time, when exemptions and pauses may have ended")
def export(
    *,
    config: Path | None,
    cluster: ClusterChoice | None,
    excluded: tuple[str, ...],
    target: Path | None,
    checked: Path | None,
    accounts: tuple[str, ...],
    group: str | None,
    as_queues: bool,
    install_namespace: str,
    now: datetime,
) -> None:
    """Write the rules that CEL can express as admission policies.

    They are ValidatingAdmissionPolicy and MutatingAdmissionPolicy objects.

    They hold inside the API server: while the webhook is away, for pods that never reach it, for ephemeral containers.
    What is not in them, and why, goes to stderr.

    Exit codes: 0; 1 if --check found a difference; 2 if the documents are invalid, the cluster cannot be used, or its API server
    rejects what --static would write.
    """
    files_of = target or checked
    for is_wrong, message in (
        (config and cluster and cluster.is_named, "--config needs no cluster: omit either it or --kubeconfig and --context"),
        (target and checked, "--check compares with what --static would write: omit one of them"),
        ((accounts or group) and not files_of, "--release-account and --break-glass-group belong to --static and --check"),
        (accounts and not group, "--release-account names who may change what the guard protects: add --break-glass-group"),
    ):  # fmt: skip
        if is_wrong:
            raise click.UsageError(message)
    if as_queues:
        _print_queues(config, cluster, install_namespace, now)
        return
    guard = static.guard_objects(accounts, group, install_namespace) if group else []
    selector = _excluding(LabelSelector(), (*EXCLUDED, install_namespace, *excluded))
    with cluster.client() if config is None and cluster is not None else nullcontext() as api:
        version = STATIC_SINCE if api is None else _version(api)
        if files_of and version < STATIC_SINCE:
            old = ".".join(map(str, version))
            fail(f"the API server has version {old}: it must be 1.37 or newer to read policies from files")
        if api is None:
            configuration = load_directory(config)
        else:
            names = InstallationNames(namespace=install_namespace)
            installed = InstalledCluster(api, names, config=None, now=now)
            configuration, selector = _cluster_configuration(installed, selector, excluded)
        mutations = "v1" if version >= MUTATIONS_SINCE else "v1beta1"
        options = ExportOptions(now=now, mutations=mutations, selector=selector)
        exported = export_policies(configuration, options)
        objects = [*guard, *exported.objects]
        files = static.static_files(objects, exported.version)
        if target:
            _compile_on_server(api, objects)
            _write_files(target, files)
        elif checked:
            _check_files(api, checked, files)
        else:
            echo(as_text(exported), nl=False)
    if not checked:
        echo("\n".join(summary(exported)), err=True)


def _print_queues(config: Path | None, cluster: ClusterChoice | None, namespace: str, now: datetime) -> None:
    """Print objects of Kueue; the command ends if there are none. `namespace`: of the installation."""
    if config is not None or cluster is None:
        configuration = load_directory(config)
        quotas = {name: spec.amounts for name, spec in configuration.quotas.items()}
        queues = kueue_objects(configuration, quotas, ())
    else:
        with cluster.client() as api:
            installed = InstalledCluster(api, InstallationNames(namespace=namespace), config=None, now=now)
            configuration = installed.configuration
            found = (classes_of_node(node.labels, configuration.classes) for node in installed.gpu_nodes)
            with_nodes = frozenset[str]().union(*found)
            quotas = {quota.namespace: quota.hard for quota in installed.quotas}
        queues = kueue_objects(configuration, quotas, with_nodes)
    if not queues:
        fail(NOTHING_TO_GRANT)
    echo(HEADER + "".join(f"---\n{dump_document(queue)}" for queue in queues), nl=False)


def _version(api: ApiClient) -> tuple[int, ...]:
    """Return the major and the minor version of the API server."""
    return tuple(map(int, re.findall(r"\d+", decode_version(api.get("/version")).git_version)[:2]))


def _compile_on_server(api: ApiClient | None, objects: Sequence[Object]) -> None:
    """Have the API server compile the objects, which are stored nowhere; the command ends if it refuses one."""
    try:
        if api is None:
            echo("warning: not compiled: --config and --standalone ask no API server", err=True)
        elif refused := list(static.refusals(api, objects)):
            fail_with(refused, "; nothing is written")
    except errors.Forbidden as error:
        echo(f"warning: not compiled: {error}", err=True)


def _write_files(directory: Path, files: Mapping[str, str]) -> None:
    try:
        written = static.write(directory, files)
        kept = list(static.missing_plugins(directory / static.ADMISSION))
    except OSError as error:
        fail(f"cannot write {directory}: {error}")
    if kept:
        echo("\n".join(f"warning: not changed: {reason}" for reason in kept), err=True)
    echo(f"written: {', '.join(written)}; {directory / static.README} says where API servers read them")


def _check_files(api: ApiClient | None, directory: Path, files: Mapping[str, str]) -> None:
    """Say what the directory and the API server have; the command ends if that differs from the files."""
    try:
        found, folders = list(static.differences(directory, files)), static.folder_hashes(directory)
    except OSError as error:
        fail(f"cannot read {directory}: {error}")
    unknown = "--config and --standalone ask no API server"
    try:
        if api is not None:
            loaded, unknown = static.loaded(api), ""
            servers = ", ".join({each.server for each in loaded.values()}) or "without static policies"
            echo(f"asked API server {servers}: each has its own files", err=True)
            found += static.loaded_differences(loaded, folders)
    except errors.Forbidden as error:
        unknown = str(error)
    if found:
        echo("\n".join(found))
        sys.exit(FAILED)
    compared = (name for name in files if name != static.README)
    echo(f"as the configuration in force makes them: {', '.join(compared)}")
    if unknown:
        echo(f"warning: what API servers have loaded is not known: {unknown}", err=True)


def _cluster_configuration(
    installed: InstalledCluster, selector: LabelSelector, excluded: tuple[str, ...]
) -> tuple[Configuration, LabelSelector]:
    """Return the configuration in force and the webhook's namespaceSelector without `excluded`, or the one that is given.

    Warn of what would be denied.
    """
    for problem in installed.documents.problems:
        echo(f"warning: not in force, so not exported: {problem}", err=True)
    try:
        if of_webhook := pod_selector(installed):
            selector = _excluding(msgspec.convert(of_webhook, LabelSelector), excluded)
        names = (policy.name for policy in installed.configuration.policies.policies)
        for found in denied_agents(installed, dict.fromkeys(names, selector)):
            echo(f"warning: {found.object}: {found.message}; {found.remedy}", err=True)
    except errors.Forbidden as error:
        echo(f"warning: what the webhook excludes and what DaemonSets need is not known: {error}", err=True)
    return installed.configuration, selector


def _excluding(selector: LabelSelector, excluded: tuple[str, ...]) -> LabelSelector:
    """Return the selector that also excludes these namespaces."""
    names = Requirement("kubernetes.io/metadata.name", "NotIn", tuple(dict.fromkeys(excluded)))
    return replace(selector, match_expressions=(*selector.match_expressions, *([names] if excluded else ())))
