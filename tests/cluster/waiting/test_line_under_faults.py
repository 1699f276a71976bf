"""Neither is a quota exceeded nor the line passed, whatever is killed or changed while hundreds of pods wait.

Three replicas and two controllers. Users take off gates, add them, apply their manifests again, and change what waits. Pods end,
so that others start. Two referees that share no code with us replay every revision of etcd. GPU_ADMISSION_ALL_FAULTS=1 runs the
faults that take longer.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Self

import pytest
import urllib3
import yaml

from policies.quota.waiting import GATE
from tests.all_faults import longer
from tests.cluster.controllers import Command, eventually
from tests.cluster.quota import history
from tests.cluster.quota.burst import A100, HARD, Burst, Churn, cut, requests
from tests.cluster.quota.quotas import CLAIMS, PODS, gpu_pod, gpu_quota
from tests.cluster.quota.referee import BUILT_IN, Cost, Weights, cost, fits, replay, total, waits
from tests.cluster.waiting.line import POLICY, let_account_do_all
from tests.cluster.waiting.machines import HALF_T4
from tests.cluster.waiting.order import is_in_line, line
from tests.controlplane import ControlPlane
from tests.controlplane.client import APPLY_PATCH, JSON_PATCH
from tests.controlplane.gpuquota import INSTALLATION, Namespace
from tests.controlplane.replicas import Replicas
from webhook.cluster.objects import CATALOGUES_CONFIG_MAP, CONTROLLER
from webhook.configuration.documents import API_VERSION

LOWERED = "40"
MANY, SOME, FEW = 500, 250, 100
PAUSED_SECONDS = 3.0
EMPTY_WITHIN = 240.0
"""Seconds until all have started. A reservation whose pod never comes is held for 40 s, and a take-over needs 5 s."""
GATED, OTHER_GATE = {"name": GATE}, {"name": "example.com/later"}
log = logging.getLogger(__name__)


class Users:
    """Tenants who create pods of their own and do to those that wait what they can, until the end of the block."""

    def __init__(self, team: Namespace) -> None:
        self._team = team
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(seed,), daemon=True) for seed in range(3)]
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, seed: int) -> None:
        draw, number = random.Random(seed), 0  # noqa: S311 - the same choices in every run
        acts = [self._take_off, self._remove, self._apply_again, self._annotate, self._tighten, self._delete]
        pods: list[Any] = []
        while not self._stopping.wait(0.1):
            number += 1
            try:
                if number % 3 == 0:
                    self._create(f"own-{seed}-{number}", draw)
                    continue
                if number % 3 == 1:  # some of them have changed when the second of two acts comes
                    pods = self._team.client.get(self._team.path("pods"), {"resourceVersion": "0"})[1][
                        "items"
                    ]
                gated = [pod for pod in pods if pod["spec"].get("schedulingGates")]
                if gated:
                    act = draw.choice(acts)
                    self.done[f"{act.__name__.lstrip('_')} {act(draw.choice(gated))}"] += 1
            except (urllib3.exceptions.HTTPError, TypeError, KeyError):
                continue  # the API server is away

    def _create(self, name: str, draw: random.Random) -> None:
        gates = draw.choice([[], [GATED], [OTHER_GATE], [GATED, OTHER_GATE], [OTHER_GATE, GATED]])
        pod = gpu_pod(name, draw.randint(1, 2), schedulingGates=gates)
        self._apply({**pod, "apiVersion": "v1", "kind": "Pod"})

    def _apply(self, body: Any) -> int:
        query = {"fieldManager": "user", "force": "true"}
        path = self._team.path("pods", body["metadata"]["name"])
        return self._team.client.patch(path, body, query, content_type=APPLY_PATCH)[0]

    def _patch(self, pod: Any, body: Any) -> int:
        return self._team.client.patch(self._team.path("pods", pod["metadata"]["name"]), body)[0]

    def _take_off(self, pod: Any) -> int:
        return self._patch(pod, {"spec": {"schedulingGates": []}})

    def _remove(self, pod: Any) -> int:
        """Remove one gate, perhaps not ours."""
        index = len(pod["spec"]["schedulingGates"]) - 1
        body = [{"op": "remove", "path": f"/spec/schedulingGates/{index}"}]
        path = self._team.path("pods", pod["metadata"]["name"])
        return self._team.client.patch(path, body, content_type=JSON_PATCH)[0]

    def _apply_again(self, pod: Any) -> int:
        """Apply the manifest again, which says nothing of gates."""
        names, spec = ("name", "image", "resources"), pod["spec"]
        containers = [{name: each[name] for name in names} for each in spec["containers"]]
        return self._apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod["metadata"]["name"]},
                "spec": {"containers": containers, "nodeSelector": spec.get("nodeSelector", {})},
            }
        )

    def _annotate(self, pod: Any) -> int:
        return self._patch(pod, {"metadata": {"annotations": {"note": str(time.monotonic())}}})

    def _tighten(self, pod: Any) -> int:
        return self._patch(pod, {"spec": {"nodeSelector": {"accelerator": A100}}})

    def _delete(self, pod: Any) -> int:
        path = self._team.path("pods", pod["metadata"]["name"])
        return self._team.client.delete(path, {"gracePeriodSeconds": 0})[0]


@dataclass
class Scene:
    plane: ControlPlane
    replicas: Replicas
    controllers: list[Command]
    objects: int
    team: Namespace
    burst: Burst
    versions: dict[str, Weights] = field(default_factory=dict)
    """What the referee knows of each catalogue version of the ledger."""

    def line_up(self, number: int) -> None:
        """Wait until so many wait in line."""
        assert eventually(lambda: self.team.ledger_object().all_waiting >= number, seconds=90), (
            self.burst.troubles
        )

    def create_quota(self) -> None:
        self.team.quota(HARD, unclassifiedPods="TotalOnly", queue={"maxWaiting": 10 * self.objects})
        self.await_force()

    def await_force(self) -> None:
        assert eventually(self.team.in_force, seconds=90)

    def grant(self, gpus: str) -> None:
        self.team.change_quota({"hard": {**HARD, "gpus": gpus}})
        self.await_force()

    def pods(self) -> list[Any]:
        return list(self.team.client.get(self.team.path("pods"))[1]["items"])

    @property
    def held(self) -> Cost:
        client, name, now = self.team.client, self.team.name, self.weights
        paths = PODS.format(name), CLAIMS.format(name)
        return total(cost(each, now) for path in paths for each in client.get(path)[1]["items"])

    @property
    def weights(self) -> Weights:
        return self.versions.get(str(self.team.ledger_object().class_catalogue), BUILT_IN)

    def is_settled(self) -> bool:
        """Whether nothing is in flight, and the first pod in line does not fit."""
        ledger = self.team.ledger_object()
        in_line = [
            pod for pod in self.pods() if is_in_line(pod) and pod["spec"]["schedulingGates"] == [GATED]
        ]
        first = min(
            in_line,
            key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"]),
            default=None,
        )
        is_idle = not ledger.reservations and ledger.waiting >= len(in_line)
        return is_idle and (first is None or not self._would_fit(first, ledger.hard))

    def _would_fit(self, pod: Any, hard: Cost) -> bool:
        ungated = {"spec": {**pod["spec"], "schedulingGates": None}}
        return fits(cost(ungated, self.weights), self.held, hard)

    def empty(self) -> bool:
        """End what runs, and take off the other gates; return whether nothing waits any more."""
        pods = self.pods()
        for pod in pods:
            name = pod["metadata"]["name"]
            if not is_in_line(pod):
                self.team.client.delete(self.team.path("pods", name), {"gracePeriodSeconds": 0})
            elif pod["spec"]["schedulingGates"] != [GATED]:
                self.team.client.patch(self.team.path("pods", name), {"spec": {"schedulingGates": [GATED]}})
        time.sleep(0.2)
        return not any(map(waits, pods))


Fault = Callable[[Scene], None]


def nothing(scene: Scene) -> None:
    scene.line_up(scene.objects // 5)


def kill_the_leader(scene: Scene) -> None:
    scene.line_up(100)
    first, second = scene.controllers
    scene.plane.processes.kill(first.name)
    time.sleep(5)
    first.start()
    time.sleep(5)
    scene.plane.processes.kill(second.name)
    second.start()


def restart_the_api_server(scene: Scene) -> None:
    scene.line_up(scene.objects * 2 // 5)
    scene.plane.kill("kube-apiserver")
    scene.plane.restart("kube-apiserver")


def lower_and_raise(scene: Scene) -> None:
    for _ in range(3):
        scene.line_up(50)
        scene.grant(LOWERED)
        time.sleep(2)
        scene.grant(HARD["gpus"])


def create_the_quota(scene: Scene) -> None:
    scene.create_quota()
    scene.line_up(50)


def replace_the_quota(scene: Scene) -> None:
    scene.line_up(100)
    document = yaml.safe_dump(
        gpu_quota(
            scene.team.name,
            hard=HARD,
            unclassifiedPods="TotalOnly",
            queue={"maxWaiting": 10 * scene.objects},
        )
    )
    scene.plane.kubectl("replace", "--force", "-f", "-", stdin=document)
    scene.await_force()


def change_the_catalogue(scene: Scene) -> None:
    scene.line_up(100)
    scene.versions[str(scene.team.ledger_object().class_catalogue)] = BUILT_IN
    classes = f"/apis/{API_VERSION}/gpuclasses"
    move(scene, lambda: scene.plane.client().post(classes, HALF_T4), Weights(t4=Fraction(1, 2)))
    move(scene, lambda: scene.plane.client().delete(f"{classes}/nvidia-t4"), BUILT_IN)


def move(scene: Scene, change: Callable[[], tuple[int, Any]], weights: Weights) -> None:
    """Change the catalogue, and wait until the ledger is counted by it."""
    before = scene.team.ledger_object().class_catalogue
    assert change()[0] in {200, 201}
    assert eventually(lambda: scene.team.ledger_object().class_catalogue != before, seconds=120)
    scene.versions[str(scene.team.ledger_object().class_catalogue)] = weights
    time.sleep(5)


def break_replicas(scene: Scene) -> None:
    first, second, _ = scene.replicas.each
    scene.line_up(100)
    first.kill()
    time.sleep(3)
    first.start()
    second.pause(PAUSED_SECONDS)
    for replica in scene.replicas.each:
        replica.kill()
    time.sleep(3)
    scene.replicas.start()


def everything(scene: Scene) -> None:
    break_replicas(scene)
    restart_the_api_server(scene)
    lower_and_raise(scene)
    kill_the_leader(scene)


@pytest.fixture(scope="module")
def readable(readable: ControlPlane) -> ControlPlane:
    """Return the control plane of the shared fixture, with the ConfigMap of the chart and the account's rights."""
    let_account_do_all(readable)
    catalogues = {"metadata": {"name": CATALOGUES_CONFIG_MAP}}
    assert readable.client().post("/api/v1/namespaces/default/configmaps", catalogues)[0] == 201
    return readable


