"""What is killed, stopped and changed while everything goes on."""

import os
import random
import signal
import time

from tests.cluster.controllers import eventually, is_leader
from tests.cluster.mixed.tenants import KINDS
from tests.cluster.mixed.watched import DIE
from tests.cluster.mixed.world import QUEUE, Change, Fault, World, label
from tests.cluster.quota.teams import TEAMS
from tests.controlplane.client import accepted
from webhook.quota.documents import quota_path

OVERLAP_SECONDS = 3.0
"""A controller that is started is ready for so long before the other one is killed: docs/operate/budget.md."""


def kill_the_leader(world: World) -> None:
    """Kill it, let the other one take over, and kill that when the first one is back: somebody watches at every moment."""
    leader = world.leader()
    other = world.other(leader)
    world.plane.processes.kill(leader.name)
    time.sleep(3.0)
    leader.start()
    ready = time.time()
    assert eventually(lambda: is_leader(other), seconds=60)
    assert eventually(lambda: world.has_written_since(ready), seconds=60)
    time.sleep(OVERLAP_SECONDS)
    world.plane.processes.kill(other.name)
    time.sleep(1.0)
    other.start()


def kill_the_leader_as_it_lifts(world: World) -> None:
    """Kill it when it has begun to remove gates."""
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
    """Stop it for longer than its Lease."""
    leader = world.leader()
    os.kill(leader.pid, signal.SIGSTOP)
    time.sleep(7.0)
    os.kill(leader.pid, signal.SIGCONT)


def stop_a_replica(world: World) -> None:
    world.replicas.each[0].pause(3.0)


FAULTS: list[Fault] = [
    kill_the_leader,
    kill_the_leader_as_it_lifts,
    kill_a_replica,
    stop_the_leader,
    restart_the_api_server,
    stop_a_replica,
]


def lower_or_raise(world: World, draw: random.Random) -> None:
    name = draw.choice(["strict", "best", "denying", "x-own"])
    world.tenants[name].change_quota({"hard": {"gpus": draw.choice([4, 6, 8])}})


def lower_or_raise_a_team(world: World, draw: random.Random) -> None:
    name = draw.choice(["x", "y"])
    accepted(world.client.patch(f"{TEAMS}/{name}", {"spec": {"hard": {"gpus": draw.choice([7, 10, 12])}}}))


def replace_a_quota(world: World, _: random.Random) -> None:
    world.remake()


def make_a_quota_again(world: World, draw: random.Random) -> None:
    """Delete a quota, and create it again some seconds later. Meanwhile nothing limits its namespace.

    It is not there if the API server was away when it was to be made again.
    """
    world.client.delete(quota_path("again"))
    time.sleep(draw.uniform(1.0, 4.0))
    world.tenants["again"].quota(**KINDS["again"].spec)


def switch_the_rule(world: World, draw: random.Random) -> None:
    world.policy(draw.choice([QUEUE, {"mode": "enforce", "onExceeded": "Deny"}, {"mode": "warn"}]))


def move_a_namespace(world: World, draw: random.Random) -> None:
    label(world.client, "moving", draw.choice(["x", "y", None]))


CHANGES: list[Change] = [
    lower_or_raise,
    replace_a_quota,
    lower_or_raise_a_team,
    make_a_quota_again,
    move_a_namespace,
    switch_the_rule,
]
