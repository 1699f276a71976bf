"""What is charged when, through the API server, the webhook and the controller: `kubectl apply` to the ledger and back.

Bound pods, shared claims and what is deleted while no controller runs stand in tests/cluster/test_controller.py and
test_controller_turns.py, too; here is what the webhook has a part in.
"""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from policies.quota.amounts import GPUS
from tests.builders import JSON
from tests.cluster.controllers import Running, eventually, is_ready, published_catalogues, uses
from tests.cluster.quota.burst import CLAIMS, PODS, gpu_pod
from tests.cluster.quota.referee import GPU
from tests.controlplane import ControlPlane, claims_api, create_gpu_node
from tests.controlplane.client import JSON_PATCH
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook
from tests.reservation_requests import creation_request
from webhook.configuration.loader import load_directory

SHARED_T4 = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: shared-t4}
spec: {memoryGiB: 16, nodeLabels: [{key: accelerator, values: [shared-t4]}], equivalents: {nvidia.com/gpu: "1/4"}}
"""
A100, FAMILY, T4 = "nvidia-a100-80gb", "nvidia-a100", "nvidia-t4"
DRY_RUN = {"dryRun": "All"}


@pytest.fixture(scope="module")
def team_of(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Serve and count by one configuration."""
    config = tmp_path_factory.mktemp("config")
    (config / "classes.yaml").write_text(SHARED_T4)
    with Webhook(plane, config=config, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        webhook.register()
        with Running(plane, configuration=load_directory(Path(config))):
            yield plane
        webhook.unregister()


@pytest.fixture
def team(team_of: ControlPlane) -> Namespace:
    return Namespace(team_of)


def in_force(team: Namespace, hard: JSON, **spec: Any) -> None:
    team.quota(hard, **spec)
    assert eventually(lambda: team.used() is not None)


def create(team: Namespace, body: JSON, query: dict[str, str] | None = None) -> tuple[int, Any]:
    return team.client.post(PODS.format(team.name), body, query)


def gpu_pods(team: Namespace, *names: str, gpus: int = 1, **spec: Any) -> list[int]:
    return [create(team, gpu_pod(name, GPU, gpus, **spec))[0] for name in names]


def used(team: Namespace, key: str) -> Fraction | None:
    return (team.used() or {}).get(key)


def claim(name: str, count: int) -> JSON:
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": count}
    return {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def test_a_dry_run_never_changes_the_row(team: Namespace) -> None:
    in_force(team, {"gpus": "4"})
    gated = gpu_pod("gated", GPU, 1, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    gated["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    del gated["spec"]["containers"][0]["resources"]
    assert create(team, gated)[0] == 201
    assert eventually(lambda: used(team, GPUS) == Fraction(1, 2) and not team.ledger_object().reservations)
    before = team.client.get(team.row_path)[1]["metadata"]["resourceVersion"]
    more = {"metadata": {"annotations": {"gpu-fraction": "0.9"}}}

    created = create(team, gpu_pod("dry", GPU, 3), DRY_RUN)
    refused = create(team, gpu_pod("dry", GPU, 4), DRY_RUN)
    claimed = team.client.post(CLAIMS.format(team.name), claim("dry", 2), DRY_RUN)
    changed = team.client.patch(f"{PODS.format(team.name)}/gated", more, DRY_RUN)

    assert (created[0], refused[0], claimed[0], changed[0]) == (201, 403, 201, 200)
    assert "requested: gpus=4, used: gpus=0.5, limited: gpus=4" in refused[1]["message"]
    assert team.client.get(team.row_path)[1]["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize("end", ["Succeeded", "Failed", "deleted"])
def test_what_ends_makes_room_within_seconds(team: Namespace, end: str) -> None:
    in_force(team, {"gpus": "1"})
    assert gpu_pods(team, "first", "refused") == [201, 403]

    if end == "deleted":
        team.delete_pod("first")
    else:
        team.set_phase("first", end)

    assert eventually(lambda: gpu_pods(team, "next") == [201])


def test_creations_of_a_name_that_is_taken_hold_nothing(team: Namespace) -> None:
    in_force(team, {"gpus": "100"})
    assert gpu_pods(team, "train", gpus=7) == [201]

    again = gpu_pods(team, *["train"] * 14, gpus=7)

    assert again == [409] * 14, "each was admitted, and none could be stored"
    assert eventually(lambda: gpu_pods(team, "rider", gpus=93) == [201])


def test_a_claim_template_that_never_fits_is_warned_about(team_of: ControlPlane, team: Namespace) -> None:
    in_force(team, {"gpus": "2"})

    def told(count: int) -> str:
        version = claims_api().removeprefix("/apis/")
        document: JSON = {"apiVersion": version, "kind": "ResourceClaimTemplate"}
        document |= {"metadata": {"name": f"cards-{count}"}, "spec": {"spec": claim("", count)["spec"]}}
        dry = ("create", "--dry-run=server", "-n", team.name, "-f", "-")
        return team_of.kubectl(*dry, stdin=json.dumps(document)).stderr

    assert "no claim of this template can ever fit the quota, requested: gpus=3, limited: gpus=2" in told(3)
    assert "Warning" not in told(2)


def test_another_unpinned_denies_nobody_while_something_is_in_flight(
    plane: ControlPlane, team: Namespace
) -> None:
    with published_catalogues(plane):
        in_force(team, {"gpus": "4", "classes": {T4: "2"}}, unclassifiedPods="TotalOnly")
        assert gpu_pods(team, "before") == [201]
        assert uses(team, 1)
        assert used(team, f"classes/{T4}") == 0
        team.reserve(
            creation_request("in-flight", {GPUS: Fraction(1)}, str(team.ledger_object().class_catalogue))
        )

        team.change_quota({"unclassifiedPods": "MostExpensive"})
        at_once = create(team, gpu_pod("at-once", GPU, 1))
        assert eventually(lambda: team.ledger_object().next_catalogue is not None)
        on_the_way = create(team, gpu_pod("on-the-way", GPU, 1))
        too_much = create(team, gpu_pod("too-much", GPU, 3, nodeSelector={"accelerator": T4}))

        assert [at_once[0], on_the_way[0]] == [201, 201]
        assert too_much[0] == 403
        assert "exceeded quota: " in too_much[1]["message"]
        assert team.ledger_object().class_catalogue is not None
        assert eventually(lambda: is_ready(team))


def test_a_gated_pod_is_charged_to_its_class_when_its_gate_is_lifted(team: Namespace) -> None:
    in_force(team, {"gpus": "8", "classes": {FAMILY: "2", T4: "4"}}, unclassifiedPods="TotalOnly")
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    assert gpu_pods(team, "fits", "does-not", gpus=3, schedulingGates=gates) == [201, 201]
    assert uses(team, 6)
    assert used(team, f"classes/{FAMILY}") == 0
    assert used(team, f"classes/{T4}") == 0

    fits = _lift(team, "fits", T4)
    does_not = _lift(team, "does-not", A100)

    assert fits[0] == 200, fits
    assert eventually(lambda: used(team, f"classes/{T4}") == 3)
    assert does_not[0] == 403
    assert "request 2 nvidia-a100 or fewer; exceeded quota: " in does_not[1]["message"]
    assert "counted for nvidia-a100: " in does_not[1]["message"]
    assert team.client.get(f"{PODS.format(team.name)}/does-not")[1]["spec"]["schedulingGates"] == gates
    assert eventually(lambda: not team.ledger_object().reservations)
    assert used(team, GPUS) == 6
    assert used(team, f"classes/{FAMILY}") == 0


def _lift(team: Namespace, name: str, accelerator: str) -> tuple[int, Any]:
    """Do in one change what Kueue does."""
    operations = [
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": {"accelerator": accelerator}},
    ]
    return team.client.patch(f"{PODS.format(team.name)}/{name}", operations, content_type=JSON_PATCH)


def test_a_label_of_a_family_is_charged_to_the_family_and_to_the_class_once_bound(
    team: Namespace, plane: ControlPlane
) -> None:
    node = f"a100-of-{team.name}"
    labels = {"accelerator": FAMILY, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    create_gpu_node(plane.client(), node, labels=labels)
    in_force(team, {"gpus": "8", "classes": {FAMILY: "4", A100: "4"}}, unclassifiedPods="TotalOnly")
    assert gpu_pods(team, "trainer", gpus=3, nodeSelector={"accelerator": FAMILY}) == [201]
    assert eventually(lambda: used(team, f"classes/{FAMILY}") == 3)
    assert used(team, f"classes/{A100}") == 0

    team.bind("trainer", node)

    assert eventually(lambda: used(team, f"classes/{A100}") == 3)
    assert used(team, f"classes/{FAMILY}") == 3
    status, refused = create(team, gpu_pod("next", GPU, 2, nodeSelector={"accelerator": A100}))
    assert status == 403
    assert "largest holders of classes/nvidia-a100: Pod/trainer 3" in refused["message"]


def test_pods_of_a_time_sliced_pool_weigh_what_their_class_says(team: Namespace) -> None:
    in_force(team, {"gpus": "1", "classes": {"shared-t4": "1"}})
    pool = {"accelerator": "shared-t4"}

    statuses = gpu_pods(team, "a", "b", "c", "d", "e", nodeSelector=pool)

    assert statuses == [201, 201, 201, 201, 403]
    assert uses(team, 1)
    assert used(team, "classes/shared-t4") == 1


def test_a_claim_shared_by_three_pods_is_charged_once_until_it_is_deleted(team: Namespace) -> None:
    in_force(team, {"gpus": "3"})
    claims = CLAIMS.format(team.name)
    assert team.client.post(claims, claim("shared", 2))[0] == 201
    for index in range(3):
        pod = gpu_pod(
            f"shares-{index}", GPU, 0, resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]
        )
        assert create(team, pod)[0] == 201
    assert uses(team, 2)

    status, refused = team.client.post(claims, claim("second", 2))
    for index in range(3):
        team.delete_pod(f"shares-{index}")
    assert gpu_pods(team, "last", "too-many") == [201, 403]
    assert uses(team, 3)
    assert team.client.delete(f"{claims}/shared")[0] == 200

    assert status == 403
    assert "requested: gpus=2, used: gpus=2, limited: gpus=3" in refused["message"]
    assert eventually(lambda: team.client.post(claims, claim("second", 2))[0] == 201)


def test_a_share_of_a_card_that_grows_is_charged(team: Namespace) -> None:
    in_force(team, {"gpus": "1"})
    pod = gpu_pod("notebook", GPU, 1)
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.25"}
    del pod["spec"]["containers"][0]["resources"]
    assert create(team, pod)[0] == 201
    assert gpu_pods(team, "whole") == [403]
    path = f"{PODS.format(team.name)}/notebook"

    grown = team.client.patch(path, {"metadata": {"annotations": {"gpu-fraction": "0.75"}}})
    several = team.client.patch(path, {"metadata": {"annotations": {"gpu-fraction-num-devices": "2"}}})

    assert grown[0] == 200
    assert eventually(lambda: used(team, GPUS) == Fraction(3, 4) and not team.ledger_object().reservations)
    assert several[0] == 403
    assert "requested: gpus=0.75, used: " in several[1]["message"]


def test_a_resource_quota_that_limits_nothing_is_warned_about(team: Namespace, plane: ControlPlane) -> None:
    quota = ("create", "quota", "native", "--hard=nvidia.com/gpu=4", "-n", team.name)

    done = plane.kubectl(*quota)

    assert "Warning: " in done.stderr
    assert "requests.nvidia.com/gpu" in done.stderr
