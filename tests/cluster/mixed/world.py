"""A cluster in which everything goes on at once: tenants, administrators who change quotas, and faults.

Two teams and namespaces without one; in some pods wait in line, in others they are denied. The controllers of Kubernetes make the
pods of Jobs and Deployments. Nothing runs them: they hold their quota until a tenant ends them.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from subprocess import CalledProcessError
from typing import Any

import urllib3
import yaml

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from tests.builders import JSON
from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Command, eventually, is_leader, published_catalogues
from tests.cluster.mixed.recording import Recording
from tests.cluster.mixed.tenants import BUDGETED, KINDS, TEAM_SPECS, Tenant, waits
from tests.cluster.pulse import Writes, pulse
from tests.cluster.quota import history
from tests.cluster.quota.quotas import gpu_quota
from tests.cluster.quota.teams import LABEL, TEAMS, team_document
from tests.cluster.waiting.line import POLICY, let_account_do_all
from tests.controlplane import ControlPlane
from tests.controlplane.client import Client, accepted
from tests.controlplane.gpuquota import INSTALLATION, install_quota_kind
from tests.controlplane.replicas import Replicas
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.documents import API_VERSION
from webhook.quota.documents import quota_path

PAUSE = 4.0
"""Seconds between two faults, so that a gang is whole in between."""
QUEUE: JSON = {"mode": "enforce", "onExceeded": "Queue"}

Fault = Callable[["World"], None]
Change = Callable[["World", random.Random], None]


@dataclass
class World:
    plane: ControlPlane
    replicas: Replicas
    controllers: list[Command]
    tenants: dict[str, Tenant]
    recording: Recording
    writes: Writes
    faults: list[tuple[float, float, str]] = field(default_factory=list)
    """When a fault began and ended, in seconds since 1970."""

    @property
    def client(self) -> Client:
        return self.plane.client()

    def busy(self, seconds: float, faults: Sequence[Fault], changes: Sequence[Change]) -> None:
        """Have everything go on for so long. At the end all processes are there, and nothing changes."""
        stopping = threading.Event()
        works: list[Callable[[threading.Event], None]] = [each.run for each in self.tenants.values()]
        works.append(partial(self._change, changes))
        threads = [threading.Thread(target=work, args=(stopping,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        for fault in cycle(faults or [None]):
            if time.monotonic() > until:
                break
            if fault is not None:
                self._have(fault)
            time.sleep(PAUSE)
        stopping.set()
        for thread in threads:
            thread.join(60)
        self._calm()

    def _have(self, fault: Fault) -> None:
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

    def has_written_since(self, at: float) -> bool:
        """Whether all that was spent until then is in the ledgers."""
        spent = [_ledger(self.tenants[name]) for name in BUDGETED]
        return all(each and each.spending and each.spending.until > 1000 * at for each in spent)

    def other(self, controller: Command) -> Command:
        return next(each for each in self.controllers if each is not controller)

    def policy(self, option: JSON) -> None:
        """Say how the rule is in namespace `ruled`."""
        spec = {"priority": 20, "match": {"namespaces": ["ruled"]}, "rules": {"gpu-quota": option}}
        accepted(self.client.apply(_policy("ruled", spec))[:2])

    def remake(self) -> None:
        document = yaml.safe_dump(gpu_quota("remade", **KINDS["remade"].spec))
        self.plane.kubectl("replace", "--force", "-f", "-", stdin=document)

    def _change(self, changes: Sequence[Change], stopping: threading.Event) -> None:
        draw = random.Random(5)  # noqa: S311 - the same choices in every run
        for change in cycle(changes):
            if stopping.wait(draw.uniform(1.0, 3.0)):
                return
            with suppress(urllib3.exceptions.HTTPError, AssertionError, OSError, CalledProcessError):
                change(self, draw)  # the API server may be away

    def drain(self, seconds: float) -> list[str]:
        """End what runs until nobody waits. Return who still waits after so many seconds."""
        for tenant in self.tenants.values():
            tenant.delete("apps/v1", "deployments")
        until = time.monotonic() + seconds
        while True:
            waiting = []
            for tenant in self.tenants.values():
                pods = tenant.pods()
                waiting += [f"{tenant.name}/{pod['metadata']['name']}" for pod in pods if waits(pod)]
                for pod in pods:
                    if not waits(pod):
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
            ledger = _ledger(tenant)
            if ledger is None:
                found.append(f"no ledger of {name}")
            else:
                used = (ledger.used or {}).get("gpus", 0)
                if used or len(ledger.reservations) or ledger.all_waiting:
                    found.append(
                        f"ledger of {name}: {used}, {ledger.all_waiting}, {ledger.reservations.text}"
                    )
            if tenant.kind.quota:
                found += _not_zero(name, self.client.get(quota_path(name))[1].get("status", {}))
        for name in TEAM_SPECS:
            found += _not_zero(name, self.client.get(f"{TEAMS}/{name}")[1].get("status", {}))
        return found

    def _calm(self) -> None:
        """Put everything back."""
        self.replicas.start()
        for command in self.controllers:
            if command.name not in self.plane.pids:
                command.start()
        self.leader()
        self.policy(QUEUE)
        for name, kind in KINDS.items():
            if kind.quota and self.client.get(quota_path(name))[0] == 404:
                self.tenants[name].quota(**kind.spec)
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


def label(client: Client, namespace: str, team: str | None) -> None:
    accepted(client.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LABEL: team}}}))


def _policy(name: str, spec: JSON) -> JSON:
    return {"apiVersion": API_VERSION, "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}


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
        writes = started.enter_context(pulse(plane))
        found = World(plane, webhooks, controllers, tenants, recording, writes)
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
            tenant.quota(**tenant.kind.spec)
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in world.tenants]
    assert eventually(lambda: all(world.client.get(path)[0] == 200 for path in accounts), seconds=60)
    for tenant in world.tenants.values():
        if tenant.kind.quota or tenant.kind.team:
            assert eventually(lambda each=tenant: _counted(each), seconds=60), tenant.name  # type: ignore[misc]
        tenant.deploy()


def _ledger(tenant: Tenant) -> QuotaLedger | None:
    """Return the ledger of the namespace, None while it moves."""
    with suppress(LedgerError):
        found = tenant.store.read(tenant.name, 10)
        return found.ledger if found else None
    return None


def _counted(tenant: Tenant) -> bool:
    ledger = _ledger(tenant)
    return ledger is not None and ledger.used is not None
