"""Controllers that repeat what a quota denies: one Event of each on the GPUQuota, and lines of the log that count."""

import re

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.cluster.controllers import eventually
from tests.cluster.neighbours.team import Team
from tests.controlplane import ControlPlane, accepted

LABELS = {"app": "train"}


def replica_set(name: str, gpus: str, replicas: int) -> JSON:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [gpu_container(gpus)]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


@cases(
    ("gpus", "replicas", "reason"),
    more_than_the_quota_grants=("8", 3, "QuotaCanNeverFit"),
    more_than_is_left=("1", 4, "QuotaExceeded"),
)
def test_an_owner_is_one_event(
    team: Team, installed: ControlPlane, gpus: str, replicas: int, reason: str
) -> None:
    team.counted_quota({"gpus": "2"})
    accepted(
        team.client.post(
            f"/apis/apps/v1/namespaces/{team.name}/replicasets", replica_set("train", gpus, replicas)
        )
    )

    def on_quota() -> list[JSON]:
        events: list[JSON] = team.client.get(team.path("events"))[1]["items"]
        return [event for event in events if event["involvedObject"]["kind"] == "GPUQuota"]

    assert eventually(on_quota), installed.logs("webhook-16")
    [event] = on_quota()
    assert (event["type"], event["reason"]) == ("Warning", reason)
    assert event["source"] == {"component": "gpu-admission-webhook"}
    assert event["message"].startswith(f"ReplicaSet/train: pod {team.name}/train-")
    line = rf"gpu_admission.denials: {team.name}: \d+ requests? of ReplicaSet/train denied"
    assert eventually(lambda: re.search(line, installed.logs("webhook-16")))
    shown = installed.kubectl("describe", "gpuquota", "default", "-n", team.name).stdout
    assert event["message"] in shown
