"""A tenant of a cluster with a neighbour: a namespace, what is applied to it, and what becomes of it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

from policies.quota.waiting import GATE
from tests.builders import JSON
from tests.cluster.controllers import Running, eventually
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.conftest import queueing_webhook
from tests.cluster.waiting.line import Line, account_api
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook
from tests.neighbours.build import Neighbour
from tests.neighbours.installation import Installation, installed
from tests.neighbours.kubelet import ended
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.loader import load_directory

POLICIES = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-quota: {mode: enforce, onExceeded: Queue}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: deny}
spec:
  priority: 10
  match: {namespaces: [deny-*]}
  rules:
    gpu-quota: {mode: enforce, onExceeded: Deny}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: a100}
spec:
  priority: 10
  match: {namespaces: [a100-*]}
  rules:
    gpu-class: {mode: enforce, allowed: [nvidia-a100-80gb]}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default-class}
spec:
  priority: 10
  match: {namespaces: [default-*]}
  rules:
    gpu-class: {mode: enforce, default: nvidia-a100-80gb}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: respects}
spec:
  priority: 10
  match: {namespaces: [respects-*]}
  rules:
    gpu-quota: {mode: enforce, onExceeded: Queue, kueue: respect}
"""
GONE = {"propagationPolicy": "Background"}
REST = 5
"""Seconds in which nothing happens to what is at rest."""


class Seen(NamedTuple):
    """What a neighbour did with one object."""

    created: int
    """pods"""
    changed_at_rest: int
    reconciled_at_rest: float

    def is_as(self, without: "Seen", pods: int) -> bool:
        """Whether it made so many pods, each once, and then left them alone, as `without` us. One reconcile may be under way."""
        counts = {(each.created, each.changed_at_rest) for each in (self, without)}
        return counts == {(pods, 0)} and self.reconciled_at_rest <= without.reconciled_at_rest + 1


class Tenant(Line):
    """A namespace with a quota, whose objects are made as `kubectl apply` makes them."""

    def __init__(self, plane: ControlPlane, gpus: int | None = None, name: str = "") -> None:
        super().__init__(plane, name)
        self._plane = plane
        if gpus is not None:
            in_force(self, {"gpus": str(gpus)})

    def apply(self, document: JSON) -> list[str]:
        """Create the object, or change it, and return the warnings."""
        done = self._plane.kubectl("apply", "-n", self.name, "-f", "-", stdin=yaml.safe_dump(document))
        return [
            line.removeprefix("Warning: ") for line in done.stderr.splitlines() if line.startswith("Warning")
        ]

    def apply_behind(self, document: JSON) -> None:
        """Create the object behind all that wait: a creationTimestamp has whole seconds, and uids decide about equal ones."""
        time.sleep(1.1)
        self.apply(document)

    def read(self, kind: str, name: str) -> JSON:
        read: JSON = json.loads(self._plane.kubectl("get", kind, name, "-n", self.name, "-o", "json").stdout)
        return read

    def change(self, kind: str, name: str, spec: JSON) -> None:
        patch = json.dumps({"spec": spec})
        self._plane.kubectl("patch", kind, name, "-n", self.name, "--type", "merge", "-p", patch)

    def remove(self, kind: str, name: str) -> None:
        self._plane.kubectl("delete", kind, name, "-n", self.name, "--wait=false")

    def pods(self, prefix: str = "") -> list[JSON]:
        """Return the pods whose names begin so."""
        found = self.client.get(self.path("pods"))[1]["items"]
        return [pod for pod in found if pod["metadata"]["name"].startswith(prefix)]

    def running(self, prefix: str = "") -> list[str]:
        return [name_of(pod) for pod in self.pods(prefix) if pod["status"]["phase"] == "Running"]

    def gated(self, prefix: str = "") -> list[str]:
        return [name_of(pod) for pod in self.pods(prefix) if GATE in gates_of(pod)]

    def runs(self, number: int, prefix: str = "", *, gated: int = 0, seconds: float = 60) -> bool:
        """Whether soon so many pods run, and so many wait, and no others are there."""

        def is_shown() -> bool:
            counts = [len(each) for each in (self.running(prefix), self.gated(prefix), self.live(prefix))]
            return counts == [number, gated, number + gated]

        if not eventually(is_shown, seconds=seconds):
            shown = {name_of(pod): (pod["status"]["phase"], gates_of(pod)) for pod in self.pods(prefix)}
            pytest.fail(f"not {number} pods that run and {gated} that wait: {shown}; all: {self.running()}")
        return True

    def live(self, prefix: str = "") -> list[JSON]:
        return [pod for pod in self.pods(prefix) if pod["status"]["phase"] not in {"Failed", "Succeeded"}]

    def end(self, name: str, *, code: int = 0) -> None:
        ended(self.client, self.name, name, "Failed" if code else "Succeeded", code)

    def messages(self, kind: str) -> list[str]:
        """Return what the Events on objects of a kind say."""
        events = self.client.get(self.path("events"))[1]["items"]
        return [event["message"] for event in events if event["involvedObject"]["kind"] == kind]

    def tells(self, kind: str, text: str) -> bool:
        """Whether an Event on an object of the kind soon has the text."""
        return eventually(lambda: any(text in each for each in self.messages(kind)))

    def history(self, since: str, seconds: int) -> list[JSON]:
        """Return what happened to pods after a resourceVersion, and in the next seconds."""
        query = f"watch=1&resourceVersion={since}&timeoutSeconds={seconds}"
        text = self._plane.kubectl("get", "--raw", f"{self.path('pods')}?{query}").stdout
        return [msgspec.json.decode(line) for line in text.splitlines()]

    def version(self) -> str:
        return str(self.client.get(self.path("pods"))[1]["metadata"]["resourceVersion"])


