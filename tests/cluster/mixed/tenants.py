"""The namespaces of a run of mixed faults, and who creates and ends pods in each of them."""

import random
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import urllib3

from tests.builders import JSON
from tests.cluster.mixed.denials import Denial
from tests.cluster.waiting.gangs import job
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import Namespace

BUDGET = {"gpuHours": 100_000}
WITHOUT = {"preferReplacements": False}
_FOR_TEAM = re.compile(r"of other namespaces in line for ClusterGPUQuota (\S+) must start first")


@dataclass(frozen=True)
class Kind:
    """What a namespace is: its GPUQuota (None: it has none), its team, and what happens in it."""

    quota: JSON | None
    team: str = ""
    queues: bool = True
    deployments: int = 0

    @property
    def spec(self) -> JSON:
        assert self.quota is not None
        return self.quota


KINDS = {
    "strict": Kind({"hard": {"gpus": 8}, "queue": WITHOUT}),
    "best": Kind({"hard": {"gpus": 8}, "queue": {**WITHOUT, "order": "BestEffortFIFO"}}),
    "replacing": Kind({"hard": {"gpus": 5}, "budget": BUDGET}, deployments=3),
    "denying": Kind({"hard": {"gpus": 6}}, queues=False),
    "remade": Kind({"hard": {"gpus": 6}, "queue": WITHOUT}),
    "again": Kind({"hard": {"gpus": 6}, "queue": WITHOUT}),
    "ruled": Kind({"hard": {"gpus": 6}, "queue": WITHOUT}),
    "x-free": Kind(None, "x"),
    "x-own": Kind(
        {"hard": {"gpus": 8}, "queue": {**WITHOUT, "order": "BestEffortFIFO"}, "budget": BUDGET}, "x"
    ),
    "x-denying": Kind(None, "x", queues=False),
    "y-own": Kind({"hard": {"gpus": 6}, "queue": WITHOUT, "budget": BUDGET}, "y"),
    "y-free": Kind(None, "y"),
    "y-denying": Kind({"hard": {"gpus": 4}}, "y", queues=False),
    "moving": Kind({"hard": {"gpus": 6}, "queue": WITHOUT}, "x"),
}
TEAM_SPECS: dict[str, JSON] = {
    "x": {"hard": {"gpus": 12}, "guaranteed": {"x-denying": {"gpus": 3}}},
    "y": {"hard": {"gpus": 10}, "guaranteed": {}},
}
BUDGETED = [name for name, kind in KINDS.items() if kind.quota and "budget" in kind.quota]
MOST = 10
"""Pods of one namespace at a time, beyond which its tenant ends some."""


