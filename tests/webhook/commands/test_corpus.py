"""Manifests written by others: `check` answers each of them, whatever is wrong with it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from webhook.commands import main
from webhook.configuration.yaml_documents import YamlDocument, load_documents

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
MANIFESTS = (
    sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.yaml")) if CORPUS.is_dir() else []
)

EVERY = [
    pytest.param(name, marks=[pytest.mark.slow] if number % 4 else [])
    for number, name in enumerate(MANIFESTS)
]
"""`make test` looks at each fourth one."""

ONLY_FOR_PYYAML = frozenset(
    {
        "malformed/GoogleCloudPlatform__kubernetes-engine-samples__ai-ml__vllm-tpu__vllm-llama3-70b.yaml",
    }
)
"""Malformed for PyYAML's own scanner (a tab before a comment), read by kubectl and by libyaml."""

pytestmark = pytest.mark.skipif(not MANIFESTS, reason=f"the corpus is not at {CORPUS}")


@cache
def check(name: str, output: str) -> Result:
    return CliRunner().invoke(main, ["check", "-f", str(CORPUS / name), "-o", output])


@cache
def document(name: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(check(name, "json").stdout)
    return shown


@pytest.mark.parametrize("name", EVERY)
def test_every_manifest_gets_an_answer(name: str) -> None:
    result = check(name, "json")

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    summary = document(name)["summary"]
    want = 2 if summary["problems"] else 1 if summary["refused"] else 0
    assert result.exit_code == want
    assert summary["objects"] or summary["problems"]


@pytest.mark.parametrize("name", EVERY)
def test_every_output_says_the_same(name: str) -> None:
    for output in ("text", "diff", "yaml", "sarif", "junit"):
        result = check(name, output)
        assert isinstance(result.exception, SystemExit | None), result.exc_info
        assert result.exit_code == check(name, "json").exit_code
        assert "\x1b" not in result.output


@pytest.mark.parametrize("name", EVERY)
def test_findings_are_at_lines_of_the_file(name: str) -> None:
    lines = len((CORPUS / name).read_text().split("\n"))

    for each in document(name)["objects"]:
        assert 1 <= each["line"] <= lines
        for pod in each["pods"]:
            assert all(each["line"] <= finding["line"] <= lines for finding in pod["findings"])
    assert all(problem["line"] <= lines for problem in document(name)["problems"])


MALFORMED = [name for name in MANIFESTS if name.startswith("malformed/") and name not in ONLY_FOR_PYYAML]


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_manifests_are_bad_input(name: str) -> None:
    assert check(name, "json").exit_code == 2
    assert document(name)["problems"][0]["line"] > 0


@pytest.mark.parametrize("name", EVERY)
def test_what_was_admitted_once_needs_nothing_more(name: str) -> None:
    admitted = check(name, "yaml").stdout
    expected = document(name)["summary"]
    shown_objects = expected["objects"] - expected["refused"] - expected["unknown"]
    if not shown_objects:
        assert admitted == ""
        return

    again = CliRunner().invoke(main, ["check", "-f", "-", "-o", "json"], input=admitted)

    shown = json.loads(again.stdout)
    assert again.exit_code == 0
    assert shown["summary"]["changed"] == 0
    assert shown["summary"]["objects"] == shown_objects


@pytest.mark.parametrize("name", EVERY)
def test_objects_come_out_as_they_went_in_but_for_what_is_added(name: str) -> None:
    admitted = [
        item.data for item in load_documents(check(name, "yaml").stdout) if isinstance(item, YamlDocument)
    ]
    accepted = [each for each in document(name)["objects"] if each["verdict"] not in {"refused", "unknown"}]

    assert [(each["apiVersion"], each["kind"]) for each in admitted] == [
        (each["apiVersion"], each["kind"]) for each in accepted
    ]


@pytest.mark.parametrize("name", EVERY)
def test_the_built_in_defaults_add_nothing_but_tolerations(name: str) -> None:
    changes = [
        change for each in document(name)["objects"] for pod in each["pods"] for change in pod["changes"]
    ]

    assert {change["rule"] for change in changes} <= {"gpu-toleration"}
