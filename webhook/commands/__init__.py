"""The command line `gpu-admission`: one module of this package per command, imported only when it is called."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import click

from policies.printable import printable_lines
from webhook.version import VERSION, commit

MODULES = {"resume": "pause"}
"""Commands that are in the module of another; each other one is in a module of its name, with an underscore for a dash."""
SHARED = {"log_limit", "log_options", "options", "output", "quota_text", "scan_text", "status_text"}
COMMANDS = {
    name.replace("_", "-") for _, name, _ in iter_modules(__path__) if name not in SHARED
} | MODULES.keys()

PROGRAM = "gpu-admission"


class LazyGroup(click.Group):
    """Imports a command when it is needed: `check` must not wait for the imports of `serve`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - likewise
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"webhook.commands.{MODULES.get(name, name)}"), name)
        return command

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        with _printable_errors():
            return super().make_context(*args, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Make errors safe for a terminal: click quotes options and values as they were given."""
    try:
        yield
    except click.ClickException as error:
        error.message = printable_lines(error.message)  # type: ignore[misc]  # final, but every kind shows it
        raise


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from webhook.commands.output import echo  # noqa: PLC0415 - no other call needs it so early

        echo(f"{PROGRAM}, version {VERSION}, commit {commit()}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
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
    main(prog_name=f"kubectl {PROGRAM}" if is_plugin else PROGRAM, complete_var="_GPU_ADMISSION_COMPLETE")
