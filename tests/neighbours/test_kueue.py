"""Kueue: each sentence of docs/operate/coexistence.md about it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from flask.testing import FlaskClient

from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import api_client
from tests.neighbours.build import JOBSET, KUBERAY, KUEUE
from tests.neighbours.installation import Installation, installed
from tests.neighbours.kubelet import LABELS, TAINT
from tests.neighbours.manifests import jobset, raycluster
from tests.neighbours.tenant import Seen, Stage, Tenant, gates_of, staged, tolerated, watch
from webhook.commands import main
from webhook.tools.console.app import Observer, create_app
from webhook.tools.console.history import History
from webhook.tools.status.denials import denials_in_events
from webhook.tools.status.kueue import KueueState
from webhook.tools.status.reading import read_status
from webhook.tools.status.report import ClusterStatus
from webhook.tools.why.explaining import explain

API = "kueue.x-k8s.io/v1beta2"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
ITS_GATES = ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"]
T4, A100 = "classes/nvidia-t4", "classes/nvidia-a100-80gb"


def made(kind: str, name: str, spec: JSON) -> JSON:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


QUOTAS = [{"name": name, "nominalQuota": "1P"} for name in ("cpu", "memory", "nvidia.com/gpu")]
CLUSTER = [
    made(
        "ResourceFlavor",
        "t4",
        {"nodeLabels": LABELS, "tolerations": [{"key": TAINT["key"], "operator": "Exists"}]},
    ),
    made(
        "ClusterQueue",
        "queue",
        {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": [each["name"] for each in QUOTAS],
                    "flavors": [{"name": "t4", "resources": QUOTAS}],
                }
            ],
        },
    ),
]


class Queueing(Tenant):
    """A namespace with a queue of Kueue, too."""

    def __init__(self, plane: ControlPlane, gpus: int | None = None, name: str = "") -> None:
        super().__init__(plane, gpus, name)
        self.apply(made("LocalQueue", "queue", {"clusterQueue": "queue"}))

    def hold(self, policy: str) -> None:
        self.change("localqueue", "queue", {"stopPolicy": policy})

    def is_admitted(self) -> bool:
        """Whether Kueue soon admits all that is in its queue."""

        def admitted() -> bool:
            listed = self.client.get(f"/apis/{API}/namespaces/{self.name}/workloads")[1]["items"]
            return bool(listed) and all(_is(each, "Admitted") for each in listed)

        return eventually(admitted)


def _is(workload: JSON, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="module")
def stage(plane: ControlPlane) -> Iterator[Stage]:
    def sampled(kueue: Installation) -> Seen:
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(CLUSTER))
        return watch(kueue, Queueing(plane), job("sample", 2), lambda tenant: len(tenant.pods()) == 2)

    with (
        installed(plane, JOBSET, host=12),
        installed(plane, KUBERAY, host=13),
        staged(plane, KUEUE, sampled) as stage,
    ):
        yield stage


@pytest.fixture
def tenant(stage: Stage, plane: ControlPlane) -> Queueing:  # noqa: ARG001 - it runs
    """Return a namespace that queues here and there, with 4 GPUs."""
    return Queueing(plane, 4)


def job(name: str, pods: int, *, labels: JSON | None = None) -> JSON:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": QUEUE if labels is None else labels},
        "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": {"spec": spec(1)}},
    }


def spec(gpus: int) -> JSON:
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "containers": [{"name": "train", "image": "x", "resources": {"limits": limits}}],
        "restartPolicy": "Never",
    }


def pod(name: str, gpus: int = 1) -> JSON:
    return queued({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(gpus)})


def queued(document: JSON) -> JSON:
    document["metadata"]["labels"] = QUEUE
    return document


def group(number: int) -> list[JSON]:
    """Return the plain pods of a group."""
    pods = [pod(f"one-{index}") for index in range(number)]
    for each in pods:
        each["metadata"]["labels"] = {**QUEUE, "kueue.x-k8s.io/pod-group-name": "group"}
        each["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": str(number)}
    return pods


def replicated(kind: str, pods: int, **fields: object) -> JSON:
    """Return a Deployment or a StatefulSet."""
    template = {"metadata": {"labels": {"app": "one"}}, "spec": {**spec(1), "restartPolicy": "Always"}}
    replicas = {"replicas": pods, "selector": {"matchLabels": {"app": "one"}}, "template": template}
    return queued(
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "one"}, "spec": {**replicas, **fields}}
    )


def spec_alone(name: str) -> JSON:
    """Return a pod of nobody's queue."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(1)}


