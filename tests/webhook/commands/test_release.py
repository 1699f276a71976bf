"""What `release` does by the answers of an API server; on a real one: tests/cluster/waiting/test_release.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from policies.quota.waiting import GATE
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from webhook.commands import main, release

TEAM = "/api/v1/namespaces/team/pods"
CONFIGURATIONS = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/zz-gpu-admission"
    for kind in ("mutating", "validating")
]


class GatedPods:
    """Pods by name with their gates, which it removes as it is asked to; `kept` puts our gate back so many times."""

    def __init__(self, *, kept: int = 0, denied: str = "", **pods: list[str]) -> None:
        self.pods, self.kept, self.denied = pods, kept, denied
        self.configurations = {*CONFIGURATIONS}

    def answer(self, request: Request) -> Answer:
        if request.path in CONFIGURATIONS:
            return self._configuration(request)
        if request.path in {"/api/v1/pods", TEAM}:
            return Answer(json.dumps(collection([self._pod(name) for name in self.pods])).encode())
        name = request.path.rpartition("/")[2]
        if name not in self.pods:
            return status(404, f"no pod {name}", "NotFound")
        if request.method == "PATCH":
            if self.denied:
                return status(403, self.denied, "Forbidden")
            if self.kept:
                self.kept -= 1
            else:
                test, remove = json.loads(request.body)
                at = int(remove["path"].rpartition("/")[2])
                assert self.pods[name].pop(at) == test["value"] == GATE
        return Answer(json.dumps(self._pod(name)).encode())

    def _configuration(self, request: Request) -> Answer:
        if request.path not in self.configurations:
            return status(404, "no configuration", "NotFound")
        if request.method == "DELETE":
            assert json.loads(request.body)["preconditions"] == {"resourceVersion": "7"}
            self.configurations.remove(request.path)
        return Answer(json.dumps({"metadata": {"name": "zz-gpu-admission", "resourceVersion": "7"}}).encode())

    def _pod(self, name: str) -> dict[str, Any]:
        gates = [{"name": gate} for gate in self.pods[name]]
        metadata = {"name": name, "namespace": "team", "uid": name}
        return {"metadata": metadata, "spec": {"schedulingGates": gates} if gates else {}}


def collection(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": items}


def run(folder: Path, gated: GatedPods, *arguments: str) -> Result:
    with ApiServer(folder, gated.answer) as server:
        return CliRunner().invoke(main, ["release", *arguments, "--kubeconfig", str(server.kubeconfig())])


@pytest.mark.parametrize("where", [("--all",), ("-n", "team")], ids=["everywhere", "one-namespace"])
def test_it_removes_our_gate_and_no_other(tmp_path: Path, where: tuple[str, ...]) -> None:
    gated = GatedPods(one=[GATE], two=["example.com/other", GATE], other=["example.com/other"], free=[])

    result = run(tmp_path, gated, *where)

    assert (result.exit_code, result.output) == (0, "released 2 pods\n")
    assert gated.pods == {
        "one": [],
        "two": ["example.com/other"],
        "other": ["example.com/other"],
        "free": [],
    }


def test_nobody_waits(tmp_path: Path) -> None:
    result = run(tmp_path, GatedPods(free=[]), "--all")

    assert (result.exit_code, result.output) == (0, "no pod waits in line for quota\n")


def test_a_replica_that_does_not_know_yet_of_the_pause_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "PAUSE_SECONDS", 0.01)

    result = run(tmp_path, GatedPods(kept=2, one=[GATE]), "--all")

    assert (result.exit_code, result.output) == (0, "released 1 pod\n")


@cases(
    ("gated", "want"),
    put_back=(
        GatedPods(kept=1_000, one=[GATE]),
        "team/one: the webhook put the gate back: "
        "pause the policies first: gpu-admission pause --for 1h --reason 'release the pods that wait'\nreleased 0 pods\n",
    ),
    denied=(
        GatedPods(denied="pods is forbidden", one=[GATE]),
        "team/one: denied: pods is forbidden\nreleased 0 pods\n",
    ),
)
def test_a_pod_that_still_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gated: GatedPods, want: str
) -> None:
    monkeypatch.setattr(release, "TRY_SECONDS", 0.05)
    monkeypatch.setattr(release, "PAUSE_SECONDS", 0.01)

    result = run(tmp_path, gated, "--all")

    assert (result.exit_code, result.output) == (1, want)


def test_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, GatedPods(one=[GATE]), "-n", "team", "-o", "json")

    assert json.loads(result.output) == [{"pod": "team/one", "result": "released", "message": ""}]


def test_an_uninstallation_takes_the_webhook_away_first(tmp_path: Path) -> None:
    gated = GatedPods(one=[GATE])
    for _ in range(2):  # a Job may run it again
        result = run(tmp_path, gated, "--all", "--uninstall")
        assert result.exit_code == 0
    assert (gated.configurations, gated.pods) == (set(), {"one": []})


@cases(
    ("arguments", "want"),
    neither=((), "name the pods to release: -n NAMESPACE, or -A"),
    both=(("--all", "-n", "team"), "-A means all namespaces: omit -n"),
    a_part_of_an_uninstallation=(("-n", "team", "--uninstall"), "--uninstall requires -A"),
)
def test_what_cannot_be_meant(tmp_path: Path, arguments: tuple[str, ...], want: str) -> None:
    gated = GatedPods(one=[GATE])
    result = run(tmp_path, gated, *arguments)

    assert (result.exit_code, result.stderr.partition("\n\n")[2]) == (2, f"Error: {want}\n")
    assert (gated.configurations, gated.pods) == ({*CONFIGURATIONS}, {"one": [GATE]})


@cases(
    ("arguments", "want"),
    to_list=((), "pods is forbidden"),
    to_delete=(("--uninstall",), "pods is forbidden"),
)
def test_without_rights_nothing_is_released(tmp_path: Path, arguments: tuple[str, ...], want: str) -> None:
    with ApiServer(tmp_path, lambda _request: status(403, "pods is forbidden", "Forbidden")) as server:
        kubeconfig = str(server.kubeconfig())
        result = CliRunner().invoke(main, ["release", "--all", *arguments, "--kubeconfig", kubeconfig])

    assert (result.exit_code, result.stderr) == (2, f"error: {want}\n")
