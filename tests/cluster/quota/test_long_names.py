"""Owners with names of hundreds of KB, through the API server, which takes any of a kind that it does not serve."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import Holder
from tests.cluster.controllers import Counting, eventually, is_ready, uses
from tests.cluster.quota.quotas import gpu_pod
from tests.cluster.quota.referee import GPU
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from webhook.controller.namespace_sum import HOLDERS_LIMIT
from webhook.serving.audit import LONGEST_LINE

LONG = 250_000
MIG = [f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb")]


@pytest.fixture
def team(counted: Counting) -> Namespace:
    team = Namespace(counted.plane)
    team.quota({"gpus": "8", "resources": {GPU: "8", **dict.fromkeys(MIG, "8")}})
    assert eventually(lambda: is_ready(team))
    return team


def owned(name: str, owner: str) -> dict[str, Any]:
    pod = gpu_pod(name)
    pod["spec"]["containers"] += [
        {"name": f"slice-{number}", "image": "x", "resources": {"limits": {each: 1}}}
        for number, each in enumerate(MIG)
    ]
    reference = {
        "apiVersion": "example.com/v1",
        "kind": "Strange",
        "name": owner,
        "uid": "u",
        "controller": True,
    }
    pod["metadata"]["ownerReferences"] = [reference]
    return pod


def test_long_names_of_owners_neither_freeze_a_quota_nor_fill_a_log(
    team: Namespace, counted: Counting
) -> None:
    pods = {"of-letters": "x", "of-four-bytes": "\N{BUG}", "of-quotes": '"'}
    for name, character in pods.items():
        long = character * (LONG // len(character.encode()))
        accepted(team.create(owned(name, long)))
        assert eventually(lambda: len(team.ledger_object().reservations.text) == 0), "not counted"

    found = team.ledger_object().holders
    assert {"gpus"} <= set(found) <= set(team.ledger_object().hard)
    assert len(msgspec.json.encode(found)) <= HOLDERS_LIMIT
    assert all(len(each.name) == 256 for holders in found.values() for each in holders)
    assert eventually(lambda: team.status().holders == found)

    for name in pods:
        team.delete_pod(name)
    assert uses(team, 0)
    assert eventually(lambda: any(line["verdict"] == "released" for line in lines(counted, team)))
    assert {len(line["owner"]) for line in lines(counted, team)} == {256}
    assert max(len(msgspec.json.encode(line)) for line in lines(counted, team)) < LONGEST_LINE


def lines(counted: Counting, team: Namespace) -> list[dict[str, Any]]:
    return [line for line in counted.lines if line.get("namespace") == team.name]


def test_a_ledger_that_is_too_large_is_written_without_holders(quotas: ControlPlane) -> None:
    """As a version before may have left it: what waits for it must not wait for ever."""
    elsewhere = Namespace(quotas)
    team = Namespace(quotas, installation=elsewhere.name)  # where no controller looks
    team.quota({"gpus": "8"})
    before = team.store.read(team.name, 10)
    assert before is not None
    long = {"gpus": tuple(Holder(f"Strange/{number}{'x' * LONG}", "1") for number in range(8))}

    written = team.store.compare_and_swap(team.name, before, replace(before.ledger, holders=long), 10)

    assert team.ledger_object().holders == {}
    assert replace(written.ledger, holders={}) == team.ledger_object()