def name_of(pod: JSON) -> str:
    return str(pod["metadata"]["name"])


def gates_of(pod: JSON) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]


def tolerated(pod: JSON) -> int:
    """Return how often the pod tolerates the taint of GPU nodes."""
    return sum(each.get("key") == "nvidia.com/gpu" for each in pod["spec"].get("tolerations", []))


def watch(
    installation: Installation, tenant: Tenant, document: JSON, is_done: Callable[[Tenant], Any]
) -> Seen:
    """Create the object, and say what the neighbour did until it was done, and afterwards."""
    since = tenant.version()
    tenant.apply(document)
    assert eventually(lambda: is_done(tenant), seconds=60), tenant.pods()
    tenant.history(tenant.version(), 1)
    rest, before = tenant.version(), installation.reconciles()
    changed = tenant.history(rest, REST)
    reconciled = installation.reconciles() - before
    # What happened comes at once, but on a busy machine not all of it within a second.
    created = [each for each in tenant.history(since, REST) if each["type"] == "ADDED"]
    return Seen(len(created), len(changed), reconciled)


class Ours(NamedTuple):
    """gpu-admission beside a neighbour."""

    webhook: Webhook
    running: Running


@contextmanager
def ours(plane: ControlPlane) -> Iterator[Ours]:
    """Run serve and controller; namespaces queue, or deny, or allow one class, by their names."""
    with (
        queueing_webhook(plane, POLICIES) as webhook,
        Running(
            plane,
            lease=CONTROLLER,
            api=account_api(plane),
            expiry=10.0,
            configuration=load_directory(webhook.config),
        ) as running,
    ):
        yield Ours(webhook, running)


class Stage(NamedTuple):
    """A neighbour and gpu-admission, and what the neighbour did before that was there."""

    neighbour: Installation
    ours: Ours
    without_us: Seen


@contextmanager
def staged(
    plane: ControlPlane, neighbour: Neighbour, sampled: Callable[[Installation], Seen]
) -> Iterator[Stage]:
    """Run the neighbour, see what it does by itself, and then run gpu-admission, too."""
    with installed(plane, neighbour) as installation:
        without = sampled(installation)
        with ours(plane) as running:
            yield Stage(installation, running, without)
