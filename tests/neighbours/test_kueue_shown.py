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
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import service_account
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
    """What each surface says of the Jobs of a namespace to an operator or a tenant; the console has rights of its own."""

    def __init__(self, plane: ControlPlane, tenant: Queueing, folder: Path, *, is_tenant: bool) -> None:
        self.tenant, self.is_tenant, self._folder = tenant, is_tenant, folder
        account = plane.account_kubeconfig(tenant.name, "default") if is_tenant else plane.kubeconfig()
        self._api = ApiClient(load_access(str(account)))
        self._cluster = ("--kubeconfig", str(account))
        self._pages = observed(plane, tenant.name)

    def why(self, name: str) -> str:
        return explain(self._api, "job", name, self.tenant.name, datetime.now(UTC)).summary

    def in_kueue(self, name: str) -> KueueState:
        found = explain(self._api, "job", name, self.tenant.name, datetime.now(UTC)).kueue
        assert found is not None
        return found

    def check(self, name: str, queue: str = "queue") -> str:
        """Return what is said of the Job as its author would apply it again."""
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(job(name, 1, labels={"kueue.x-k8s.io/queue-name": queue})))
        said = CliRunner().invoke(main, ["check", str(file), "-n", self.tenant.name, *self._cluster])
        assert said.exit_code in {0, 1}, said.output
        return flat(said.output)

    def status(self) -> str:
        return flat(CliRunner().invoke(main, ["status", "-n", self.tenant.name, *self._cluster]).output)

    def console(self, name: str = "") -> str:
        path = (
            f"/why?object=job/{name}&namespace={self.tenant.name}" if name else f"/quotas/{self.tenant.name}"
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


@pytest.fixture(scope="module")
def policies_are_read(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001 - it has the kinds
    """Give everybody what `tenants.readPolicies` of the chart gives."""
    kinds = ",".join(
        f"{each}.gpu-admission.dev" for each in ("gpuclasses", "gpupolicies", "gpuresourcemappings")
    )
    plane.kubectl("create", "clusterrole", "reads", "--verb=get,list,watch", f"--resource={kinds}")
    plane.kubectl(
        "create", "clusterrolebinding", "reads", "--clusterrole=reads", "--group=system:authenticated"
    )


@pytest.fixture(params=["operator", "tenant"])
def surfaces(
    request: pytest.FixtureRequest,
    plane: ControlPlane,
    policies_are_read: None,  # noqa: ARG001
    tmp_path: Path,
) -> Surfaces:
    """Return what an operator and a tenant see of a namespace with one GPU, in whose held queue Job first waits."""
    reader, situation = request.param, request.function.__name__.split("_")[1]
    tenant = Queueing(plane, 1, name=f"deny-kueue-{situation}-{reader}")
    tenant.let_read(service_account(tenant.name, "default"))
    tenant.hold("Hold")
    tenant.apply(job("first", 1))
    return Surfaces(plane, tenant, tmp_path, is_tenant=reader == "tenant")


def test_held_by_its_queue_is_shown_on_each_surface(surfaces: Surfaces) -> None:
    unknown, reserved = ("", "; ClusterQueue queue has reserved ")
    if surfaces.is_tenant:
        unknown, reserved = " or ClusterQueue queue", ""
    stopped = "waits in LocalQueue queue: stopPolicy of LocalQueue queue is set"
    assert eventually(lambda: surfaces.why("first") == stopped), surfaces.why("first")
    checked = surfaces.check("first")
    assert (
        f"stopPolicy of LocalQueue queue{unknown} is set: Kueue does not start the object until it is None; ask the platform "
        "team why it is set [workloads]"
    ) in checked
    assert f"note: Job/first {stopped}" in checked
    status = surfaces.status()
    assert f"LocalQueue queue: 0 admitted, 1 pending, stopped{reserved}" in status
    assert "Job/first: place 1 of 1" in status
    assert eventually(lambda: surfaces.shows("Job/first: place 1 of 1"))
    assert "LocalQueue queue, place 1 of 1" in surfaces.console("first")


def test_behind_another_is_shown_on_each_surface(surfaces: Surfaces) -> None:
    surfaces.tenant.apply(job("second", 1))

    def places() -> list[tuple[int, int]]:
        found = [surfaces.in_kueue(name) for name in ("first", "second")]
        return sorted((each.place, each.pending) for each in found)

    # Of two Workloads of one second, the lower uid is before the other.
    assert eventually(lambda: places() == [(1, 2), (2, 2)]), places()
    behind = "first" if surfaces.in_kueue("first").place == 2 else "second"
    assert f"Job/{behind}: place 2 of 2" in surfaces.status()
    assert eventually(lambda: surfaces.shows(f"Job/{behind}: place 2 of 2"))
    assert (
        "note: Job/third would be behind 2 pending: LocalQueue queue: 0 admitted, 2 pending"
        in surfaces.check("third")
    )


def test_lost_in_no_queue_is_shown_on_each_surface(surfaces: Surfaces) -> None:
    tenant = surfaces.tenant
    tenant.apply(job("lost", 1, labels={"kueue.x-k8s.io/queue-name": "nowhere"}))
    missing = "waits for LocalQueue nowhere, which does not exist"
    assert eventually(lambda: surfaces.why("lost") == missing), surfaces.why("lost")
    assert (
        'metadata.labels[kueue.x-k8s.io/queue-name] = "nowhere": set label kueue.x-k8s.io/queue-name: queue; must be a '
        f"LocalQueue of namespace {tenant.name}: Kueue does not start the object; or ask the platform team for a LocalQueue of "
        "the namespace [workloads]"
    ) in surfaces.check("lost", "nowhere")
    none = "LocalQueue nowhere: 0 admitted, 1 pending, does not exist"
    assert none in surfaces.status()
    assert eventually(lambda: surfaces.shows(none))
    assert missing in surfaces.console("lost")


def test_admitted_by_kueue_and_denied_by_the_quota_is_shown_on_each_surface(surfaces: Surfaces) -> None:
    tenant = surfaces.tenant
    tenant.apply(job("second", 1))
    tenant.hold("None")
    assert tenant.runs(1)
    assert tenant.tells("Job", "[gpu-quota]")
    running, denied = ("first", "second") if tenant.running("first") else ("second", "first")
    # The status of the GPUQuota has the pod some tenths of a second after its creation.
    full = f"exceeded quota: {tenant.name}/default, requested 1 GPU, 1 of 1 used"
    assert eventually(lambda: full in surfaces.why(denied)), surfaces.why(denied)
    status, checked = surfaces.status(), {name: surfaces.check(name) for name in (running, denied)}
    for name in (running, denied):
        assert ", admitted at " in surfaces.in_kueue(name).in_words(datetime.now(UTC))
        assert f"Job/{name}: admitted at " in status
        assert eventually(partial(surfaces.shows, f"Job/{name}: admitted at "))
        assert f"note: Job/{name} was admitted by Kueue, in LocalQueue queue" in checked[name]
    assert "[gpu-quota]" not in checked[running]
    assert (
        f"needs 1 GPU; {tenant.name} has 0 of 1 free: 0 of 1 pods will start; Kueue may admit it by LocalQueue queue all the "
        "same: pods that do not fit are then denied [gpu-quota]"
    ) in checked[denied]
    assert f"{tenant.name} Job/{denied}: QuotaExceeded, " in status
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
