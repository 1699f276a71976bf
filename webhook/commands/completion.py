"""`gpu-admission completion`: the script by which a shell completes commands, options and names of the cluster."""

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from webhook.commands import COMPLETE_VAR, PROGRAM
from webhook.commands.output import echo

SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of bash, zsh or fish.

    bash: source <(gpu-admission completion bash); zsh: the same with zsh; fish: gpu-admission completion fish | source. It
    completes names of namespaces, contexts, kinds, policies, rules and reasons, too.
    """
    echo(SHELLS[shell](context.find_root().command, {}, PROGRAM, COMPLETE_VAR).source(), nl=False)