def used(tenant: Tenant) -> dict[str, Any]:
    return {key: int(amount) for key, amount in (tenant.used() or {}).items() if amount}


def test_a_job_is_started_once_with_us_as_without(stage: Stage, tenant: Queueing) -> None:
    """It counts nothing while Kueue suspends it, and gpu-admission does not change its template."""
    seen = watch(stage.neighbour, tenant, job("sample", 2), lambda it: len(it.running()) == 2)
    assert seen.is_as(stage.without_us, 2), (seen, stage.without_us)
    assert [tolerated(each) for each in tenant.pods()] == [1, 1]
    assert [each["spec"]["nodeSelector"] for each in tenant.pods()] == [LABELS, LABELS]
    template = tenant.read("job", "sample")["spec"]["template"]["spec"]
    assert template["tolerations"] == [{"key": TAINT["key"], "operator": "Exists"}], "of the flavor alone"


def test_a_suspended_job_counts_nothing(tenant: Queueing) -> None:
    tenant.hold("Hold")
    tenant.apply(job("held", 2))
    assert eventually(lambda: tenant.read("job", "held")["spec"]["suspend"])
    assert not tenant.pods()
    assert used(tenant) == {}
    tenant.hold("None")
    assert tenant.runs(2)
    assert eventually(lambda: used(tenant) == {"gpus": 2})


@cases(
    ("options", "held"),
    by_default=({}, {"gpus": 2, T4: 2, A100: 2}),
    counted_in_total_alone=({"unclassifiedPods": "TotalOnly"}, {"gpus": 2}),
)
def test_a_plain_pod_counts_from_its_creation_and_its_class_from_its_placement(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
    options: JSON,
    held: dict[str, int],
) -> None:
    tenant = Queueing(plane)
    tenant.quota({"gpus": "4", "classes": {"nvidia-t4": "4", "nvidia-a100-80gb": "2"}}, **options)
    assert eventually(tenant.in_force)
    tenant.hold("Hold")
    tenant.apply(pod("plain", 2))
    assert gates_of(tenant.get("plain")) == ITS_GATES
    assert eventually(lambda: used(tenant) == held), used(tenant)
    tenant.hold("None")
    assert tenant.runs(1)
    assert tenant.get("plain")["spec"]["nodeSelector"] == LABELS
    assert eventually(lambda: used(tenant) == {"gpus": 2, T4: 2}), used(tenant)


def test_pods_under_its_gate_keep_what_it_wrote_and_get_tolerations_but_no_class(tenant: Queueing) -> None:
    tenant.hold("Hold")
    for each in [pod("plain"), *group(2)]:
        tenant.apply(each)
    found = tenant.pods()
    assert [gates_of(each) for each in found] == [*[[*ITS_GATES, GATE]] * 2, ITS_GATES], (
        "a group starts whole"
    )
    assert [tolerated(each) for each in found] == [1, 1, 1]
    assert not any("nodeSelector" in each["spec"] for each in found)
    assert all("kueue.x-k8s.io/managed" in each["metadata"]["finalizers"] for each in found)
    wanted = [each["metadata"] for each in [*group(2), pod("plain")]]
    for each, written in zip(found, wanted, strict=True):
        assert each["metadata"]["labels"].items() >= written["labels"].items()
        assert each["metadata"]["annotations"].items() >= written.get("annotations", {}).items()
    tenant.hold("None")
    assert tenant.runs(3)


