"""Kueue: what is said of what it does, by Events, `kubectl apply`, `why`, `check`, `status`, `export` and the console."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from flask.testing import FlaskClient

from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import api_client
from tests.neighbours.kubelet import LABELS
from tests.neighbours.kueue import (
    ITS_GATES,
    Queueing,
    group,
    job,
    kueue_stage,
    pod,
    used,
)
from tests.neighbours.tenant import Stage, Tenant
from webhook.commands import main
from webhook.tools.console.app import Observer, create_app
from webhook.tools.console.history import History
from webhook.tools.status.denials import denials_in_events
from webhook.tools.status.kueue import KueueState
from webhook.tools.status.reading import read_status
from webhook.tools.status.report import ClusterStatus
from webhook.tools.why.explaining import explain


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    with kueue_stage(plane) as stage:
        yield stage


def test_a_denied_placement_is_an_event_on_its_pod(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001
    tenant = Queueing(plane, 4, name="a100-kueue-event")
    tenant.apply(pod("plain", 3))
    assert tenant.is_admitted()
    assert tenant.tells("Pod", "[gpu-class]")
    api, now = api_client(plane), datetime.now(UTC)
    cause = explain(api, "pod", "plain", tenant.name, now).reasons[0].message
    assert cause.startswith(
        f"Pod plain keeps its scheduling gates {' and '.join(ITS_GATES)}, since the change by "
        "system:serviceaccount:kueue-system:kueue-controller-manager was denied: "
    )
    assert "[gpu-class]" in cause
    denied = denials_in_events(api, tenant.name, now)
    assert [(each.owner, each.reason) for each in denied] == [("Pod/plain", "gpu-class")]


def test_kueue_admits_by_what_export_proposes(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it runs
    tenant = Tenant(plane, name="proposed")
    tenant.quota({"classes": {"nvidia-t4": "2"}})
    assert eventually(tenant.in_force)
    command = ["export", "--kueue", "--kubeconfig", str(plane.kubeconfig())]
    proposed = CliRunner().invoke(main, command)
    assert proposed.exit_code == 0, proposed.output
    plane.kubectl("apply", "-f", "-", stdin=proposed.stdout)
    tenant.apply(job("one", 2, labels={"kueue.x-k8s.io/queue-name": "default"}))
    assert tenant.runs(2)
    assert [each["spec"]["nodeSelector"] for each in tenant.pods()] == [LABELS, LABELS]


class Surfaces:
    """What each surface says of the Jobs of a namespace."""

    def __init__(self, plane: ControlPlane, tenant: Queueing, folder: Path) -> None:
        self._api, self._tenant, self._folder = api_client(plane), tenant, folder
        self._cluster = ("--kubeconfig", str(plane.kubeconfig()))
        self._pages = observed(plane, tenant.name)

    def why(self, name: str) -> str:
        return explain(self._api, "job", name, self._tenant.name, datetime.now(UTC)).summary

    def in_kueue(self, name: str) -> KueueState:
        found = explain(self._api, "job", name, self._tenant.name, datetime.now(UTC)).kueue
        assert found is not None
        return found

    def check(self, name: str, queue: str = "queue") -> str:
        """Return what is said of the Job as its author would apply it again."""
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(job(name, 1, labels={"kueue.x-k8s.io/queue-name": queue})))
        said = CliRunner().invoke(main, ["check", str(file), "-n", self._tenant.name, *self._cluster])
        assert said.exit_code in {0, 1}, said.output
        return flat(said.output)

    def status(self) -> str:
        return flat(CliRunner().invoke(main, ["status", "-n", self._tenant.name, *self._cluster]).output)

    def console(self, name: str = "") -> str:
        path = (
            f"/why?object=job/{name}&namespace={self._tenant.name}"
            if name
            else f"/quotas/{self._tenant.name}"
        )
        return flat(self._pages.get(path).text)

    def shows(self, line: str) -> bool:
        return line in self.console()


def observed(plane: ControlPlane, namespace: str) -> FlaskClient:
    api = api_client(plane)

    def read() -> ClusterStatus:
        return read_status(api, now=datetime.now(UTC), namespaces=(namespace,))

    pages = create_app(api, Observer(read, pause=0.2), History(), cluster="test", home=namespace)
    return pages.test_client()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_five_situations_are_shown_on_each_surface(stage: Stage, plane: ControlPlane, tmp_path: Path) -> None:  # noqa: ARG001
    """In a held queue, behind another, admitted, in no queue, and admitted but denied by the GPUQuota."""
    tenant = Queueing(plane, 1, name="deny-kueue-surfaces")
    surfaces = Surfaces(plane, tenant, tmp_path)

    tenant.hold("Hold")
    tenant.apply(job("first", 1))
    stopped = "waits in LocalQueue queue: stopPolicy of LocalQueue queue is set"
    assert eventually(lambda: surfaces.why("first") == stopped), surfaces.why("first")
    assert (
        "stopPolicy of LocalQueue queue is set: Kueue does not start the object until it is None; ask the platform team why it "
        "is set [workloads]"
    ) in surfaces.check("first")
    assert f"note: Job/first {stopped}" in surfaces.check("first")
    assert (
        "LocalQueue queue: 0 admitted, 1 pending, stopped; ClusterQueue queue has reserved "
        in surfaces.status()
    )
    assert "Job/first: place 1 of 1" in surfaces.status()
    assert eventually(lambda: "Job/first: place 1 of 1" in surfaces.console())
    assert "LocalQueue queue, place 1 of 1" in surfaces.console("first")

    tenant.apply(job("second", 1))

    def places() -> list[tuple[int, int]]:
        found = [surfaces.in_kueue(name) for name in ("first", "second")]
        return sorted((each.place, each.pending) for each in found)

    # Of two Workloads of one second, the lower uid is before the other.
    assert eventually(lambda: places() == [(1, 2), (2, 2)]), places()
    behind = "first" if surfaces.in_kueue("first").place == 2 else "second"
    assert f"Job/{behind}: place 2 of 2" in surfaces.status()
    assert eventually(lambda: f"Job/{behind}: place 2 of 2" in surfaces.console())
    assert (
        "note: Job/third would be behind 2 pending: LocalQueue queue: 0 admitted, 2 pending"
        in surfaces.check("third")
    )

    elsewhere = {"kueue.x-k8s.io/queue-name": "nowhere"}
    tenant.apply(job("lost", 1, labels=elsewhere))
    missing = "waits for LocalQueue nowhere, which does not exist"
    assert eventually(lambda: surfaces.why("lost") == missing), surfaces.why("lost")
    assert (
        'metadata.labels[kueue.x-k8s.io/queue-name] = "nowhere": set label kueue.x-k8s.io/queue-name: queue; must be a '
        f"LocalQueue of namespace {tenant.name}: Kueue does not start the object; or ask the platform team for a LocalQueue of "
        "the namespace [workloads]"
    ) in surfaces.check("lost", "nowhere")
    assert "LocalQueue nowhere: 0 admitted, 1 pending, does not exist" in surfaces.status()
    assert eventually(
        lambda: "LocalQueue nowhere: 0 admitted, 1 pending, does not exist" in surfaces.console()
    )
    assert missing in surfaces.console("lost")

    tenant.hold("None")
    assert tenant.runs(1)
    assert tenant.tells("Job", "[gpu-quota]")
    running, denied = ("first", "second") if tenant.running("first") else ("second", "first")
    for name in (running, denied):
        assert ", admitted at " in surfaces.in_kueue(name).in_words(datetime.now(UTC))
        assert f"Job/{name}: admitted at " in surfaces.status()
        line = f"Job/{name}: admitted at "
        assert eventually(partial(surfaces.shows, line))
        assert f"note: Job/{name} was admitted by Kueue, in LocalQueue queue" in surfaces.check(name)
    assert "[gpu-quota]" not in surfaces.check(running)
    # The status of the GPUQuota has the pod some tenths of a second after its creation.
    full = f"exceeded quota: {tenant.name}/default, requested 1 GPU, 1 of 1 used"
    assert eventually(lambda: full in surfaces.why(denied)), surfaces.why(denied)
    assert (
        f"needs 1 GPU; {tenant.name} has 0 of 1 free: 0 of 1 pods will start; Kueue may admit it by LocalQueue queue all the "
        "same: pods that do not fit are then denied [gpu-quota]"
    ) in surfaces.check(denied)
    assert f"{tenant.name} Job/{denied}: QuotaExceeded, " in surfaces.status()
    assert full in surfaces.console(denied)


def test_what_kueue_would_admit_and_the_quota_deny_is_warned_at_apply(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
) -> None:
    tenant = Queueing(plane, 1, name="deny-kueue-apply")
    assert not tenant.apply(job("one", 1))
    assert tenant.runs(1)
    [warning] = tenant.apply(job("two", 1))
    assert (
        f"needs 1 GPU; {tenant.name} has 0 of 1 free: 0 of 1 pods will start; Kueue may admit it by LocalQueue queue all the "
        "same: pods that do not fit are then denied"
    ) in warning


def test_a_denied_pod_of_a_group_is_said_of_the_others(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001
    tenant = Queueing(plane, 1, name="deny-kueue-group")
    first, second = group(2)
    tenant.apply(first)
    assert eventually(lambda: used(tenant) == {"gpus": 1})
    status, answer = tenant.create(second)
    assert (status, "the other pods of pod group group cannot start without it" in answer["message"]) == (
        403,
        True,
    )
    cause = explain(api_client(plane), "pod", "one-0", tenant.name, datetime.now(UTC)).reasons[0].message
    keeps = f"Pod one-0 keeps its scheduling gates {' and '.join(ITS_GATES)} until its group is complete"
    assert cause == f"{keeps}: 1 of 2 pods of group exist"
