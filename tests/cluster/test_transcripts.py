"""What kubectl prints, whole: at `apply`, and in `get events` where a controller of Kubernetes creates the pods.

`kubectl get events` shows only the first line of a message, so that has to be a sentence by itself.
"""

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.builders import JSON, deployment, gpu_container, manifest
from tests.cluster.controllers import eventually
from tests.cluster.workload_kinds import install
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import serving

CONFIGURATION = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  help: "#gpu-support"
  rules:
    gpu-requests: {maxPerPod: 8}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: small-cards}
spec:
  priority: 1
  match: {namespaces: [small-cards]}
  help: https://wiki.example.com/gpu
  rules:
    gpu-class: {allowed: [nvidia-t4, nvidia-l4]}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: speech}
spec:
  hard: {gpus: "4"}
"""
CLASS = "gpu-admission.dev/gpu-class"
RANDOM = re.compile(r"(?<=/chat)(-[a-z0-9]{5,10}){1,2}\b|(?<=/train)-[a-z0-9]{5}\b")


@pytest.fixture(scope="module")
def served(full_plane: ControlPlane) -> Iterator[ControlPlane]:
    install(full_plane.client(), "kubeflow.org", "v1", "PyTorchJob")
    with serving(full_plane, CONFIGURATION, "speech", "small-cards", "training", host=41):
        yield full_plane


def applied(plane: ControlPlane, document: JSON, namespace: str = "speech") -> str:
    done = plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(document), check=False)
    return done.stderr + done.stdout


def events(plane: ControlPlane, kind: str) -> set[str]:
    """Return what `kubectl get events` says of creations that failed, without times and the random parts of names."""
    chosen = f"involvedObject.kind={kind},reason=FailedCreate"

    def listed() -> set[str]:
        shown = plane.kubectl(
            "get", "events", "-n", "speech", "--field-selector", chosen, "--no-headers"
        ).stdout
        words = (" ".join(line.split()[1:]) for line in shown.splitlines())
        return {RANDOM.sub("-RANDOM", line) for line in words}

    return eventually(listed, seconds=60)


def template(gpus: str, **spec: object) -> JSON:
    return {"spec": {"containers": [gpu_container(gpus, "pytorch")], **spec}}


DENIED = 'admission webhook "pods.{}.gpu-admission.dev" denied the request: pod '


def test_a_job_of_one_pod_that_is_larger_than_the_quota(served: ControlPlane) -> None:
    job = manifest("batch/v1", "Job", "train", {"template": template("8", restartPolicy="Never")})

    assert applied(served, job) == (
        "Warning: Job speech/train: spec.template: set nvidia.com/gpu: 4; a pod needs 8 GPUs, which can never fit: the "
        "GPUQuota of speech grants 4 "
        "in all; or ask #gpu-support to raise spec.hard.gpus [gpu-quota]\n"
        "job.batch/train created\n"
    )
    assert events(served, "Job") == {
        f"Warning FailedCreate job/train Error creating: {DENIED.format('validate')}speech/train-RANDOM: set nvidia.com/gpu: 4; "
        "exceeded quota: speech/default, 8 GPUs can never fit: the quota grants 4; or ask #gpu-support to raise spec.hard.gpus "
        "[gpu-quota]"
    }


def test_a_deployment_over_the_quota(served: ControlPlane) -> None:
    assert applied(served, deployment("chat", gpu_container("2"), replicas=3)) == (
        "Warning: Deployment speech/chat: spec.replicas: set replicas: 2; needs 6 GPUs, which can never fit: the "
        "GPUQuota of speech grants 4 in all; 2 of 3 "
        "pods will start; or ask #gpu-support to raise spec.hard.gpus [gpu-quota]\n"
        "deployment.apps/chat created\n"
    )
    assert events(served, "ReplicaSet") == {
        f"Warning FailedCreate replicaset/chat-RANDOM Error creating: {DENIED.format('validate')}speech/chat-RANDOM: wait until "
        "others release 2 GPUs; exceeded quota: speech/default, requested 2 GPUs, 4 of 4 used; or ask "
        "#gpu-support to raise spec.hard.gpus [gpu-quota]"
    }


def test_a_pytorchjob_with_two_errors(served: ControlPlane) -> None:
    replicas = {
        "Master": {"replicas": 1, "template": template("0.5")},
        "Worker": {"replicas": 2, "template": template("16")},
    }
    job = manifest("kubeflow.org/v1", "PyTorchJob", "train", {"pytorchReplicaSpecs": replicas})

    assert applied(served, job, "training") == (
        "Warning: PyTorchJob training/train: its pods would be denied: "
        'Worker…containers[0].resources.limits[nvidia.com/gpu] (container "pytorch") = "16": '
        "request nvidia.com/gpu: 8 or less; must be at most 8 per pod by policy [gpu-requests]\n"
        "Warning: PyTorchJob training/train: its pods would be denied: "
        'Master…containers[0].resources.limits[nvidia.com/gpu] (container "pytorch") = "0.5": '
        "set nvidia.com/gpu: 1, or nvidia.com/mig-3g.40gb: 1 (a slice), or nvidia.com/gpu.shared: 1 (a time-sliced share); must "
        "be a whole number of GPUs, not half of one [gpu-requests]\n"
        "pytorchjob.kubeflow.org/train created\n"
    )


REFUSED = 'Error from server (Forbidden): error when creating "STDIN": ' + DENIED
NO_MIG = "no class that namespace small-cards may use has nvidia.com/mig-1g.5gb; "
TO_ALLOW = (
    "ask the platform team (https://wiki.example.com/gpu) to allow nvidia-a100-40gb or nvidia-a800-40gb in namespace "
    "small-cards, then set gpu-admission.dev/gpu-class: nvidia-a100-40gb or nvidia-a800-40gb [gpu-class]\n"
)


def test_a_mig_pod_where_no_class_has_mig(served: ControlPlane) -> None:
    container = gpu_container("1", resource="nvidia.com/mig-1g.5gb")
    pod: JSON = manifest("v1", "Pod", "train", {"containers": [container]})

    assert (
        applied(served, pod, "small-cards")
        == f"{REFUSED.format('validate')}small-cards/train: spec: {NO_MIG}{TO_ALLOW}"
    ), "a whole GPU alone does not help: the default class is not allowed"

    # Whatever class is named, no message says to name another one.
    for gpu_class in ("nvidia-t4", "nvidia-l4"):
        pod["metadata"]["annotations"] = {CLASS: gpu_class}
        assert applied(served, pod, "small-cards") == (
            f'{REFUSED.format("validate")}small-cards/train: metadata.annotations[{CLASS}] = "{gpu_class}": request '
            f"nvidia.com/gpu: 1; {NO_MIG}or {TO_ALLOW}"
        )


def test_all_that_is_wrong_with_a_pod_is_said_at_once(served: ControlPlane) -> None:
    pod: JSON = manifest("v1", "Pod", "train", {"containers": [gpu_container("0.5")]})
    pod["metadata"]["annotations"] = {CLASS: "nvidia-h100"}

    assert applied(served, pod, "small-cards") == (
        f"{REFUSED.format('mutate')}small-cards/train: spec.containers[0].resources.limits[nvidia.com/gpu] (container "
        '"main") = "500m" (0.5): set nvidia.com/gpu: 1, or nvidia.com/gpu.shared: 1 (a time-sliced share); must be a whole '
        "number of GPUs, not half of one [gpu-requests] (and 1 more; help: https://wiki.example.com/gpu)\n"
        f'- metadata.annotations[{CLASS}] = "nvidia-h100": set {CLASS}: nvidia-l4 or nvidia-t4; must be a class that namespace '
        "small-cards may use [gpu-class]\n"
    )
