"""A team of namespaces on a real API server, with two replicas: one quota bounds all of them, whatever joins, leaves or dies."""

import json
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from policies.quota.amounts import GPUS
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.cluster.controllers import Running, eventually, published_catalogues
from tests.cluster.quota.quotas import EXPIRY, gpu_pod
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.replicas import Replicas
from webhook.configuration.documents import API_VERSION, CLUSTER_QUOTA
from webhook.controller.moves import returned_ledger
from webhook.quota.ledger_objects import team_object_name
from webhook.quota.team_documents import TeamRecord, decode_team, team_path

_numbers = count(1)


@pytest.fixture(scope="module")
def served() -> Iterator[ControlPlane]:
    with ControlPlane() as plane, Replicas(plane, 2, arguments=("--kubeconfig", plane.kubeconfig())) as two:
        two.register()
        with published_catalogues(plane):
            yield plane


class Team:
    """A ClusterGPUQuota of a name of its own, and the namespaces that begin with that name."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.client, self.name = plane, plane.client(), f"vision{next(_numbers)}"

    def namespace(self, name: str, *, hard: int | None = None, **labels: str) -> Namespace:
        made = Namespace(self.plane, f"{self.name}-{name}")
        if labels:
            accepted(self.client.patch(f"/api/v1/namespaces/{made.name}", {"metadata": {"labels": labels}}))
        if hard is not None:
            made.quota({"gpus": str(hard)})
        return made

    def grant(self, gpus: int, *, guaranteed: dict[str, int] | None = None, **namespaces: Any) -> None:
        """Create the ClusterGPUQuota."""
        spec = {
            "namespaces": namespaces or {"names": [f"{self.name}-*"]},
            "hard": {"gpus": gpus},
            "guaranteed": {
                f"{self.name}-{name}": {"gpus": each} for name, each in (guaranteed or {}).items()
            },
        }
        body = {
            "apiVersion": API_VERSION,
            "kind": CLUSTER_QUOTA,
            "metadata": {"name": self.name},
            "spec": spec,
        }
        accepted(self.client.post(team_path(), body))

    def change(self, **spec: Any) -> None:
        accepted(self.client.patch(team_path(self.name), {"spec": spec}))

    def delete(self) -> None:
        accepted(self.client.delete(team_path(self.name)))

    def record(self) -> TeamRecord:
        return decode_team(msgspec.json.encode(accepted(self.client.get(team_path(self.name)))))

    def ledgers(self, namespace: Namespace) -> TeamLedgers | None:
        found = namespace.store.read_team(self.name, 10)
        return found.team_ledgers if found else None

    def has(self, *namespaces: Namespace) -> bool:
        """Whether the ledgers of exactly these namespaces are in the team's object, counted."""
        found = self.ledgers(namespaces[0])
        want = {each.name for each in namespaces}
        return (
            found is not None
            and set(found.ledgers) == want
            and all(found.has(each) and found.ledgers[each].used is not None for each in want)
        )

    def uses(self, gpus: int) -> bool:
        status = self.record().status
        return status.used is not None and status.used.get(GPUS) == gpus


@pytest.fixture
def team(served: ControlPlane) -> Iterator[Team]:
    with Running(served, expiry=EXPIRY):
        yield Team(served)


def create(namespace: Namespace, name: str, gpus: int) -> str:
    """Return "" if the pod was admitted, else the message of the denial."""
    status, answer = namespace.create(gpu_pod(name, gpus))
    assert status in {201, 403}, answer
    return "" if status == 201 else str(answer["message"])


def used(namespace: Namespace) -> Fraction | None:
    return (namespace.used() or {}).get(GPUS)


def test_a_team_bounds_all_its_namespaces_and_keeps_what_is_guaranteed(team: Team) -> None:
    cv, nlp, prod = team.namespace("cv", hard=8), team.namespace("nlp"), team.namespace("prod", hard=20)
    team.grant(10, guaranteed={"prod": 4})
    assert eventually(lambda: team.has(cv, nlp, prod))

    assert create(cv, "first", 6) == ""
    assert "10" in create(nlp, "no-room", 1)
    assert "10" in create(prod, "beyond", 5)
    assert create(prod, "guaranteed", 4) == ""
    assert create(cv, "above-its-own", 3) != ""
    assert eventually(lambda: team.uses(10))
    status = team.record().status
    assert [status.hard[GPUS], status.granted[GPUS]] == [10, 28]
    assert [each.name for each in status.namespaces.largest] == [cv.name, prod.name, nlp.name]
    assert [each.status for each in status.conditions if each.type == "Ready"] == ["True"]
    assert eventually(lambda: (share := cv.status().team) and share.free == {GPUS: 0})

    cv.delete_pod("first")
    assert eventually(lambda: create(nlp, "takes-its-place", 6) == "")
    assert eventually(lambda: team.uses(10))


