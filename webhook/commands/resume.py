"""`gpu-admission resume`: the end of a pause of GPUPolicies."""

import sys

import click

from webhook.commands.cluster_options import ClusterChoice, cluster_options
from webhook.commands.output import Screen, print_json
from webhook.commands.parameters import output_option
from webhook.commands.pause import (
    FAILED,
    PAUSE_REASON,
    PAUSED_AT,
    PAUSED_BY,
    before_change,
    change_policies,
    chosen_policies,
    fail_with,
    paused_until,
    stored_policies,
)
from webhook.configuration.documents import PAUSE


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...")
@cluster_options
@output_option("text", "json")
def resume(*, names: tuple[str, ...], cluster: ClusterChoice, output: str) -> None:
    """End the pause of GPUPolicies.

    Of all that are paused if none is named.

    Exit codes: 0 the pauses have ended, 1 some could not be ended, 2 nothing was changed.
    """
    problems: list[str] = []
    api, found = stored_policies(cluster, problems)
    chosen = [
        policy for policy in chosen_policies(found, names, problems) if paused_until(policy) is not None
    ]
    if problems:
        fail_with(problems)
    gone = dict.fromkeys((PAUSED_BY, PAUSED_AT, PAUSE_REASON))
    done = change_policies(api, chosen, {"metadata": {"annotations": gone}, "spec": {PAUSE: None}})
    if output == "json":
        print_json(list(map(before_change, done)))
    else:
        screen = Screen()
        for policy in done:
            name, until = policy.document.name, paused_until(policy)
            screen.line(f"policy {name} resumed; it was paused until {until}")
        if not chosen:
            screen.line("no policy is paused")
    sys.exit(0 if len(done) == len(chosen) else FAILED)
