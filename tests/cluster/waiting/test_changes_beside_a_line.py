"""What administrators change while pods of a team wait: a quota replaced at once, a GPUClass edited, the longest runtime lowered.

The referee replays every revision of etcd.
"""

import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import yaml

from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import Command, eventually, gpus, published_catalogues
from tests.cluster.quota import history
from tests.cluster.quota.burst import T4
from tests.cluster.quota.quotas import gpu_pod, gpu_quota, in_force
from tests.cluster.quota.referee import BUILT_IN, Weights
from tests.cluster.quota.team_referee import TeamReplay, replay_teams
from tests.cluster.waiting.gangs import create, delete_job, job, member
from tests.cluster.waiting.line import POLICY, Line, let_account_do_all
from tests.cluster.waiting.machines import HALF_T4
from tests.cluster.waiting.team import Team
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import INSTALLATION, install_quota_kind
from tests.controlplane.replicas import Replicas
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.documents import API_VERSION

HOUR = 3600
REPLACED = 5
"""Times that a quota is replaced."""
LOOKED = 1.5
"""Seconds for which nobody starts. Who starts by mistake does so within some tenths of a second."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def readable() -> Iterator[ControlPlane]:
    """Serve the API of a plane of its own, whose history can be read, with one replica and one controller."""
    with ControlPlane(apiserver_args=history.READABLE) as plane:
        install_quota_kind(plane.client())
        install_configuration_kinds(plane)
        let_account_do_all(plane)
        arguments = ("--kubeconfig", plane.kubeconfig())
        with published_catalogues(plane), Replicas(plane, 1, arguments=arguments) as replicas:
            replicas.register()
            apply(plane, POLICY)
            controller = Command(plane, "controller")
            controller.kubeconfig = plane.account_kubeconfig(INSTALLATION, CONTROLLER)
            controller.start()
            yield plane


def apply(plane: ControlPlane, document: str) -> None:
    accepted(plane.client().apply(yaml.safe_load(document))[:2])


def everybody_waits(lines: dict[str, Line], *names: str) -> bool:
    return all(line.waits(name) for line in lines.values() for name in names)


def seen(plane: ControlPlane, *lines: Line) -> TeamReplay:
    return replay_teams([line.name for line in lines], history.events(plane, 0))


@pytest.mark.parametrize(
    "is_in_team",
    [pytest.param(False, id="alone"), pytest.param(True, id="in-a-team", marks=pytest.mark.slow)],
)
def test_who_waits_waits_on_though_the_quota_is_replaced_at_once(
    readable: ControlPlane, is_in_team: bool
) -> None:
    line = Team(readable, 8, "a", "b").lines["a"] if is_in_team else Line(readable)
    in_force(line, {"gpus": "4"})
    for number in range(4):
        line.pod(f"holder-{number}")
    gang = member(create(readable, line, job("train", 2)))
    for name in ("gang-0", "gang-1"):
        line.pod(name, metadata=gang)
    time.sleep(1.1)  # a creationTimestamp has whole seconds
    singles = [f"pod-{number}" for number in range(3)]
    for name in singles:
        line.pod(name)
    document = yaml.safe_dump(gpu_quota(line.name, hard={"gpus": "4"}))
    for _ in range(REPLACED):
        assert eventually(line.in_force)
        readable.kubectl("replace", "--force", "-f", "-", stdin=document)
        time.sleep(LOOKED)
        assert [name for name in ("gang-0", "gang-1", *singles) if not line.waits(name)] == []
    found = seen(readable, line)
    assert (found.breaches, found.unmapped_resources) == ([], [])

    line.delete_pod("holder-0")
    line.delete_pod("holder-1")
    assert line.starts("gang-0", "gang-1")
    assert all(map(line.waits, singles))
    delete_job(readable, line, "train")  # one that still asks for a pod keeps its quota
    for name in ("holder-2", "holder-3", "gang-0"):
        line.delete_pod(name)
    assert line.starts(*singles)
    assert eventually(lambda: not line.ledger_object().all_waiting)


def test_a_class_that_is_edited_while_pods_of_a_team_wait(readable: ControlPlane) -> None:
    """Half as much for each card lets twice as many start. Once it is whole again, nobody starts before it fits."""
    client = readable.client()
    team = Team(readable, 4, "a", "b")
    lines, b = list(team.lines.values()), team.lines["b"]
    in_force(b, {"gpus": "3"})
    assert eventually(lambda: b.ledger_object().hard == {"gpus": Fraction(3)})
    names = [f"pod-{number}" for number in range(5)]
    for name in names:
        for line in lines:
            line.pod(name, nodeSelector={"accelerator": T4})
    assert started(lines, names) == 4
    versions = dict.fromkeys(catalogues(lines), BUILT_IN)

    classes = f"/apis/{API_VERSION}/gpuclasses"
    accepted(client.post(classes, HALF_T4))
    assert eventually(lambda: started(lines, names) == 8, seconds=60)
    versions |= {version: Weights(t4=Fraction(1, 2)) for version in catalogues(lines) - versions.keys()}
    assert len(versions) > 1, versions
    accepted(client.delete(f"{classes}/nvidia-t4"))
    assert eventually(lambda: sum(gpus(line) or 0 for line in lines) == 8, seconds=60)
    for line in lines:
        line.delete_pod(next(name for name in names if not line.waits(name)))
    time.sleep(LOOKED)
    assert started(lines, names) == 6, "6 of 4"
    for line in lines:
        for name in [name for name in stored(line, names) if not line.waits(name)]:
            line.delete_pod(name)
    assert eventually(lambda: not any(line.waits(name) for line in lines for name in stored(line, names)))
    found = replay_teams(
        [line.name for line in lines],
        history.events(readable, 0),
        lambda row: versions.get(row["classCatalogue"], BUILT_IN),
    )
    assert (found.breaches, found.unmapped_resources) == ([], [])


def stored(line: Line, names: list[str]) -> list[str]:
    return [name for name in names if line.client.get(line.path("pods", name))[0] == 200]


def started(lines: list[Line], names: list[str]) -> int:
    return sum(not line.waits(name) for line in lines for name in stored(line, names))


def catalogues(lines: list[Line]) -> set[str]:
    return {str(line.ledger_object().class_catalogue) for line in lines}


BOUNDED = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {{name: bounded}}
spec:
  priority: 10
  match: {{namespaces: ["{}-*"]}}
  rules:
    gpu-quota: {{mode: enforce, onExceeded: Queue}}
    max-runtime: {{mode: enforce, default: {}h, max: {}h}}
"""


