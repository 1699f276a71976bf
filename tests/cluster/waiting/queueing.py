"""A namespace whose own policy queues pods, and the controller that counts it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Counting, counting, eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line, account_api, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_quota_kind
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.documents import API_VERSION, Document

QUEUE = {"mode": "enforce", "onExceeded": "Queue"}
POLICIES = f"/apis/{API_VERSION}/gpupolicies"
SOON = 10.0
"""Seconds for what has to happen at once, on a machine with much else to do."""


class Team(Line):
    """A namespace with a policy of its own, by which pods wait in line."""

    def policy(self, *, match: Any = None, **spec: Any) -> None:
        """Apply the policy; return once serve has it in force."""
        spec = {"priority": 9, "match": match or {"namespaces": [self.name]}, **spec}
        status, answer, _ = self.client.apply(Document("GPUPolicy", self.name, spec).data)
        assert status in {200, 201}, answer

    def queue(self, **options: Any) -> tuple[str, str]:
        """Return the names of two pods, in their order, that wait for the only GPU. `holder` has it."""
        self.policy(rules={"gpu-quota": {**QUEUE, **options}})
        in_force(self, {"gpus": "1"})
        self.pod("holder")
        assert eventually(self.is_queueing, seconds=SOON)
        self.pods = {self.pod(name): name for name in ("one", "two")}
        assert self.both_wait()
        # A creationTimestamp has whole seconds, and uids decide about equal ones.
        made = {uid: self.get(name)["metadata"]["creationTimestamp"] for uid, name in self.pods.items()}
        first, second = sorted(self.pods, key=lambda uid: (made[uid], uid))
        return self.pods[first], self.pods[second]

    def is_queueing(self) -> bool:
        """Whether serve has the policy: a pod that does not fit is not denied."""
        return (
            self.create({"metadata": {"name": "probe"}, "spec": spec_of(gpus=1)}, {"dryRun": "All"})[0] == 201
        )

    def denies(self) -> bool:
        return not self.is_queueing()

    def both_wait(self) -> bool:
        return all(map(self.waits, self.pods.values()))

    def both_start(self) -> bool:
        return self.starts(*self.pods.values(), seconds=SOON)


def spec_of(*, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {"containers": [{"name": "train", "image": "trainer", **limits}], **spec}


@pytest.fixture(scope="module")
def counted(plane: ControlPlane) -> Iterator[Counting]:
    install_quota_kind(plane.client())
    install_configuration_kinds(plane)
    let_account_do_all(plane)
    with counting(plane, lease=CONTROLLER, api=account_api(plane), expiry=10.0) as counted:
        yield counted
    plane.client().delete(POLICIES)


@pytest.fixture
def team(counted: Counting, plane: ControlPlane) -> Iterator[Team]:
    assert not counted.running.why_unready()
    team = Team(plane)
    yield team
    team.client.delete(f"{POLICIES}/{team.name}")
