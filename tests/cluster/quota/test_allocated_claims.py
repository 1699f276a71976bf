"""Claims count for the devices that they have, against a real scheduler and resource-claim controller.

There is no DRA driver and no kubelet: devices are ResourceSlices, and a bound pod is one whose devices are taken.
"""

from collections.abc import Iterator
from fractions import Fraction
from time import monotonic

import pytest

from tests.builders import JSON
from tests.cluster.controllers import Counting, Running, eventually, gpus
from tests.cluster.quota.device_claims import (
    counting_devices,
    create_pod,
    create_template,
    is_bound,
    team_with_a_gpu,
)
from tests.cluster.quota.quotas import PODS, claim
from tests.cluster.quota.slices import put_slices
from tests.cluster.versions import since
from tests.controlplane import CLAIMS_API, ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from tests.resource_slices import DRIVER, node_slices

pytestmark = since(36, "devices are partitions")

NODE, DEVICE_CLASS = "with-partitions", "partitions.example"
PARTS = (Fraction(1, 7), Fraction(1, 8))
"""What a 1g.10gb of an H100 weighs, by its class or by its counters."""
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
SLICE: JSON = {
    "deviceClassName": DEVICE_CLASS,
    "selectors": [
        {"cel": {"expression": f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.profile == "1g.10gb"'}}
    ],
}
CARD: JSON = {
    "deviceClassName": DEVICE_CLASS,
    "selectors": [{"cel": {"expression": f'{ATTRIBUTES}.type == "gpu"'}}],
}
GIVEN = (
    "metadata.ownerReferences: set controller of the Pod to false, or name a ResourceClaimTemplate in the pod; must not have a "
    "Pod as controller: only Kubernetes makes claims for pods, from templates"
)
TAKEN = (
    "metadata.ownerReferences: delete the pod without --cascade=orphan, and create a ResourceClaim for pods that share devices; "
    "must keep the Pod that is its controller: the claim counts the devices of this pod, and ends with it"
)
SLICE_OR_CARD: JSON = {"firstAvailable": [{"name": "slice", **SLICE}, {"name": "card", **CARD}]}


@pytest.fixture(scope="module")
def counted(full_plane: ControlPlane) -> Iterator[Counting]:
    """Two cards with all their partitions on a node, and a DeviceClass of them."""
    of_driver, slices = f'device.driver == "{DRIVER}"', node_slices(NODE, cards=2)
    with counting_devices(full_plane, NODE, DEVICE_CLASS, of_driver, slices) as running:
        yield running


@pytest.fixture
def team(counted: Counting) -> Iterator[Namespace]:
    """Make a namespace with a quota of one GPU, once all processes count by the kinds of devices."""
    with team_with_a_gpu(counted.plane) as team:
        assert eventually(lambda: costs_a_part(team))
        yield team


def costs_a_part(team: Namespace) -> bool:
    """Whether serve knows the kinds: two slices are denied to a quota of one GPU as long as each counts as a card."""
    body = claim("known", 2, DEVICE_CLASS)
    body["spec"]["devices"]["requests"] = [{"name": "gpu", "exactly": {**SLICE, "count": 2}}]
    answer = team.client.post(f"{claims(team)}?dryRun=All", body)[0]
    return bool(answer == 201)


def claims(team: Namespace) -> str:
    return f"{CLAIMS_API}/namespaces/{team.name}/resourceclaims"


def from_template(team: Namespace, name: str, request: JSON, **spec: object) -> None:
    """Create a pod with a claim of its own."""
    create_template(team, request, name)
    create_pod(team, name, {"resourceClaimTemplateName": name}, 1, **spec)


def bind_and_count(team: Namespace, name: str, request: JSON) -> float:
    """Return how long after its binding the claim of a pod counted as a part of a card."""
    from_template(team, name, request)
    assert eventually(lambda: is_bound(team, name)), team.client.get(claims(team))
    began = monotonic()
    assert eventually(lambda: gpus(team) in PARTS), gpus(team)
    return monotonic() - began


def stays_a_card(team: Namespace) -> bool:
    return eventually(lambda: gpus(team) == 1) and not eventually(lambda: gpus(team) != 1, seconds=3)


def test_a_claim_counts_for_the_smaller_device_soon_after_its_pod_is_bound(team: Namespace) -> None:
    assert bind_and_count(team, "train", SLICE_OR_CARD) < 2
    create_template(team, {"exactly": SLICE}, "more")
    create_pod(team, "more", {"resourceClaimTemplateName": "more"})
    assert eventually(lambda: gpus(team) in {2 * part for part in PARTS})
    for name in ("train", "more"):
        team.client.request("DELETE", f"{PODS.format(team.name)}/{name}", {"gracePeriodSeconds": 0})
    assert eventually(lambda: gpus(team) == 0)


def test_a_claim_counts_as_admitted_until_its_pod_is_bound(team: Namespace) -> None:
    from_template(team, "waits", SLICE_OR_CARD, nodeSelector={"no-such": "node"})
    assert eventually(lambda: gpus(team) == 1)


def test_a_claim_that_other_pods_may_use_counts_as_admitted(team: Namespace) -> None:
    body = claim("shared", 1, DEVICE_CLASS)
    body["spec"]["devices"]["requests"] = [{"name": "gpu", **SLICE_OR_CARD}]
    accepted(team.client.post(claims(team), body))
    create_pod(team, "uses", {"resourceClaimName": "shared"})
    assert eventually(lambda: is_bound(team, "uses"))
    (result,) = team.client.get(f"{claims(team)}/shared")[1]["status"]["allocation"]["devices"]["results"]
    assert result["request"] == "gpu/slice"
    assert stays_a_card(team)


def test_a_tenant_gives_no_claim_to_a_pod(team: Namespace) -> None:
    """The resource-claim controller would adopt it for a pod whose template is missing, and others may name it, too."""
    body = claim("shared", 1, DEVICE_CLASS)
    body["spec"]["devices"]["requests"] = [{"name": "gpu", **SLICE_OR_CARD}]
    accepted(team.client.post(claims(team), body))
    create_pod(
        team, "later", {"resourceClaimName": "shared"}, schedulingGates=[{"name": "example.com/later"}]
    )
    create_pod(team, "first", {"resourceClaimTemplateName": "missing"})
    pod = team.client.get(f"{PODS.format(team.name)}/first")[1]["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "first", "uid": pod["uid"], "controller": True}
    annotations = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    patch = {"metadata": {"ownerReferences": [owner], "annotations": annotations}}
    own = {**body, "metadata": {"name": "own", **patch["metadata"]}}

    of_no_kind = {"metadata": {"ownerReferences": [{**owner, "apiVersion": "x/v1"}]}}

    answers = [team.client.patch(f"{claims(team)}/shared", patch), team.client.post(claims(team), own)]
    accepted(team.client.patch(f"{claims(team)}/shared", of_no_kind))
    answers.append(team.client.patch(f"{claims(team)}/shared", patch))

    assert [(status, GIVEN in answer.get("message", "")) for status, answer in answers] == [(403, True)] * 3
    assert "resourceClaimStatuses" not in team.client.get(f"{PODS.format(team.name)}/first")[1].get(
        "status", {}
    )


def test_a_tenant_takes_no_claim_from_its_pod(team: Namespace) -> None:
    """Also not by an owner of a kind that Kubernetes does not know: then other pods could name the claim."""
    bind_and_count(team, "train", SLICE_OR_CARD)
    (made,) = team.client.get(claims(team))[1]["items"]
    (owner,) = made["metadata"]["ownerReferences"]
    path = f"{claims(team)}/{made['metadata']['name']}"

    answers = [
        team.client.patch(path, {"metadata": {"ownerReferences": owners}})
        for owners in ([], [{**owner, "apiVersion": "x/v1"}])
    ]

    assert [(status, TAKEN in answer.get("message", "")) for status, answer in answers] == [(403, True)] * 2


def test_a_claim_is_gone_from_the_count_once_its_pod_has_ended(team: Namespace) -> None:
    bind_and_count(team, "ends", SLICE_OR_CARD)
    team.set_phase("ends", "Succeeded")
    assert eventually(lambda: gpus(team) == 0)
    assert team.client.get(claims(team))[1]["items"] == []


def test_another_controller_counts_the_same(team: Namespace, counted: Counting) -> None:
    bind_and_count(team, "stays", SLICE_OR_CARD)
    before = gpus(team)
    configuration = counted.running.manager.informers.configuration()
    with Running(counted.plane, configuration=configuration) as other:
        assert eventually(lambda: other.manager.informers.slices.revision)
        # Before it has listed the slices, it counts claims as they were admitted.
        assert eventually(lambda: gpus(team) == before)
        revisions = team.ledger_object().revisions
        from_template(team, "other", {"exactly": SLICE})
        assert eventually(lambda: gpus(team) in {2 * part for part in PARTS})
        assert team.ledger_object().revisions.reaches(revisions)
        assert team.ledger_object().revisions.resource_slices


def test_a_device_that_becomes_larger_is_told_as_exceeded(team: Namespace) -> None:
    """The slices of a newer generation call a whole card what was a partition."""
    bind_and_count(team, "grows", {"exactly": SLICE})
    team.change_quota({"hard": {"gpus": "0.5"}})
    (item,) = team.client.get(claims(team))[1]["items"]
    (result,) = item["status"]["allocation"]["devices"]["results"]
    slices = node_slices(NODE, cards=2, generation=2)
    swapped = {result["device"]: "gpu-1", "gpu-1": result["device"]}
    for each in slices:
        for device in each["spec"].get("devices", ()):
            device["name"] = swapped.get(device["name"], device["name"])
    put_slices(team.client, slices)
    assert eventually(lambda: gpus(team) == 1), gpus(team)
    want = "gpus: 1 used of 0.5, 0.5 too many; ResourceSlices changed: 1 ResourceClaim has larger devices than admitted"

    def message() -> str:
        condition = team.condition("Exceeded")
        return condition.message if condition else ""

    assert eventually(lambda: message() == want), message()
    put_slices(team.client, node_slices(NODE, cards=2, generation=3))
    assert eventually(lambda: gpus(team) in PARTS)