def test_the_longest_runtime_holds_for_pods_that_come_later_than_those_that_wait(
    readable: ControlPlane,
) -> None:
    """The deadline of a pod that waits is set before it starts. What ends by it lets the next one start."""
    team = Team(readable, 2, "a", "b")
    a, b = lines = list(team.lines.values())
    apply(readable, BOUNDED.format(team.name, 8, 72))
    assert eventually(lambda: _deadline(readable, a) == 8 * HOUR), "the policy is in force"
    for name in ("first", "second"):
        a.pod(name, restartPolicy="Never")
    a.pod("next", restartPolicy="Never")
    b.in_a_later_second("long", restartPolicy="Never", activeDeadlineSeconds=72 * HOUR)
    assert a.waits("next")
    assert b.waits("long")
    assert a.is_counted()
    assert b.is_counted()
    apply(readable, BOUNDED.format(team.name, 1, 1))
    assert eventually(lambda: _deadline(readable, a) == HOUR)
    assert a.waits("next")
    status, answer = b.create(gpu_pod("late", restartPolicy="Never", activeDeadlineSeconds=8 * HOUR))
    assert (status, "1h" in answer["message"]) == (403, True), answer

    for line, name, ends in ((b, "long", "first"), (a, "next", "second")):
        reason = {"phase": "Failed", "reason": "DeadlineExceeded"}
        accepted(a.client.patch(a.path("pods", ends) + "/status", {"status": reason}))
        assert line.starts(name, seconds=10), line.get(name)
    bounds = [line.get(name)["spec"]["activeDeadlineSeconds"] for line, name in ((a, "next"), (b, "long"))]
    assert bounds == [8 * HOUR, 72 * HOUR]
    found = seen(readable, *lines)
    assert (found.breaches, found.unmapped_resources) == ([], [])


def _deadline(plane: ControlPlane, line: Line) -> Any:
    body = gpu_pod("asked", restartPolicy="Never")
    answer = plane.client().post(line.path("pods"), body, {"dryRun": "All"})[1]
    return answer["spec"].get("activeDeadlineSeconds") if "spec" in answer else None
