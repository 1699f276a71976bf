"""The scenes of the demo, in order. Each shows commands as typed and what the real API server answers."""

import difflib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import yaml

from examples.demo.stage import Stage
from examples.demo.world import (
    RESEARCH,
    ROOT,
    SERVING,
    TRAINING,
    DemoFailed,
    pods,
    quota_status,
    wait_for,
    wait_until_bound,
)
from tests.controlplane import ControlPlane

WORKLOADS = "examples/workloads"
QUEUE = "examples/queue"
WORKERS = 4
"""Pods of each Job in examples/queue."""


class Play:
    """The demo on a running control plane."""

    def __init__(self, plane: ControlPlane, stage: Stage) -> None:
        self._plane = plane
        self._stage = stage

    def kubectl(self, *arguments: str, refused: bool = False) -> None:
        """Show a kubectl command and its output; with `refused` the API server must reject it."""
        self._stage.command(["kubectl", *(_quoted(argument) for argument in arguments)])
        done = self._plane.kubectl(*arguments, check=False)
        self._stage.output(done)
        if bool(done.returncode) is not refused:
            expected = "refused" if refused else "accepted"
            raise DemoFailed(f"kubectl {' '.join(arguments)} was expected to be {expected}")

    def run(self) -> None:
        scenes: tuple[Callable[[], None], ...] = (
            self.nodes,
            self.training_job,
            self.serving,
            self.injected,
            self.fractional,
            self.mismatched,
            self.nowhere,
            self.full_quota,
            self.never_fits,
            self.in_line,
            self.pause,
            self.who_is_where,
        )
        for scene in scenes:
            scene()

    def nodes(self) -> None:
        self._stage.scene(
            "The cluster",
            "Two kinds of GPU nodes, each with two taints: nvidia.com/gpu, and dedicated to a team. A pod without "
            "both tolerations runs on neither. (The nodes exist only as objects: the scheduler binds pods to "
            "them, and nothing runs.)",
        )
        self.kubectl("get", "nodes", "-L", "accelerator")
        columns = "custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].value"
        self.kubectl("get", "nodes", "-o", columns)

    def training_job(self) -> None:
        self._stage.scene(
            "A training Job",
            "Two workers with four GPUs each. The manifest has neither tolerations nor a nodeSelector.",
        )
        self.kubectl("apply", "-f", f"{WORKLOADS}/training-job.yaml")
        wait_until_bound(self._plane, "default", "job-name=finetune", 2)

    def serving(self) -> None:
        self._stage.scene(
            "A model server",
            f"A Deployment with an autoscaler. Namespace {SERVING} has a policy of its own: T4s, not A100s.",
        )
        self.kubectl("apply", "-n", SERVING, "-f", f"{WORKLOADS}/serving-deployment.yaml")
        wait_until_bound(self._plane, SERVING, "app=chat", 2)

    def injected(self) -> None:
        self._stage.scene(
            "What its pods get",
            "The Deployment's template (-) does not change; each pod created from it (+) does. Only the main fields that "
            "the webhook adds are shown.",
        )
        status, deployment = self._plane.client().get(f"/apis/apps/v1/namespaces/{SERVING}/deployments/chat")
        if status != 200:  # noqa: PLR2004 - HTTP OK
            raise DemoFailed(f"reading the Deployment was answered with {status}")
        pod = pods(self._plane, SERVING, "app=chat")[0]
        before, after = excerpt(deployment["spec"]["template"]["spec"]), excerpt(pod["spec"])
        self._stage.diff(yaml_diff(before, after))

    def fractional(self) -> None:
        self._stage.scene(
            "Half a GPU",
            "Rejected, with what to request instead.",
        )
        self.kubectl("apply", "-f", f"{WORKLOADS}/pod-fractional.yaml", refused=True)

    def mismatched(self) -> None:
        self._stage.scene("A request that is not the limit", "Rejected as well.")
        self.kubectl("apply", "-f", f"{WORKLOADS}/pod-request-not-limit.yaml", refused=True)

    def nowhere(self) -> None:
        self._stage.scene(
            "A class that no node has",
            "Admitted, because nodes come and go: nvidia-h100 is a known class. A warning names the classes that have "
            "nodes; the pod is pinned to its class, and stays Pending. An unknown class is rejected.",
        )
        self.kubectl("apply", "-f", f"{WORKLOADS}/pod-h100.yaml")
        wait_for("the scheduler to give up on pod needs-h100", self._is_unschedulable)
        self.kubectl("get", "pod", "needs-h100", "-o", "jsonpath={.status.conditions[0].message}")
        self.kubectl("apply", "-f", f"{WORKLOADS}/pod-unknown-class.yaml", refused=True)

    def _is_unschedulable(self) -> bool:
        _status, pod = self._plane.client().get("/api/v1/namespaces/default/pods/needs-h100")
        conditions: list[dict[str, Any]] = pod.get("status", {}).get("conditions", [])
        return any(condition.get("reason") == "Unschedulable" for condition in conditions)

    def full_quota(self) -> None:
        self._stage.scene(
            "A full quota",
            f"Namespace {RESEARCH} may hold one GPU. The first pod takes it; the second is rejected, with the numbers.",
        )
        self.kubectl("apply", "-f", "examples/quotas/research.yaml")
        wait_for(
            f"the quota of {RESEARCH} to be counted", lambda: "used" in quota_status(self._plane, RESEARCH)
        )
        self.kubectl("apply", "-n", RESEARCH, "-f", f"{WORKLOADS}/pod-training.yaml")
        wait_for(
            "that GPU to be counted",
            lambda: quota_status(self._plane, RESEARCH).get("used", {}).get("gpus") == "1",
        )
        self.kubectl("get", "gpuquota", "-n", RESEARCH)
        self.kubectl("apply", "-n", RESEARCH, "-f", f"{WORKLOADS}/pod-h100.yaml", refused=True)

    def never_fits(self) -> None:
        self._stage.scene(
            "A PyTorchJob that cannot fit",
            "Its operator would create the pods later, and nobody would see why they are rejected. The warning comes at "
            "once.",
        )
        self.kubectl("apply", "-n", RESEARCH, "-f", f"{WORKLOADS}/pytorchjob.yaml")

    def in_line(self) -> None:
        self._stage.scene(
            "Wait in line",
            f"Namespace {TRAINING} has eight GPUs, and a policy with onExceeded: Queue. Two Jobs need eight GPUs each. One "
            "gets all of them. The pods of the other one are created, and wait.",
        )
        self.kubectl("apply", "-f", f"{QUEUE}/policy.yaml")
        wait_for(
            f"the quota of {TRAINING} to be counted", lambda: "used" in quota_status(self._plane, TRAINING)
        )
        wait_for("the policy to be in force", self._waits_in_line)
        self.kubectl("apply", "-f", f"{QUEUE}/jobs.yaml")
        wait_for("one of the Jobs to start", lambda: len(self._started()) == 1)
        wait_for(
            "the others to be counted",
            lambda: quota_status(self._plane, TRAINING).get("waiting", {}).get("pods") == WORKERS,
        )
        self.kubectl("get", "pods", "-n", TRAINING)
        self.kubectl("get", "gpuquota", "-n", TRAINING)
        (first,) = self._started()
        self._stage.say(f"Job {first} ends, and the other one starts as a whole.")
        self.kubectl("delete", "job", first, "-n", TRAINING)
        wait_for("the other Job to start", lambda: self._started() not in ([], [first]))
        self.kubectl("get", "pods", "-n", TRAINING)

    def _waits_in_line(self) -> bool:
        """Whether the webhook knows that a Job of twice the size could only wait as a whole."""
        job = next(iter(yaml.safe_load_all((ROOT / QUEUE / "jobs.yaml").read_text())))
        job["spec"] |= {"completions": 2 * WORKERS, "parallelism": 2 * WORKERS}
        dry_run = ("create", "--dry-run=server", "-f", "-")
        return (
            "must run together"
            in self._plane.kubectl(*dry_run, stdin=yaml.safe_dump(job), check=False).stderr
        )

    def _started(self) -> list[str]:
        """Return the Jobs in line whose pods all have started."""
        by_job = {name: pods(self._plane, TRAINING, f"job-name={name}") for name in ("one", "two")}
        return [
            name
            for name, found in by_job.items()
            if len(found) == WORKERS and not any(pod["spec"].get("schedulingGates") for pod in found)
        ]

    def pause(self) -> None:
        self._stage.scene(
            "Break glass",
            "A pause ends by itself. Meanwhile the rules only log: the pod with an unknown class is admitted.",
        )
        self.command("pause", "default", "--for", "30m", "--reason", "'incident 4711'")
        pod = f"{WORKLOADS}/pod-unknown-class.yaml"
        wait_for("the pause to be in force", lambda: self._is_admitted(pod))
        self.kubectl("apply", "-f", pod)
        self.command("resume")

    def command(self, *arguments: str) -> None:
        """Show a command of ours and its output."""
        self._stage.command(["gpu-admission", *arguments])
        words = [argument.strip("'") for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "webhook", *words, "--kubeconfig", self._plane.kubeconfig()],
            capture_output=True,
            text=True,
            check=False,
        )
        self._stage.output(done)
        if done.returncode:
            raise DemoFailed(f"gpu-admission {' '.join(arguments)} ended with {done.returncode}")

    def _is_admitted(self, manifest: str) -> bool:
        done = self._plane.kubectl("apply", "-f", manifest, "--dry-run=server", check=False)
        return done.returncode == 0

    def who_is_where(self) -> None:
        self._stage.scene(
            "Where the pods were bound",
            "A pod with a NODE has been scheduled; no kubelet runs here, so all of them stay Pending. Empty columns "
            "are omitted.",
        )
        self.kubectl("get", "pods", "-A", "-o", "wide")


