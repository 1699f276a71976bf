"""What needs no cluster of `config pause`; the rest is in tests/cluster/test_cluster_configuration.py."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.webhook.cluster.apiserver import Answer, ApiServer, status
from webhook.commands import main
from webhook.commands.pause import duration_of


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("30m", timedelta(minutes=30), id="minutes"),
        pytest.param("1h30m", timedelta(hours=1, minutes=30), id="hours-and-minutes"),
        pytest.param("90s", timedelta(seconds=90), id="seconds"),
        pytest.param("24h", timedelta(days=1), id="the-longest"),
    ],
)
def test_durations(text: str, want: timedelta) -> None:
    assert duration_of(text) == want


@pytest.mark.parametrize("text", ["", "30", "h", "30m1h", "-30m", "1.5h", "24h1s", "0m", "999999h", "٣m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"no duration|at most 24h"):
        duration_of(text)


def run(folder: Path, answer: Answer, *arguments: str) -> Result:
    with ApiServer(folder, lambda _request: answer) as server:
        return CliRunner().invoke(main, ["config", *arguments, "--kubeconfig", str(server.kubeconfig())])


NONE_THERE = Answer(b'{"metadata": {"resourceVersion": "1"}, "items": []}')


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(
            NONE_THERE,
            "error: there is no GPUPolicy in this cluster, so there is nothing to pause: the built-in defaults hold; "
            "apply a policy whose rules audit instead\n",
            id="no-policy",
        ),
        pytest.param(
            status(404, "the server could not find the requested resource"),
            "error: this cluster has no GPUPolicy: the kind is not installed\n",
            id="no-kind",
        ),
        pytest.param(
            status(403, "gpupolicies is forbidden"),
            "error: the policies cannot be read: gpupolicies is forbidden\n",
            id="forbidden",
        ),
    ],
)
def test_nothing_to_pause(tmp_path: Path, answer: Answer, want: str) -> None:
    result = run(tmp_path, answer, "pause", "--for", "5m", "--reason", "incident")

    assert (result.exit_code, result.stderr) == (2, want)


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    result = run(tmp_path, status(403, "gpupolicies is forbidden"), "pause")

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: --for is missing: say how long, such as --for 30m",
        "error: --reason is missing: say why, for whoever finds the pause",
        "error: the policies cannot be read: gpupolicies is forbidden",
    ]


def test_resume_without_policies(tmp_path: Path) -> None:
    result = run(tmp_path, NONE_THERE, "resume")

    assert (result.exit_code, result.stdout) == (0, "nothing is paused\n")
