"""No pod waits where nothing makes it wait, and nobody leaves the line by other means."""

import time
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from click.testing import CliRunner

from policies.quota.waiting import GATE
from tests.cases import cases
from tests.cluster.controllers import Counting, eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.queueing import QUEUE, SOON, Team, counted, spec_of, team
from tests.controlplane import ControlPlane
from tests.controlplane.client import JSON_PATCH, accepted
from webhook.commands import main, release

__all__ = ["counted", "team"]


def test_without_its_quota_nobody_waits(team: Team) -> None:
    team.queue()

    team.delete_quota()

    assert team.both_start()


def test_where_a_quota_is_required_nobody_starts_without_one(team: Team) -> None:
    team.policy(rules={"gpu-quota": {**QUEUE, "required": True}})
    assert eventually(team.denies, seconds=SOON)
    team.queue(required=True)
    team.delete_quota()
    time.sleep(2)
    assert team.both_wait()

    in_force(team, {"gpus": "2"})

    assert eventually(lambda: [*map(team.waits, team.pods.values())].count(False) == 1)


RULES: dict[str, Any] = {"rules": {"gpu-quota": QUEUE}}
EXEMPTION = {"namespaces": ["team-*"], "reason": "a test", "rules": ["gpu-quota"]}


@cases(
    ("spec",),
    warn=({"rules": {"gpu-quota": {**QUEUE, "mode": "warn"}}},),
    audit=({"rules": {"gpu-quota": {**QUEUE, "mode": "audit"}}},),
    disabled=({"rules": {"gpu-quota": {**QUEUE, "mode": "disabled"}}},),
    exempt=({**RULES, "exemptions": [EXEMPTION]},),
)
def test_where_the_rule_denies_nothing_nobody_waits(team: Team, spec: dict[str, Any]) -> None:
    team.queue()

    team.policy(**spec)

    assert team.both_start()


def test_a_label_of_the_namespace_that_exempts_it_starts_all(team: Team) -> None:
    exempt = {"namespaceSelector": {"matchLabels": {"free": "yes"}}}
    team.queue()
    team.policy(**RULES, exemptions=[{**EXEMPTION, **exempt}])

    team.client.patch(f"/api/v1/namespaces/{team.name}", {"metadata": {"labels": {"free": "yes"}}})

    assert team.both_start()


def test_the_line_drains_in_order_where_nobody_joins_any_more(team: Team) -> None:
    first, second = team.queue()
    team.policy(rules={"gpu-quota": {"mode": "enforce", "onExceeded": "Deny"}})
    assert eventually(team.denies, seconds=SOON)
    status, answer = team.create({"metadata": {"name": "third"}, "spec": spec_of(gpus=1)})
    assert (status, team.both_wait()) == (403, True)
    assert "2 pods in line" in answer["message"] or "exceed" in answer["message"]

    team.delete_pod("holder")
    assert team.starts(first, seconds=SOON)
    assert team.waits(second)
    team.delete_pod(first)
    assert team.starts(second, seconds=SOON)


def test_while_the_policy_is_paused_the_line_stays_and_anybody_may_leave_it(team: Team) -> None:
    first, second = team.queue()

    until = datetime.now(UTC) + timedelta(hours=1)
    team.policy(**RULES, pausedUntil=until.isoformat(timespec="seconds"))

    def leaves() -> bool:
        team.remove_gates(second)
        return not team.waits(second)

    assert eventually(leaves, seconds=SOON)
    assert team.waits(first)


