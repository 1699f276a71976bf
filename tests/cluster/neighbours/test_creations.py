"""What both phases of a creation share, and the audit log with it: a name, or the volume that ServiceAccount admission adds."""

from typing import Any

import pytest

from tests.cluster.controllers import eventually
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook

LINE = dict[str, Any]


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
            id="nothing",
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
