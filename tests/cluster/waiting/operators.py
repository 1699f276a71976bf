"""Objects whose operator the tests are: they make its pods, and replace those that end."""

from tests.builders import JSON
from tests.cluster.waiting.gangs import create, made, member
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane
from tests.controlplane.client import accepted


def template(gpus: int) -> JSON:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {"spec": {"containers": [{"name": "train", "image": "x", "resources": resources}]}}


def ray_cluster(workers: int = 4, gpus: int = 2) -> JSON:
    groups = [{"groupName": "gpu", "replicas": workers, "maxReplicas": 9, "template": template(gpus)}]
    spec = {"headGroupSpec": {"template": template(0)}, "workerGroupSpecs": groups}
    return made("ray.io/v1", "RayCluster", spec)


def pytorchjob() -> JSON:
    roles = {
        "Master": {"replicas": 1, "template": template(2)},
        "Worker": {"replicas": 3, "template": template(2)},
    }
    return made("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": roles})


def mpijob() -> JSON:
    roles = {
        "Launcher": {"replicas": 1, "template": template(0)},
        "Worker": {"replicas": 4, "template": template(2)},
    }
    return made("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": roles})


class Operator:
    """Makes the pods of an object, and replaces those that end."""

    def __init__(self, line: Line, plane: ControlPlane, document: JSON, pods: int = 4, gpus: int = 2) -> None:
        self.line, self.gpus = line, gpus
        self.owner = create(plane, line, document)
        group, plural = document["apiVersion"], f"{document['kind'].lower()}s"
        self.path = f"/apis/{group}/namespaces/{line.name}/{plural}/{document['metadata']['name']}"
        self.names = [self.make(f"worker-{number}") for number in range(pods)]
        assert line.starts(*self.names)

    def make(self, name: str) -> str:
        self.line.pod(name, self.gpus, metadata=member(self.owner))
        return name

    def replace(self, name: str, by: str) -> str:
        self.names[self.names.index(name)] = by
        return self.make(by)

    def delete(self) -> None:
        """Delete the object and its pods."""
        accepted(self.line.client.delete(self.path))
        for name in self.names:
            self.line.delete_pod(name)

    def change(self, spec: JSON) -> None:
        accepted(self.line.client.patch(self.path, {"spec": spec}))


def other_waits(line: Line, gpus: int = 2) -> None:
    line.in_a_later_second("other", gpus)
    assert line.waits("other")
    assert line.is_counted()
