"""`gpu-admission scan`: evaluates the pods and workloads of a cluster, and proposes a first configuration."""

from datetime import datetime
from pathlib import Path

import click
import msgspec

from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import echo, fail, print_as, progress
from webhook.commands.scan_text import print_text
from webhook.commands.sizes_document import sizes_document
from webhook.prometheus.client import Prometheus
from webhook.tools.rightsize.workloads import read_sizes
from webhook.tools.scan.proposal import write
from webhook.tools.scan.report import page
from webhook.tools.scan.scanning import Scan


@click.command()
@options.config_option("the cluster's documents, or the built-in ones")
@click.option("--enforce", is_flag=True, help="Treat modes warn and audit as enforce.")
@click.option(
    "--propose",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Write a proposed configuration to this empty directory, after evaluating the pods with it.",
)
@options.namespace_options("all")
@options.verbose_option
@options.output_option("html")
@options.prometheus_options("Also find workloads with more GPUs than they need")
@options.cluster_options
@options.now_option("Evaluate at this time")
def scan(
    *,
    config: Path | None,
    enforce: bool,
    propose: Path | None,
    namespace: str | None,
    all_namespaces: bool,  # noqa: ARG001 - all are the default
    output: str,
    prometheus: Prometheus | None,
    cluster: ClusterChoice,
    now: datetime,
) -> None:
    """Evaluate a cluster's pods and workloads as if created now.

    Nothing needs to be installed, and nothing in the cluster is changed. Shows what would be denied, changed and warned about,
    who holds which GPUs, and which resources and devices no rule or quota knows; it proposes GPUClasses, GPUQuotas,
    ClusterGPUQuotas and exemptions.

    Exit codes: 0 scanned; 2 if the cluster or the documents cannot be used.
    """
    with cluster.client() as api, progress("reading ") as shown:
        scanning = Scan(
            api, now=now, config=config, namespace=namespace or "", is_enforced=enforce, progress=shown
        )
        report = scanning.report(verify_proposal=propose is not None)
        if prometheus is not None:
            chosen = (namespace,) if namespace else ()
            sizes = read_sizes(api, prometheus, now, namespaces=chosen, config=config)
            report = msgspec.structs.replace(report, right_size=sizes)
    if propose is not None:
        try:
            write(report.proposal, propose)
        except OSError as error:
            fail(error)
    if output == "html":
        echo(page(report))
    else:
        content = msgspec.to_builtins(report, enc_hook=str)
        if report.right_size is not None:
            content["rightSize"] = sizes_document(report.right_size)
        print_as(output, content, lambda screen: print_text(screen, report, propose))
