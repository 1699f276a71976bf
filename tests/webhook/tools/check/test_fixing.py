"""`gpu-admission check --fix`: what it shows, what it writes, and what it leaves, with the reason."""

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from policies.finding import Edit
from tests.cases import cases
from tests.webhook.commands.checking import DEPLOYMENT, GOOD, GPU_POD, HALF, check, configuration, stream
from tests.webhook.commands.sarif import sarif
from webhook.configuration.files import read_file, replace_file
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.tools.check.fixing import fix as fix_all
from webhook.tools.check.manifests import read_manifests
from webhook.tools.check.run import Run

HIDING = """\
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: A, value: b}
    - {name: CUDA_VISIBLE_DEVICES, value: "0"}
"""


def fix(*arguments: str, text: str, folder: Path) -> tuple[int, str, str, str]:
    """Return the exit status, stdout, stderr, and what the file holds then."""
    file = folder / "a.yaml"
    file.write_text(text)
    result = check("--fix", str(file), *arguments)
    remarks = " ".join(result.stderr.replace(str(folder), "").split())
    return result.exit_code, result.stdout.replace(str(folder), ""), remarks, file.read_bytes().decode()


def test_a_diff_is_shown_and_nothing_is_written_without_yes(tmp_path: Path) -> None:
    text = HALF + "\n# the end"

    assert fix(text=text, folder=tmp_path) == (
        1,
        "--- /a.yaml\n+++ /a.yaml\n@@ -6,6 +6,6 @@\n   - name: main\n     image: registry.example/train:1\n"
        "     resources:\n-      limits: {amd.com/gpu: 500m}\n+      limits: {amd.com/gpu: 1}\n \n # the end\n",
        'fix: /a.yaml:9: spec.containers[0].resources.limits[amd.com/gpu] (container "main") = "500m" (0.5): set '
        "amd.com/gpu: 1 [gpu-requests] 1 finding can be fixed in 1 file, 0 denials left nothing is written: add --yes",
        text,
    )


def test_what_is_written_is_clean_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "a.yaml").chmod(0o640)
    text = f"# one\r\n{HALF}---\n{DEPLOYMENT.replace('COUNT', '3 # no').replace('nvidia', 'amd')}"
    text = text.replace("3 # no}}", "0.5}}  # no")

    code, _, remarks, after = fix("--yes", text=text, folder=tmp_path)

    assert (code, remarks[-14:]) == (0, "1 file written")
    assert after == text.replace("500m", "1").replace("gpu: 0.5", "gpu: 1")
    assert stat.S_IMODE((tmp_path / "a.yaml").stat().st_mode) == 0o640
    assert check(str(tmp_path / "a.yaml")).exit_code == 0
    assert fix("--yes", text=after, folder=tmp_path)[1:3] == ("", "nothing to fix, 0 denials left")


