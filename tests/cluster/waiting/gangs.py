"""Objects that are gangs, as their operators have them, and the pods of these."""

from typing import Any

from tests.builders import JSON
from tests.cluster.controllers import is_there
from tests.cluster.workload_kinds import install
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted
from tests.controlplane.gpuquota import Namespace

VOLCANO = "scheduling.volcano.sh/v1beta1"
TEMPLATE = {
    "spec": {
        "containers": [{"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "restartPolicy": "Never",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
}


def create(plane: ControlPlane, team: Namespace, document: JSON) -> Any:
    """Create an object, of whose kind anything is stored, and return it."""
    group, _, version = document["apiVersion"].rpartition("/")
    plural = f"{document['kind'].lower()}s"
    if group not in {"batch", "scheduling.k8s.io"}:
        install(plane.client(), group, version, document["kind"])
    served = f"/apis/{group}/{version}/namespaces/{team.name}/{plural}"
    assert is_there(plane, served)
    return accepted(plane.client().post(served, document))


def delete_job(plane: ControlPlane, team: Namespace, name: str) -> None:
    """Delete a Job, and leave its pods."""
    at = f"/apis/batch/v1/namespaces/{team.name}/jobs/{name}?propagationPolicy=Orphan"
    accepted(plane.client().delete(at))


def made(api_version: str, kind: str, spec: JSON, owner: JSON | None = None) -> JSON:
    metadata: JSON = {"name": "train"}
    if owner is not None:
        metadata["ownerReferences"] = [reference(owner)]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def reference(owner: JSON) -> JSON:
    metadata = owner["metadata"]
    names = {"name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], **names}


def job(name: str, pods: int, owner: JSON | None = None) -> JSON:
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": TEMPLATE}
    document = made("batch/v1", "Job", spec, owner)
    document["metadata"]["name"] = name
    return document


def pytorchjob(workers: int) -> JSON:
    roles = {
        "Master": {"replicas": 1, "template": TEMPLATE},
        "Worker": {"replicas": workers, "template": TEMPLATE},
    }
    return made("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": roles})


def pod_group(pods: int) -> JSON:
    return made(VOLCANO, "PodGroup", {"minMember": pods})


def member(gang: JSON) -> JSON:
    """Return the metadata of a pod of a PodGroup, or of an object that makes its pods itself."""
    if gang["kind"] == "PodGroup":
        return {"annotations": {"scheduling.k8s.io/group-name": gang["metadata"]["name"]}}
    index = {"batch.kubernetes.io/job-completion-index": "0"} if gang["kind"] == "Job" else {}
    return {"ownerReferences": [reference(gang)], "annotations": index}
