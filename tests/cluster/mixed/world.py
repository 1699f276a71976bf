"""A cluster in which everything goes on at once: tenants, administrators who change quotas, and faults.

Two teams and namespaces without one; in some pods wait in line, in others they are denied. The controllers of Kubernetes make the
pods of Jobs and Deployments. Nothing runs them: they hold their quota until a tenant ends them.
"""

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import urllib3
import yaml

from tests.builders import JSON
from tests.cluster.availability.test_controllers import is_leader
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Command, eventually, published_catalogues
from tests.cluster.mixed.lines import Denial
from tests.cluster.mixed.recording import Recording
from tests.cluster.mixed.watched import DIE
from tests.cluster.quota import history
from tests.cluster.quota.quotas import gpu_quota
from tests.cluster.quota.teams import LABEL, TEAMS, team_document
from tests.cluster.waiting.gangs import job
from tests.cluster.waiting.line import POLICY, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.client import Client, accepted
from tests.controlplane.gpuquota import INSTALLATION, Namespace, install_quota_kind
from tests.controlplane.replicas import Replicas
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.documents import API_VERSION
from webhook.quota.documents import quota_path

BUDGET = {"gpuHours": 100_000}
WITHOUT = {"preferReplacements": False}
POLICIES = f"/apis/{API_VERSION}/gpupolicies"
_FOR_TEAM = re.compile(r"of other namespaces in line for ClusterGPUQuota (\S+) must start first")


@dataclass(frozen=True)
class Kind:
    """What a namespace is: its GPUQuota (None: it has none), its team, and what happens in it."""

    quota: JSON | None
    team: str = ""
    queues: bool = True
    deployments: int = 0