@pytest.fixture(scope="module")
def replicas(readable: ControlPlane) -> Iterator[Replicas]:
    with Replicas(readable, 3, arguments=("--kubeconfig", readable.kubeconfig())) as three:
        three.register()
        assert readable.client().apply(yaml.safe_load(POLICY)).status == 201
        yield three


@pytest.fixture(scope="module")
def controllers(readable: ControlPlane, replicas: Replicas) -> Iterator[list[Command]]:  # noqa: ARG001 - its CRD
    with ExitStack() as started:
        both = [Command(readable, f"controller-{number}") for number in range(2)]
        for command in both:
            command.kubeconfig = readable.account_kubeconfig(INSTALLATION, CONTROLLER)
            command.start()
            started.callback(readable.processes.kill, command.name)
        yield both


@pytest.fixture
def scene(
    readable: ControlPlane, replicas: Replicas, controllers: list[Command], objects: int
) -> Iterator[Scene]:
    team = Namespace(readable)
    burst = Burst(readable.client(), requests(team.name, objects, seed=len(team.name)))
    yield Scene(readable, replicas, controllers, objects, team, burst)
    replicas.start()
    for command in controllers:
        if command.name not in readable.pids:
            command.start()


slow = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "objects"),
    [
        pytest.param(nothing, FEW, id="none-of-few", marks=[slow, longer]),
        pytest.param(nothing, MANY, id="none", marks=[slow, longer]),
        pytest.param(kill_the_leader, MANY, id="controllers-killed", marks=[slow, longer]),
        pytest.param(lower_and_raise, MANY, id="quota-lowered", marks=[slow, longer]),
        pytest.param(create_the_quota, MANY, id="quota-created", marks=[slow, longer]),
        pytest.param(replace_the_quota, MANY, id="quota-replaced", marks=[slow, longer]),
        pytest.param(change_the_catalogue, MANY, id="catalogue-changed", marks=[slow, longer]),
        pytest.param(restart_the_api_server, SOME, id="api-server-restarted", marks=[slow, cut]),
        pytest.param(break_replicas, MANY, id="replicas-killed", marks=[slow, longer, cut]),
        pytest.param(everything, 2 * MANY, id="all-in-turn", marks=[slow, longer, cut]),
    ],
)
def test_nothing_is_over_and_nobody_passes(scene: Scene, fault: Fault) -> None:
    since = history.revision(scene.plane)
    if fault is create_the_quota:
        scene.burst.per_second = 30
    else:
        scene.create_quota()
    churn = Churn(scene.plane.client(), scene.burst, every=0.3)  # slowly enough for a line on a busy machine
    with scene.burst, churn, Users(scene.team) as users:
        fault(scene)
        scene.burst.per_second = None
        assert eventually(lambda: scene.burst.answered == scene.objects, seconds=240), scene.burst.troubles
        time.sleep(5)
    assert eventually(scene.is_settled, seconds=90), scene.team.ledger_object()
    assert eventually(scene.empty, seconds=EMPTY_WITHIN), scene.team.ledger_object()
    assert eventually(scene.is_settled, seconds=90), scene.team.ledger_object()
    events = list(history.events(scene.plane, since))
    seen = replay(scene.team.name, events, lambda row: scene.versions.get(row["classCatalogue"], BUILT_IN))
    order = line(scene.team.name, events)
    log.info("%d held, %d waited, %s, %s", order.held, order.longest, users.done, scene.burst.troubles)
    assert (seen.over, order.passed) == ([], [])
    assert scene.burst.undecided == []
    assert min(order.held, order.longest) > scene.objects / 3
    assert {"take_off 200", "apply_again 200"} <= users.done.keys(), "the gate is put back"
    used = scene.team.ledger_object().used or {}
    held = scene.held
    assert used == {key: held.get(key, 0) for key in used}
    if fault not in {create_the_quota, replace_the_quota}:
        assert seen.unmapped_resources == []
