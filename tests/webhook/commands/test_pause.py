"""What needs no cluster of `pause`; the rest is in tests/cluster/test_cluster_configuration.py."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.commands import main
from webhook.commands.options import duration


@cases(
    ("text", "want"),
    minutes=("30m", timedelta(minutes=30)),
    hours_and_minutes=("1h30m", timedelta(hours=1, minutes=30)),
    seconds=("90s", timedelta(seconds=90)),
    the_longest=("24h", timedelta(days=1)),
    fraction=("1.5h", timedelta(minutes=90)),
    in_any_order_as_in_go=("30m1h", timedelta(minutes=90)),
)
def test_durations(text: str, want: timedelta) -> None:
    assert duration(text, at_most="24h") == want


@pytest.mark.parametrize(
    "text", ["", "30", "h", "1h 30m", "-30m", "1d", "1.2.3h", "24h1s", "0m", "999999h", "9" * 400 + "h", "٣m"]
)
def test_durations_that_are_not_valid(text: str) -> None:
    with pytest.raises(ValueError, match=r"valid duration|at most 24h|at least 1s"):
        duration(text, at_most="24h")


def run(folder: Path, answer: Answer, *arguments: str) -> Result:
    with ApiServer(folder, lambda _request: answer) as server:
        return CliRunner().invoke(main, [*arguments, "--kubeconfig", str(server.kubeconfig())])


NONE_THERE = Answer(b'{"metadata": {"resourceVersion": "1"}, "items": []}')

NO_POLICY = "the cluster has no GPUPolicy to pause: the built-in defaults are in force; apply a policy whose rules audit instead"
NO_KIND = status(404, "the server could not find the requested resource")
FORBIDDEN = status(403, "gpupolicies is forbidden")


@cases(
    ("answer", "want"),
    no_policy=(NONE_THERE, NO_POLICY),
    no_kind=(NO_KIND, "the kind GPUPolicy is not installed in the cluster"),
    forbidden=(FORBIDDEN, "gpupolicies is forbidden"),
)
def test_nothing_to_pause(tmp_path: Path, answer: Answer, want: str) -> None:
    result = run(tmp_path, answer, "pause", "--for", "5m", "--reason", "incident")

    assert (result.exit_code, result.stderr) == (2, f"error: {want}\n")


def test_resume_without_policies(tmp_path: Path) -> None:
    result = run(tmp_path, NONE_THERE, "resume")

    assert (result.exit_code, result.stdout) == (0, "no policy is paused\n")


POLICY = {
    "apiVersion": "gpu-admission.dev/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "research", "resourceVersion": "1"},
    "spec": {"match": {"namespaces": ["ml-*", "lab"]}, "pausedUntil": "2027-01-01T00:00:00Z"},
}


def with_policy(request: Request) -> Answer:
    if request.method == "GET":
        return Answer(json.dumps({"metadata": {"resourceVersion": "1"}, "items": [POLICY]}).encode())
    return Answer(json.dumps(POLICY).encode())


@cases(
    ("arguments", "status", "want"),
    paused=(
        ["pause", "--for", "5m", "--reason", "incident"],
        0,
        "policy research, which governs ml-*, lab, is paused until LATER (it was until 2027-01-01T00:00:00Z), by unknown\n"
        "Denials and changes are only logged. The pause ends by itself, or with:\n"
        "  gpu-admission resume research\n"
        "Files of API servers, if there are some (export --static), stay in force: export them again now, and after the pause. "
        "Or move /etc/kubernetes/gpu-admission/validating/gpu-admission.yaml away on each control plane node.\n"
        "Namespaces that no policy matches are governed by the built-in defaults, which cannot be paused.\n",
    ),
    resumed=(["resume"], 0, "policy research resumed; it was paused until 2027-01-01T00:00:00Z\n"),
    unknown=(["resume", "labs"], 2, 'error: GPUPolicy not found: "labs": must be one of research\n'),
)
def test_a_policy_is_paused_and_resumed(tmp_path: Path, arguments: list[str], status: int, want: str) -> None:
    with ApiServer(tmp_path, with_policy) as server:
        result = CliRunner().invoke(main, [*arguments, "--kubeconfig", str(server.kubeconfig())])

    shown = re.sub("is paused until [0-9TZ:-]+", "is paused until LATER", result.output)
    assert (result.exit_code, shown) == (status, want)


def test_a_policy_that_may_not_be_changed(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        return with_policy(request) if request.method == "GET" else status(403, "you may not", "Forbidden")

    with ApiServer(tmp_path, answer) as server:
        result = CliRunner().invoke(main, ["resume", "--kubeconfig", str(server.kubeconfig())])

    assert (result.exit_code, result.output) == (1, "error: policy research: you may not\n")
