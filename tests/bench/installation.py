"""A version of ours on a control plane, as its own deploy/ installs it: a controller, and `serve` behind one Service."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from tests.bench.admissions import FOLDER
from tests.bench.before import Version
from tests.cluster.controllers import Command
from tests.controlplane import ControlPlane
from tests.controlplane.replicas import Replicas
from tests.controlplane.webhook import NAMESPACE, REGISTRATION, strict_manifests, uninstall

POLICY = FOLDER / "policy"
API = "/apis/gpu-admission.dev/v1alpha1"
LEDGERS = f"{API}/namespaces/{NAMESPACE}/gpuquotaledgers"
TEAM_PREFIX = "clustergpuquota."
"""Of the name of a team's object among the ledgers."""
CLASS = "classes/nvidia-a100-80gb"
ROOM = 1_000_000
"""GPUs that no run uses up."""
WITHIN = 120
_WORKLOADS = {"Deployment", "NetworkPolicy", "PodDisruptionBudget"}
_numbers = count(1)


class Ledger(NamedTuple):
    """What a quota counts: `used` by dimension, None before it was counted, and how many pods wait. `size`: bytes.

    `team`: the team in whose object it stands, "" if in none.
    """

    used: Mapping[str, int] | None
    in_flight: bool
    waiting: int = 0
    size: int = 0
    team: str = ""

    def settled(self, gpus: int) -> bool:
        return self.used is not None and not self.in_flight and self.used.get("gpus", 0) == gpus