def test_the_default_class_is_for_pods_that_kueue_does_not_place(stage: Stage, plane: ControlPlane) -> None:  # noqa: ARG001
    tenant = Queueing(plane, 4, name="default-kueue")
    tenant.apply(job("one", 1))
    tenant.apply(pod("plain"))
    assert tenant.runs(2)
    assert [each["spec"]["nodeSelector"] for each in tenant.pods()] == [LABELS, LABELS]
    tenant.pod("alone", 1)
    assert tenant.get("alone")["spec"]["nodeSelector"] == {"accelerator": "nvidia-a100-80gb"}


def test_a_placement_on_a_class_that_is_not_allowed_is_denied(stage: Stage, plane: ControlPlane) -> None:
    tenant = Queueing(plane, 4, name="a100-kueue")
    tenant.apply(pod("plain", 3))
    assert eventually(lambda: "[gpu-class]" in stage.neighbour.log())
    assert tenant.is_admitted()
    assert gates_of(tenant.get("plain")) == ITS_GATES


def test_a_placement_that_exceeds_the_quota_is_denied(stage: Stage, plane: ControlPlane) -> None:
    tenant = Queueing(plane, name="deny-kueue-class")
    tenant.quota({"gpus": "4", "classes": {"nvidia-t4": "1"}}, unclassifiedPods="TotalOnly")
    assert eventually(tenant.in_force)
    tenant.apply(pod("plain", 2))
    assert eventually(lambda: "deny-kueue-class/default" in stage.neighbour.log())
    assert tenant.is_admitted()
    assert gates_of(tenant.get("plain")) == ITS_GATES


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


@cases(
    ("documents", "pods", "gpus"),
    a_job=([job("one", 2)], 2, 2),
    a_jobset=([queued(jobset("one", 2, 1))], 2, 2),
    a_raycluster_with_its_head=([queued(raycluster("one", 2))], 3, 2),
    a_plain_pod_larger_than_the_quota=([pod("one-0", 3)], 1, 3),
    a_pod_group=(group(2), 2, 2),
    a_deployment=([replicated("Deployment", 2)], 2, 2),
)
def test_what_kueue_has_admitted_starts_beyond_a_quota_that_respects_it(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
    documents: list[JSON],
    pods: int,
    gpus: int,
) -> None:
    tenant = Queueing(plane, 2, name=f"respects-kueue-{documents[0]['kind'].lower()}-{pods}")
    tenant.pod("holder", 2)
    assert tenant.runs(1)
    tenant.apply(waiting := spec_alone("other"))
    assert tenant.runs(1, "holder")
    for each in documents:
        tenant.apply(each)
    assert tenant.runs(pods, "one")
    assert eventually(lambda: used(tenant) == {"gpus": 2 + gpus}), used(tenant)
    assert tenant.gated(waiting["metadata"]["name"]), "others wait until the quota has room"

    def over() -> list[str]:
        shown = tenant.read("gpuquota", "default")["status"]["conditions"]
        return [each["message"] for each in shown if each["type"] == "Exceeded"]

    assert eventually(lambda: over() == [f"gpus: {2 + gpus} used of 2, {gpus} too many"]), over()


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


def test_a_smaller_gpuquota_denies_pods_of_what_kueue_admitted_and_the_job_controller_retries(
    stage: Stage,  # noqa: ARG001 - it runs
    plane: ControlPlane,
) -> None:
    tenant = Queueing(plane, 1, name="deny-kueue")
    tenant.apply(job("one", 2))
    assert tenant.tells("Job", "[gpu-quota]")
    assert tenant.is_admitted()
    assert tenant.runs(1)
    tenant.end(tenant.running()[0])
    assert eventually(lambda: len(tenant.pods()) == 2)
    assert tenant.runs(1)


