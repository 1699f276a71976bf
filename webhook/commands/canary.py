"""`gpu-admission canary`: one canary, as the controller and doctor send it; `helm test` runs it."""

import sys

import click

from webhook.cluster.objects import CANARY_NAMESPACE
from webhook.commands.cluster_options import ClusterChoice, cluster_options
from webhook.commands.output import Screen, print_json
from webhook.commands.parameters import output_option
from webhook.controller.canary import CanaryResult, probe

FAILED = 1


@click.command(context_settings={"show_default": True})
@cluster_options
@click.option("-n", "--namespace", default=CANARY_NAMESPACE, help="Where a GPU pod is created on a dry run.")
@output_option("text", "json")
def canary(cluster: ClusterChoice, namespace: str, output: str) -> None:
    """Create a GPU pod on a dry run, and show what it proves.

    Nothing is stored. Exits with 0 if it came through, whatever the policy leaves unproved, 1 if not, 2 if the cluster cannot be
    used.
    """
    with cluster.client() as api:
        api.get("/version")
    result = probe(api, namespace)
    if output == "json":
        print_json(result)
    else:
        print_result(result)
    sys.exit(0 if result.ok else FAILED)


def print_result(result: CanaryResult) -> None:
    screen = Screen()
    if result.ok:
        screen.line(f"canary: succeeded in {result.seconds:.3f} s", "green")
    else:
        screen.paragraph(f"canary: failed: {result.message} [{result.reason}]", style="red")
        screen.paragraph(f"fix: {result.remedy}", indent=2)
    for title, texts in (
        ("proved", result.proved),
        ("not proved", result.open),
        ("answered by", result.answered_by),
    ):
        for text in texts:
            screen.paragraph(f"{title}: {text}", indent=2)
