"""What doctor prints, and with which status it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, answering, status
from webhook.commands import main
from webhook.commands.doctor import document, is_healthy, print_text, summary
from webhook.commands.output import Screen
from webhook.tools.doctor.check import CheckResult, DoctorCheck, NotChecked, failure, warning

CHECK = DoctorCheck("nodes", "GPU nodes are tainted", lambda _: iter(()))
WARNED = warning("w", "Node a", "has no taint", "taint it")
WRONG = failure("e", "Service/a in b", "is " + "very " * 20 + "wrong", "correct it")


@cases(
    ("results", "want", "healthy"),
    all_is_well=([CheckResult(CHECK), CheckResult(CHECK)], "2 checks, no findings", True),
    findings=([CheckResult(CHECK, (WARNED, WRONG))], "1 check, 2 findings", False),
    what_was_not_checked_is_not_fine=(
        [CheckResult(CHECK, (), (NotChecked("no right"),))],
        "1 check, no findings, 1 not checked, or not in full",
        False,
    ),
    a_note=([CheckResult(CHECK, (), (), ("by Secret",))], "1 check, no findings", True),
)
def test_the_summary(results: list[CheckResult], want: str, healthy: bool) -> None:
    assert summary(results) == want
    assert is_healthy(results) is healthy


def test_text_is_80_columns_wide_and_errors_come_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_text(
        Screen(),
        [CheckResult(CHECK, (WARNED, WRONG), (NotChecked("you may not list nodes"),), ("by Secret",))],
    )
    printed = capsys.readouterr().out

    assert printed == (
        "error    Service/a in b is very very very very very very very very very very\n"
        "         very very very very very very very very very very wrong [e]\n"
        "         fix: correct it\n"
        "warning  Node a has no taint [w]\n"
        "         fix: taint it\n"
        "note     by Secret (nodes)\n"
        "not checked: GPU nodes are tainted: you may not list nodes (nodes)\n"
        "1 check, 2 findings, 1 not checked, or not in full\n"
    )


def test_many_objects_with_one_fault_are_one_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = [warning("w", f"Node {name}", "has no taint", "taint it") for name in "abcd"]
    print_text(Screen(), [CheckResult(CHECK, tuple(found)), CheckResult(CHECK, tuple(found[:3]))])

    assert capsys.readouterr().out == (
        "warning  Node a (and 6 more) has no taint [w]\n         fix: taint it\n2 checks, 7 findings\n"
    )


@cases(
    ("number", "want"),
    one=(
        1,
        "not checked: 1 check needs rights of an administrator (-o json says which)\n"
        "1 check, no findings, 1 not checked, or not in full\n",
    ),
    two=(
        2,
        "not checked: 2 checks need rights of an administrator (-o json says which)\n"
        "2 checks, no findings, 2 not checked, or not in full\n",
    ),
)
def test_checks_for_administrators_are_one_line(
    number: int, want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = NotChecked("you may not list nodes", for_administrators=True)
    print_text(Screen(), [CheckResult(CHECK, (), (missed,))] * number)

    assert capsys.readouterr().out == want


def test_json_says_the_same() -> None:
    results = [CheckResult(CHECK, (WARNED,), (NotChecked("no right"),))]

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


def test_a_server_that_refuses_everything_is_out_of_reach(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: status(401, "who are you?", "Unauthorized")) as server:
        result = CliRunner().invoke(main, ["doctor", "--kubeconfig", str(server.kubeconfig())])

    assert (result.exit_code, result.output) == (2, "error: who are you?\n")


def test_before_an_installation_one_finding_says_how_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    def answer(request: Request) -> Answer:
        if request.path.startswith("/apis/authorization.k8s.io/"):
            return Answer(b'{"status": {"allowed": true}}', 201)
        return answering({"/version": {"gitVersion": "v1.37.2"}})(request)

    with ApiServer(tmp_path, answer) as server:
        result = CliRunner().invoke(main, ["doctor", "--kubeconfig", str(server.kubeconfig())])

    assert (result.exit_code, result.output) == (
        1,
        "error    gpu-admission is not installed in this cluster: no webhook configuration, and no Service in "
        "gpu-admission [not-installed]\n"
        "         fix: helm install gpu-admission deploy/chart --namespace gpu-admission --create-namespace "
        "--set image.repository=IMAGE -f deploy/chart/values-first-install.yaml, as deploy/README.md says; "
        "`gpu-admission scan` first shows what would be denied\n"
        "1 check, 1 finding\n",
    )
