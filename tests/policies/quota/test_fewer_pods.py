"""The field by which a kind has fewer pods, in the advice where a quota has room for some of them."""

from policies.finding import Edit
from policies.pods.field_paths import path_parts, with_edits
from policies.rule import Phase
from policies.rules.gpu_quota import GPUQuotaOptions, check_workload
from tests.builders import JSON, context, gpu_container, manifest, workload
from tests.cases import cases
from tests.policies.quota.fits import granted, said


def template(gpus: int = 1) -> JSON:
    return {"template": {"spec": {"containers": [gpu_container(gpus)]}}}


def torch(workers: int, gpus: int = 1, master: int = 1) -> JSON:
    roles = {"Master": template(master), "Worker": {"replicas": workers, **template(gpus)}}
    return manifest("kubeflow.org/v1", "PyTorchJob", "train", {"pytorchReplicaSpecs": roles})


def ray(replicas: int, least: int = 0) -> JSON:
    group = {"replicas": replicas, "minReplicas": least, "maxReplicas": 20, **template()}
    head: JSON = {"template": {"spec": {"containers": [{"name": "head"}]}}}
    return manifest("ray.io/v1", "RayCluster", "ray", {"headGroupSpec": head, "workerGroupSpecs": [group]})


def lws(replicas: int, size: int) -> JSON:
    templates = {"leaderTemplate": template()["template"], "workerTemplate": template()["template"]}
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, **templates}}
    return manifest("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", spec)


def jobset(replicas: int, parallelism: int, gpus: int = 1) -> JSON:
    job = {"spec": {"parallelism": parallelism, **template(gpus)}}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": replicas, "template": job}]}
    return manifest("jobset.x-k8s.io/v1alpha2", "JobSet", "train", spec)


WORKER = "pytorchReplicaSpecs.Worker"
ALL = "which can never fit: the GPUQuota of ml-training grants 16 in all"
RAISE = "ask the platform team to raise spec.hard.gpus"
TOGETHER = "pods that must run together need"
CASES = {
    "workers_beside_a_master": (torch(7), 12, f"spec.{WORKER}.replicas: set replicas: 3, or wait until others release 4 GPUs; "
        "needs 8 GPUs; ml-training has 4 of 16 free: 4 of 8 pods will start"),
    "beside_a_larger_master": (torch(7, master=2), 10, f"spec.{WORKER}.replicas: set replicas: 4, or wait until others release "
        "3 GPUs; needs 9 GPUs; ml-training has 6 of 16 free: 6 of 8 pods will start"),
    "none_now_and_all_in_an_empty_quota": (torch(7), 16, "wait until others release 8 GPUs; needs 8 GPUs; "
        "ml-training has 0 of 16 free: 0 of 8 pods will start"),
    "a_gang_that_can_be_smaller": (torch(20), 0, f"spec.{WORKER}.replicas: set replicas: 15; 21 {TOGETHER} 21 GPUs, {ALL}; "
        f"or {RAISE}"),
    "once_others_have_ended": (torch(20), 4, f"spec.{WORKER}.replicas: set replicas: 15, and wait until that much is free; "
        f"21 {TOGETHER} 21 GPUs, {ALL}; or {RAISE}"),
    "workers_of_ray": (ray(8), 11, "spec.workerGroupSpecs[0].replicas: set replicas: 5; needs 8 GPUs; "
        "ml-training has 5 of 16 free: 5 of 8 pods will start"),
    "not_fewer_than_min_replicas": (ray(8, least=6), 11, "spec.workerGroupSpecs[0].template: wait until others release 3 GPUs; "
        "needs 8 GPUs; ml-training has 5 of 16 free: 5 of 8 pods will start"),
    "whole_groups": (lws(4, 4), 10, "spec.replicas: set replicas: 1; needs 16 GPUs; "
        "ml-training has 6 of 16 free: 4 of 16 pods will start"),
    "whole_groups_of_an_empty_quota": (lws(4, 5), 0, f"spec.replicas: set replicas: 3; needs 20 GPUs, {ALL}; "
        f"15 of 20 pods will start; or {RAISE}"),
    "jobs_of_several_pods": (jobset(4, 2), 11, "spec.replicatedJobs[0].replicas: set replicas: 2; needs 8 GPUs; "
        "ml-training has 5 of 16 free: 5 of 8 pods will start"),
    "pods_of_one_job": (jobset(1, 4, gpus=8), 0, "replicatedJobs[0]…parallelism: set parallelism: 2; needs 32 GPUs, "
        f"{ALL}; 2 of 4 pods will start; or {RAISE}"),
}  # fmt: skip


@cases(("document", "held", "want"), **CASES)
def test_what_is_told_where_some_fit(document: JSON, held: int, want: str) -> None:
    assert said(workload(document), granted({"gpus": held})) == [want]


@cases(("document", "held", "want"), **{name: case for name, case in CASES.items() if " set " in case[2]})
def test_so_many_fit_and_one_more_does_not(document: JSON, held: int, want: str) -> None:
    ledger = granted({"gpus": 0 if "wait until that" in want else held})
    found = check_workload(workload(document), GPUQuotaOptions(), context(Phase.TEMPLATE, ledger=ledger))
    [[edit]] = [edits for each in found for edits in each.choices]
    assert isinstance(edit, Edit)
    for value, fits in ((edit.value, True), (edit.value + 1, False)):
        edited = with_edits(document, [(path_parts(edit.path), value)])
        assert (said(workload(edited), ledger) == []) is fits