def test_a_byte_order_mark_and_a_link_stay(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbf" + HALF.replace("\n", "\r\n").encode())
    (tmp_path / "a.yaml").symlink_to(tmp_path / "b.yaml")

    assert check("--fix", "--yes", str(tmp_path / "a.yaml")).exit_code == 0

    assert (tmp_path / "a.yaml").is_symlink()
    want = b"\xef\xbb\xbf" + HALF.replace("500m", "1").replace("\n", "\r\n").encode()
    assert (tmp_path / "b.yaml").read_bytes() == want
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.yaml", "b.yaml"]


def test_findings_of_a_directory_and_of_several_items(tmp_path: Path) -> None:
    """Both variables go, though the first one's removal moves the second; requests that a limit stands for are not written."""
    (tmp_path / "b.yaml").write_text(HALF)
    (tmp_path / "a.yaml").write_text(GOOD + HIDING)

    result = check("--fix", "--yes", str(tmp_path))

    assert result.stderr.splitlines()[-2:] == [
        "3 findings can be fixed in 2 files, 0 denials left",
        "2 files written",
    ]
    assert (tmp_path / "b.yaml").read_text() == HALF.replace("500m", "1")
    assert (tmp_path / "a.yaml").read_text() == f"{GOOD}    env:\n    - {{name: A, value: b}}\n"


DEVICE = """\
    volumeMounts:
    - {name: dev, mountPath: /dev/nvidia0}
  volumes:
  - {name: dev, hostPath: {path: /dev/nvidia0}}
"""


def test_a_device_of_the_node_is_removed_with_its_mounts(tmp_path: Path) -> None:
    config = configuration(tmp_path, "{rules: {gpu-isolation: {mode: enforce}}}")
    result = check("--fix", "--yes", "--config", config, "-", stdin=GOOD + DEVICE)

    assert (result.exit_code, result.stdout) == (0, GOOD)


ANCHORED = HALF.replace("{amd", "&a {amd") + "      requests: *a\n"


@cases(
    ("text", "why"),
    no_single_edit=(GOOD.replace("train}", "t, annotations: {gpu-admission.dev/gpu-class: zzz}}"),
        "3: choose: metadata"),
    behind_an_alias=(ANCHORED,
        "9: spec.containers[0].resources.limits is used in other places, too, by its anchor &a: spec"),
)  # fmt: skip
def test_what_is_left_has_a_reason(tmp_path: Path, text: str, why: str) -> None:
    code, diff, remarks, after = fix("--yes", text=text, folder=tmp_path)

    assert (code, diff, after) == (1, "", text)
    assert f"left: /a.yaml:{why}" in remarks
    assert "nothing to fix, 1 denial left" in remarks


ONE_AND_A_HALF = GPU_POD.replace("COUNT", "1.5")
CHOICES = (
    "left: /a.yaml:9: choose: spec.containers[0].resources.limits[nvidia.com/gpu] "
    '(container "main") = "1.5": set nvidia.com/gpu: 1 or 2; must be a whole number of GPUs, not 1.5 of them '
    "[gpu-requests] --fix=1:1 set nvidia.com/gpu: 1 --fix=1:2 set nvidia.com/gpu: 2 nothing to fix, 1 denial left"
)


def test_no_choice_of_several_is_taken_unasked(tmp_path: Path) -> None:
    assert fix("--yes", text=ONE_AND_A_HALF, folder=tmp_path) == (1, "", CHOICES, ONE_AND_A_HALF)

    code, _, remarks, after = fix("--yes", "--fix=1:2", text=ONE_AND_A_HALF, folder=tmp_path)

    assert (code, after) == (0, GPU_POD.replace("COUNT", "2"))
    assert remarks == (
        'fix: /a.yaml:9: spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "1.5": set '
        "nvidia.com/gpu: 2 [gpu-requests] 1 finding can be fixed in 1 file, 0 denials left 1 file written"
    )


@cases(
    ("chosen", "want"),
    another_choice=("1:3", "Error: --fix=1:3: no finding has such a choice"),
    another_finding=("2:1", "Error: --fix=2:1: no finding has such a choice"),
)
def test_a_choice_that_is_not_there(tmp_path: Path, chosen: str, want: str) -> None:
    code, _, remarks, after = fix(f"--fix={chosen}", "--yes", text=ONE_AND_A_HALF, folder=tmp_path)
    assert (code, remarks.endswith(want), after) == (2, True, ONE_AND_A_HALF), remarks


DIFF_OF_STDIN = (
    "--- stdin\n+++ stdin\n@@ -6,4 +6,4 @@\n   - name: main\n     image: registry.example/train:1\n     resources:\n"
    "-      limits: {amd.com/gpu: 500m}\n+      limits: {amd.com/gpu: 1}\n"
)
FIXED = HALF.replace("500m", "1")


@cases(
    ("arguments", "stdin", "want"),
    a_diff=((), HALF, (1, DIFF_OF_STDIN)),
    the_documents=(("--yes",), HALF, (0, FIXED)),
    with_their_line_ends=(("--yes",), HALF.replace("\n", "\r\n"), (0, FIXED.replace("\n", "\r\n"))),
    nothing_to_fix=(("--yes",), GOOD + "# \u202e", (0, GOOD + "# \u202e")),
    no_fix=(("--yes",), HALF.replace("500m", "-1"), (1, HALF.replace("500m", "-1"))),
)
def test_stdin_becomes_stdout(arguments: tuple[str, ...], stdin: str, want: tuple[int, str]) -> None:
    result = check("--fix", *arguments, "-f", "-", stdin=stdin)
    assert (result.exit_code, result.stdout_bytes.decode()) == want


def test_beside_stdin_a_file_is_written_and_every_diff_goes_to_stderr(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(HALF.replace("train}", "other}"))

    result = check("--fix", "--yes", "-", str(file), stdin=HALF)

    assert (result.exit_code, result.stdout) == (0, FIXED)
    assert file.read_text() == FIXED.replace("train}", "other}")
    assert result.stderr.startswith(DIFF_OF_STDIN)
    assert result.stderr.endswith("2 findings can be fixed in 2 files, 0 denials left\n1 file written\n")


def test_a_chart_and_a_kustomization_are_named(tmp_path: Path) -> None:
    (tmp_path / "chart" / "templates").mkdir(parents=True)
    (tmp_path / "chart" / "Chart.yaml").write_text("name: x\n")
    (tmp_path / "chart" / "templates" / "pod.yaml").write_text(GPU_POD.replace("COUNT", "{{ .Values.gpus }}"))
    (tmp_path / "pod.yaml").write_text(HALF)

    result = check("--fix", "--yes", "-R", str(tmp_path))

    assert result.exit_code == 0
    assert "note: 1 Helm chart not checked" in " ".join(result.stderr.split())


LIMIT = "limits[amd.com/gpu]"
INEFFECTIVE = "its edit would not remove it"
UNCOUNTABLE = (
    f'its edit would be denied (spec.containers[0].resources.{LIMIT} (container "main") = "none": '
    "set amd.com/gpu: none; must be a quantity that Kubernetes can count [gpu-requests])"
)


@cases(
    ("text", "path", "value", "left"),
    right=(HALF, f"spec.containers[0].resources.{LIMIT}", 1, []),
    still_denied=(HALF, f"spec.containers[0].resources.{LIMIT}", "1.5", [INEFFECTIVE]),
    denied_for_another_reason=(HALF, f"spec.containers[0].resources.{LIMIT}", "none", [UNCOUNTABLE]),
    without_its_pods=(DEPLOYMENT.replace("COUNT", "0.5"), "spec", None, ["for you to decide"]),
    the_pod_of_a_workload=(DEPLOYMENT.replace("COUNT", "0.5"), "spec.template", None, ["for you to decide"]),
)
def test_a_fix_is_made_only_if_a_second_check_finds_nothing_worse(
    tmp_path: Path, text: str, path: str, value: Any, left: list[str]
) -> None:
    """Whatever the rule says: the first of two objects has this fix, and that of the second is made in any case."""
    file = tmp_path / "a.yaml"
    file.write_text(stream(text, HALF.replace("train}", "other}")))

    def checked(texts: Any = None) -> Any:
        found = read_manifests((str(file),), texts=texts)
        run = Run(
            found.manifests, DecisionCache(load_directory(None)), datetime(2026, 11, 23, tzinfo=UTC), None
        )
        results = run.results()
        for pod in results[0].pods:
            wrong = [
                replace(each, finding=replace(each.finding, choices=((Edit(path, value),),)))
                for each in pod.violations
            ]
            decision = replace(pod.decisions[0], violations=tuple(wrong))
            results[0] = replace(results[0], pods=(replace(pod, decisions=(decision,)),))
        return results, found

    fixes = fix_all(checked(), checked)

    first, second = fixes.texts[str(file)].split("---\n")
    assert (first == text, "500m" in second) == (bool(left), False)
    assert [why for _, why in fixes.unfixed()] == left


def test_an_edit_that_would_be_denied_says_why(tmp_path: Path) -> None:
    misspelt = "metadata:\n  annotations: {gpu-admission.dev/model-parameters: 1t}\n  name: train\n"
    (tmp_path / "a.yaml").write_text(
        f"apiVersion: v1\nkind: Pod\n{misspelt}spec:\n  containers:\n  - name: main\n    image: x\n"
        "    resources: {limits: {amd.com/gpu: 1}}\n"
    )
    said = " ".join(check("--fix", "--yes", str(tmp_path)).stderr.split())
    assert (
        'its edit would be denied (metadata.annotations[gpu-admission.dev/model-params] = "1t": must fit'
        in said
    )


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)
    with pytest.raises(OSError, match="has changed since it was checked"):
        replace_file(read_file(file, 1024)[1], HALF, GOOD)
    assert [file.read_text(), sorted(each.name for each in tmp_path.iterdir())] == [GOOD, ["a.yaml"]]


def replaced(text: str, fixes: Any) -> str:
    """Return the text as a consumer of SARIF would change it."""
    (change,) = fixes[0]["artifactChanges"]
    (replacement,) = change["replacements"]
    region, lines = replacement["deletedRegion"], text.split("\n")
    start, end = (
        sum(len(line) + 1 for line in lines[: region[f"{at}Line"] - 1]) + region[f"{at}Column"] - 1
        for at in ("start", "end")
    )
    return text[:start] + str(replacement["insertedContent"]["text"]) + text[end:]


@cases(
    ("text", "reason", "after"),
    a_value=(HALF, "FractionalGPU", HALF.replace("500m", "1")),
    an_item=(
        f"{GOOD}    env:\n    - {{name: A, value: b}}\n    - {{name: NVIDIA_VISIBLE_DEVICES, value: all}}\n# x",
        "DeviceVariable",
        f"{GOOD}    env:\n    - {{name: A, value: b}}\n# x",
    ),
)
def test_reports_carry_the_edits(tmp_path: Path, text: str, reason: str, after: str) -> None:
    (tmp_path / "a.yaml").write_text(text)

    results = [each for each in sarif(str(tmp_path / "a.yaml"))["results"] if each["ruleId"] == reason]
    found = json.loads(check("-o", "json", str(tmp_path / "a.yaml")).stdout)["objects"][0]["pods"][0][
        "findings"
    ]

    assert {replaced(text, each["fixes"]) for each in results} == {after}
    assert any(each["fix"] and each["reason"] == reason for each in found)


def test_sarif_of_a_stream_has_no_fixes() -> None:
    assert ["fixes" in each for each in sarif("-f", "-", stdin=HALF)["results"]] == [False]


def test_json_names_what_the_file_has() -> None:
    """The API server takes the request of a Pod from its limit; no file has it, so no tool can change it there."""
    found = json.loads(
        check("-o", "json", "-", stdin=HALF.replace("amd.com/gpu: 500m", "nvidia/gpu: 1")).stdout
    )

    assert [each["fix"] for each in found["objects"][0]["pods"][0]["findings"] if each["fix"]] == [
        [
            {"path": "spec.containers[0].resources.limits[nvidia/gpu]", "value": None},
            {"path": "spec.containers[0].resources.limits[nvidia.com/gpu]", "value": 1},
        ]
    ]