class Tenant(Namespace):
    """A namespace, and a thread that creates and ends pods, gangs and Deployments in it."""

    def __init__(self, plane: ControlPlane, name: str, kind: Kind, every: float) -> None:
        super().__init__(plane, name)
        self.kind, self._every = kind, every
        self._draw = random.Random(name)  # noqa: S311 - the same choices in every run
        self._number = 0
        self.said: Counter[str] = Counter()
        self.denials: list[Denial] = []
        self.created = 0

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(self._every * self._draw.uniform(0.5, 1.5)):
            with suppress(urllib3.exceptions.HTTPError, TypeError, KeyError):  # the API server is away
                self.act()

    def act(self) -> None:
        pods, draw = self.pods(), self._draw
        running = [pod for pod in pods if not waits(pod)]
        waiting = [pod for pod in pods if waits(pod)]
        chance = draw.random()
        if running and (len(pods) > MOST or chance < 0.4):
            self.end(draw.choice(running), draw)
        elif waiting and chance < 0.45:
            self.end(draw.choice(waiting), draw, delete=True)
        elif self.kind.deployments and chance < 0.65:
            self._scale(draw)
        elif self.kind.queues and not self.kind.deployments and chance < 0.6:
            self._create(f"/apis/batch/v1/namespaces/{self.name}/jobs", self._job(draw))
        else:
            self._create_pod(draw)

    def pods(self) -> list[Any]:
        """Return the live pods, of which a Job may have others to come."""
        found = self.client.get(self.path("pods"), {"resourceVersion": "0"})[1]["items"]
        return [
            pod
            for pod in found
            if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]
        ]

    def deploy(self) -> None:
        """Create the Deployments of the namespace, whose pods come again when they are ended."""
        for number in range(self.kind.deployments):
            labels = {"app": f"server-{number}"}
            template = {"metadata": {"labels": labels}, "spec": _gpus(1)}
            spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
            body = {"metadata": {"name": f"server-{number}"}, "spec": spec}
            accepted(self.client.post(f"/apis/apps/v1/namespaces/{self.name}/deployments", body))

    def _scale(self, draw: random.Random) -> None:
        """Have a Deployment end pods, or create more than ended."""
        name = f"server-{draw.randrange(self.kind.deployments)}"
        path = f"/apis/apps/v1/namespaces/{self.name}/deployments/{name}"
        self.client.patch(path, {"spec": {"replicas": draw.randint(1, 4)}})

    def end(self, pod: Any, draw: random.Random, *, delete: bool = False) -> None:
        """End a pod, of a gang all of its pods: it succeeds, or it is deleted."""
        owner = next(iter(pod["metadata"].get("ownerReferences", ())), None)
        name = pod["metadata"]["name"]
        is_deleted = delete or draw.random() < 0.5
        if owner and owner["kind"] == "Job":
            if is_deleted:
                path = f"/apis/batch/v1/namespaces/{self.name}/jobs/{owner['name']}"
                self.client.delete(path, {"propagationPolicy": "Background"})
                return
            members = [each for each in self.pods() if _owner(each) == owner["uid"]]
            if not any(map(waits, members)):
                for each in members:
                    self._succeed(each["metadata"]["name"])
        elif is_deleted or owner:
            self.client.delete(self.path("pods", name), {"gracePeriodSeconds": 0})
        else:
            self._succeed(name)

    def delete(self, group: str, plural: str) -> None:
        """Delete all objects of a kind, and then their pods."""
        path = f"/apis/{group}/namespaces/{self.name}/{plural}"
        self.client.delete(path, {"propagationPolicy": "Background"})

    def _succeed(self, name: str) -> None:
        self.client.patch(self.path("pods", name) + "/status", {"status": {"phase": "Succeeded"}})

    def _create_pod(self, draw: random.Random) -> None:
        self._number += 1
        gpus = draw.choice([1, 1, 1, 2, 2, 3])
        body = {"metadata": {"name": f"pod-{self._number}"}, "spec": _gpus(gpus)}
        began = time.time()
        status, answer = self._create(self.path("pods"), body)
        if status == 403:
            found = _FOR_TEAM.search(answer["message"])
            self.denials.append(Denial(self.name, found[1] if found else "", gpus, began, time.time()))

    def _job(self, draw: random.Random) -> JSON:
        self._number += 1
        document = job(f"gang-{self._number}", draw.randint(2, 4))
        document["spec"]["ttlSecondsAfterFinished"] = 5
        return document

    def _create(self, path: str, body: JSON) -> tuple[int, Any]:
        status, answer = self.client.post(path, body)
        message = answer.get("message", "") if isinstance(answer, dict) else str(answer)
        self.created += status == 201
        self.said[
            f"{status} {re.sub('[0-9]+', 'N', message.partition('[gpu-quota]')[2] or message)[:90]}"
        ] += 1
        return status, answer


def _gpus(gpus: int) -> JSON:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return {"containers": [container], "tolerations": tolerations, "automountServiceAccountToken": False}


def waits(pod: Any) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _owner(pod: Any) -> str:
    return next((str(each["uid"]) for each in pod["metadata"].get("ownerReferences", ())), "")
