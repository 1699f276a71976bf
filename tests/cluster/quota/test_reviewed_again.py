"""What the rule for changes rests on: the API server reviews every attempt of an update, on the object it then replaces."""

from typing import Any
from uuid import uuid4

from tests.cluster.controllers import eventually
from tests.cluster.quota.second_webhook import SecondWebhook
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace

SLOW, QUICK = "example.com/slow", "example.com/quick"


class Overtaken(SecondWebhook):
    """Lets every update in. While it reviews the first slow one, it has another one stored."""

    def __init__(self, plane: ControlPlane, team: Namespace) -> None:
        super().__init__(plane, team.name, operation="UPDATE")
        self._team = team
        self.slow: list[Any] = []

    def decide(self, request: Any) -> bool:
        """Return whether the update may be stored: always."""
        self.reported["asked"] += 1
        changed, before = (_annotations(request[key]) for key in ("object", "oldObject"))
        if SLOW in changed.keys() - before.keys():
            self.slow.append(request)
            if len(self.slow) == 1:
                assert annotate(self._team, QUICK)[0] == 200
        return True


def test_an_update_that_met_a_conflict_is_reviewed_again(plane: ControlPlane) -> None:
    team = Namespace(plane)
    body = {
        "metadata": {"name": "changed", "labels": {"second": "asks"}},
        "spec": {"containers": [{"name": "any", "image": "any"}]},
    }
    assert team.client.post(team.path("pods"), body)[0] == 201
    with Overtaken(plane, team) as webhook:
        assert eventually(lambda: annotate(team, "example.com/probe")[0] == 200 and webhook.reported["asked"])

        status, stored = annotate(team, SLOW)

    assert status == 200, stored
    assert {SLOW, QUICK} <= stored["metadata"]["annotations"].keys()
    first, second = webhook.slow
    assert first["uid"] != second["uid"]
    assert _version(first["oldObject"]) < _version(second["oldObject"]) < _version(stored)
    assert QUICK not in _annotations(first["oldObject"])
    assert QUICK in _annotations(second["oldObject"])


def annotate(team: Namespace, key: str) -> tuple[int, Any]:
    """Change the pod without naming a resourceVersion."""
    change = {"metadata": {"annotations": {key: str(uuid4())}}}
    return team.client.patch(team.path("pods", "changed"), change)


def _annotations(document: Any) -> dict[str, str]:
    found: dict[str, str] = document["metadata"].get("annotations", {})
    return found


def _version(document: Any) -> int:
    return int(document["metadata"]["resourceVersion"])
