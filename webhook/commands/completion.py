"""`gpu-admission completion`: scripts that complete its words in a shell, and behind `kubectl gpu-admission`."""

from collections.abc import Iterator, Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

from webhook.commands import COMPLETION_VARIABLE, PROGRAM

KUBECTL = "kubectl"
SHELLS = ("bash", "zsh", "fish", KUBECTL)
SCRIPT = f"""\
#!/bin/sh
# Save it as kubectl_complete-gpu_admission in a folder of PATH, and make it executable.
exec kubectl-gpu_admission completion {KUBECTL} -- "$@"
"""
FILES, NO_FILES, FOLDERS = 0, 4, 16
"""ShellCompDirective of github.com/spf13/cobra: what the shell completes beside the words."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- WORD...]")
@click.pass_context
def completion(ctx: click.Context, shell: str, words: tuple[str, ...]) -> None:
    """Print what completes this program's words in a shell.

    For bash: source <(gpu-admission completion bash). For a kubectl that completes already: save what "completion kubectl"
    prints as kubectl_complete-gpu_admission. kubectl passes the WORDS up to the cursor, and gets those that may stand there.
    """
    root = ctx.find_root().command
    if shell != KUBECTL:
        if words:
            raise click.UsageError(f"WORDS are for {KUBECTL}")
        if of_shell := get_completion_class(shell):
            click.echo(of_shell(root, {}, PROGRAM, COMPLETION_VARIABLE).source())
    elif words:
        click.echo("\n".join(next_words(root, words)))
    else:
        click.echo(SCRIPT, nl=False)


def next_words(root: click.Command, words: Sequence[str]) -> Iterator[str]:
    """Yield the candidates for the last word, and what else the shell may complete, as kubectl reads it.

    Source: `pkg/cmd/plugin/plugin_completion.go` of k8s.io/kubectl v0.35.1.
    """
    complete = ShellComplete(root, {}, PROGRAM, COMPLETION_VARIABLE)
    items = complete.get_completions(list(words[:-1]), words[-1])
    kinds = {item.type for item in items}
    for item in items:
        if item.type == "plain":
            yield f"{item.value}\t{item.help}" if item.help else str(item.value)
    yield f":{FILES if 'file' in kinds else FOLDERS if 'dir' in kinds else NO_FILES}"
