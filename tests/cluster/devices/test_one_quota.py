"""Slices of a card by claims share a quota with each other, and with pods of a device plugin."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import pytest

from tests.builders import JSON
from tests.cluster.controllers import counting, eventually, gpus
from tests.cluster.devices import slices
from tests.cluster.devices.cards import H100
from tests.cluster.devices.meanings import ANY, CARDS, SLICES, Selector, profile
from tests.cluster.devices.paths import path
from tests.cluster.devices.playing import EXPIRY, Cluster, devices, kinds_are_known, requests
from tests.cluster.devices.worlds import Node, pod
from tests.cluster.quota.quotas import in_force
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace

CARD_NODE = Node("partitioned", slices.NVIDIA, slices.partitioned(H100, "partitioned", 2))
PLUGIN_NODE = "by-device-plugin"


@pytest.fixture(scope="module")
def plane(running: Cluster) -> Iterator[ControlPlane]:
    with devices(running.plane, [CARD_NODE]), counting(running.plane, expiry=EXPIRY):
        create_gpu_node(running.plane.client(), PLUGIN_NODE)
        kinds_are_known(running.plane, [CARD_NODE])
        yield running.plane


@pytest.fixture
def team(plane: ControlPlane) -> Iterator[Namespace]:
    team = Namespace(plane)
    yield team
    for plural in ("pods", "resourceclaims"):
        team.client.delete(path(team.name, plural), {"gracePeriodSeconds": 0})


def wanted(device_class: str, *chosen: Selector) -> JSON:
    return {
        "deviceClassName": device_class,
        "selectors": [{"cel": {"expression": each.text}} for each in chosen],
    }


ONE_G = requests(wanted(SLICES.name, profile("1g.10gb")))


def claim(team: Namespace, name: str, spec: JSON) -> tuple[int, JSON]:
    """Make a claim and a pod that uses it; return the answer to the claim."""
    status, answer = team.client.post(
        path(team.name, "resourceclaims"), {"metadata": {"name": name}, "spec": spec}
    )
    if status == 201:
        uses = pod(f"uses-{name}", {"name": "gpu", "resourceClaimName": name})
        accepted(team.client.post(path(team.name, "pods"), uses))
    return status, answer


def is_bound(team: Namespace, name: str) -> bool:
    return "nodeName" in team.client.get(path(team.name, "pods", name))[1].get("spec", {})


def used_is(team: Namespace, amount: Fraction) -> bool:
    return eventually(lambda: gpus(team) == amount and not team.ledger_object().reservations)


def test_seven_slices_fit_a_quota_of_one_gpu(team: Namespace) -> None:
    in_force(team, {"gpus": "1"})
    answers = [claim(team, f"slice-{number}", ONE_G)[0] for number in range(7)]
    assert answers == [201] * 7
    assert eventually(lambda: all(is_bound(team, f"uses-slice-{number}") for number in range(7)))
    assert used_is(team, Fraction(1)), gpus(team)

    status, answer = claim(team, "eighth", ONE_G)

    assert status == 403
    want = f"exceeded quota: {team.name}/default, requested 0.14 GPUs, 1 of 1 used"
    assert want in answer["message"], answer["message"]


def test_claims_and_pods_of_a_device_plugin_share_a_quota(team: Namespace) -> None:
    in_force(team, {"gpus": "2"})
    plugged = pod("plugged", **{"nvidia.com/gpu": "1"})
    plugged["spec"]["nodeName"] = PLUGIN_NODE
    accepted(team.client.post(path(team.name, "pods"), plugged))
    assert [claim(team, f"slice-{number}", ONE_G)[0] for number in range(7)] == [201] * 7
    assert used_is(team, Fraction(2)), gpus(team)

    refused_claim = claim(team, "eighth", ONE_G)
    refused_pod = team.client.post(path(team.name, "pods"), pod("second", **{"nvidia.com/gpu": "1"}))
    assert (refused_claim[0], refused_pod[0]) == (403, 403)
    for _, answer in (refused_claim, refused_pod):
        assert f"exceeded quota: {team.name}/default" in answer["message"]
        assert "2 of 2 used" in answer["message"]

    accepted(team.client.delete(path(team.name, "pods", "plugged"), {"gracePeriodSeconds": 0}))
    assert used_is(team, Fraction(1)), gpus(team)
    assert claim(team, "eighth", ONE_G)[0] == 201


def test_what_a_template_might_get_is_given_back_when_it_gets_less(team: Namespace) -> None:
    """A slice of any profile may be the whole card, and the scheduler takes a small one. By their bounds only two would fit."""
    in_force(team, {"gpus": "2"})
    template = {"metadata": {"name": "any"}, "spec": {"spec": requests({"deviceClassName": SLICES.name})}}
    accepted(team.client.post(path(team.name, "resourceclaimtemplates"), template))
    uses = {"name": "gpu", "resourceClaimTemplateName": "any"}

    for number in range(3):
        accepted(team.client.post(path(team.name, "pods"), pod(f"p{number}", uses)))
        assert eventually(partial(is_bound, team, f"p{number}")), number
        assert used_is(team, Fraction(number + 1, 7)), (number, gpus(team))


@pytest.mark.parametrize("device_class", [CARDS.name, ANY.name])
def test_what_may_be_a_card_is_charged_a_card(team: Namespace, device_class: str) -> None:
    in_force(team, {"gpus": "1"})
    assert claim(team, "card", requests({"deviceClassName": device_class}))[0] == 201
    assert eventually(lambda: gpus(team) == 1)
    assert claim(team, "slice", ONE_G)[0] == 403


def test_a_claim_that_gave_quota_back_is_not_kept_for_larger_devices(team: Namespace) -> None:
    """Without its owner it would outlive the pod, and the next pod would get a whole card for what a slice costs."""
    in_force(team, {"gpus": "1"})
    either = {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "firstAvailable": [
                        {"name": "small", **wanted(SLICES.name, profile("1g.10gb"))},
                        {"name": "card", **wanted(CARDS.name)},
                    ],
                }
            ]
        }
    }
    template = {"metadata": {"name": "either"}, "spec": {"spec": either}}
    accepted(team.client.post(path(team.name, "resourceclaimtemplates"), template))
    accepted(
        team.client.post(
            path(team.name, "pods"), pod("first", {"name": "gpu", "resourceClaimTemplateName": "either"})
        )
    )
    assert eventually(lambda: is_bound(team, "first"))
    assert used_is(team, Fraction(1, 7)), gpus(team)
    (made,) = team.client.get(path(team.name, "resourceclaims"))[1]["items"]
    claims = path(team.name, "resourceclaims", made["metadata"]["name"])

    status, answer = team.client.patch(claims, {"metadata": {"ownerReferences": None}})
    assert (status, "must keep the Pod that is its controller" in answer["message"]) == (403, True)
    orphan = {"propagationPolicy": "Orphan", "gracePeriodSeconds": 0}
    accepted(team.client.delete(path(team.name, "pods", "first"), orphan))
    assert not eventually(
        lambda: not team.client.get(claims)[1]["metadata"].get("ownerReferences"), seconds=5
    ), "the garbage collector took the claim from its pod"
