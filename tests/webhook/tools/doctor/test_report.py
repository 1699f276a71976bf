"""What doctor prints, and with which status it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.commands.doctor import doctor
from webhook.commands.doctor_report import document, is_healthy, print_text, summary
from webhook.tools.doctor.check import Check, Finding, NotChecked, Note, Result, Severity

CHECK = Check(id="nodes", title="GPU nodes are tainted", run=lambda _: iter(()))
WARNED = Finding(
    id="w", severity=Severity.WARNING, object="Node a", message="has no taint", remedy="taint it"
)
WRONG = Finding(id="e", object="Service/a in b", message="is " + "very " * 20 + "wrong", remedy="mend it")


@pytest.mark.parametrize(
    ("results", "want", "healthy"),
    [
        pytest.param([Result(CHECK), Result(CHECK)], "2 checks, no findings", True, id="all-is-well"),
        pytest.param([Result(CHECK, (WARNED, WRONG))], "1 check, 2 findings", False, id="findings"),
        pytest.param(
            [Result(CHECK, (), (NotChecked("no right"),))],
            "1 check, no findings, 1 not checked, or not in full",
            False,
            id="what-was-not-checked-is-not-fine",
        ),
        pytest.param(
            [Result(CHECK, (), (), (Note("by Secret"),))], "1 check, no findings", True, id="a-note"
        ),
    ],
)
def test_the_summary(results: list[Result], want: str, healthy: bool) -> None:
    assert summary(results) == want
    assert is_healthy(results) is healthy


def test_text_is_80_columns_wide_and_errors_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(
        [Result(CHECK, (WARNED, WRONG), (NotChecked("you may not list nodes"),), (Note("by Secret"),))]
    )
    printed = capsys.readouterr().out

    assert printed == (
        "error    Service/a in b is very very very very very very very very very very\n"
        "         very very very very very very very very very very wrong [e]\n"
        "         to mend: mend it\n"
        "warning  Node a has no taint [w]\n"
        "         to mend: taint it\n"
        "note     by Secret (nodes)\n"
        "not checked: GPU nodes are tainted: you may not list nodes (nodes)\n"
        "1 check, 2 findings, 1 not checked, or not in full\n"
    )


def test_json_says_the_same() -> None:
    results = [Result(CHECK, (WARNED,), (NotChecked("no right"),))]

    assert json.loads(json.dumps(document(results), default=lambda f: f.id)) == {
        "healthy": False,
        "checks": [
            {
                "id": "nodes",
                "title": "GPU nodes are tainted",
                "findings": ["w"],
                "notChecked": ["no right"],
                "notes": [],
            }
        ],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--kubeconfig", "nowhere"], id="no-kubeconfig"),
        pytest.param(["--output", "yaml"], id="bad-use"),
    ],
)
def test_a_cluster_out_of_reach_is_another_status(arguments: list[str]) -> None:
    result = CliRunner().invoke(doctor, arguments)

    assert result.exit_code == 2
    assert "rror: " in result.output


def test_a_server_that_refuses_everything_is_out_of_reach(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: status(401, "who are you?", "Unauthorized")) as server:
        result = CliRunner().invoke(doctor, ["--kubeconfig", str(server.kubeconfig())])

    assert (result.exit_code, result.output) == (2, "error: who are you?\n")
