"""KAI and HAMi: pods that ask for parts of a card, for a scheduler of their own, and HAMi's webhook before and after ours.

Reproduced, not the real KAI and HAMi.
"""

from fractions import Fraction
from typing import Any

from policies.quota.amounts import GPUS
from tests.builders import JSON, container, gpu_container
from tests.cases import cases
from tests.cluster.controllers import eventually, uses
from tests.cluster.neighbours.team import TOLERATION, Team, body, ours
from tests.cluster.other_webhook import OtherWebhook
from tests.controlplane.client import accepted

HAMI: JSON = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3001", "nvidia.com/gpucores": "30"}}


def test_a_fraction_pod_of_kai_is_let_alone_and_charged_its_part(team: Team) -> None:
    team.counted_quota({"gpus": "1"})
    metadata = {"labels": {"kai.scheduler/queue": "team"}, "annotations": {"gpu-fraction": "0.5"}}

    answer = accepted(
        team.create(body("half", container("main"), metadata=metadata, schedulerName="kai-scheduler"))
    )
    assert answer["spec"]["schedulerName"] == "kai-scheduler"
    assert answer["metadata"]["labels"] == metadata["labels"]
    (main,) = answer["spec"]["containers"]
    # KAI's device plugin decides which GPU the container sees; `void` would hide it.
    assert "env" not in main
    assert ours(answer["spec"]["tolerations"]) == [TOLERATION]
    assert eventually(lambda: (team.used() or {}).get(GPUS) == Fraction(1, 2))
    assert team.create(body("other-half", container("main"), metadata=metadata))[0] == 201
    assert team.create(body("third-half", container("main"), metadata=metadata))[0] == 403


def hami(document: JSON) -> None:
    """Do what HAMi's webhook does: its scheduler for pods that ask for its resources, and a card where only memory is asked."""
    for each in document["spec"]["containers"]:
        limits: dict[str, Any] = each.get("resources", {}).get("limits", {})
        if "nvidia.com/gpumem" in limits or "nvidia.com/gpu" in limits:
            document["spec"]["schedulerName"] = "hami-scheduler"
            limits.setdefault("nvidia.com/gpu", "1")
            each["resources"].setdefault("requests", {}).setdefault("nvidia.com/gpu", "1")


@cases(
    ("name", "limits"),
    card_and_memory_before_us=("hami-webhook", HAMI["limits"]),
    memory_alone_after_us=("zzz-hami-webhook", {"nvidia.com/gpumem": "3001"}),
)
def test_a_pod_of_hami_keeps_what_hami_wrote_and_counts_one_card(
    team: Team, other: OtherWebhook, name: str, limits: JSON
) -> None:
    team.counted_quota({"gpus": "1"})
    with other.in_force(hami, name=name):
        status, answer = team.create(body("shares", gpu_container(resources={"limits": limits})))

    assert status == 201, answer
    assert answer["spec"]["schedulerName"] == "hami-scheduler"
    (main,) = answer["spec"]["containers"]
    assert main["resources"]["limits"] == {**limits, "nvidia.com/gpu": "1"}
    assert ours(answer["spec"]["tolerations"]) == [TOLERATION]
    assert uses(team, 1)
