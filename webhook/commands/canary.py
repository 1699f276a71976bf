"""`gpu-admission canary`: creates a GPU pod on a dry run, as the controller and doctor do. `helm test` runs it."""

import sys

import click

from webhook.canary.probe import CanaryResult, probe
from webhook.cluster.objects import CANARY_NAMESPACE
from webhook.commands.options import ClusterChoice, cluster_options, namespace_option, output_option
from webhook.commands.output import FAILED, Screen, print_as


@click.command()
@cluster_options
@namespace_option("Namespace of the GPU pod.", default=CANARY_NAMESPACE)
@output_option()
def canary(cluster: ClusterChoice, namespace: str, output: str) -> None:
    """Create a GPU pod on a dry run, and show what it proves.

    It shows whether the API server calls the webhooks, and stores nothing.

    Exit codes: 0 the webhooks answered as expected, even if the policy does not enforce every check, 1 they did not, 2 the
    cluster cannot be used.
    """
    with cluster.client() as api:
        api.get("/version")
        result = probe(api, namespace)
    print_as(output, result, lambda screen: show(screen, result))
    sys.exit(0 if result.ok else FAILED)


def show(screen: Screen, result: CanaryResult) -> None:
    if result.ok:
        screen.line(f"canary: succeeded in {result.seconds:.3f} s", "green")
    else:
        screen.paragraph(f"canary: failed: {result.message} [{result.reason}]", style="red")
        screen.paragraph(f"fix: {result.remedy}", indent=2)
    for title, texts in (
        ("proved", result.proved),
        ("not proved", result.unproved),
        ("answered by", result.answered_by),
    ):
        for text in texts:
            screen.paragraph(f"{title}: {text}", indent=2)