@cases(
    "document",
    a_job=job("one", 2),
    a_raycluster=queued(raycluster("one", 2)),
)
def test_pods_of_what_it_admitted_wait_here_as_any_other(tenant: Queueing, document: JSON) -> None:
    tenant.pod("holder", 4)
    assert tenant.runs(1)
    tenant.apply(document)
    assert eventually(lambda: len(tenant.gated("one")) == 2)
    assert tenant.is_admitted()
    tenant.end("holder")
    assert eventually(lambda: used(tenant) == {"gpus": 2}, seconds=90), tenant.pods()
    assert not tenant.gated()


@cases(
    "documents",
    a_plain_pod=[pod("one-0", 2)],
    a_pod_group=group(2),
    a_deployment=[replicated("Deployment", 2)],
    a_statefulset=[replicated("StatefulSet", 2, podManagementPolicy="Parallel")],
)
def test_pods_under_its_gate_that_do_not_fit_wait_here_and_there(
    tenant: Queueing, documents: list[JSON]
) -> None:
    tenant.pod("holder", 4)
    tenant.hold("Hold")
    for each in documents:
        tenant.apply(each)
    pods = len(documents) if len(documents) > 1 else documents[0]["spec"].get("replicas", 1)
    assert eventually(lambda: len(tenant.gated("one")) == pods)
    assert all(gates_of(each) == [*ITS_GATES, GATE] for each in tenant.pods("one"))
    tenant.end("holder")
    tenant.pod("passes", 1)
    assert tenant.runs(1, "passes"), "others pass it until Kueue removes its gate"
    tenant.hold("None")
    assert tenant.runs(pods, "one")


def test_pods_under_its_gate_that_fit_count_from_their_creation(tenant: Queueing) -> None:
    tenant.hold("Hold")
    tenant.apply(replicated("Deployment", 2))
    assert eventually(lambda: used(tenant) == {"gpus": 2})
    assert [gates_of(each) for each in tenant.pods()] == [ITS_GATES] * 2
    tenant.hold("None")
    assert tenant.runs(2)


def test_a_jobset_that_it_admitted_waits_as_any_other_gang(tenant: Queueing) -> None:
    tenant.pod("holder", 1)
    assert tenant.runs(1)
    tenant.apply(queued(jobset("one", 2, 2)))
    assert tenant.runs(0, "one", gated=4)
    assert tenant.is_admitted()
    tenant.end("holder")
    assert tenant.runs(4, "one")


def test_what_it_evicts_gives_its_quota_back_and_is_started_again(tenant: Queueing) -> None:
    for name, pods in (("one", 1), ("two", 2)):
        tenant.apply(queued(jobset(name, 1, pods)))
    assert tenant.runs(3)
    assert eventually(lambda: used(tenant) == {"gpus": 3})
    tenant.hold("HoldAndDrain")
    assert tenant.runs(0)
    assert eventually(lambda: used(tenant) == {})
    tenant.hold("None")
    assert tenant.runs(3)
    tenant.remove("jobset", "one")
    assert tenant.runs(2)
    assert eventually(lambda: used(tenant) == {"gpus": 2})


def test_a_label_of_its_own_pods_alone_is_not_believed(tenant: Queueing) -> None:
    tenant.pod("holder", 4)
    document = job("alone", 1, labels={})
    document["spec"]["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/podset": "main"}}
    tenant.apply(document)
    assert tenant.runs(0, "alone", gated=1)


def test_it_goes_on_after_our_webhook_was_away(stage: Stage, tenant: Queueing) -> None:
    stage.ours.webhook.kill()
    try:
        tenant.apply(job("one", 2))
        assert tenant.tells("Job", "failed calling webhook")
        assert not tenant.pods()
    finally:
        stage.ours.webhook.start()
    assert tenant.runs(2)


def test_it_goes_on_after_its_own_webhook_was_away(stage: Stage, tenant: Queueing) -> None:
    stage.neighbour.kill()
    status, answer = tenant.create(pod("plain"))
    stage.neighbour.start()
    assert (status, "mpod.kb.io" in answer["message"]) == (500, True)
    assert used(tenant) == {}
    tenant.apply(pod("plain"))
    assert tenant.runs(1)