KINDS = {
    "strict": Kind({"hard": {"gpus": 8}, "queue": WITHOUT}),
    "best": Kind({"hard": {"gpus": 8}, "queue": {**WITHOUT, "order": "BestEffortFIFO"}}),
    "replacing": Kind({"hard": {"gpus": 5}, "budget": BUDGET}, deployments=3),
    "denying": Kind({"hard": {"gpus": 6}}, queues=False),
    "remade": Kind({"hard": {"gpus": 6}, "queue": WITHOUT}),
    "ruled": Kind({"hard": {"gpus": 6}, "queue": WITHOUT}),
    "x-free": Kind(None, "x"),
    "x-own": Kind({"hard": {"gpus": 8}, "queue": {**WITHOUT, "order": "BestEffortFIFO"}, "budget": BUDGET}, "x"),
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
PAUSE = 4.0
"""Seconds between two faults, so that a gang is whole in between."""


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
        running = [pod for pod in pods if not _waits(pod)]
        waiting = [pod for pod in pods if _waits(pod)]
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
            if not any(map(_waits, members)):
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
        self.said[f"{status} {re.sub('[0-9]+', 'N', message.partition('[gpu-quota]')[2] or message)[:90]}"] += 1
        return status, answer


def _gpus(gpus: int) -> JSON:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return {"containers": [container], "tolerations": tolerations, "automountServiceAccountToken": False}


def _waits(pod: Any) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _owner(pod: Any) -> str:
    return next((str(each["uid"]) for each in pod["metadata"].get("ownerReferences", ())), "")


@dataclass
class World:
    plane: ControlPlane
    replicas: Replicas
    controllers: list[Command]
    tenants: dict[str, Tenant]
    recording: Recording
    faults: list[tuple[float, float, str]] = field(default_factory=list)
    """When a fault began and ended, in seconds since 1970."""
    changes: list[tuple[float, str]] = field(default_factory=list)

    @property
    def client(self) -> Client:
        return self.plane.client()

    @contextmanager
    def busy(self, seconds: float, *, faults: bool = True, changes: bool = True) -> Iterator[None]:
        """Have everything go on for so long; the block runs beside it. At the end all processes are there, and nothing changes."""
        stopping = threading.Event()
        works: list[Callable[[threading.Event], None]] = [each.run for each in self.tenants.values()]
        works += [self._change] * changes
        threads = [threading.Thread(target=work, args=(stopping,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        try:
            yield
            while time.monotonic() < until:
                if faults:
                    for fault in FAULTS:
                        if time.monotonic() < until:
                            self._have(fault)
                            time.sleep(PAUSE)
                else:
                    time.sleep(1.0)
        finally:
            stopping.set()
            for thread in threads:
                thread.join(60)
            self._calm()

    def _have(self, fault: "Fault") -> None:
        began = time.time()
        fault(self)
        assert eventually(lambda: self._leader() is not None, seconds=60), "somebody leads"
        self.faults.append((began, time.time(), fault.__name__))

    def _leader(self) -> Command | None:
        for each in self.controllers:
            with suppress(urllib3.exceptions.HTTPError):
                if each.name in self.plane.pids and is_leader(each):
                    return each
        return None

    def leader(self) -> Command:
        leader = eventually(self._leader, seconds=60)
        assert leader is not None
        return leader

    def other(self, controller: Command) -> Command:
        return next(each for each in self.controllers if each is not controller)

    def policy(self, option: JSON) -> None:
        """Say how the rule is in namespace `ruled`."""
        spec = {"priority": 20, "match": {"namespaces": ["ruled"]}, "rules": {"gpu-quota": option}}
        accepted(self.client.apply(_policy("ruled", spec))[:2])

    def quota(self, name: str, **more: Any) -> JSON:
        quota = KINDS[name].quota
        assert quota is not None
        return gpu_quota(name, **{**quota, **more})

    def remake(self) -> None:
        document = yaml.safe_dump(self.quota("remade"))
        self.plane.kubectl("replace", "--force", "-f", "-", stdin=document)

    def _change(self, stopping: threading.Event) -> None:
        draw = random.Random(5)  # noqa: S311 - the same choices in every run
        while True:
            for change in CHANGES:
                if stopping.wait(draw.uniform(1.0, 3.0)):
                    return
                self.changes.append((time.time(), change.__name__))
                with suppress(urllib3.exceptions.HTTPError, AssertionError, OSError):
                    change(self, draw)

    def drain(self, seconds: float) -> list[str]:
        """End what runs until nobody waits. Return who still waits after so many seconds."""
        for tenant in self.tenants.values():
            tenant.delete("apps/v1", "deployments")
        until = time.monotonic() + seconds
        while True:
            waiting = []
            for tenant in self.tenants.values():
                pods = tenant.pods()
                waiting += [f"{tenant.name}/{pod['metadata']['name']}" for pod in pods if _waits(pod)]
                for pod in pods:
                    if not _waits(pod):
                        self._end_whole(tenant, pod)
            if not waiting or time.monotonic() > until:
                return waiting
            time.sleep(0.5)

    @staticmethod
    def _end_whole(tenant: Tenant, pod: Any) -> None:
        owner = next(iter(pod["metadata"].get("ownerReferences", ())), None)
        if owner is None or owner["kind"] == "Job":
            tenant.end(pod, random.Random(1))  # noqa: S311

    def delete_all(self) -> None:
        for tenant in self.tenants.values():
            tenant.delete("batch/v1", "jobs")
            self.client.delete(tenant.path("pods"), {"gracePeriodSeconds": 0})

    def left(self) -> list[str]:
        """Return what is not zero yet: stored pods, ledgers, and statuses of quotas."""
        found = []
        for name, tenant in self.tenants.items():
            if pods := self.client.get(tenant.path("pods"))[1]["items"]:
                found.append(f"{len(pods)} pods of {name}")
            stored = tenant.store.read(name, 10)
            if stored is not None:
                ledger = stored.ledger
                used = (ledger.used or {}).get("gpus", 0)
                if used or len(ledger.reservations) or ledger.all_waiting:
                    found.append(f"ledger of {name}: {used}, {ledger.all_waiting}, {ledger.reservations.text}")
            if tenant.kind.quota:
                found += _not_zero(name, self.client.get(quota_path(name))[1].get("status", {}))
        for name in TEAM_SPECS:
            found += _not_zero(name, self.client.get(f"{TEAMS}/{name}")[1].get("status", {}))
        return found

    def _calm(self) -> None:
        """Put everything back."""
        for replica in self.replicas.each:
            if replica.name not in self.plane.pids:
                replica.start()
        for command in self.controllers:
            if command.name not in self.plane.pids:
                command.start()
        self.leader()
        self.policy(QUEUE)
        for name, kind in KINDS.items():
            if kind.quota and self.client.get(quota_path(name))[0] == 404:
                self.tenants[name].quota(**_spec(name))
            elif kind.quota:
                self.tenants[name].change_quota({"hard": kind.quota["hard"]})
        for team, spec in TEAM_SPECS.items():
            accepted(self.client.patch(f"{TEAMS}/{team}", {"spec": {"hard": spec["hard"]}}))
        label(self.client, "moving", KINDS["moving"].team)


def _not_zero(name: str, status: JSON) -> Iterator[str]:
    for key in ("used", "reserved"):
        if any(str(amount) != "0" for amount in status.get(key, {}).values()):
            yield f"status of {name}: {key} {status[key]}"
    if status.get("waiting", {}).get("pods"):
        yield f"status of {name}: waiting {status['waiting']}"


def _spec(name: str) -> JSON:
    quota = KINDS[name].quota
    assert quota is not None
    return dict(quota)


def label(client: Client, namespace: str, team: str | None) -> None:
    accepted(client.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LABEL: team}}}))


QUEUE: JSON = {"mode": "enforce", "onExceeded": "Queue"}


