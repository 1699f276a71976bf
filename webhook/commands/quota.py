"""`gpu-admission quota`: what each namespace may use, uses, and has promised to creations in flight; and who holds it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from policies.quota.amounts import GPUS, NOTHING
from policies.quota.charge import Unpinned
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.commands.cluster_options import ClusterChoice, cluster_options, fail
from webhook.commands.parameters import config_option, output_option
from webhook.commands.quota_report import HolderOfQuota, QuotaReport, print_json, print_text
from webhook.configuration.cluster_source import read_chosen
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory
from webhook.controller.records import (
    NODES,
    PODS,
    QUOTAS,
    ClaimReader,
    Labels,
    PodReader,
    QuotaRecord,
    claims_resource,
    node_reader,
    quota_record,
)

NONE = 1
NO_QUOTA = "there is no GPUQuota"


@click.command()
@click.option(
    "-n", "--namespace", default="", help="One namespace, with the pods and claims that hold its quota."
)
@output_option("text", "json")
@config_option("the cluster's documents")
@cluster_options
def quota(namespace: str, output: str, config: Path | None, cluster: ClusterChoice) -> None:
    """Show used, reserved and granted GPUs per namespace.

    Exits with 1 if there is no GPUQuota, 2 if the cluster or the documents cannot be used.
    """
    try:
        with cluster.client() as api:
            configuration = load_directory(config) if config else _in_force(api)
            reports = list(_reports(api, configuration, namespace))
    except ConfigurationError as error:
        fail(error)
    if not reports:
        click.echo(f"{NO_QUOTA} in namespace {namespace}" if namespace else NO_QUOTA, err=True)
        sys.exit(NONE)
    (print_json if output == "json" else print_text)(reports)


def _in_force(api: ApiClient) -> Configuration:
    """Return what is in force in the cluster; for somebody who may not see some kind of documents, without those."""
    return read_chosen(api, lacking=(errors.NotFound, errors.Forbidden)).configuration


def _reports(api: ApiClient, configuration: Configuration, namespace: str) -> Iterator[QuotaReport]:
    try:
        listed = api.list(QUOTAS.path(namespace), quota_record)
    except errors.NotFound:
        raise errors.NotFound("this cluster has no GPUQuotas: their kind is not installed") from None
    for record in sorted(listed.items, key=lambda record: record.namespace):
        objects = _objects(api, configuration, record) if namespace else None
        yield QuotaReport(record.namespace, record.ledger, record.problem, objects)


def _objects(
    api: ApiClient, configuration: Configuration, record: QuotaRecord
) -> tuple[HolderOfQuota, ...] | None:
    """Return who holds the quota, most GPUs first."""
    if record.ledger is None:
        return None
    found = _holders(api, configuration, record.namespace, record.ledger.unpinned)
    return tuple(
        sorted(
            (held for held in found if held.demand),
            key=lambda held: (-held.demand.get(GPUS, NOTHING), held.name),
        )
    )


def _holders(
    api: ApiClient, configuration: Configuration, namespace: str, unpinned: Unpinned
) -> Iterator[HolderOfQuota]:
    labels = _node_labels(api, configuration)
    pods = PodReader(configuration.classes, configuration.resource_mapping)
    charged = {}
    for pod in api.list(PODS.path(namespace), pods.record).items:
        if pod.is_terminal:
            continue
        demand = pods.charge(pod, unpinned, labels.get(pod.node_name)).vector
        if demand:
            charged[pod.uid] = pod
        yield HolderOfQuota("Pod", pod.name, pod.node_name, demand)
    resource = claims_resource(api)
    if resource is not None:
        claims = ClaimReader(configuration.classes, configuration.resource_mapping)
        for claim in api.list(resource.path(namespace), claims.record).items:
            demand = claims.charge(claim, unpinned, charged)
            yield HolderOfQuota("ResourceClaim", claim.name, "", demand)


def _node_labels(api: ApiClient, configuration: Configuration) -> dict[str, Labels]:
    """Return the labels of the nodes by name; none where the user may not see nodes: then pods count as they are pinned."""
    try:
        nodes = api.list(NODES.path(), node_reader(configuration.classes.label_keys)).items
    except errors.Forbidden:
        return {}
    return {node.name: node.labels for node in nodes}
