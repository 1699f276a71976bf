"""The audit log on a real API server: what both phases of a creation share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controllers import Counting, counting, eventually, is_there
from tests.cluster.quota.quotas import in_force
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, install_quota_kind
from tests.controlplane.webhook import Webhook

LINE = dict[str, Any]
NO_TOKEN = {"automountServiceAccountToken": False}


@pytest.fixture(scope="module")
def counted(full_plane: ControlPlane) -> Iterator[Counting]:
    install_quota_kind(full_plane.client())
    with counting(full_plane, host=47) as running:
        yield running


@pytest.fixture(scope="module")
def webhook(counted: Counting) -> Webhook:
    return counted.webhook


@pytest.fixture(scope="module")
def team(counted: Counting) -> Namespace:
    team = Namespace(counted.plane)
    in_force(team, {"gpus": "8"})
    assert is_there(counted.plane, f"{team.path('serviceaccounts')}/default")
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
        pytest.param({"name": "", "generateName": "bare-"}, NO_TOKEN, False, id="nothing"),
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
