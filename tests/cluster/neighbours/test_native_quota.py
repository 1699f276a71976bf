"""A ResourceQuota and a LimitRange of Kubernetes beside a GPUQuota: both hold, each says its own sentence, nothing is lost.

The phantoms of a Deployment that a ResourceQuota keeps refusing stand in quota/test_leak.py.
"""

from policies.quota.amounts import GPUS
from tests.builders import JSON, container, gpu_container
from tests.cluster.controllers import eventually, uses
from tests.cluster.neighbours.team import Team, body
from tests.controlplane import accepted
from tests.controlplane.gpuquota import Namespace

GPU = "requests.nvidia.com/gpu"


def resource_quota(team: Team, amount: str) -> None:
    path = team.path("resourcequotas")
    assert team.client.post(path, {"metadata": {"name": "native"}, "spec": {"hard": {GPU: amount}}})[0] == 201
    assert eventually(lambda: native_use(team) == "0")


def native_use(team: Team) -> str:
    stored = team.client.get(f"{team.path('resourcequotas')}/native")[1]
    return str(stored.get("status", {}).get("used", {}).get(GPU, ""))


def limit_range(team: Namespace, **limit: JSON) -> None:
    limits = [{"type": "Container", **limit}]
    accepted(
        team.client.post(team.path("limitranges"), {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    )


def test_what_the_native_quota_refuses_is_given_back(team: Team) -> None:
    resource_quota(team, "1")
    team.counted_quota({"gpus": "4"})
    assert team.create(body("first", gpu_container()))[0] == 201

    status, answer = team.create(body("second", gpu_container("2")))

    assert status == 403
    assert f"exceeded quota: native, requested: {GPU}=2, used: {GPU}=1, limited: {GPU}=1" in answer["message"]
    # It is asked after us: what we had reserved is held until the controller has seen that the pod never came.
    assert [entry.demand.get(GPUS) for entry in team.ledger_object().reservations][-1] == 2
    assert eventually(lambda: not team.ledger_object().reservations, seconds=30)
    assert uses(team, 1)


def test_what_we_refuse_never_reaches_the_native_quota(team: Team) -> None:
    resource_quota(team, "4")
    team.counted_quota({"gpus": "1"})
    assert team.create(body("first", gpu_container()))[0] == 201

    status, answer = team.create(body("second", gpu_container("2")))

    assert status == 403
    assert "[gpu-quota]" in answer["message"]
    assert "native" not in answer["message"]
    assert native_use(team) == "1"


def test_a_limit_range_speaks_before_us_and_reserves_nothing(team: Team) -> None:
    team.counted_quota({"gpus": "8"})
    limit_range(team, max={"nvidia.com/gpu": "2"}, default={"nvidia.com/gpu": "1"})

    status, answer = team.create(body("four", gpu_container("4")))

    assert status == 403
    assert "maximum nvidia.com/gpu usage per Container is 2, but limit is 4" in answer["message"]
    assert not team.ledger_object().reservations


def test_a_gpu_that_a_limit_range_gives_by_default_is_a_gpu(team: Team) -> None:
    team.counted_quota({"gpus": "1"})
    limit_range(team, default={"nvidia.com/gpu": "1"})

    first = container()

    assert eventually(lambda: team.create(body("first", first))[1].get("spec", {}).get("tolerations"))
    assert uses(team, 1)
    status, answer = team.create(body("second", first))
    assert status == 403
    assert "[gpu-quota]" in answer["message"]
