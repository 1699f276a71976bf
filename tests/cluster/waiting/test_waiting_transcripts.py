"""What a tenant reads of a Pod, Job, Deployment and PyTorchJob that wait in line: kubectl and `why`, word for word."""

import re
from collections.abc import Iterator
from textwrap import dedent, indent
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.cluster.controllers import Running, eventually, shows
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line
from tests.cluster.waiting.owners import job, server, template
from tests.cluster.workload_kinds import install
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from webhook.commands import main

NAMESPACE = "ml"
HOLDER = "holder"
RANDOM = re.compile(r"(?<=train-[0-3])-[a-z0-9]{5}\b|(?<=chat)-[a-z0-9]{8,10}(-[a-z0-9]{5})?\b")
TIMES = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? UTC|\d\d:\d\d:\d\d")
AGE = re.compile(r"\b\d+s( *)")


@pytest.fixture(scope="module")
def team(full_plane: ControlPlane, running_jobs: Running) -> Line:  # noqa: ARG001 - it has to run
    """Return a namespace whose four GPUs are in use."""
    install(full_plane.client(), "kubeflow.org", "v1", "PyTorchJob")
    line = Line(full_plane, NAMESPACE)
    in_force(line, {"gpus": "4"})
    line.pod(HOLDER, 4)
    assert shows(line, 4)
    return line


@pytest.fixture(autouse=True)
def _nobody_waits_before(team: Line, full_plane: ControlPlane) -> Iterator[None]:
    yield
    for kind in ("jobs", "deployments", "pods", "events"):
        selector = ("--field-selector", f"metadata.name!={HOLDER}")
        full_plane.kubectl("delete", kind, "-n", NAMESPACE, *selector, "--wait=false")
    assert eventually(lambda: not team.ledger_object().all_waiting)


def plain(text: str) -> str:
    """Return a text without what differs from run to run; columns keep their places."""
    text = RANDOM.sub("-xxxxx", TIMES.sub("TIME", text))
    return "\n".join(line.rstrip() for line in AGE.sub("AGE ", text).splitlines())


def narrow(table: str) -> str:
    """Return a table with two spaces between columns: versions of Kubernetes make hashes of other lengths."""
    return re.sub(" {2,}", "  ", table)


def kubectl(plane: ControlPlane, *arguments: str, document: Any = None) -> str:
    stdin = None if document is None else yaml.safe_dump(document)
    done = plane.kubectl(*arguments, "-n", NAMESPACE, stdin=stdin, check=False)
    return plain(done.stderr + done.stdout)


def applied(plane: ControlPlane, document: Any) -> str:
    return kubectl(plane, "apply", "-f", "-", document=document)


def described(plane: ControlPlane, *what: str) -> str:
    """Return the Events of `kubectl describe`."""
    return kubectl(plane, "describe", *what).partition("\nEvents:\n")[2]


def why(plane: ControlPlane, name: str) -> str:
    arguments = ["why", name, "-n", NAMESPACE, "--kubeconfig", str(plane.kubeconfig())]
    printed = CliRunner(env={"COLUMNS": None}).invoke(main, arguments).stdout
    return plain(printed.partition("\nwhat is known")[0])


def text(block: str) -> str:
    """Return the text with WORDS in full."""
    written = dedent(block).strip("\n")
    for short, words in WORDS.items():
        written = written.replace(short, words)
    return written


def indented(block: str) -> str:
    return indent(text(block), "  ")


def is_shown(team: Line, number: int) -> bool:
    """Whether the status and an Event of each pod soon say that so many pods wait."""

    def shown() -> bool:
        queued = {"fieldSelector": "reason=QuotaQueued"}
        events = accepted(team.client.get(team.path("events"), queued))["items"]
        status = team.status().waiting
        return status is not None and status.pods == number and len(events) >= number

    return eventually(shown)


def queued_events(plane: ControlPlane) -> str:
    return kubectl(plane, "get", "events", "--field-selector", "reason=QuotaQueued")


WORDS = {
    "WAITS_FOR_1": "waiting for quota: in line, needs 1 GPU, 0 of 4 free; largest holders: Pod/holder 4",
    "WAITS_FOR_4": "waiting for quota: in line, needs 4 GPUs, 0 of 4 free; largest holders: Pod/holder 4",
    "WHOLE": "its pods will wait in line until enough of them fit to run together",
}
FIX = """
             fix: it starts when enough of the quota is released: end what is not needed, or ask the platform team to raise \
spec.hard.gpus"""