def _quoted(argument: str) -> str:
    return f"'{argument}'" if any(character in argument for character in "{\\*") else argument


def excerpt(spec: dict[str, Any]) -> dict[str, Any]:
    """Return what the webhook may have changed in a pod's spec, without the defaults of the API server."""
    return {
        "nodeSelector": spec.get("nodeSelector", {}),
        "tolerations": [
            f"{toleration['key']}{'=' + toleration['value'] if 'value' in toleration else ''}:{toleration['effect']}"
            for toleration in spec.get("tolerations", ())
            if not toleration["key"].startswith("node.kubernetes.io/")
        ],
        "initContainers": [_container(container) for container in spec.get("initContainers", ())],
        "containers": [_container(container) for container in spec["containers"]],
        "volumes": [volume["name"] for volume in spec.get("volumes", ()) if not _is_token(volume["name"])],
    }


def _container(container: dict[str, Any]) -> dict[str, Any]:
    excerpted: dict[str, Any] = {"name": container["name"], "image": container["image"]}
    for field in ("readinessProbe", "startupProbe"):
        if field in container:
            probe = container[field]
            excerpted[field] = {
                key: probe[key]
                for key in ("initialDelaySeconds", "periodSeconds", "failureThreshold")
                if key in probe
            }
    excerpted["volumeMounts"] = [
        f"{mount['name']} at {mount['mountPath']}{' (read-only)' if mount.get('readOnly') else ''}"
        for mount in container.get("volumeMounts", ())
        if not _is_token(mount["name"])
    ]
    return {key: value for key, value in excerpted.items() if value}


def _is_token(name: str) -> bool:
    return name.startswith("kube-api-access-")


def yaml_diff(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the two as YAML, every line marked as in a diff; fields that are empty on both sides are omitted."""
    fields = [field for field in after if before[field] or after[field]]
    old, new = (
        yaml.safe_dump({field: side[field] for field in fields if side[field]}, sort_keys=False).splitlines()
        for side in (before, after)
    )
    return [line for line in difflib.ndiff(old, new) if not line.startswith("?")]
