"""The test control plane itself: a real API server that behaves like one, and that leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.controllers import eventually
from tests.controlplane import Client, ControlPlane, ControlPlaneFailed, create_gpu_node
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply

ROOT = Path(__file__).parents[2]
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
GPU_POD = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "nodeSelector": {"accelerator": "nvidia-a100"},
    "containers": [{"name": "train", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_api_and_kubectl_answer(plane: ControlPlane) -> None:
    status, version = plane.client().get("/version")

    assert status == 200
    assert json.loads(plane.kubectl("version", "-o", "json").stdout)["serverVersion"] == version
    assert plane.kubectl("get", "pods", "nothing", check=False).returncode == 1
    assert "Serving securely on 127.0.0.1" in plane.logs("kube-apiserver")
    assert set(plane.pids) == {"etcd", "kube-apiserver"}


def test_nothing_listens_beyond_loopback(full_plane: ControlPlane) -> None:
    processes = [psutil.Process(pid) for pid in full_plane.pids.values()]
    listening = [
        connection.laddr
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_rbac(plane: ControlPlane) -> None:
    stranger = Client(plane.url, ca_file=plane.ca_file, token="nobody gave me this")
    engineer = plane.client("engineer")
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    binding = {
        "metadata": {"name": "list-pods"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "list-pods"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ml-engineers"}],
    }
    group = "/apis/rbac.authorization.k8s.io/v1"
    role = {"metadata": {"name": "list-pods"}, "rules": [rule]}

    assert stranger.get("/api/v1/pods")[0] == 401
    assert engineer.get("/api/v1/pods")[0] == 403
    assert plane.client().post(f"{group}/clusterroles", role)[0] == 201
    assert plane.client().post(f"{group}/clusterrolebindings", binding)[0] == 201
    assert eventually(lambda: engineer.get("/api/v1/pods")[0] == 200)
    assert plane.client().delete(f"{group}/clusterrolebindings/list-pods")[0] == 200
    assert plane.client().delete(f"{group}/clusterroles/list-pods")[0] == 200
    assert eventually(lambda: engineer.get("/api/v1/pods")[0] == 403)
    stranger.close()


def refuse(call: Call) -> Reply:
    return Reply({"allowed": False, "status": {"message": f"refused by {call.host}{call.path}"}})


def test_webhook_is_called_through_its_service(plane: ControlPlane) -> None:
    config_map = {"metadata": {"name": "any", "labels": {"test": "refuser"}}}
    client = plane.client()

    with FakeWebhook(plane, "refuser", refuse, host=10) as refuser:
        entry = refuser.entry(
            "refuser.example.com",
            "configmaps",
            path="/validate",
            objectSelector={"matchLabels": {"test": "refuser"}},
        )
        with refuser.registered("validating", "refuser", entry):
            message = eventually(
                lambda: client.post(CONFIG_MAPS, config_map, {"dryRun": "All"})[1].get("message")
            )

    assert message == (
        'admission webhook "refuser.example.com" denied the request: '
        "refused by refuser.default.svc:443/validate?timeout=10s"
    )


@pytest.fixture(scope="module")
def gpu_nodes(full_plane: ControlPlane) -> Iterator[Client]:
    client = full_plane.client()
    create_gpu_node(client, "a100", labels={"accelerator": "nvidia-a100"}, taints=[TAINT])
    create_gpu_node(
        client, "t4", labels={"accelerator": "nvidia-t4"}, taints=[TAINT], resources={"nvidia.com/gpu": "4"}
    )
    yield client
    for name in ("a100", "t4"):
        client.delete(f"/api/v1/nodes/{name}")


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        pytest.param("/apis/batch/v1/namespaces/default/jobs", {}, id="Job"),
        pytest.param("/apis/apps/v1/namespaces/default/deployments", {"replicas": 1}, id="Deployment"),
        pytest.param("/apis/apps/v1/namespaces/default/daemonsets", {}, id="DaemonSet"),
    ],
)
def test_workloads_reach_the_node_that_fits(gpu_nodes: Client, path: str, spec: dict[str, Any]) -> None:
    app = path.rpartition("/")[2]
    template: dict[str, Any] = {"metadata": {"labels": {"app": app}}, "spec": GPU_POD}
    if app == "jobs":
        template["spec"] = {**GPU_POD, "restartPolicy": "Never"}
    else:
        spec = {**spec, "selector": {"matchLabels": {"app": app}}}

    def bound_to() -> list[str]:
        _, pods = gpu_nodes.get("/api/v1/namespaces/default/pods", {"labelSelector": f"app={app}"})
        return [pod["spec"]["nodeName"] for pod in pods["items"] if "nodeName" in pod["spec"]]

    created = gpu_nodes.post(path, {"metadata": {"name": "work"}, "spec": {**spec, "template": template}})
    try:
        assert created[0] == 201
        assert eventually(bound_to) == ["a100"]
    finally:
        gpu_nodes.delete(f"{path}/work", {"propagationPolicy": "Background"})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"nodeSelector": {"accelerator": "nvidia-h100"}}, id="no-such-class"),
        pytest.param({"tolerations": []}, id="taint-not-tolerated"),
    ],
)
def test_pod_that_fits_nowhere_stays_unbound(gpu_nodes: Client, change: dict[str, Any]) -> None:
    pods = "/api/v1/namespaces/default/pods"
    assert gpu_nodes.post(pods, {"metadata": {"name": "lost"}, "spec": {**GPU_POD, **change}})[0] == 201

    conditions = eventually(lambda: gpu_nodes.get(f"{pods}/lost")[1]["status"].get("conditions"))
    gpu_nodes.delete(f"{pods}/lost", {"gracePeriodSeconds": 0})

    assert [(c["type"], c["status"], c["reason"]) for c in conditions] == [
        ("PodScheduled", "False", "Unschedulable")
    ]


def test_namespaces_get_service_accounts_with_controllers(full_plane: ControlPlane) -> None:
    client = full_plane.client()
    assert client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})[0] == 201
    assert eventually(lambda: client.get("/api/v1/namespaces/team/serviceaccounts/default")[0] == 200)

    pod = {"metadata": {"name": "any"}, "spec": {"containers": [{"name": "main", "image": "any"}]}}
    status, stored = client.post("/api/v1/namespaces/team/pods", pod, {"dryRun": "All"})

    assert status == 201
    assert stored["spec"]["serviceAccountName"] == "default"
    assert [source for volume in stored["spec"]["volumes"] for source in volume if source != "name"] == [
        "projected"
    ]


def test_two_at_once_and_data_survives_a_crash(plane: ControlPlane) -> None:
    with ControlPlane() as other:
        assert other.service_range != plane.service_range
        assert other.client().post(CONFIG_MAPS, {"metadata": {"name": "kept"}})[0] == 201

        other.kill("kube-apiserver")
        assert set(other.pids) == {"etcd"}
        other.restart("kube-apiserver")

        assert other.client().get(f"{CONFIG_MAPS}/kept")[0] == 200
        assert plane.client().get(f"{CONFIG_MAPS}/kept")[0] == 404


def test_component_that_does_not_start_is_explained() -> None:
    plane = ControlPlane(apiserver_args=["--no-such-flag"])

    with pytest.raises(
        ControlPlaneFailed, match=r"kube-apiserver ended with status 1; [\s\S]*unknown flag: --no-such-flag"
    ):
        plane.start()
    assert not plane.pids
    assert not plane.processes.folder.exists()


@pytest.mark.usefixtures("full_plane")  # skips where there are no controllers to start
def test_everything_dies_with_a_killed_parent() -> None:
    script = (
        "import json, time\n"
        "from tests.controlplane import ControlPlane\n"
        "with ControlPlane(controllers=True, scheduler=True) as plane:\n"
        "    print(json.dumps([str(plane.processes.folder), *plane.pids.values()]), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        folder, *pids = json.loads(parent.stdout.readline())
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
        parent.kill()

    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert eventually(lambda: not Path(folder).exists())


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_run_ends_in_order(ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.controlplane", "run", "--no-controllers", "--no-scheduler"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        printed = [parent.stdout.readline() for _ in range(4)]
        kubeconfig = Path(printed[1].removeprefix("kubeconfig: ").strip())
        pids = [child.pid for child in psutil.Process(parent.pid).children()]
        tried = subprocess.run(
            printed[2].removeprefix("try: ").split(), capture_output=True, text=True, check=True
        )
        parent.send_signal(ending)
        assert parent.wait(timeout=60) == 0

    assert "kube-system" in tried.stdout
    assert len(pids) == 3  # etcd, kube-apiserver, guardian
    assert not any(alive(pid) for pid in pids)
    assert not kubeconfig.parent.exists()