def test_a_pod(team: Line, full_plane: ControlPlane) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "notebook"},
        "spec": template("notebook")["spec"],
    }
    assert applied(full_plane, document) == text("""
        Warning: pod ml/notebook: waits in line for quota ml/default: next in line, requested 1 GPU, 4 of 4 used [gpu-quota]
        pod/notebook created
        """)
    assert is_shown(team, 1)
    assert kubectl(full_plane, "get", "pods") == text("""
        NAME       READY   STATUS            RESTARTS   AGE
        holder     0/1     Pending           0          AGE
        notebook   0/1     SchedulingGated   0          AGE
        """)
    assert described(full_plane, "pod", "notebook") == indented("""
        Type     Reason       Age   From                      Message
        ----     ------       ----  ----                      -------
        Warning  QuotaQueued  AGE gpu-admission-controller  WAITS_FOR_1
        """)
    assert queued_events(full_plane) == text("""
        LAST SEEN   TYPE      REASON        OBJECT         MESSAGE
        AGE Warning   QuotaQueued   pod/notebook   WAITS_FOR_1
        """)
    assert why(full_plane, "pod/notebook") == text(f"""
Pod/notebook in ml: waiting
  line       Pod notebook waits in line for quota since TIME: next in line, \
needs 1 GPU, 0 of 4 free; largest holders: Pod/holder 4{FIX}""")
    assert kubectl(full_plane, "get", "gpuq") == text("""
        NAME      USED   RESERVED   WAITING   HARD   STATUS   COUNTED   AGE
        default   4                 1         4      Ready    AGE AGE
        """)
    assert applied(full_plane, document) == "pod/notebook configured"
    assert team.waits("notebook")


def test_a_job(team: Line, full_plane: ControlPlane) -> None:
    body = template("train", restartPolicy="Never")
    document = job("train", completionMode="Indexed", completions=4, parallelism=4, template=body)
    assert applied(full_plane, document) == text("""
        Warning: Job ml/train: spec.template: needs 4 GPUs; ml has 0 of 4 free: WHOLE [gpu-quota]
        job.batch/train created
        """)
    assert is_shown(team, 4)
    assert kubectl(full_plane, "get", "pods") == text("""
        NAME            READY   STATUS            RESTARTS   AGE
        holder          0/1     Pending           0          AGE
        train-0-xxxxx   0/1     SchedulingGated   0          AGE
        train-1-xxxxx   0/1     SchedulingGated   0          AGE
        train-2-xxxxx   0/1     SchedulingGated   0          AGE
        train-3-xxxxx   0/1     SchedulingGated   0          AGE
        """)
    assert kubectl(full_plane, "get", "jobs") == text("""
        NAME    STATUS    COMPLETIONS   DURATION   AGE
        train   Running   0/4           AGE AGE
        """)
    assert sorted(described(full_plane, "job", "train").splitlines()[2:]) == [
        f"  Normal  SuccessfulCreate  AGE job-controller  Created pod: train-{index}-xxxxx"
        for index in range(4)
    ]
    first = ("pod", "-l", "batch.kubernetes.io/job-completion-index=0")
    assert described(full_plane, *first) == indented("""
        Type     Reason       Age   From                      Message
        ----     ------       ----  ----                      -------
        Warning  QuotaQueued  AGE gpu-admission-controller  WAITS_FOR_4
        """)
    assert queued_events(full_plane) == text("""
        LAST SEEN   TYPE      REASON        OBJECT              MESSAGE
        AGE Warning   QuotaQueued   pod/train-0-xxxxx   WAITS_FOR_4
        AGE Warning   QuotaQueued   pod/train-1-xxxxx   WAITS_FOR_4
        AGE Warning   QuotaQueued   pod/train-2-xxxxx   WAITS_FOR_4
        AGE Warning   QuotaQueued   pod/train-3-xxxxx   WAITS_FOR_4
        """)
    assert why(full_plane, "job/train") == text(f"""
Job/train in ml: waiting
  0 of 4 pods run
  line       Pod train-0-xxxxx (and 3 more) waits in line for quota since TIME with the other pods of \
its gang Job/train: next in line, needs 4 GPUs, 0 of 4 free; largest holders: Pod/holder 4{FIX}""")


