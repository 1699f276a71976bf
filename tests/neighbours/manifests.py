"""Objects of the kinds of neighbours, as their users write them."""

from tests.builders import JSON


def jobset(name: str, jobs: int, pods: int, *, gpus: int = 1, **spec: object) -> JSON:
    """Return a JobSet of so many Jobs of so many pods, as in the examples of JobSet's own site."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [replicated("workers", jobs, pods, gpus)], **spec},
    }


def replicated(name: str, jobs: int, pods: int, gpus: int = 1, **fields: object) -> JSON:
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    job = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
    }
    return {"name": name, "replicas": jobs, "template": {"spec": job}, **fields}


def raycluster(name: str, workers: int, *, gpus: int = 1, **spec: object) -> JSON:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {**cluster(workers, gpus), **spec},
    }


def cluster(workers: int, gpus: int = 1) -> JSON:
    """Return the spec of a head without GPUs, and workers with so many each."""
    return {
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head", 0)},
        "workerGroupSpecs": [
            {
                "groupName": "gpus",
                "replicas": workers,
                "minReplicas": 0,
                "maxReplicas": 16,
                "rayStartParams": {},
                "template": template("ray-worker", gpus),
            }
        ],
    }


def template(name: str, gpus: int) -> JSON:
    limits = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "spec": {"containers": [{"name": name, "image": "rayproject/ray", "resources": {"limits": limits}}]}
    }