def test_a_namespace_joins_and_leaves_by_its_label_with_what_it_uses(team: Team) -> None:
    own, other = team.namespace("own"), team.namespace("other", hard=8)
    assert eventually(lambda: used(other) is not None)
    assert create(other, "before", 3) == ""
    team.grant(5, names=[own.name], selector={"matchLabels": {"team": team.name}})
    assert eventually(lambda: team.has(own))
    label = f"/api/v1/namespaces/{other.name}"

    accepted(other.client.patch(label, {"metadata": {"labels": {"team": team.name}}}))
    assert eventually(lambda: team.has(own, other) and team.uses(3))
    assert create(own, "too-large", 3) != ""
    assert create(own, "fits", 2) == ""
    assert create(other, "full", 1) != ""

    accepted(other.client.patch(label, {"metadata": {"labels": {"team": None}}}))
    assert eventually(lambda: team.has(own) and used(other) == 3)
    assert create(other, "its-own-quota-again", 5) == ""
    assert create(own, "free-again", 3) == ""
    assert eventually(lambda: used(other) == 8 and team.uses(5))


def test_limits_end_with_the_cluster_gpu_quota_and_hold_again_with_the_next(team: Team) -> None:
    cv, nlp = team.namespace("cv", hard=8), team.namespace("nlp")
    team.grant(4)
    assert eventually(lambda: team.has(cv, nlp))
    assert create(nlp, "first", 4) == ""

    team.delete()
    assert eventually(lambda: team.ledgers(cv) is None)
    assert eventually(lambda: nlp.store.read_own(nlp.name, 10) is None), "it has no quota"
    assert eventually(lambda: create(nlp, "unlimited", 9) == "")
    assert create(cv, "its-own-quota", 8) == ""

    team.grant(21)
    assert eventually(lambda: team.has(cv, nlp) and team.uses(21))
    assert create(cv, "full", 1) != ""
    nlp.delete_pod("unlimited")
    assert eventually(lambda: create(nlp, "again", 9) == "")


def test_changed_limits_of_a_team_are_in_force_at_once(team: Team) -> None:
    cv, nlp = team.namespace("cv"), team.namespace("nlp")
    team.grant(4)
    assert eventually(lambda: team.has(cv, nlp))
    assert create(cv, "first", 4) == ""

    team.change(hard={"gpus": 6, "classes": {"nvidia-a100": 2}}, unclassifiedPods="TotalOnly")
    assert eventually(lambda: team.record().status.observed_generation == 2)
    assert eventually(lambda: create(nlp, "more", 2) == "")
    assert create(nlp, "too-much", 1) != ""
    assert eventually(lambda: team.uses(6))


@pytest.mark.parametrize("which", ["its own", "of the team", "both"])
def test_ledger_objects_that_somebody_deleted_are_made_again(team: Team, which: str) -> None:
    cv, nlp = team.namespace("cv", hard=8), team.namespace("nlp")
    team.grant(4)
    assert eventually(lambda: team.has(cv, nlp))
    assert create(cv, "first", 3) == ""
    assert eventually(lambda: used(cv) == 3)
    of_team = nlp.ledger_object_path.replace(nlp.name, team_object_name(team.name))
    paths = {
        "its own": [cv.ledger_object_path],
        "of the team": [of_team],
        "both": [of_team, cv.ledger_object_path],
    }

    for path in paths[which]:
        accepted(team.client.delete(path))

    assert eventually(
        lambda: cv.store.read_own(cv.name, 10) is not None and team.has(cv, nlp) and team.uses(3)
    )
    assert create(nlp, "too-much", 2) != ""
    assert create(nlp, "fits", 1) == ""


@pytest.mark.parametrize(
    ("step", "hard"), [("J1", 8), ("L1", 8), ("L2", 8), pytest.param("J1", None, id="J1-without-a-quota")]
)
def test_another_controller_ends_a_move(served: ControlPlane, step: str, hard: int | None) -> None:
    team = Team(served)
    cv = team.namespace("cv", hard=hard)
    with Running(served, expiry=EXPIRY):
        team.grant(4)
        assert eventually(lambda: team.has(cv))
        assert create(cv, "first", 3) == ""
        assert eventually(lambda: used(cv) == 3)
    _stopped_at(team, cv, step)
    if step == "J1":
        assert "moving" in create(cv, "meanwhile", 1)

    with Running(served, expiry=EXPIRY):
        assert eventually(lambda: team.has(cv))
        assert create(cv, "too-much", 2) != ""
        assert create(cv, "fits", 1) == ""
        assert eventually(lambda: used(cv) == 4 and team.uses(4))


