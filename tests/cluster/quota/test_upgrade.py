"""An upgrade that changes classes and resource names, under load: replicas of either catalogue, one controller after the other.

Nobody is denied because of it, nothing is admitted that does not fit by the catalogue in force, and nothing is left over.
"""

import random
from fractions import Fraction
from pathlib import Path

import pytest

from policies.quota.amounts import GPUS
from tests.cases import cases
from tests.cluster.controllers import Command, eventually
from tests.cluster.quota import history
from tests.cluster.quota.burst import Burst, Churn, Request, requests
from tests.cluster.quota.quotas import CLAIMS, PODS, gpu_pod
from tests.cluster.quota.referee import BUILT_IN, SPOT, Weights, cost, replay, total
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.replicas import Replicas
from tests.controlplane.webhook import Webhook
from tests.reservation_requests import creation_request

OBJECTS = 300
HARD = {
    "gpus": "60",
    "classes": {"nvidia-a100": "40", "nvidia-h100-80gb": "40", "nvidia-t4": "20"},
    "resources": {"nvidia.com/mig-1g.10gb": "60"},
}
UPGRADED = Weights(slices=Fraction(1, 4), t4=Fraction(1, 2), spot=Fraction(1))
OLD_DOCUMENTS = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUResourceMapping
metadata: {name: ours}
spec: {resources: [{pattern: example.com/elsewhere, measure: devices}]}
"""
NEW_DOCUMENTS = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUResourceMapping
metadata: {name: ours}
spec: {resources: [{pattern: example.com/spot, measure: devices}]}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: nvidia-t4}
spec:
  family: nvidia-t4
  memoryGiB: 16
  nodeLabels: [{key: accelerator, values: [nvidia-t4]}]
  equivalents: {nvidia.com/gpu: "1/2"}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: nvidia-a100-80gb}
spec:
  family: nvidia-a100
  memoryGiB: 80
  nodeLabels: [{key: accelerator, values: [nvidia-a100-80gb]}]
  migProfiles: {1g.10gb: {sevenths: 1, memoryGiB: 10, perGPU: 7, weight: "1/4"}}
---
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUClass
metadata: {name: nvidia-h100-80gb}
spec:
  family: nvidia-h100
  memoryGiB: 80
  nodeLabels: [{key: accelerator, values: [nvidia-h100-80gb]}]
  migProfiles: {1g.10gb: {sevenths: 1, memoryGiB: 10, perGPU: 7, weight: "1/4"}}
"""

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def readable(readable: ControlPlane) -> ControlPlane:
    """Have the ConfigMap of the chart."""
    catalogues = {"metadata": {"name": "gpu-admission-catalogues"}}
    assert readable.client().post("/api/v1/namespaces/default/configmaps", catalogues)[0] == 201
    return readable


class Release:
    """A configuration that replicas and controllers are started with, and what the referee knows of it."""

    def __init__(self, folder: Path, documents: str, weights: Weights) -> None:
        folder.mkdir()
        (folder / "documents.yaml").write_text(documents)
        self.folder = folder
        self.weights = weights

    def controller(self, plane: ControlPlane) -> Command:
        name = f"controller-{self.folder.name}-of-{self.folder.parent.name}"
        command = Command(plane, name, "--config", str(self.folder))
        command.start()
        return command


@pytest.fixture
def releases(tmp_path: Path) -> dict[str, Release]:
    return {
        "old": Release(tmp_path / "old", OLD_DOCUMENTS, BUILT_IN),
        "new": Release(tmp_path / "new", NEW_DOCUMENTS, UPGRADED),
    }


def restarted(replica: Webhook, release: Release) -> None:
    replica.stop()
    replica.config = release.folder
    replica.start()


def requested(namespace: str) -> list[Request]:
    """Return the mix of all bursts, and pods with the name that only the new catalogue knows."""
    spots = [
        Request(f"spot-{number}", PODS.format(namespace), gpu_pod(f"spot-{number}", 1, SPOT))
        for number in range(OBJECTS // 20)
    ]
    mixed = [*requests(namespace, OBJECTS - len(spots), seed=len(namespace)), *spots]
    random.Random(1).shuffle(mixed)  # noqa: S311  the same order in every run
    return mixed


@cases(
    ("before", "after", "in_flight"),
    upgrade_with_a_creation_that_fails=("old", "new", True),
    rollback=("new", "old", False),
)
def test_an_upgrade_denies_nothing_and_admits_nothing_over(
    readable: ControlPlane,
    releases: dict[str, Release],
    before: str,
    after: str,
    in_flight: bool,
) -> None:
    old, new, since = releases[before], releases[after], history.revision(readable)
    arguments = ("--kubeconfig", readable.kubeconfig())
    with Replicas(readable, 2, config=old.folder, arguments=arguments) as replicas:
        replicas.register()
        first = old.controller(readable)
        team = Namespace(readable)
        team.quota(HARD)
        assert eventually(lambda: team.ledger_object().used is not None, seconds=90)
        catalogue_version = str(team.ledger_object().class_catalogue)
        if in_flight:
            team.reserve(creation_request("never-stored", {GPUS: Fraction(1)}, catalogue_version))

        burst = Burst(readable.client(), requested(team.name))
        burst.per_second = 8
        with burst, Churn(readable.client(), burst, every=0.12):
            assert eventually(lambda: burst.answered > OBJECTS * 0.1, seconds=120), burst.troubles
            restarted(replicas.each[0], new)
            assert eventually(lambda: burst.answered > OBJECTS * 0.2, seconds=120), burst.troubles
            second = new.controller(readable)
            readable.processes.terminate(first.name, grace=30)
            assert eventually(
                lambda: team.ledger_object().class_catalogue not in {None, catalogue_version}, seconds=90
            ), second.log()
            moved = burst.answered
            assert eventually(lambda: burst.answered > min(moved + 50, OBJECTS - 10), seconds=120), (
                burst.troubles
            )
            restarted(replicas.each[1], new)

        try:
            assert eventually(lambda: not team.ledger_object().reservations, seconds=60), (
                team.ledger_object().reservations
            )
            paths = team.path("pods"), CLAIMS.format(team.name)
            pods, claims = (team.client.get(path)[1]["items"] for path in paths)
            held = total(cost(each, new.weights) for each in (*pods, *claims)).get("gpus", 0)
            assert eventually(lambda: (team.used() or {}).get(GPUS) == held), "nothing is left over"
        finally:
            readable.processes.terminate(second.name, grace=30)
            replicas.unregister()

    weights = {catalogue_version: old.weights, str(team.ledger_object().class_catalogue): new.weights}
    seen = replay(
        team.name,
        history.events(readable, since),
        lambda ledger_object: weights[ledger_object["classCatalogue"]],
    )
    assert burst.troubles["is being recalculated"] == 0, "the upgrade denies nothing"
    assert burst.troubles["could not be checked"] == 0
    assert burst.undecided == []
    assert seen.over == []
    assert seen.unmapped_resources == []