def test_a_deployment(team: Line, full_plane: ControlPlane) -> None:
    assert applied(full_plane, server("Deployment", "chat", 1)) == text("""
        Warning: Deployment ml/chat: spec.template: needs 1 GPU; ml has 0 of 4 free: its pods will wait in line [gpu-quota]
        deployment.apps/chat created
        """)
    assert is_shown(team, 1)
    assert narrow(kubectl(full_plane, "get", "pods")) == text("""
        NAME  READY  STATUS  RESTARTS  AGE
        chat-xxxxx  0/1  SchedulingGated  0  AGE
        holder  0/1  Pending  0  AGE
        """)
    assert kubectl(full_plane, "get", "deployments") == text("""
        NAME   READY   UP-TO-DATE   AVAILABLE   AGE
        chat   0/1     1            0           AGE
        """)
    assert described(full_plane, "pod", "-l", "app=chat") == indented("""
        Type     Reason       Age   From                      Message
        ----     ------       ----  ----                      -------
        Warning  QuotaQueued  AGE gpu-admission-controller  WAITS_FOR_1
        """)
    assert described(full_plane, "deployment", "chat") == indented("""
        Type    Reason             Age   From                   Message
        ----    ------             ----  ----                   -------
        Normal  ScalingReplicaSet  AGE deployment-controller  Scaled up replica set chat-xxxxx from 0 to 1
        """)
    assert narrow(queued_events(full_plane)) == text("""
        LAST SEEN  TYPE  REASON  OBJECT  MESSAGE
        AGE Warning  QuotaQueued  pod/chat-xxxxx  WAITS_FOR_1
        """)
    assert why(full_plane, "deploy/chat") == text(f"""
Deployment/chat in ml: waiting
  line       Pod chat-xxxxx waits in line for quota since TIME: next in line, \
needs 1 GPU, 0 of 4 free; largest holders: Pod/holder 4{FIX}""")


def test_a_pytorchjob(team: Line, full_plane: ControlPlane) -> None:
    spec = template("llm", restartPolicy="Never")["spec"]
    spec["containers"][0]["name"] = "pytorch"
    replicas = {
        role: {"replicas": number, "template": {"spec": spec}}
        for role, number in (("Master", 1), ("Worker", 3))
    }
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "llm"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    assert applied(full_plane, document) == text("""
        Warning: PyTorchJob ml/llm: needs 4 GPUs; ml has 0 of 4 free: WHOLE [gpu-quota]
        pytorchjob.kubeflow.org/llm created
        """)
    _, stored = team.client.get(f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs/llm")
    reference = {key: document[key] for key in ("apiVersion", "kind")}
    owner = {**reference, "name": "llm", "uid": stored["metadata"]["uid"], "controller": True}
    for name in ("master-0", "worker-0", "worker-1", "worker-2"):  # as its operator does
        accepted(team.create({"metadata": {"name": f"llm-{name}", "ownerReferences": [owner]}, "spec": spec}))
    assert is_shown(team, 4)
    assert kubectl(full_plane, "get", "pods") == text("""
        NAME           READY   STATUS            RESTARTS   AGE
        holder         0/1     Pending           0          AGE
        llm-master-0   0/1     SchedulingGated   0          AGE
        llm-worker-0   0/1     SchedulingGated   0          AGE
        llm-worker-1   0/1     SchedulingGated   0          AGE
        llm-worker-2   0/1     SchedulingGated   0          AGE
        """)
    assert described(full_plane, "pod", "llm-worker-2") == indented("""
        Type     Reason       Age   From                      Message
        ----     ------       ----  ----                      -------
        Warning  QuotaQueued  AGE gpu-admission-controller  WAITS_FOR_4
        """)
    assert queued_events(full_plane) == text("""
        LAST SEEN   TYPE      REASON        OBJECT             MESSAGE
        AGE Warning   QuotaQueued   pod/llm-master-0   WAITS_FOR_4
        AGE Warning   QuotaQueued   pod/llm-worker-0   WAITS_FOR_4
        AGE Warning   QuotaQueued   pod/llm-worker-1   WAITS_FOR_4
        AGE Warning   QuotaQueued   pod/llm-worker-2   WAITS_FOR_4
        """)
    assert why(full_plane, "pytorchjob/llm") == text(f"""
PyTorchJob/llm in ml: waiting
  0 of 4 pods run
  line       Pod llm-master-0 (and 3 more) waits in line for quota since TIME with the other pods of \
its gang PyTorchJob/llm: next in line, needs 4 GPUs, 0 of 4 free; largest holders: Pod/holder 4{FIX}""")