def _stopped_at(team: Team, namespace: Namespace, last: str) -> None:
    """Do what a controller does that ends after this step."""
    store, seconds = namespace.store, 10.0
    found = store.read_team(team.name, seconds)
    assert found is not None
    frozen = store.swap_team(found.version, found.team_ledgers.leave(namespace.name), seconds)
    if last == "L1":
        return
    own = store.read_own(namespace.name, seconds)
    assert own is not None
    ledger = returned_ledger(frozen.team_ledgers.ledgers[namespace.name])
    own = store.compare_and_swap(namespace.name, own, ledger, seconds)
    if last == "L2":
        return
    store.swap_team(frozen.version, frozen.team_ledgers.without(namespace.name), seconds)
    sent = replace(own.ledger, moved_to=team_object_name(team.name))
    store.compare_and_swap(namespace.name, own, sent, seconds)


def test_people_read_which_level_is_full_who_holds_it_and_whom_to_ask(team: Team) -> None:
    cv, prod = team.namespace("cv", hard=8), team.namespace("prod")
    team.grant(10)
    team.change(contact="#vision-leads")
    title = f"ClusterGPUQuota {team.name}"
    assert eventually(lambda: team.has(cv, prod))
    assert eventually(lambda: team.record().status.observed_generation == 2)
    assert create(prod, "large", 9) == ""

    assert (
        f"exceeded quota: {title}, requested 2 GPUs, 9 of 10 used; largest: {prod.name} 9; "
        f"or ask #vision-leads to raise spec.hard.gpus of {title} [gpu-quota]"
    ) in create(cv, "denied", 2)
    assert eventually(lambda: (share := cv.status().team) and share.free == {GPUS: 1})
    assert eventually(lambda: team.uses(9))
    left = f"{title} has 1 of 10 GPUs free; largest: {prod.name} 9; contact: #vision-leads"
    assert left in " ".join(asked(team, "quota", "-n", cv.name).split())
    alone = f"{title} limits it: 9 of 10 GPUs used"
    assert " ".join(asked(team, "quota", "-n", prod.name).split()).startswith(
        f"there is no GPUQuota; {alone}"
    )
    shown = " ".join(asked(team, "status", "-n", prod.name).split())
    assert f"there is no GPUQuota in {prod.name}; {alone}" in shown
    found = json.loads(asked(team, "status", "-o", "json"))
    seen = next(each for each in found["teams"] if each["name"] == team.name)
    assert (seen["state"], seen["namespaces"], seen["granted"]) == ("Ready", 2, {"gpus": "8"})
    assert seen["largest"][0] == {
        "name": prod.name,
        "held": {"gpus": "9"},
        "idleSince": None,
        "guaranteed": False,
    }

    job = {"template": {"spec": {**gpu_pod("train", 2)["spec"], "restartPolicy": "Never"}}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": job}
    for namespace in (cv, prod):  # with a GPUQuota, and without one
        accepted(cv.client.post(f"/apis/batch/v1/namespaces/{namespace.name}/jobs", body))
        why = " ".join(asked(team, "why", "job/train", "-n", namespace.name).split())
        assert f"exceeded quota: {title}, requested 2 GPUs, 9 of 10 used; largest: {prod.name} 9" in why
        assert "largest namespaces of" not in why  # the only one stands in the denial already
        assert left in why


def test_manifests_in_several_namespaces_count_together(team: Team, tmp_path: Path) -> None:
    cv, prod = team.namespace("cv", hard=8), team.namespace("prod")
    team.grant(10)
    assert eventually(lambda: team.has(cv, prod))
    assert create(prod, "first", 6) == ""
    assert eventually(lambda: team.uses(6))
    assert eventually(lambda: (share := cv.status().team) and share.free == {GPUS: 4})
    wanted = ((cv, 2, "changed"), (prod, 1, "changed"), (cv, 2, "denied"), (prod, 1, "changed"))
    documents = [
        {
            **gpu_pod("", gpus),
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}", "namespace": each.name},
        }
        for number, (each, gpus, _) in enumerate(wanted)
    ]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(documents))

    found = json.loads(asked(team, "check", str(tmp_path / "pods.yaml"), "-o", "json"))

    assert [each["verdict"] for each in found["objects"]] == [verdict for _, _, verdict in wanted]


def asked(team: Team, *arguments: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "webhook", *arguments, "--kubeconfig", str(team.plane.kubeconfig())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout or done.stderr