def test_release_needs_a_pause(team: Team, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    team.queue()
    arguments = ["release", "-n", team.name, "--kubeconfig", str(plane.kubeconfig())]
    monkeypatch.setattr(release, "TRY_SECONDS", 2.0)

    refused = CliRunner().invoke(main, arguments)

    assert (refused.exit_code, team.both_wait()) == (1, True)
    assert refused.output.count("the webhook put the gate back: pause the policies first") == 2

    monkeypatch.undo()
    team.policy(**RULES, pausedUntil=(datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds"))
    released = CliRunner().invoke(main, arguments)

    assert (released.exit_code, released.output) == (0, "released 2 pods\n")
    assert not any(map(team.waits, team.pods.values()))


def test_a_queue_on_hold_starts_nobody(team: Team) -> None:
    first, second = team.queue()
    team.change_quota({"queue": {"hold": True}})
    assert eventually(team.in_force)

    team.delete_pod("holder")
    time.sleep(3)
    assert team.both_wait()

    team.change_quota({"queue": {"hold": False}})
    assert team.starts(first, seconds=SOON)
    assert team.waits(second)


def test_a_raised_quota_starts_who_fits_and_a_lowered_one_nobody(team: Team) -> None:
    first, second = team.queue()
    team.change_quota({"hard": {"gpus": "2"}})
    assert team.starts(first, seconds=SOON)
    assert team.waits(second)

    team.change_quota({"hard": {"gpus": "0"}})
    assert eventually(team.in_force)
    team.delete_pod("holder")
    team.delete_pod(first)
    time.sleep(2)
    assert team.waits(second)

    team.change_quota({"hard": {"gpus": "1"}})
    assert team.starts(second, seconds=SOON)


OWN_GATE = [{"name": GATE}]


@cases(
    ("hard", "gpus"),
    with_room=({"gpus": "1"}, 1),
    without_gpus=({"gpus": "1"}, 0),
    without_a_quota=(None, 1),
    without_quota_and_gpus=(None, 0),
)
def test_a_pod_that_brings_the_gate_starts_where_nobody_waits(
    team: Team, hard: dict[str, str] | None, gpus: int
) -> None:
    if hard is not None:
        in_force(team, hard)

    accepted(team.create({"metadata": {"name": "own"}, "spec": spec_of(gpus=gpus, schedulingGates=OWN_GATE)}))

    assert team.starts("own", seconds=SOON)


def test_a_pod_that_brings_the_gate_where_others_wait_stands_behind_them(team: Team) -> None:
    first, second = team.queue()
    team.in_a_later_second("own", schedulingGates=OWN_GATE)

    team.delete_pod("holder")

    assert team.starts(first, seconds=SOON)
    assert team.waits(second)
    assert team.waits("own")


def test_serve_restarts_and_the_line_stays(team: Team, counted: Counting) -> None:
    first, second = team.queue()

    counted.webhook.stop()
    team.delete_pod("holder")  # the first one cannot start yet
    time.sleep(2)
    assert team.both_wait()
    counted.webhook.start()
    assert eventually(team.is_queueing, seconds=30)
    team.pod("third")

    assert team.starts(first, seconds=SOON)
    assert team.waits(second)
    assert team.waits("third")


def test_a_pod_that_is_changed_while_it_waits_keeps_its_place(team: Team) -> None:
    first, second = team.queue()
    toleration = {"key": "later", "operator": "Exists"}
    change = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "add", "path": "/spec/tolerations/-", "value": toleration},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"zone": "a"}},
    ]
    accepted(team.client.patch(team.path("pods", first), change, content_type=JSON_PATCH))
    assert team.waits(first)

    team.delete_pod("holder")

    assert team.starts(first, seconds=SOON)
    assert toleration in team.get(first)["spec"]["tolerations"]
    assert team.waits(second)


def test_a_pod_that_waits_is_bound_to_no_node(team: Team) -> None:
    first, _ = team.queue()
    binding = {"metadata": {"name": first}, "target": {"kind": "Node", "name": "n"}}
    status, bound = team.client.post(team.path("pods", first) + "/binding", binding)
    set_name = [{"op": "add", "path": "/spec/nodeName", "value": "n"}]
    answer = team.client.patch(team.path("pods", first), set_name, content_type=JSON_PATCH)

    assert (status, answer[0]) == (409, 422), (bound, answer)
    assert eventually(lambda: team.ledger_object().used == {"gpus": Fraction(1)})
    assert team.waits(first)


def test_hundreds_of_pods_start_when_the_rule_is_disabled(team: Team) -> None:
    team.queue()
    names = [f"crowd-{number}" for number in range(100)]
    for name in names:
        team.pod(name)

    team.policy(rules={"gpu-quota": {**QUEUE, "mode": "disabled"}})

    assert team.starts(*names, seconds=30)


def test_a_resource_quota_that_counts_pods_that_wait_gets_a_warning(team: Team) -> None:
    team.queue()
    path, body = (
        team.path("resourcequotas"),
        {"metadata": {"name": "compute"}, "spec": {"hard": {"pods": "9"}}},
    )

    status, _, warnings = team.client.send("POST", path, body)

    assert status == 201
    assert any("pods also count pods that wait in line for quota" in each for each in warnings), warnings


def test_a_deleted_pod_whose_finalizer_stays_holds_nobody_up(team: Team) -> None:
    first, second = team.queue()
    path = team.path("pods", first)
    accepted(team.client.patch(path, {"metadata": {"finalizers": ["example.com/stays"]}}))
    team.delete_pod(first)

    team.delete_pod("holder")

    assert team.starts(second, seconds=SOON)
    assert team.waits(first), "it never starts"
    accepted(team.client.patch(path, {"metadata": {"finalizers": None}}))
    assert eventually(lambda: team.client.get(path)[0] == 404)