class Installation:
    """What `version` brings, between `start` and `stop`, or for the length of a `with` block; everything else stays.

    Its processes have the rights of its service accounts and no others. One at a time: the versions share their kinds.
    """

    def __init__(self, plane: ControlPlane, version: Version, policy: Path = POLICY) -> None:
        self.plane = plane
        self.version = version
        self._policy = policy
        self._documents = strict_manifests(version.source)
        self._kinds = [
            document["metadata"]["name"]
            for document in self._documents
            if document["kind"] == "CustomResourceDefinition"
        ]
        self.controller: Command | None = None

    def __enter__(self) -> Self:
        applied = [
            document
            for document in self._documents
            if document["kind"] not in _WORKLOADS | REGISTRATION - {"Namespace", "CustomResourceDefinition"}
        ]
        arguments = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        self.plane.kubectl(*arguments, stdin=yaml.safe_dump_all(applied))
        self.plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", *self._kinds)
        wait_until(lambda: self.plane.client().get(f"{API}/gpuquotas")[0] == 200, "GPUQuotas are not served")
        return self

    def __exit__(self, *_: object) -> None:
        if self.controller is not None:
            self.stop_controller()
        # With their kinds go quotas and ledgers, so that the next version finds what it would find in a new cluster.
        self.plane.kubectl("delete", "crd", *self._kinds)
        self.plane.kubectl("delete", "configmap", "--all", "-n", NAMESPACE)

    def start_controller(self, *arguments: str) -> Command:
        """Start it and return once it is ready."""
        path = self.plane.account_kubeconfig(NAMESPACE, "gpu-admission-controller")
        common = ("--namespace", NAMESPACE, "--config", str(self._policy))
        name = f"controller-{next(_numbers)}"
        self.controller = Command(self.plane, name, *common, *arguments, source=self.version.source)
        self.controller.kubeconfig = path
        self.controller.start()
        return self.controller

    def stop_controller(self) -> None:
        assert self.controller is not None
        self.plane.processes.terminate(self.controller.name, grace=10)
        self.controller = None

    @contextmanager
    def serving(self, replicas: int) -> Iterator[Replicas]:
        """Have so many replicas called for the length of the block."""
        kubeconfig = self.plane.account_kubeconfig(NAMESPACE, "gpu-admission-webhook")
        with Replicas(
            self.plane,
            replicas,
            config=self._policy,
            arguments=("--kubeconfig", kubeconfig),
            source=self.version.source,
            installation=NAMESPACE,
        ) as running:
            running.register()
            try:
                yield running
            finally:
                uninstall(self.plane)

    def set_quota(self, namespace: str, gpus: int) -> None:
        """Give the namespace a quota of so many GPUs, or change that of its quota."""
        hard = {"gpus": str(gpus), "classes": {"nvidia-a100-80gb": str(ROOM)}}
        body = {"apiVersion": "gpu-admission.dev/v1alpha1", "kind": "GPUQuota", "spec": {"hard": hard}}
        collection = f"{API}/namespaces/{namespace}/gpuquotas"
        client = self.plane.client()
        status, answer = client.post(collection, body | {"metadata": {"name": "default"}})
        if status == 409:
            status, answer = client.patch(f"{collection}/default", {"spec": {"hard": hard}})
        if status >= 300:
            raise RuntimeError(f"{namespace}: no quota: {answer}")

    @property
    def knows_teams(self) -> bool:
        """Whether the version has ClusterGPUQuotas."""
        return any(kind.startswith("clustergpuquotas.") for kind in self._kinds)

    def set_team(self, name: str, namespaces: str, gpus: int) -> None:
        """Give the namespaces that match a quota of so many GPUs together, or change that of their quota."""
        hard = {"gpus": str(gpus), "classes": {"nvidia-a100-80gb": str(ROOM)}}
        body = {
            "apiVersion": "gpu-admission.dev/v1alpha1",
            "kind": "ClusterGPUQuota",
            "metadata": {"name": name},
            "spec": {"namespaces": {"names": [namespaces]}, "hard": hard},
        }
        client = self.plane.client()
        status, answer = client.post(f"{API}/clustergpuquotas", body)
        if status == 409:
            status, answer = client.patch(f"{API}/clustergpuquotas/{name}", {"spec": {"hard": hard}})
        if status >= 300:
            raise RuntimeError(f"{name}: no quota of a team: {answer}")

    def team_ledgers(self, name: str) -> dict[str, Ledger]:
        """Return those in the object of the team, by namespace; none without it."""
        status, answer = self.plane.client().get(f"{LEDGERS}/{TEAM_PREFIX}{name}")
        return self._found(answer) if status == 200 else {}

    def await_team(self, name: str, namespaces: int) -> None:
        """Return once the team has so many namespaces, no pods, and nothing in flight."""

        def settled() -> bool:
            ledgers = self.team_ledgers(name).values()
            return len(ledgers) == namespaces and all(ledger.settled(0) for ledger in ledgers)

        wait_until(settled, f"team {name} has not {namespaces} namespaces without GPUs")

    def ledger(self, namespace: str) -> Ledger:
        client, name = self.plane.client(), namespace
        status, answer = client.get(f"{LEDGERS}/{name}")
        if status == 200 and (place := json.loads(answer["ledger"]).get("movedTo")):
            status, answer = client.get(f"{LEDGERS}/{place}")
        found = self._found(answer) if status == 200 else {}
        return found.get(namespace, Ledger(None, in_flight=False))

    def ledgers(self) -> dict[str, Ledger]:
        """Return all by namespace, without those that are moving into a team or out of it."""
        found: dict[str, Ledger] = {}
        for item in self.plane.client().get(LEDGERS)[1].get("items", []):
            found |= self._found(item)
        return found

    def _found(self, item: Mapping[str, Any]) -> dict[str, Ledger]:
        """Return the ledgers that an object has by namespace: its own, none if that moved, or those of a team."""
        name, text = item["metadata"]["name"], item["ledger"]
        ledger = json.loads(text)
        if name.startswith(TEAM_PREFIX):
            team = name.removeprefix(TEAM_PREFIX)
            states = {each: self._state(found) for each, found in ledger.get("ledgers", {}).items()}
            return {each: state._replace(team=team) for each, state in states.items()}
        return {} if ledger.get("movedTo") else {name: self._state(ledger)._replace(size=len(text))}

    def _state(self, ledger: Mapping[str, Any]) -> Ledger:
        used = ledger.get("used")
        counted = None if used is None else {name: int(amount) for name, amount in used.items()}
        in_flight, waiting = bool(ledger.get("reservations")), ledger.get("waiting", 0)
        return Ledger(counted, in_flight, waiting)

    def await_settled(self, namespace: str, gpus: int) -> None:
        """Return once the quota counts so many GPUs, and nothing is in flight."""
        wait_until(lambda: self.ledger(namespace).settled(gpus), f"{namespace} is not at {gpus} GPUs")


def wait_until(check: Any, otherwise: str, *, seconds: float = WITHIN, pause: float = 0.05) -> None:
    """Return once `check()` is true; RuntimeError: it never is."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise}, for {seconds} s")
        time.sleep(pause)
