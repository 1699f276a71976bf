"""The command line `gpu-admission`: one module of this package per command, imported only when it is called."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from policies.printable import printable_lines
from webhook.version import VERSION, commit

GROUPS = {
    "For tenants": ("check", "classes", "console", "estimate", "quota", "rules", "status", "why"),
    "For operators": (
        *("canary", "certs", "config", "doctor", "export", "pause", "release", "resume", "rightsize"),
        *("scan", "usage"),
    ),
    "Processes": ("controller", "fetch-model", "serve"),
    "This program": ("completion", "version"),
}
"""All commands, as `--help` shows them."""
MODULES = {"resume": "pause"}
"""Commands that are in the module of another; each other one is in a module of its name, with an underscore for a dash."""

PROGRAM = "gpu-admission"
COMPLETE_VAR = "_GPU_ADMISSION_COMPLETE"
"""By it the scripts of click ask for completions; `gpu-admission completion` prints them."""


class LazyCommands(Mapping[str, click.Command]):
    """Imports a command when it is needed: `check` must not wait for the imports of `serve`."""

    def __iter__(self) -> Iterator[str]:
        return (name for names in GROUPS.values() for name in names)

    def __len__(self) -> int:
        return sum(map(len, GROUPS.values()))

    def __getitem__(self, name: str) -> click.Command:
        if name not in list(self):
            raise KeyError(name)
        module = MODULES.get(name, name).replace("-", "_")
        command: click.Command = getattr(import_module(f"webhook.commands.{module}"), name.replace("-", "_"))
        return command


class GroupedCommands(click.Group):
    """Shows the commands by group, and errors that no terminal obeys."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        column = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                width = formatter.width - column - 6
                helps = (self.commands[name].get_short_help_str(width) for name in names)
                padded = (name.ljust(column) for name in names)
                formatter.write_dl(list(zip(padded, helps, strict=True)))

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _errors_in_lines():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_lines():
            return super().invoke(ctx)


@contextmanager
def _errors_in_lines() -> Iterator[None]:
    """End a command that cannot use a cluster, documents or Prometheus by a line on each problem, that no terminal obeys."""
    try:
        yield
    except click.ClickException as error:  # click quotes options and values as they were given
        error.message = printable_lines(error.message)  # type: ignore[misc]  # final, but every kind shows it
        raise
    except Exception as error:
        if not type(error).__module__.startswith("webhook."):
            raise
        # Imported now, because the image of fetch-model has neither rich nor a client of the API server.
        from webhook.commands.endings import exit_if_expected  # noqa: PLC0415

        exit_if_expected(error)
        raise


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from webhook.commands.output import echo  # noqa: PLC0415 - the image of fetch-model has no rich

        echo(f"{PROGRAM}, version {VERSION}, commit {commit()}")
        context.exit()


@click.group(
    cls=GroupedCommands,
    commands=LazyCommands(),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show version and commit, and exit.",
)
def main() -> None:
    """Make every GPU pod correct, placed, warmed and paid for, or deny it with a message that its author can act on."""


def run() -> None:
    """Run the command line under the name by which it was called: kubectl runs `kubectl-gpu_admission` as a plugin."""
    is_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    main(prog_name=f"kubectl {PROGRAM}" if is_plugin else PROGRAM, complete_var=COMPLETE_VAR)
