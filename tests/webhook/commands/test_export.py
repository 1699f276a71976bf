import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.cases import cases
from webhook.commands import main

POLICY = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  exemptions: [{namespaces: [legacy], reason: r, until: 2026-11-30}]
  rules: {gpu-isolation: {mode: enforce}}
"""
NOW = ["--now", "2026-11-21T12:00:00Z"]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "policy.yaml").write_text(POLICY)
    return str(folder)


def export(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["export", *NOW, *arguments])


def kinds(text: str) -> set[tuple[str, str]]:
    return {(each["apiVersion"].rpartition("/")[2], each["kind"]) for each in yaml.safe_load_all(text)}


VALIDATING = {("v1", "ValidatingAdmissionPolicy"), ("v1", "ValidatingAdmissionPolicyBinding")}


def mutating(version: str) -> set[tuple[str, str]]:
    return {(version, "MutatingAdmissionPolicy"), (version, "MutatingAdmissionPolicyBinding")}


@cases(
    ("arguments", "want"),
    {
        "1.36-by-default": ([], VALIDATING | mutating("v1")),
        "1.34": (["--kubernetes", "v1.34.4"], VALIDATING | mutating("v1beta1")),
        "1.33": (["--kubernetes", "1.33"], VALIDATING),
        "version-of-the-api": (["--api-version", "v1beta1"], VALIDATING | mutating("v1beta1")),
    },
)
def test_versions(directory: str, arguments: list[str], want: set[tuple[str, str]]) -> None:
    result = export("--config", directory, *arguments)

    assert result.exit_code == 0
    assert kinds(result.stdout) == want
    assert ("needs MutatingAdmissionPolicy" in result.stderr) is (want == VALIDATING)


def test_the_header_says_what_is_not_in_it_and_what_ends(directory: str) -> None:
    result = export("--config", directory)
    head = result.stdout.partition("---")[0]

    assert head.startswith(
        "# Rules of gpu-admission as policies of the API server itself, from configuration "
    )
    assert "as of 2026-11-21T12:00:00Z.\n" in head
    assert "# - policy default exempts legacy until the end of 2026-11-30\n" in head
    assert "# Rules in here: gpu-requests, gpu-toleration, gpu-isolation.\n" in head
    assert "# - gpu-quota: all of it: it counts all pods of a namespace" in head
    labels = "app.kubernetes.io/part-of=gpu-admission,app.kubernetes.io/component=admission-policies"
    assert f"kubectl delete -l {labels}" in head
    assert result.stderr.startswith(
        "8 policies of the API server, each with its binding: gpu-requests, gpu-toleration, gpu-isolation\n"
    )
    assert "policy default exempts legacy until" in result.stderr


def test_json_is_a_list_with_what_is_not_in_it(directory: str) -> None:
    shown = json.loads(export("--config", directory, "-o", "json").stdout)

    assert (shown["apiVersion"], shown["kind"], shown["asOf"]) == ("v1", "List", "2026-11-21T12:00:00Z")
    assert len(shown["items"]) == 16
    assert shown["rules"] == ["gpu-requests", "gpu-toleration", "gpu-isolation"]
    assert {"rule", "what", "why"} <= shown["notExported"][0].keys()
    assert shown["ending"] == ["policy default exempts legacy until the end of 2026-11-30"]


def test_a_file_for_each_policy(directory: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert export("--config", directory, "--directory", str(folder)).exit_code == 0
    first = {path.name: path.read_text() for path in folder.iterdir()}
    again = export("--config", directory, "--directory", str(folder), "--rules", "gpu-toleration")
    assert "1 policy of the API server, each with its binding: gpu-toleration\n" in again.stderr

    assert len(first) == 8
    for name, text in first.items():
        documents = list(yaml.safe_load_all(text))
        assert [each["metadata"]["name"] for each in documents] == [name.removesuffix(".yaml")] * 2
    assert f"no longer part of it, remove: {folder}/gpu-admission.default.gpu-requests.yaml\n" in again.stderr


def test_expressions_are_blocks_that_people_can_read(directory: str) -> None:
    text = export("--config", directory).stdout

    assert "expression: |-\n" in text
    assert "\\n" not in text.replace("'\\n'", "")
    assert max(len(line) for line in text.splitlines()) < 700


@cases(
    ("arguments", "want"),
    {
        "misspelt-rule": (
            ["--rules", "gpu-isolatoin"],
            '"gpu-isolatoin" is not a rule; use gpu-requests, gpu-toleration, gpu-isolation',
        ),
        "rule-that-cannot-be": (["--rules", "gpu-quota"], '"gpu-quota" cannot be exported'),
        "too-old": (["--kubernetes", "1.32"], "must be 1.33 or newer"),
        "no-version": (["--kubernetes", "new"], '"new" must be a version of Kubernetes'),
        "no-directory": (["--config", "/nowhere"], "error: /nowhere: No such file or directory"),
        "no-cluster": (["--kubeconfig", "/nowhere"], "error: "),
    },
)
def test_errors(arguments: list[str], want: str) -> None:
    result = export(*arguments)

    assert result.exit_code == 2
    assert want in result.stderr
    assert "Traceback" not in result.stderr
