"""What the commands say of a budget of GPU-hours that is spent, on a real API server."""

import json
from typing import Any

from click.testing import CliRunner, Result

from tests.cluster.controllers import eventually
from tests.cluster.status.conftest import PATHS, apply, stateful
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from webhook.commands import main
from webhook.quota.documents import quota_path

TEAM = "spends"


def run(plane: ControlPlane, command: str, *arguments: str) -> Result:
    kubeconfig = str(plane.kubeconfig())
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, [command, *arguments, "--kubeconfig", kubeconfig])


def shown(plane: ControlPlane, command: str, *arguments: str) -> Any:
    return json.loads(run(plane, command, *arguments, "-n", TEAM, "-o", "json").stdout)


def test_a_budget_that_is_spent(cluster: ControlPlane) -> None:
    team, client = Namespace(cluster, TEAM), cluster.client()
    team.quota({"gpus": "8"}, budget={"gpuHours": "0.0005"})
    assert eventually(lambda: team.used() is not None)
    apply(client, TEAM, stateful("first", 2, "nvidia-t4"))
    try:
        said = "GPU-hours used this month: requests for them are denied until "

        def budget() -> Any:
            return shown(cluster, "status")["quotas"][0]["budget"] or {"message": ""}

        assert eventually(lambda: said in budget()["message"], seconds=60), budget()
        apply(client, TEAM, stateful("second", 1, "nvidia-t4"))
        why = eventually(
            lambda: [each for each in shown(cluster, "why", "sts/second")["reasons"] if each["reason"]]
        )
        text = run(cluster, "quota", "-n", TEAM).output
        stated = shown(cluster, "quota")["quotas"][0]["budget"]
    finally:
        for name in ("first", "second"):
            client.delete(PATHS["StatefulSet"].format(TEAM) + f"/{name}")
        assert client.delete(quota_path(TEAM))[0] == 200
    (reason,) = why
    assert (reason["source"], reason["reason"]) == ("quota", "BudgetSpent")
    assert f"exceeded budget: {TEAM}/default, " in reason["message"]
    assert "wait until 20" in reason["remedy"]
    assert f"  {'GPU-hours':30} {'█' * 24} " in text
    assert (stated["period"], [row["key"] for row in stated["rows"]]) == ("month", ["gpus"])
