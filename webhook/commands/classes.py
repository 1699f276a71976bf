"""`gpu-admission classes`: the GPU classes, which of them a namespace may use, and what is free."""

from datetime import UTC, datetime
from pathlib import Path

import click

from policies.gpus.classes import HostShare
from policies.quota.amounts import format_amount
from webhook.cluster.capacity import ClassCapacity
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import Screen, amount_or_unknown, counted, print_as
from webhook.configuration.loader import load_directory
from webhook.tools.check.run_context import default_labels
from webhook.tools.classes import ClassListing, ListedClass, list_classes, read_classes

ALLOWED = {True: "yes", False: "no", None: "?"}
COLUMN = len("ALLOWED")


@click.command()
@options.namespace_option("Whose classes. Default: the context's, or default without a cluster.")
@click.option("--all", "everything", is_flag=True, help="List classes without nodes, too, as -o json does.")
@options.output_option()
@options.verbose_option
@options.config_option("the cluster's documents, or the built-in ones alone")
@options.optional_cluster_options
def classes(
    namespace: str | None, output: str, config: Path | None, cluster: ClusterChoice | None, everything: bool
) -> None:
    """List the GPU classes, what is allowed and what is free.

    Without --all, only classes that have nodes, or may get nodes, are listed; where nodes cannot be read, those that
    quota, policy or documents name. Free are the whole cards that no pod requests on nodes that take pods.

    Exit codes: 0, or 2 if the cluster or the documents cannot be used.
    """
    now = datetime.now(UTC)
    if cluster is None:
        configuration = load_directory(config)
        namespace = namespace or "default"
        policy = configuration.policies.for_namespace(namespace, default_labels(namespace))
        quota = configuration.quotas.get(namespace)
        hard = {} if quota is None else quota.amounts
        listing = list_classes(configuration, namespace, policy, now, hard=hard)
    else:
        with cluster.client() as api:
            listing = read_classes(api, namespace or cluster.namespace(), now, config=config)
    shows_all = everything or cluster is None
    print_as(output, listing, lambda screen: show(screen, listing, shows_all))


def show(screen: Screen, listing: ClassListing, shows_all: bool) -> None:
    screen.line(f"namespace {listing.namespace}", "bold")
    if listing.policy:
        screen.paragraph(f"policy {listing.policy}", indent=2)
    screen.line()
    has_nodes = any(gpu_class.capacity is not None for gpu_class in listing.classes)
    columns = f" {'NODES':>6} {'GPUS':>6} {'FREE':>6}" if has_nodes else ""
    screen.line(f"{'CLASS':<20} {'FAMILY':<20} {'GIB':>4}  ALLOWED{columns}", "bold")
    shown = listing.classes if shows_all else listing.relevant
    for listed_class in shown:
        allowed = f"{ALLOWED[listed_class.allowed]:<{COLUMN}}"
        start = f"{listed_class.name:<20} {listed_class.family:<20} {listed_class.memory_gib:>4}  {allowed}"
        style = "" if listed_class.has_nodes or not has_nodes else "dim"
        screen.line((start + _amounts_text(listed_class.capacity)).rstrip(), style)
        for note in _notes(listed_class):
            screen.paragraph(note, indent=2, style="dim")
    for name, capacity in listing.unclassified.items():
        what = f"family {name}" if name else "of no known class"
        screen.line(f"{what:<46}  {'':<{COLUMN}}{_amounts_text(capacity)}")
    if rest := len(listing.classes) - len(shown):
        why = "without nodes" if has_nodes else "that neither quota, policy nor document names"
        screen.paragraph(f"and {counted(rest, 'class', 'classes')} {why}; --all lists them", style="dim")
    reasons = dict.fromkeys(listed_class.because for listed_class in shown if listed_class.because)
    if reasons:
        screen.line()
    for because in reasons:
        screen.paragraph(because)
    screen.print_omissions(listing.omitted, listing.nodes_from)


def _amounts_text(capacity: ClassCapacity | None) -> str:
    if capacity is None:
        return ""
    return f" {capacity.nodes:>6} {format_amount(capacity.gpus):>6} {amount_or_unknown(capacity.free):>6}"


def _share_text(share: HostShare) -> str:
    stated = ((share.cpu, "CPUs"), (share.memory, "of memory"))
    return " and ".join(f"{amount} {what}" for amount, what in stated if amount is not None)


def _notes(listed: ListedClass) -> list[str]:
    notes = [f"MIG {', '.join(listed.mig_profiles)}"] if listed.mig_profiles else []
    if listed.per_gpu is not None:
        notes.append(f"perGPU {_share_text(listed.per_gpu)}")
    elif listed.allocatable_per_gpu is not None:
        notes.append(f"perGPU not set; nodes have {_share_text(listed.allocatable_per_gpu)}")
    if listed.can_be_made and not listed.has_nodes:
        notes.append("nodes are made when pods need them")
    if listed.capacity is None:
        return notes
    for name, (has, free) in listed.capacity.resources.items():
        if name != listed.resource:
            notes.append(f"{name}: {amount_or_unknown(free)} of {format_amount(has)} free")
    if listed.capacity.blocked:
        notes.append(f"{format_amount(listed.capacity.blocked)} blocked: no device fits that claims can get")
    if listed.capacity.nodes_away:
        notes.append(f"{counted(listed.capacity.nodes_away, 'node')} not Ready or cordoned")
    return notes
