"""`gpu-admission classes` without a cluster; with one: tests/cluster/test_classes_command.py."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from tests.cases import cases
from webhook.commands import main

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\n"
ONLY_T4 = "{allowed: [nvidia-t4]}"
GRANTS = "rule gpu-class of policy default allows nvidia-t4"


def run(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "p.yaml").write_text(text)
    return CliRunner().invoke(main, ["classes", "--standalone", "--config", str(folder), *arguments])


def policy(options: str, more: str = "") -> str:
    return f"{HEAD}kind: GPUPolicy\nmetadata: {{name: default}}\nspec: {{rules: {{gpu-class: {options}}}{more}}}\n"


@cases(
    ("text", "allowed", "because"),
    nothing_is_restricted=(policy("{}"), True, ""),
    not_named=(policy(ONLY_T4), False, GRANTS),
    by_its_family=(policy("{allowed: [nvidia-a100]}"), True, ""),
    audited=(policy("{mode: audit, allowed: [nvidia-t4]}"), True, f"{GRANTS}; it is in mode audit here"),
    exempt=(
        policy(ONLY_T4, ", exemptions: [{namespaces: [team], reason: pilot}]"),
        True,
        f"{GRANTS}; it is in mode disabled here",
    ),
    none_of_its_family=(
        f"{HEAD}kind: GPUQuota\nmetadata: {{name: default, namespace: team}}\n"
        "spec: {hard: {classes: {nvidia-a100: 0}}}\n",
        False,
        "the GPUQuota grants 0 of classes/nvidia-a100",
    ),
)
def test_what_a_namespace_may_use(tmp_path: Path, text: str, allowed: bool, because: str) -> None:
    shown = run(tmp_path, text, "-n", "team", "-o", "json")
    (found,) = (each for each in json.loads(shown.stdout)["classes"] if each["name"] == "nvidia-a100-80gb")

    assert (found["allowed"], found["because"]) == (allowed, because)


def test_the_catalogue_as_text(tmp_path: Path) -> None:
    share = "{cpu: 12, memory: 120Gi}"
    spec = f"{{memoryGiB: 12, family: own, perGPU: {share}}}"
    own = f"{HEAD}kind: GPUClass\nmetadata: {{name: own-card}}\nspec: {spec}\n---\n"
    lines = run(tmp_path, own + policy(ONLY_T4)).stdout.splitlines()

    assert lines[:4] == [
        "namespace default",
        "  policy default: matches * with priority 0",
        "",
        f"{'CLASS':<20} {'FAMILY':<20} {'GIB':>4}  ALLOWED",
    ]
    assert f"{'nvidia-t4':<20} {'nvidia-t4':<20} {16:>4}  yes" in lines
    at = lines.index(f"{'own-card':<20} {'own':<20} {12:>4}  no")
    assert lines[at + 1] == "  perGPU 12 CPUs and 120Gi of memory"
    assert f"{'own-card':<20} {'own':<20} {12:>4}  no" in lines
    assert "  MIG 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb" in lines
    assert lines[-2:] == ["", GRANTS]
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80


def test_documents_that_are_not_valid_end_it(tmp_path: Path) -> None:
    result = run(tmp_path, policy("{alowed: []}"))

    assert result.exit_code == 2
    assert result.stderr == (
        "error: p.yaml:4: GPUPolicy/default spec.rules.gpu-class.alowed: unknown field; did you mean allowed?\n"
    )
