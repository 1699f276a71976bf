"""The audit log on a real API server: what both phases of a creation share, and what the controller says is held and released."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controllers import Running, eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, install_quota_kind
from tests.controlplane.webhook import Webhook

LINE = dict[str, Any]


@pytest.fixture(scope="module")
def webhook(full_plane: ControlPlane) -> Iterator[Webhook]:
    install_quota_kind(full_plane.client())
    with Webhook(full_plane, host=47, arguments=("--kubeconfig", full_plane.kubeconfig())) as running:
        running.register()
        yield running
        running.unregister()


@pytest.fixture(scope="module")
def counted(full_plane: ControlPlane) -> Iterator[list[LINE]]:
    """Yield the lines of a controller, as they come."""
    lines: list[LINE] = []
    with Running(full_plane, write_usage=lines.append):
        yield lines


@pytest.fixture(scope="module")
def team(full_plane: ControlPlane, webhook: Webhook, counted: list[LINE]) -> Namespace:  # noqa: ARG001 - they run
    team = Namespace(full_plane)
    team.quota({"gpus": "8"})
    assert eventually(lambda: full_plane.client().get(f"{team.path('serviceaccounts')}/default")[0] == 200)
    assert eventually(lambda: team.used() is not None)
    return team


def lines_of(webhook: Webhook, team: Namespace, prefix: str) -> list[LINE]:
    """Return the lines about the pods whose name begins so, once both phases of each were written."""

    def found() -> list[LINE]:
        lines = [line for line in webhook.audit() if line["namespace"] == team.name]
        lines = [line for line in lines if line["kind"] == "Pod" and line["name"].startswith(prefix)]
        phases = [line["phase"] for line in lines]
        return lines if phases and phases.count("mutate") == phases.count("validate") else []

    lines = eventually(found)
    assert lines
    return lines


@pytest.mark.parametrize(
    ("metadata", "spec", "shares"),
    [
        pytest.param({"name": "named"}, {}, True, id="a-name"),
        pytest.param({"name": "", "generateName": "token-"}, {}, True, id="the-volume-of-its-token"),
        pytest.param(
            {"name": "", "generateName": "bare-"},
            {"automountServiceAccountToken": False},
            False,
            id="nothing-without-a-name-and-a-token",
        ),
    ],
)
def test_one_id_joins_the_phases_of_a_creation(
    webhook: Webhook, team: Namespace, metadata: LINE, spec: LINE, shares: bool
) -> None:
    prefix = metadata["name"] or metadata["generateName"]
    siblings = 1 if metadata["name"] else 2
    uids = {team.pod("", 1, metadata=metadata, **spec) for _ in range(siblings)}

    lines = lines_of(webhook, team, prefix)

    ids = [line.get("creation") for line in lines]
    assert len(lines) == 2 * siblings
    if shares:
        assert all(ids)
        assert [ids.count(each) for each in set(ids)] == [2] * (len(lines) // 2)
        assert uids == {line["objectUid"] for line in lines if line["phase"] == "validate"}
    else:
        assert set(ids) == {None}


def test_a_pod_of_a_job_has_its_owner_its_charge_and_the_quota_after_it(
    webhook: Webhook, team: Namespace
) -> None:
    limits = {"nvidia.com/gpu": "2"}
    container = {"name": "train", "image": "trainer", "resources": {"limits": limits}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    status, answer = team.client.post(
        f"/apis/batch/v1/namespaces/{team.name}/jobs",
        {"metadata": {"name": "owner"}, "spec": {"template": template}},
    )
    assert status == 201, answer

    validated = next(each for each in lines_of(webhook, team, "owner-") if each["phase"] == "validate")

    assert validated["owner"] == "Job/owner"
    assert validated["user"] == "system:serviceaccount:kube-system:job-controller"
    assert validated["demand"] == {"gpus": "2", "resources/nvidia.com/gpu": "2"}
    assert validated["quota"]["hard"] == {"gpus": "8"}
    assert int(validated["quota"]["held"]["gpus"]) >= 2


def test_the_controller_says_what_is_held_and_what_was_released(
    full_plane: ControlPlane, team: Namespace, counted: list[LINE]
) -> None:
    uid = team.pod("brief", 1)
    stored = full_plane.client().get(team.path("pods", "brief"))[1]

    with Running(full_plane, write_usage=counted.append, lease="another-audit"):
        held = eventually(
            lambda: [line for line in counted if (line["objectUid"], line["verdict"]) == (uid, "held")]
        )
        assert held
    team.delete_pod("brief")
    released = eventually(
        lambda: [line for line in counted if (line["objectUid"], line["verdict"]) == (uid, "released")]
    )

    assert len(released) == 1
    assert {key: value for key, value in released[0].items() if key not in {"time", "replica"}} == {
        "phase": "count",
        "kind": "Pod",
        "namespace": team.name,
        "name": "brief",
        "verdict": "released",
        "objectUid": uid,
        "owner": "Pod/brief",
        "since": stored["metadata"]["creationTimestamp"],
        "demand": {"gpus": "1", "resources/nvidia.com/gpu": "1"},
    }
    assert {**released[0], "verdict": "held", "time": held[0]["time"]} == held[0]
