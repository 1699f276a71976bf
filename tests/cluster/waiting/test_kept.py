"""What runs keeps its quota while its pods are replaced, on a real API server. The tests are the operator that replaces them."""

import time
from collections.abc import Callable
from fractions import Fraction

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.gangs import TEMPLATE, create, made, member, reference
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.operators import Operator, mpijob, other_waits, pytorchjob, ray_cluster
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.quota.documents import KeptQuota

GONE_SECONDS = 5.0
"""Longer than the quota of any ended pod stayed free before it stood in the ledger."""
SOON = 10.0
"""On a busy machine, for what takes a second."""


@cases("document", a_raycluster=ray_cluster(), a_pytorchjob=pytorchjob(), an_mpijob=mpijob())
@cases("how", deleted="delete", failed="Failed")
def test_no_other_takes_the_quota_of_a_pod_that_is_being_replaced(
    line: Line, plane: ControlPlane, document: JSON, how: str
) -> None:
    in_force(line, {"gpus": "8"})
    operator = Operator(line, plane, document)
    other_waits(line)
    for number in range(3):
        name = operator.names[number]
        line.delete_pod(name) if how == "delete" else line.set_phase(name, how)
        time.sleep(GONE_SECONDS if number == 0 else 0.3)
        assert line.waits("other")
        operator.make(f"again-{number}")
        assert line.starts(f"again-{number}")
    assert line.waits("other")
    assert eventually(lambda: not line.ledger_object().reservations.keeps)


def test_nor_if_nobody_waits(line: Line, plane: ControlPlane) -> None:
    in_force(line, {"gpus": "8"})
    operator = Operator(line, plane, ray_cluster())
    line.delete_pod(operator.names[0])
    assert eventually(lambda: line.ledger_object().reservations.keeps)
    kept = (KeptQuota("RayCluster/train", {"gpus": Fraction(2)}),)
    assert eventually(lambda: line.status().kept == kept)
    line.pod("other", 2)
    assert line.waits("other")
    operator.make("again")
    assert line.starts("again")
    assert line.waits("other")


def succeeded(operator: Operator) -> None:
    operator.line.set_phase(operator.names[0], "Succeeded")


def suspended(operator: Operator) -> None:
    operator.change({"suspend": True})
    operator.line.delete_pod(operator.names[0])


def made_smaller(operator: Operator) -> None:
    operator.change({"workerGroupSpecs": ray_cluster(3)["spec"]["workerGroupSpecs"]})
    operator.line.delete_pod(operator.names[0])


def deleted_meanwhile(operator: Operator) -> None:
    operator.line.delete_pod(operator.names[0])
    assert eventually(lambda: operator.line.ledger_object().reservations.keeps)
    accepted(operator.line.client.delete(operator.path))


def ended_meanwhile(operator: Operator) -> None:
    operator.line.set_phase(operator.names[0], "Failed")
    assert eventually(lambda: operator.line.ledger_object().reservations.keeps)
    conditions = [{"type": "Failed", "status": "True"}]
    accepted(operator.line.client.patch(f"{operator.path}/status", {"status": {"conditions": conditions}}))


def made_again(operator: Operator) -> None:
    """As a RayJob that tries again, and an upgrade of a RayService: the cluster is another one."""
    operator.line.delete_pod(operator.names[0])
    accepted(operator.line.client.delete(operator.path))
    accepted(operator.line.client.post(operator.path.rpartition("/")[0], ray_cluster()))


@cases(
    "end",
    its_pod_succeeded=succeeded,
    it_was_suspended=suspended,
    it_was_made_smaller=made_smaller,
    it_was_deleted=deleted_meanwhile,
    it_has_ended=ended_meanwhile,
    it_was_made_again=made_again,
)
def test_the_quota_goes_to_the_next_one_if(
    line: Line, plane: ControlPlane, end: Callable[[Operator], None]
) -> None:
    in_force(line, {"gpus": "8"})
    operator = Operator(line, plane, ray_cluster())
    other_waits(line)
    end(operator)
    assert line.starts("other", seconds=SOON)


def test_a_pod_that_is_handed_over_to_another_object_leaves_it_nothing(
    line: Line, plane: ControlPlane
) -> None:
    """Otherwise pods that run for a second hold quota without an end, each for an object that kept none yet."""
    in_force(line, {"gpus": "8"})
    operator = Operator(line, plane, ray_cluster())
    second = ray_cluster()
    second["metadata"]["name"] = "second"
    reference = member(create(plane, line, second))["ownerReferences"]
    other_waits(line)
    patch = {"metadata": {"ownerReferences": reference}}
    path = line.path("pods", operator.names[0])
    accepted(line.client.patch(path, patch))
    assert line.is_counted()
    line.delete_pod(operator.names[0])
    assert line.starts("other", seconds=SOON)


def test_who_is_made_small_and_large_again_stands_behind_the_others(line: Line, plane: ControlPlane) -> None:
    in_force(line, {"gpus": "8"})
    operator = Operator(line, plane, ray_cluster(8, 1), pods=8, gpus=1)
    line.in_a_later_second("other", 7)
    assert line.is_counted()
    operator.change({"workerGroupSpecs": ray_cluster(1, 1)["spec"]["workerGroupSpecs"]})
    for name in operator.names[1:]:
        line.delete_pod(name)
    assert line.starts("other", seconds=SOON)
    operator.change({"workerGroupSpecs": ray_cluster(8, 1)["spec"]["workerGroupSpecs"]})
    operator.make("again")
    assert line.waits("again")


def test_the_last_pod_of_a_long_deletion_leaves_what_is_missing_only(line: Line, plane: ControlPlane) -> None:
    """The replacement started beside the pod that was being deleted, so its object lacks none at the end."""
    in_force(line, {"gpus": "10"})
    operator = Operator(line, plane, ray_cluster())
    finalizers = {"metadata": {"finalizers": ["example.com/slow"]}}
    accepted(line.client.patch(line.path("pods", operator.names[0]), finalizers))
    line.client.delete(line.path("pods", operator.names[0]), {"gracePeriodSeconds": 0})
    operator.make("again")
    assert line.starts("again")
    other_waits(line)
    accepted(line.client.patch(line.path("pods", operator.names[0]), {"metadata": {"finalizers": None}}))
    assert line.starts("other", seconds=SOON)


def config_map(line: Line, _plane: ControlPlane) -> JSON:
    made = accepted(line.client.post(line.path("configmaps"), {"metadata": {"name": "owner"}}))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": made["metadata"]}


def cron_job(line: Line, plane: ControlPlane) -> JSON:
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": TEMPLATE}}}
    found: JSON = create(plane, line, made("batch/v1", "CronJob", spec))
    return found


@cases("owner", a_configmap=config_map, a_cronjob=cron_job)
def test_an_owner_that_replaces_no_pods_keeps_nothing(
    line: Line, plane: ControlPlane, owner: Callable[[Line, ControlPlane], JSON]
) -> None:
    in_force(line, {"gpus": "1"})
    line.pod("first", metadata={"ownerReferences": [reference(owner(line, plane))]})
    line.pod("other")
    assert line.is_counted()
    line.delete_pod("first")
    assert line.starts("other", seconds=SOON)
