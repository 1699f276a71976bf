"""Why pods of an object are denied by a full quota, in the words of the warning that its author reads at apply."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.builders import JSON, gpu_container, manifest
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import QUOTA, cluster
from webhook.tools.why.explaining import explain

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
KINDS = {
    "MPIJob": ("kubeflow.org", "v2beta1", "mpijobs"),
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "Job": ("batch", "v1", "jobs"),
}
SERVED = {
    "items": [
        {
            "metadata": {"name": group},
            "versions": [
                {
                    "version": version,
                    "resources": [
                        {"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced"}
                    ],
                }
            ],
        }
        for kind, (group, version, plural) in KINDS.items()
    ]
}


def template(gpus: int) -> JSON:
    return {"spec": {"containers": [gpu_container(str(gpus))], "restartPolicy": "Never"}}


def jobs(parallelism: int, gpus: int) -> JSON:
    return {"parallelism": parallelism, "completions": parallelism, "template": template(gpus)}


def quota(hard: int, **holders: int) -> JSON:
    held = [{"name": f"Job/{name}", "amount": str(amount)} for name, amount in holders.items()]
    return {
        "metadata": {
            "name": "default",
            "namespace": "ml",
            "uid": "q",
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {"hard": {"gpus": str(hard)}},
        "status": {
            "hard": {"gpus": str(hard)},
            "used": {"gpus": str(sum(holders.values()))},
            "holders": {"gpus": held},
            "observedGeneration": 1,
        },
    }


@cases(
    ("kind", "spec", "limits", "want"),
    workers_of_which_none_fits=(
        "MPIJob",
        {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": template(4)}}},
        quota(8, other=7),
        (
            "spec.mpiReplicaSpecs.Worker.template: needs 8 GPUs; ml has 1 of 8 free: 0 of 2 pods will start [gpu-quota]",
            "wait until others release 7 GPUs",
        ),
    ),
    more_than_the_quota_grants=(
        "JobSet",
        {"replicatedJobs": [{"name": "w", "replicas": 4, "template": {"spec": jobs(1, 8)}}]},
        quota(16, other=12),
        (
            "spec.replicatedJobs[0].replicas: needs 32 GPUs, which can never fit: the GPUQuota of ml grants 16 in all; 0 of 4 "
            "pods will start [gpu-quota]",
            "set replicas: 2 or less, and wait until that much is free, or ask the platform team to raise spec.hard.gpus",
        ),
    ),
    one_pod=(
        "Job",
        jobs(1, 4),
        quota(8, other=6),
        (
            "exceeded quota: ml/default, requested 4 GPUs, 6 of 8 used [gpu-quota]",
            "set nvidia.com/gpu: 2, or wait until Job/other releases 2 GPUs, or ask the platform team to raise spec.hard.gpus",
        ),
    ),
)
def test_the_advice_is_for_all_pods_of_the_object(
    tmp_path: Path, kind: str, spec: JSON, limits: JSON, want: tuple[str, str]
) -> None:
    group, version, plural = KINDS[kind]
    path = f"/apis/{group}/{version}/namespaces/ml/{plural}"
    stored = manifest(f"{group}/{version}", kind, "train", spec, namespace="ml", uid="u")
    objects: dict[str, Any] = {
        "/apis": SERVED,
        "/api/v1/namespaces/ml/events": [],
        "/api/v1/namespaces/ml/pods": [],
        QUOTA: limits,
        f"{path}/train": stored,
    }
    with ApiServer(tmp_path, answering({**cluster(), **objects})) as server:
        found = explain(server.client(), kind, "train", "ml", NOW)

    assert [(reason.message, reason.remedy) for reason in found.reasons] == [want]
