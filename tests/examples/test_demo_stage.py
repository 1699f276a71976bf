"""What the demo prints fits 80 columns and loses nothing on the way."""

import subprocess

import pytest

from examples.demo import world
from examples.demo.scenes import yaml_diff
from examples.demo.stage import Stage, table_lines
from examples.demo.world import DemoFailed, wait_for
from tests.cases import cases

WIDE = [
    "NAME         READY   STATUS    RESTARTS   AGE   IP       NODE     NOMINATED NODE   READINESS GATES",
    "finetune-0   0/1     Pending   0          2s    <none>   a100-0   <none>           <none>",
    "needs-h100   0/1     Pending   0          1s    <none>   <none>   <none>           <none>",
]


@cases(
    ("lines", "want"),
    columns_without_a_value_go=(
        WIDE,
        [
            "NAME        READY  STATUS   RESTARTS  AGE  NODE",
            "finetune-0  0/1    Pending  0         2s   a100-0",
            "needs-h100  0/1    Pending  0         1s   <none>",
        ],
    ),
    one_line=(["pod/training created"], ["pod/training created"]),
    no_table=(["a.yaml created", "b.yaml created"], ["a.yaml created", "b.yaml created"]),
    nothing=([], []),
)
def test_a_table_is_narrowed(lines: list[str], want: list[str]) -> None:
    assert table_lines(lines) == want


def test_a_long_command_goes_on_after_a_backslash(capsys: pytest.CaptureFixture[str]) -> None:
    Stage().command(["kubectl", "apply", "-n", "some-namespace", "-f", "examples/workloads/" + "x" * 40])
    first, second = capsys.readouterr().out.splitlines()

    assert first == "  $ kubectl apply -n some-namespace -f \\"
    assert second == "      examples/workloads/" + "x" * 40


def test_an_error_is_wrapped_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    said = "Error from server (Forbidden): " + "request and limit must be equal; " * 8
    Stage().output(subprocess.CompletedProcess([], 1, stdout="", stderr=said))
    printed = capsys.readouterr().out

    assert max(map(len, printed.splitlines())) <= 80
    assert " ".join(printed.split()) == said.strip()


def test_a_diff_leaves_out_what_is_empty_on_both_sides() -> None:
    before = {"nodeSelector": {}, "volumes": [], "containers": ["server"]}
    after = {"nodeSelector": {"accelerator": "nvidia-t4"}, "volumes": [], "containers": ["server"]}

    assert yaml_diff(before, after) == [
        "+ nodeSelector:",
        "+   accelerator: nvidia-t4",
        "  containers:",
        "  - server",
    ]


def test_a_wait_that_times_out_names_its_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "WAIT_SECONDS", 0.0)

    with pytest.raises(DemoFailed, match=r"^waited 0 s for a miracle$"):
        wait_for("a miracle", lambda: False)