def _policy(name: str, spec: JSON) -> JSON:
    return {"apiVersion": API_VERSION, "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}


Fault = Callable[[World], None]


def kill_the_leader(world: World) -> None:
    """The other one takes over; the first one is back, and the second one is killed, so that somebody watches at every moment."""
    leader = world.leader()
    other = world.other(leader)
    world.plane.processes.kill(leader.name)
    time.sleep(3.0)
    leader.start()
    assert eventually(lambda: is_leader(other), seconds=60)
    time.sleep(2.0)
    world.plane.processes.kill(other.name)
    time.sleep(1.0)
    other.start()


def kill_the_leader_as_it_lifts(world: World) -> None:
    """It dies once it has begun to remove a gate."""
    leader = world.leader()
    (world.plane.processes.folder / DIE).write_text(str(leader.pid))
    assert eventually(lambda: leader.name not in world.plane.pids, seconds=20)
    (world.plane.processes.folder / DIE).unlink()
    assert eventually(lambda: is_leader(world.other(leader)), seconds=60)
    leader.start()


def kill_a_replica(world: World) -> None:
    for replica in world.replicas.each:
        replica.kill()
        time.sleep(1.0)
        replica.start()


def restart_the_api_server(world: World) -> None:
    world.plane.kill("kube-apiserver")
    world.plane.restart("kube-apiserver")


def stop_the_leader(world: World) -> None:
    """For longer than its Lease."""
    leader = world.leader()
    os.kill(leader.pid, signal.SIGSTOP)
    time.sleep(7.0)
    os.kill(leader.pid, signal.SIGCONT)


def stop_a_replica(world: World) -> None:
    replica = world.replicas.each[0]
    pids = replica.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


FAULTS: list[Fault] = [
    kill_the_leader,
    kill_the_leader_as_it_lifts,
    kill_a_replica,
    stop_the_leader,
    restart_the_api_server,
    stop_a_replica,
]

Change = Callable[[World, random.Random], None]


def lower_or_raise(world: World, draw: random.Random) -> None:
    name = draw.choice(["strict", "best", "denying", "x-own"])
    world.tenants[name].change_quota({"hard": {"gpus": draw.choice([4, 6, 8])}})


def lower_or_raise_a_team(world: World, draw: random.Random) -> None:
    name = draw.choice(["x", "y"])
    accepted(world.client.patch(f"{TEAMS}/{name}", {"spec": {"hard": {"gpus": draw.choice([7, 10, 12])}}}))


def replace_a_quota(world: World, _: random.Random) -> None:
    world.remake()


def switch_the_rule(world: World, draw: random.Random) -> None:
    world.policy(draw.choice([QUEUE, {"mode": "enforce", "onExceeded": "Deny"}, {"mode": "warn"}]))


def move_a_namespace(world: World, draw: random.Random) -> None:
    label(world.client, "moving", draw.choice(["x", "y", None]))


CHANGES: list[Change] = [
    lower_or_raise,
    replace_a_quota,
    lower_or_raise_a_team,
    move_a_namespace,
    switch_the_rule,
]


@contextmanager
def world(every: float, names: tuple[str, ...] = tuple(KINDS), replicas: int = 2) -> Iterator[World]:
    """Start a cluster with these namespaces, whose tenants act every so many seconds; all quotas are in force."""
    with ExitStack() as started:
        plane = started.enter_context(ControlPlane(controllers=True, apiserver_args=history.READABLE))
        recording, client = Recording(plane), plane.client()
        install_quota_kind(client)
        install_configuration_kinds(plane)
        let_account_do_all(plane)
        started.enter_context(published_catalogues(plane))
        webhooks = started.enter_context(
            Replicas(plane, replicas, arguments=("--kubeconfig", plane.kubeconfig()))
        )
        webhooks.register()
        accepted(client.apply(yaml.safe_load(POLICY))[:2])
        denying = [name for name, kind in KINDS.items() if not kind.queues]
        deny = {"priority": 10, "match": {"namespaces": denying}, "rules": {"gpu-quota": {"mode": "enforce"}}}
        accepted(client.apply(_policy("denying", deny))[:2])
        controllers = [
            Command(plane, f"controller-{number}", program=("tests.cluster.mixed.watched",))
            for number in range(2)
        ]
        for command in controllers:
            command.kubeconfig = plane.account_kubeconfig(INSTALLATION, CONTROLLER)
            command.start()
        tenants = {name: Tenant(plane, name, KINDS[name], every) for name in names}
        found = World(plane, webhooks, controllers, tenants, recording)
        found.policy(QUEUE)
        _grant(found)
        yield found


def _grant(world: World) -> None:
    for name, spec in TEAM_SPECS.items():
        guaranteed = {each: of for each, of in spec["guaranteed"].items() if each in world.tenants}
        accepted(world.client.post(TEAMS, team_document(name, spec["hard"], guaranteed=guaranteed)))
    for name, tenant in world.tenants.items():
        if tenant.kind.team:
            label(world.client, name, tenant.kind.team)
        if tenant.kind.quota:
            tenant.quota(**_spec(name))
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in world.tenants]
    assert eventually(lambda: all(world.client.get(path)[0] == 200 for path in accounts), seconds=60)
    for tenant in world.tenants.values():
        if tenant.kind.quota or tenant.kind.team:
            assert eventually(lambda each=tenant: _counted(each), seconds=60), tenant.name  # type: ignore[misc]
        tenant.deploy()


def _counted(tenant: Tenant) -> bool:
    found = tenant.store.read(tenant.name, 10)
    return found is not None and found.ledger.used is not None
