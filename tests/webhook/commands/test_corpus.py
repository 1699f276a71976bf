"""Manifests written by others: `check` answers each of them, whatever is wrong with it."""

import json
import shutil
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.corpus import CORPUS
from webhook.commands import main
from webhook.configuration.yaml_documents import YamlDocument, load_documents

MANIFESTS = (
    sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.yaml")) if CORPUS.is_dir() else []
)

PARTS = pytest.mark.parametrize(
    "names",
    [
        pytest.param(MANIFESTS[::4], id="each-fourth"),
        pytest.param([name for name in MANIFESTS if name not in MANIFESTS[::4]], marks=pytest.mark.slow, id="the-others"),
    ],
)  # fmt: skip

ONLY_FOR_PYYAML = frozenset(
    {"malformed/GoogleCloudPlatform__kubernetes-engine-samples__ai-ml__vllm-tpu__vllm-llama3-70b.yaml"}
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


@PARTS
def test_every_manifest_gets_an_answer(names: list[str]) -> None:
    for name in names:
        result = check(name, "json")
        assert result.exception is None or isinstance(result.exception, SystemExit), (name, result.exc_info)
        summary = document(name)["summary"]
        want = 2 if summary["problems"] else 1 if summary["denied"] else 0
        assert result.exit_code == want, name
        assert summary["objects"] or summary["problems"], name


@PARTS
@pytest.mark.parametrize("output", ["text", "diff", "yaml", "sarif", "junit"])
def test_every_output_says_the_same(names: list[str], output: str) -> None:
    for name in names:
        result = check(name, output)
        assert isinstance(result.exception, SystemExit | None), (name, result.exc_info)
        assert result.exit_code == check(name, "json").exit_code, name
        assert "\x1b" not in result.output, name


@PARTS
def test_findings_are_at_lines_of_the_file(names: list[str]) -> None:
    for name in names:
        lines = len((CORPUS / name).read_text().split("\n"))
        for each in document(name)["objects"]:
            found = [finding["line"] for pod in each["pods"] for finding in pod["findings"]]
            assert all(1 <= each["line"] <= line <= lines for line in (each["line"], *found)), name
        assert all(problem["line"] <= lines for problem in document(name)["problems"]), name


def test_malformed_manifests_are_bad_input() -> None:
    for name in MANIFESTS:
        if name.startswith("malformed/") and name not in ONLY_FOR_PYYAML:
            assert check(name, "json").exit_code == 2, name
            assert document(name)["problems"][0]["line"] > 0, name


@PARTS
def test_what_was_admitted_once_needs_nothing_more(names: list[str]) -> None:
    for name in names:
        admitted = check(name, "yaml").stdout
        before = document(name)["summary"]
        objects = before["objects"] - before["denied"] - before["unknown"]
        assert bool(objects) == bool(admitted), name
        if objects:
            again = CliRunner().invoke(main, ["check", "-f", "-", "-o", "json"], input=admitted)
            summary = json.loads(again.stdout)["summary"]
            assert (again.exit_code, summary["changed"], summary["objects"]) == (0, 0, objects), name


@PARTS
def test_objects_come_out_as_they_went_in_but_for_what_is_added(names: list[str]) -> None:
    for name in names:
        items = load_documents(check(name, "yaml").stdout)
        admitted = [item.data for item in items if isinstance(item, YamlDocument)]
        objects = document(name)["objects"]
        accepted = [each for each in objects if each["verdict"] not in {"denied", "unknown"}]
        assert [(each["apiVersion"], each["kind"]) for each in admitted] == [
            (each["apiVersion"], each["kind"]) for each in accepted
        ], name


@PARTS
def test_the_built_in_defaults_add_nothing_but_tolerations(names: list[str]) -> None:
    for name in names:
        pods = [pod for each in document(name)["objects"] for pod in each["pods"]]
        rules = {change["rule"] for pod in pods for change in pod["changes"]}
        assert rules <= {"gpu-toleration"}, name


STRICT = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-requests: {maxPerContainer: 4}
    gpu-isolation: {mode: enforce}
    ineffective-fields: {mode: enforce}
    parallelism: {mode: enforce}
"""
"""What denies more of the corpus than the built-in defaults, for reasons that one edit removes and for others."""


@PARTS
def test_fixes_remove_what_they_can_and_nothing_else(tmp_path: Path, names: list[str]) -> None:
    folder, config = tmp_path / "corpus", tmp_path / "policy.yaml"
    config.write_text(STRICT)
    for name in names:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CORPUS / name, copy)

    def denied() -> list[bool]:
        """Return of each denial whether it has a fix."""
        result = CliRunner().invoke(main, ["check", "-R", str(folder), "--config", str(config), "-o", "json"])
        pods = (pod for each in json.loads(result.stdout)["objects"] for pod in each["pods"])
        found = (finding for pod in pods for finding in pod["findings"])
        return [bool(each["fix"]) for each in found if each["outcome"] == "denied"]

    before = denied()
    CliRunner().invoke(main, ["check", "-R", str(folder), "--config", str(config), "--fix", "--yes"])
    after = denied()

    assert sum(before) > len(names) / 20
    assert after == [False] * (len(before) - sum(before))
    for file in names:
        old, new = (path.read_bytes().split(b"\n") for path in (CORPUS / file, folder / file))
        blocks = [
            each
            for each in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            if each[0] != "equal"
        ]
        # One file mounts two devices, and loses two volumes of four lines; GPUs are requested instead.
        assert all(
            last - first <= (4 if to > at else 8) and to - at <= 5 for _, first, last, at, to in blocks
        ), file
