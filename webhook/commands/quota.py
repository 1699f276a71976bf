"""`gpu-admission quota`: the granted, used and reserved GPUs of each namespace, and the pods and claims that use them."""

from collections.abc import Container, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from policies.placement.named_nodes import NO_NODES, NodeIndex
from policies.quota.amounts import GPUS, NOTHING, Vector, format_amount, parse_amount, texts
from policies.quota.demand import UnclassifiedPods
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.nodes import NODES, node_reader
from webhook.commands.cluster_options import ClusterChoice, cluster_options, fail
from webhook.commands.output import Screen, counted, one_line, print_json
from webhook.commands.parameters import config_option, output_option
from webhook.configuration.dynamic_resources import served_resource
from webhook.configuration.loader import Configuration
from webhook.controller.conditions import NOT_COUNTED, TRUE
from webhook.controller.records import PODS, QUOTAS, RecordReader
from webhook.quota.documents import QuotaRecord, decode_quota
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import key_order

NAME_COLUMN = 30
BAR = 24
USED, RESERVED, FREE = "█", "▒", "·"


class HolderOfQuota(NamedTuple):
    """A live pod or claim and its demand; `node` is empty if it is not bound."""

    kind: str
    name: str
    node: str
    demand: Vector


QuotaReport = tuple[QuotaRecord, list[HolderOfQuota] | None]
"""A quota and the objects that use it, most GPUs first; None for all namespaces, or where the quota cannot be read."""


@click.command()
@click.option(
    "-n",
    "--namespace",
    default="",
    help="One namespace, with the pods and claims that hold its quota; left out: all that you may read, else the context's.",
)
@output_option("text", "json")
@config_option("the cluster's documents")
@cluster_options
def quota(namespace: str, output: str, config: Path | None, cluster: ClusterChoice) -> None:
    """Show used, reserved and granted GPUs per namespace.

    Exits with 2 if there is no GPUQuota, or the cluster or the documents cannot be used.
    """
    home = cluster.namespace()
    with cluster.client() as api:
        configuration = Permitted(api).configuration(config)
        try:
            reports = list(_reports(api, configuration, namespace))
        except errors.Forbidden:
            if namespace:
                raise
            namespace = home
            reports = list(_reports(api, configuration, namespace))
    if not reports:
        fail(f"there is no GPUQuota in namespace {namespace}" if namespace else "there is no GPUQuota")
    if output == "json":
        print_json(document(reports))
    else:
        print_text(reports)


def _reports(api: ApiClient, configuration: Configuration, namespace: str) -> Iterator[QuotaReport]:
    try:
        listed = api.list(QUOTAS.path(namespace), decode_quota)
    except errors.NotFound:
        raise errors.NotFound("this cluster has no GPUQuotas: their kind is not installed") from None
    for record in sorted(listed.items, key=lambda record: record.namespace):
        objects = None
        if namespace and record.spec is not None:
            found = _holders(api, configuration, namespace, record.spec.unclassified_pods)
            counted = (each for each in found if each.demand)
            objects = sorted(counted, key=lambda each: (-each.demand.get(GPUS, NOTHING), each.name))
        yield record, objects


def _holders(
    api: ApiClient, configuration: Configuration, namespace: str, unclassified_pods: UnclassifiedPods
) -> Iterator[HolderOfQuota]:
    nodes = _nodes(api, configuration)
    reader = RecordReader(configuration)
    counted = {}
    for pod in api.list(PODS.path(namespace), reader.read_pod).items:
        if pod.is_terminal:
            continue
        placed, counts_as = pod, unclassified_pods
        if nodes is None and pod.node_name:
            # It counts for the class of its node, which the caller may not read: only a class that it pins is certain.
            placed, counts_as = msgspec.structs.replace(pod, node_name=""), UnclassifiedPods.TOTAL_ONLY
        demand = reader.demand_of_pod(placed, counts_as, nodes or NO_NODES)
        counted[pod.uid, pod.extended_claim] = demand
        yield HolderOfQuota("Pod", pod.name, pod.node_name, demand)
    resource = served_resource(api, "resourceclaims")
    if resource is not None:
        for claim in api.list(resource.path(namespace), reader.read_claim).items:
            demand = reader.demand_of_claim(claim, unclassified_pods, counted)
            yield HolderOfQuota("ResourceClaim", claim.name, "", demand)


def _nodes(api: ApiClient, configuration: Configuration) -> NodeIndex | None:
    """Return the nodes; None if the caller may not list them."""
    keys = configuration.classes.label_keys
    try:
        return NodeIndex(keys, api.list(NODES.path(), node_reader(keys)).items)
    except errors.Forbidden:
        return None


# ---- what is printed


def print_text(reports: Sequence[QuotaReport]) -> None:
    screen = Screen()
    for index, report in enumerate(reports):
        if index:
            screen.line()
        _report_text(screen, *report)


