"""Objects of the kinds by which people train and serve, around one pod; where that pod stands in them, and how many there are.

document = draw_workload(draw, pod)
template_of(document)              # its pod template; of a pod, the pod
KINDS[document["kind"]].number     # the field that says how many pods there are; () for a DaemonSet
"""

from collections.abc import Callable
from typing import NamedTuple

from policies.finding import Edits
from policies.pods.field_paths import Parts, path_parts, value_at
from tests.oracle import JSON
from tests.oracle.worlds import NAMESPACE, Draw


class Kind(NamedTuple):
    version: str
    plural: str
    template: Parts
    number: Parts
    spec: Callable[[JSON, int], JSON]
    """The spec around a template, of so many pods."""
    runs_to_completion: bool = False


SELECTOR = {"matchLabels": {"app": "train"}}
WITH_LAUNCHER = {"MPIJob", "RayCluster"}
"""Kinds with a second template."""
LAUNCHER = {"metadata": {}, "spec": {"containers": [{"name": "launcher", "image": "launcher"}]}}


def _job(template: JSON, count: int) -> JSON:
    return {"parallelism": count, "completions": count, "template": template}


def _replicas(template: JSON, count: int) -> JSON:
    return {"replicas": count, "selector": SELECTOR, "template": template}


KINDS = {
    "Job": Kind("batch/v1", "jobs", ("spec", "template"), ("spec", "parallelism"), _job, True),
    "CronJob": Kind(
        "batch/v1",
        "cronjobs",
        ("spec", "jobTemplate", "spec", "template"),
        ("spec", "jobTemplate", "spec", "parallelism"),
        lambda template, count: {
            "schedule": "0 3 * * *",
            "jobTemplate": {"spec": {"parallelism": count, "template": template}},
        },
        True,
    ),
    "Deployment": Kind("apps/v1", "deployments", ("spec", "template"), ("spec", "replicas"), _replicas),
    "StatefulSet": Kind(
        "apps/v1",
        "statefulsets",
        ("spec", "template"),
        ("spec", "replicas"),
        lambda template, count: {"serviceName": "train", **_replicas(template, count)},
    ),
    "DaemonSet": Kind(
        "apps/v1",
        "daemonsets",
        ("spec", "template"),
        (),
        lambda template, _: {"selector": SELECTOR, "template": template},
    ),
    "JobSet": Kind(
        "jobset.x-k8s.io/v1alpha2",
        "jobsets",
        ("spec", "replicatedJobs", 0, "template", "spec", "template"),
        ("spec", "replicatedJobs", 0, "replicas"),
        lambda template, count: {
            "replicatedJobs": [
                {"name": "workers", "replicas": count, "template": {"spec": _job(template, 1)}}
            ]
        },
        True,
    ),
    "MPIJob": Kind(
        "kubeflow.org/v2beta1",
        "mpijobs",
        ("spec", "mpiReplicaSpecs", "Worker", "template"),
        ("spec", "mpiReplicaSpecs", "Worker", "replicas"),
        lambda template, count: {
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": LAUNCHER},
                "Worker": {"replicas": count, "template": template},
            }
        },
        True,
    ),
    "PyTorchJob": Kind(
        "kubeflow.org/v1",
        "pytorchjobs",
        ("spec", "pytorchReplicaSpecs", "Worker", "template"),
        ("spec", "pytorchReplicaSpecs", "Worker", "replicas"),
        lambda template, count: {
            "pytorchReplicaSpecs": {"Worker": {"replicas": count, "template": template}}
        },
        True,
    ),
    "LeaderWorkerSet": Kind(
        "leaderworkerset.x-k8s.io/v1",
        "leaderworkersets",
        ("spec", "leaderWorkerTemplate", "workerTemplate"),
        ("spec", "replicas"),
        lambda template, count: {
            "replicas": count,
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
        },
    ),
    "RayCluster": Kind(
        "ray.io/v1",
        "rayclusters",
        ("spec", "workerGroupSpecs", 0, "template"),
        ("spec", "workerGroupSpecs", 0, "replicas"),
        lambda template, count: {
            "headGroupSpec": {"rayStartParams": {}, "template": LAUNCHER},
            "workerGroupSpecs": [
                {
                    "groupName": "gpus",
                    "replicas": count,
                    "minReplicas": 0,
                    "maxReplicas": count,
                    "rayStartParams": {},
                    "template": template,
                }
            ],
        },
    ),
}


def draw_workload(draw: Draw, pod: JSON) -> JSON:
    name = draw.choice(("Job", "Deployment", "DaemonSet", *KINDS))
    draw.features.add(name)
    kind, notes = KINDS[name], pod["metadata"].get("annotations")
    metadata = {"labels": {"app": "train"}, **({"annotations": notes} if notes else {})}
    template = {"metadata": metadata, "spec": pod["spec"]}
    if kind.runs_to_completion:
        template["spec"]["restartPolicy"] = "Never"
    else:
        template["spec"].pop("restartPolicy", None)
        template["spec"].pop("activeDeadlineSeconds", None)
    return {
        "apiVersion": kind.version,
        "kind": name,
        "metadata": {"name": "train", "namespace": NAMESPACE},
        "spec": kind.spec(template, draw.choice((1, 2, 3, 8))),
    }


def template_at(document: JSON) -> Parts:
    """Return where the pod template stands; () of a pod."""
    return () if document["kind"] == "Pod" else KINDS[document["kind"]].template


def edited_template(document: JSON, edits: Edits) -> Parts:
    """Return where the pod template stands that the edits change; where the GPUs are if they change none."""
    paths = (path_parts(edit.path) for edit in edits)
    found = (
        parts[: at + 1] for parts in paths for at, part in enumerate(parts) if str(part).endswith("emplate")
    )
    of_pods = (parts for parts in found if "containers" in (value_at(document, (*parts, "spec")) or {}))
    return next(of_pods, template_at(document))


def template_of(document: JSON) -> JSON:
    template: JSON = value_at(document, template_at(document))
    return template


def pod_of(document: JSON, edits: Edits = ()) -> JSON:
    """Return the pod, or that of the object: of several, the one that the edits change."""
    if document["kind"] == "Pod":
        return document
    template: JSON = value_at(document, edited_template(document, edits))
    metadata = {**template.get("metadata", {}), "name": "train", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
