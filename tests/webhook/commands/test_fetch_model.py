"""What `gpu-admission fetch-model` refuses before it fetches; how it fetches: tests/webhook/tools/fetch/."""

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from tests.cases import cases
from webhook.commands import main
from webhook.tools.fetch.report import FetchReport

MODEL = "https://models.example/llama.bin"


@cases(
    ("arguments", "want"),
    a_relative_directory=(
        (MODEL, "models"),
        f"failed: {MODEL}: Invalid value for 'DIRECTORY': must be an absolute directory other than /",
    ),
    the_root=(
        (MODEL, "/"),
        f"failed: {MODEL}: Invalid value for 'DIRECTORY': must be an absolute directory other than /",
    ),
    nothing=((), "failed: fetch-model: Missing argument 'URI'."),
    no_directory=((MODEL,), f"failed: {MODEL}: Missing argument 'DIRECTORY'."),
    a_uri_of_no_source=(
        ("ftp://models.example/llama.bin", "/models/llama"),
        "failed: ftp://models.example/llama.bin: is not from a supported source; write s3://bucket/prefix, "
        "gs://bucket/prefix, hf://owner/name, https://host/file, pvc://claim/path, models:/name/version or "
        "oci://registry.example.com/name:tag",
    ),
)
def test_what_cannot_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], want: str
) -> None:
    def end(_report: FetchReport, code: int, _text: str) -> NoReturn:
        raise SystemExit(code)

    message = tmp_path / "termination-log"
    message.touch()
    monkeypatch.setenv("MODEL_TERMINATION_LOG", str(message))
    monkeypatch.setattr(FetchReport, "end", end)  # else it would end this process

    result = CliRunner().invoke(main, ["fetch-model", *arguments])

    assert (result.exit_code, message.read_text()) == (2, want)