def _report_text(screen: Screen, record: QuotaRecord, objects: Sequence[HolderOfQuota] | None) -> None:
    if record.spec is None:
        screen.line(record.namespace, "bold")
        screen.paragraph(f"error: {record.problem}", indent=2, style="red")
        return
    screen.line(f"{record.namespace}  {_state(record)}", "bold")
    screen.line(f"  {'':<{NAME_COLUMN}} {'':<{BAR}} used + reserved of hard", "dim")
    for key in sorted(record.hard, key=key_order):
        _dimension(screen, record, key)
    if record.is_pending:
        screen.paragraph(
            "pending: spec was changed; no controller has put it in force yet", indent=2, style="yellow"
        )
    for condition in record.status.conditions:
        if (condition.status == "True") != (condition.type == "Ready"):
            screen.paragraph(f"{condition.type.lower()}: {condition.message}", indent=2, style="yellow")
    if objects is not None:
        _objects(screen, objects, {*record.hard, GPUS})
        return
    for key, holders in sorted(record.status.holders.items(), key=lambda each: key_order(each[0])):
        if holders:
            largest = ", ".join(
                f"{holder.name} {format_amount(parse_amount(holder.amount))}" for holder in holders
            )
            screen.paragraph(f"most of {key}: {largest}", indent=2)


def _state(record: QuotaRecord) -> str:
    ready = record.status.condition("Ready")
    if ready is None or ready.status != TRUE:
        is_counted = ready is not None and ready.reason != NOT_COUNTED
        return f"{'not ready' if is_counted else 'not counted yet'}: every GPU pod is denied"
    holds = {each.type for each in record.status.conditions if each.status == TRUE}
    words = [word for kind, word in (("Exceeded", "exceeded"), ("Stale", "stale")) if kind in holds]
    return ", ".join(words) or "ready"


def _dimension(screen: Screen, record: QuotaRecord, key: str) -> None:
    used = None if record.status.used is None else record.status.used.get(key, NOTHING)
    reserved, hard = record.status.reserved.get(key, NOTHING), record.hard[key]
    is_exceeded, is_full = (used or NOTHING) > hard, (used or NOTHING) + reserved >= hard
    style = "red" if is_exceeded else "yellow" if is_full else "green"
    name = one_line(key, NAME_COLUMN)
    screen.line(f"  {name:<{NAME_COLUMN}} {bar_and_amounts(used, reserved, hard)}", style)


def bar_and_amounts(used: Fraction | None, reserved: Fraction, hard: Fraction, cells: int = BAR) -> str:
    """Return the bar of a dimension and its amounts; `used` is None before the first count."""
    shown = "?" if used is None else format_amount(used)
    amounts = f"{shown} + {format_amount(reserved)} of {format_amount(hard)}"
    return f"{bar(used or NOTHING, reserved, hard, cells)} {amounts}"


def bar(used: Fraction, reserved: Fraction, hard: Fraction, cells: int = BAR) -> str:
    """Return a bar of so many characters. The smallest use is visible, and only a full quota looks full."""
    if hard <= NOTHING:
        return (USED if used else RESERVED if reserved else FREE) * cells
    full = _filled(used, hard, cells)
    held = max(_filled(used + reserved, hard, cells) - full, int(reserved > NOTHING and full < cells))
    return (USED * full + RESERVED * held).ljust(cells, FREE)


def _filled(amount: Fraction, hard: Fraction, cells: int) -> int:
    if amount >= hard:
        return cells
    return min(max(int(amount / hard * cells), int(amount > NOTHING)), cells - 1)


def _objects(screen: Screen, objects: Sequence[HolderOfQuota], keys: Container[str]) -> None:
    """Print what each object holds of the dimensions that are limited."""
    screen.line(f"  held by {counted(len(objects), 'object')}{':' if objects else ''}")
    for held in objects:
        place = f" on {held.node}" if held.node else ""
        demand = sorted(
            (each for each in held.demand.items() if each[0] in keys), key=lambda each: key_order(each[0])
        )
        amounts = ", ".join(f"{key} {format_amount(amount)}" for key, amount in demand)
        screen.paragraph(f"{held.kind} {held.name}{place}: {amounts}", indent=4)


def document(reports: Sequence[QuotaReport]) -> dict[str, Any]:
    """Return what `-o json` prints.

    `quotas[]`: namespace, problem ("" if it could be read), unclassifiedPods; used, reserved, hard (amounts as text, "2/7";
    used is null before the first count), conditions[], holders (largest, by dimension), and, of one requested namespace,
    objects[] (kind, name, node, demand).
    """
    return {"quotas": [_document(*report) for report in reports]}


def _document(record: QuotaRecord, objects: Sequence[HolderOfQuota] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"namespace": record.namespace, "problem": record.problem}
    status = record.status
    if record.spec is not None:
        found |= {
            "unclassifiedPods": record.spec.unclassified_pods.value,
            "used": None if status.used is None else texts(status.used),
            "reserved": texts(status.reserved),
            "hard": texts(record.hard),
            "conditions": status.conditions,
            "holders": status.holders,
        }
    if objects is not None:
        found["objects"] = [{**each._asdict(), "demand": texts(each.demand)} for each in objects]
    return found
